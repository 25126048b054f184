"""Layer sets as people write them, and the draft directory that an engine reads."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import InputError
from toolkit.proposers import layer_set
from toolkit.proposers.layer_set import (
    ARCHITECTURE,
    LayerSkip,
    check_layers,
    choose_layers,
    format_layers,
    is_draft,
    parse_layers,
    read,
    write,
)

FACTS = Path(__file__).parents[2] / "data" / "models"
LAB = json.loads((FACTS / "lab--SmolLM2-135M-Instruct" / "config.json").read_text())
some_layers = st.integers(2, 80).flatmap(
    lambda count: st.tuples(
        st.just(count), st.sets(st.integers(0, count - 1), min_size=1, max_size=count - 1).map(sorted).map(tuple)
    )
)


class TestNames:
    def test_ranges_and_single_layers(self) -> None:
        assert parse_layers("0-3,28,29", 30) == (0, 1, 2, 3, 28, 29)

    def test_spaces_overlaps_and_any_order_are_read(self) -> None:
        assert parse_layers(" 5, 3 - 6,1", 30) == (1, 3, 4, 5, 6)

    @given(some_layers)
    def test_what_is_written_reads_back(self, case: tuple[int, tuple[int, ...]]) -> None:
        count, layers = case
        assert parse_layers(format_layers(layers), count) == layers

    def test_runs_of_three_become_ranges(self) -> None:
        assert format_layers([0, 1, 2, 4, 5, 9]) == "0-2,4,5,9"

    @pytest.mark.parametrize("text", ["", "a", "1,,2", "-1", "1-", "1.5", "1-2-3", "٣", "1;2", "99999999"])
    def test_what_is_no_layer_is_named(self, text: str) -> None:
        with pytest.raises(InputError, match="is no layer and no range"):
            parse_layers(text, 30)

    def test_a_layer_beyond_the_target_is_named(self) -> None:
        with pytest.raises(InputError, match="no layer 30; the target has 30, from 0 to 29"):
            parse_layers("28-30", 30)

    def test_a_range_backwards_is_refused(self) -> None:
        with pytest.raises(InputError, match="3-1 runs backwards"):
            parse_layers("3-1", 30)


class TestChoice:
    def test_exit_keeps_the_first_layers(self) -> None:
        assert choose_layers(30, exit_after=3) == (0, 1, 2)

    @given(some_layers)
    def test_skip_is_the_complement_of_keep(self, case: tuple[int, tuple[int, ...]]) -> None:
        count, layers = case
        rest = [layer for layer in range(count) if layer not in layers]
        assert choose_layers(count, skip=format_layers(rest)) == choose_layers(count, keep=format_layers(layers))

    @pytest.mark.parametrize("ways", [{}, {"keep": "1", "skip": "2"}, {"exit_after": 1, "skip": "2"}])
    def test_exactly_one_way(self, ways: dict[str, Any]) -> None:
        with pytest.raises(InputError, match="in exactly one way"):
            choose_layers(30, **ways)

    @pytest.mark.parametrize("ways", [{"skip": "0-29"}, {"exit_after": 0}])
    def test_all_skipped_is_refused(self, ways: dict[str, Any]) -> None:
        with pytest.raises(InputError, match="all layers are skipped"):
            choose_layers(30, **ways)

    @pytest.mark.parametrize("ways", [{"keep": "0-29"}, {"exit_after": 30}])
    def test_nothing_skipped_is_refused(self, ways: dict[str, Any]) -> None:
        with pytest.raises(InputError, match="nothing is skipped"):
            choose_layers(30, **ways)

    @pytest.mark.parametrize("after", [-1, 31])
    def test_an_exit_outside_the_model_is_refused(self, after: int) -> None:
        with pytest.raises(InputError, match="the target has 30 layers"):
            choose_layers(30, exit_after=after)

    @pytest.mark.parametrize(("layers", "fault"), [((3, 1), "rising"), ((1, 1), "rising"), ((-1, 2), "no layer -1")])
    def test_layers_of_elsewhere_are_checked(self, layers: tuple[int, ...], fault: str) -> None:
        with pytest.raises(InputError, match=fault):
            check_layers(layers, 30)


class TestDirectory:
    def test_it_holds_a_config_of_a_few_kilobytes_and_nothing_else(self, tmp_path: Path) -> None:
        write(tmp_path / "new" / "draft", "lab", LAB, range(28))
        (file,) = (tmp_path / "new" / "draft").iterdir()
        assert file.name == "config.json"
        assert file.stat().st_size < 4096

    def test_what_is_written_reads_back(self, tmp_path: Path) -> None:
        made = write(tmp_path, "lab/SmolLM2-135M-Instruct", LAB, (0, 1, 29))
        assert read(tmp_path) == made
        assert (made.target, made.layers, made.num_hidden_layers) == ("lab/SmolLM2-135M-Instruct", (0, 1, 29), 30)

    def test_an_engine_reads_it_as_a_draft_of_so_many_layers(self, tmp_path: Path) -> None:
        write(tmp_path, "lab", {**LAB, "layer_types": ["full_attention"] * 30}, (0, 1, 29))
        config = json.loads((tmp_path / "config.json").read_text())
        assert config["architectures"] == [ARCHITECTURE]
        assert config["num_hidden_layers"] == len(config["layer_types"]) == 3
        assert {key: config[key] for key in ("model_type", "vocab_size", "hidden_size")} == {
            key: LAB[key] for key in ("model_type", "vocab_size", "hidden_size")
        }

    def test_code_of_the_hub_is_not_carried_along(self, tmp_path: Path) -> None:
        write(tmp_path, "lab", {**LAB, "auto_map": {"AutoConfig": "x.py"}}, (0,))
        assert "auto_map" not in json.loads((tmp_path / "config.json").read_text())

    @pytest.mark.parametrize("name", ["eagle", "my-EAGLE3-draft", "dflash", "x.dspark"])
    def test_a_path_that_flips_the_method_is_refused(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(InputError, match="another method"):
            write(tmp_path / name / "draft", "lab", LAB, (0,))
        assert not (tmp_path / name).exists()

    def test_a_directory_that_holds_something_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.txt").write_text("mine")
        with pytest.raises(InputError, match="not an empty directory"):
            write(tmp_path, "lab", LAB, (0,))

    def test_a_file_in_its_place_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "draft").write_text("mine")
        with pytest.raises(InputError, match="not an empty directory"):
            write(tmp_path / "draft", "lab", LAB, (0,))

    def test_a_place_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match="Not a directory"):
            write(tmp_path / "file" / "draft", "lab", LAB, (0,))

    @pytest.mark.parametrize("layers", [(), range(30), (30,), (2, 1)])
    def test_layers_that_cannot_be_leave_nothing_behind(self, tmp_path: Path, layers: tuple[int, ...]) -> None:
        with pytest.raises(InputError):
            write(tmp_path / "draft", "lab", LAB, layers)
        assert not (tmp_path / "draft").exists()

    def test_a_config_without_layers_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no num_hidden_layers"):
            write(tmp_path / "draft", "lab", {}, (0,))


class TestReading:
    def test_ours_is_known_from_any_other(self, tmp_path: Path) -> None:
        write(tmp_path / "ours", "lab", LAB, (0,))
        assert is_draft(tmp_path / "ours")
        assert not is_draft(FACTS / "lab--SmolLM2-135M-Instruct")
        assert not is_draft(tmp_path / "nowhere")

    def test_any_other_is_refused(self) -> None:
        with pytest.raises(InputError, match="no draft made by"):
            read(FACTS / "lab--SmolLM2-135M-Instruct")

    @pytest.mark.parametrize("content", ["", "[]", "{", "null", '{"toolkit_layer_skip": 3}'])
    def test_a_broken_file_is_named(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(InputError, match=r"config\.json"):
            read(tmp_path)

    @pytest.mark.parametrize("change", [{"layers": [0, 99]}, {"layers": []}, {"layers": ["a"]}, {"layers": [1.5]}])
    def test_an_edited_file_that_says_what_cannot_be_is_refused(self, tmp_path: Path, change: dict[str, Any]) -> None:
        write(tmp_path, "lab", LAB, (0,))
        file = tmp_path / "config.json"
        config = json.loads(file.read_text())
        config[layer_set.KEY] |= change
        file.write_text(json.dumps(config))
        with pytest.raises(InputError, match="Make the draft directory anew"):
            read(tmp_path)


class TestTarget:
    made = LayerSkip(target="lab", layers=(0,), num_hidden_layers=30, shape={"hidden_size": 576})

    def test_the_same_model_fits(self) -> None:
        assert self.made.mismatch(LAB) is None

    def test_another_depth_is_named(self) -> None:
        assert self.made.mismatch({**LAB, "num_hidden_layers": 32}) == (
            "it was made for lab; this target has num_hidden_layers 32, not 30"
        )

    def test_another_width_is_named(self) -> None:
        assert "hidden_size 960, not 576" in str(self.made.mismatch({**LAB, "hidden_size": 960}))
