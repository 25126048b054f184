"""Machine files: the shipped ones name the source of every number; a wrong one is refused by file, line and key."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.errors import InputError
from toolkit.launch import machines
from toolkit.launch.machines import Machine, load_machine, shipped_machines
from toolkit.launch.model_size import model_size

GOOD = """\
description: A made-up machine.
bandwidth_gb_s: 100
compute_tflops:
  bf16: 10
  fp8: 20
memory_gib: 16
memory_fraction: 0.9
bandwidth_efficiency: 0.8
compute_efficiency: 0.7
step_overhead_ms: 0
sources:
  - "all of it: made up"
"""
NUMBERS = [name for name in Machine.model_fields if name not in ("name", "description", "sources")]

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a machine's text (or bytes); gives its path."""

    def write(text: str | bytes, name: str = "mine") -> str:
        path = tmp_path / f"{name}.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def refusal(path: str) -> str:
    """What the refusal of a machine says, with its own path as `FILE`."""
    with pytest.raises(InputError) as caught:
        load_machine(path)
    return str(caught.value).replace(path, "FILE")


class TestShipped:
    def test_all_of_them(self) -> None:
        assert list(shipped_machines()) == ["a100-80g-sxm", "h100-sxm", "h200-sxm", "l40s", "rtx-4090", "spark"]

    @pytest.mark.parametrize("name", shipped_machines())
    def test_it_loads_under_its_own_name(self, name: str) -> None:
        assert load_machine(name).name == name

    @pytest.mark.parametrize("name", shipped_machines())
    @pytest.mark.parametrize("number", NUMBERS)
    def test_it_names_the_source_of_every_number(self, name: str, number: str) -> None:
        assert any(line.startswith(f"{number}: ") for line in load_machine(name).sources)

    def test_the_efficiency_of_spark_is_the_one_that_its_source_derives(self) -> None:
        derived = 13.1 * model_size("Qwen/Qwen3-8B").read_bytes / 273e9
        assert load_machine("spark").bandwidth_efficiency == pytest.approx(derived, abs=5e-4)

    @pytest.mark.parametrize("name", sorted(shipped_machines().keys() - {"spark"}))
    def test_an_efficiency_that_nobody_measured_is_called_assumed(self, name: str) -> None:
        lines = [line for line in load_machine(name).sources if re.match(r"(bandwidth|compute)_efficiency: ", line)]
        assert all("assumed" in line for line in lines)

    def test_they_are_found_in_an_installed_wheel(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "hardware").mkdir()
        (tmp_path / "hardware" / "only.yaml").write_text(GOOD)
        monkeypatch.setattr(machines, "configs_folder", lambda: tmp_path)
        assert load_machine("only").memory_gib == 16


class TestCompute:
    def test_an_arithmetic_that_the_machine_has(self, write: Write) -> None:
        assert load_machine(write(GOOD)).tflops("fp8") == 20

    def test_one_that_it_lacks_runs_in_bf16(self, write: Write) -> None:
        assert load_machine(write(GOOD)).tflops("fp4") == 10


class TestRefusals:
    def test_an_unknown_key_with_the_nearest_one(self, write: Write) -> None:
        text = GOOD.replace("bandwidth_gb_s: 100", "bandwidth_gbs: 100")
        assert "FILE:2: unknown key 'bandwidth_gbs': did you mean 'bandwidth_gb_s'?" in refusal(write(text))

    def test_an_unknown_arithmetic(self, write: Write) -> None:
        text = GOOD.replace("  fp8: 20", "  tf32: 20")
        assert refusal(write(text)) == "FILE:5: unknown key 'compute_tflops.tf32': known here: bf16, fp8, fp4."

    def test_a_missing_key(self, write: Write) -> None:
        assert refusal(write(GOOD.replace("memory_gib: 16\n", ""))) == "FILE:1: the key 'memory_gib' is missing."

    @pytest.mark.parametrize("value", ["0", "-1", "1.5", ".inf", ".nan", "many"])
    def test_a_share_that_is_none(self, write: Write, value: str) -> None:
        text = GOOD.replace("bandwidth_efficiency: 0.8", f"bandwidth_efficiency: {value}")
        assert refusal(write(text)).startswith("FILE:8: bandwidth_efficiency: ")

    def test_numbers_without_sources(self, write: Write) -> None:
        text = GOOD.replace('sources:\n  - "all of it: made up"', "sources: []")
        assert refusal(write(text)).startswith("FILE:11: sources: List should have at least 1 item")

    def test_an_unknown_name_with_the_nearest_one(self) -> None:
        assert "Did you mean spark? A path to a .yaml file works too." in refusal("sparc")

    def test_a_file_that_is_not_there(self) -> None:
        assert refusal("/nowhere/mine.yaml") == "machine FILE: cannot be read: No such file or directory."

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("a: [", "not valid YAML"),
            ("- a", "a machine is a mapping"),
            ("", "a machine is a mapping"),
            (b"\xff\xfe\xfd", "is not UTF-8 text"),
            ("a: \x00", "not valid YAML"),
            ("[" * 3000, "not valid YAML"),
        ],
    )
    def test_a_file_that_is_no_machine(self, write: Write, text: str | bytes, says: str) -> None:
        assert says in refusal(write(text))

    def test_a_name_that_could_not_be_shown(self, write: Write) -> None:
        assert "name: String should match pattern" in refusal(write(GOOD, "mine [red]"))
