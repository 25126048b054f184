"""`by_engine`: what a profile says for one engine, over its own keys and below the files that extend it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.errors import InputError
from toolkit.launch.profile import load_profile, shipped_profiles

BASE = "engine: vllm\ntarget:\n  model: a/b\nlimits: {max_num_seqs: 8}\n"
FOR_SGLANG = BASE + "by_engine:\n  sglang:\n    limits: {max_num_seqs: 4}\n"

ON_A_GPU = [name for name in shipped_profiles() if load_profile(name).container is not None]

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a profile's text beside the others; gives its path."""

    def write(text: str, name: str = "mine") -> str:
        path = tmp_path / f"{name}.yaml"
        path.write_text(text)
        return str(path)

    return write


def refusal(path: str, *changes: str, engine: str | None = None) -> str:
    """What the refusal of a profile says, with its own path as `FILE`."""
    with pytest.raises(InputError) as caught:
        load_profile(path, changes, engine)
    return str(caught.value).replace(path, "FILE")


class TestMerge:
    def test_the_entry_of_the_chosen_engine_goes_over_the_profile(self, write: Write) -> None:
        assert load_profile(write(FOR_SGLANG), engine_name="sglang").limits.max_num_seqs == 4

    def test_that_of_another_engine_does_not(self, write: Write) -> None:
        assert load_profile(write(FOR_SGLANG)).limits.max_num_seqs == 8

    def test_a_change_chooses_the_engine_too(self, write: Write) -> None:
        assert load_profile(write(FOR_SGLANG), ["engine=sglang"]).limits.max_num_seqs == 4

    def test_so_does_the_engine_of_a_file(self, write: Write) -> None:
        write(FOR_SGLANG, "parent")
        assert load_profile(write("extends: parent\nengine: sglang\n")).limits.max_num_seqs == 4

    def test_an_engine_without_an_entry_sees_the_profile(self, write: Write) -> None:
        assert load_profile(write(FOR_SGLANG), engine_name="openai").limits.max_num_seqs == 8

    def test_keys_beside_the_changed_one_stay(self, write: Write) -> None:
        text = FOR_SGLANG.replace("max_num_seqs: 8", "max_num_seqs: 8, max_model_len: 512")
        assert load_profile(write(text), engine_name="sglang").limits.max_model_len == 512

    def test_a_null_takes_the_key_away(self, write: Write) -> None:
        text = FOR_SGLANG.replace("max_num_seqs: 4", "max_num_seqs: null")
        assert load_profile(write(text), engine_name="sglang").limits.max_num_seqs is None

    def test_a_change_has_the_last_word(self, write: Write) -> None:
        profile = load_profile(write(FOR_SGLANG), ["limits.max_num_seqs=2"], "sglang")
        assert profile.limits.max_num_seqs == 2


class TestExtends:
    def test_an_entry_is_inherited(self, write: Write) -> None:
        write(FOR_SGLANG, "parent")
        assert load_profile(write("extends: parent\n"), engine_name="sglang").limits.max_num_seqs == 4

    def test_a_file_has_the_last_word_over_the_entry_of_the_one_it_extends(self, write: Write) -> None:
        write(FOR_SGLANG, "parent")
        text = "extends: parent\nlimits: {max_num_seqs: 2}\n"
        assert load_profile(write(text), engine_name="sglang").limits.max_num_seqs == 2

    def test_entries_merge_key_by_key(self, write: Write) -> None:
        write(FOR_SGLANG, "parent")
        text = "extends: parent\nby_engine: {sglang: {limits: {max_model_len: 512}}}\n"
        limits = load_profile(write(text), engine_name="sglang").limits
        assert (limits.max_num_seqs, limits.max_model_len) == (4, 512)

    @pytest.mark.parametrize("text", ["by_engine: {sglang: null}\n", "by_engine: null\n"])
    def test_a_null_takes_the_entries_below_away(self, write: Write, text: str) -> None:
        write(FOR_SGLANG, "parent")
        write("extends: parent\n" + text, "middle")
        assert load_profile(write("extends: middle\n"), engine_name="sglang").limits.max_num_seqs == 8


class TestRefusals:
    def test_a_fault_is_shown_at_its_line_in_the_entry(self, write: Write) -> None:
        text = FOR_SGLANG.replace("limits: {max_num_seqs: 4}", "limits:\n      max_num_seqs: many")
        said = refusal(write(text), engine="sglang")
        assert said.startswith("FILE:8: limits.max_num_seqs: ")

    def test_it_is_found_before_that_engine_is_chosen(self, write: Write) -> None:
        text = FOR_SGLANG.replace("max_num_seqs: 4", "max_num_sequences: 4")
        said = refusal(write(text))
        assert said == "FILE:7: unknown key 'limits.max_num_sequences': did you mean 'max_num_seqs'?"

    def test_a_fault_of_the_parents_entry_is_shown_in_the_parents_file(self, write: Write, tmp_path: Path) -> None:
        write(FOR_SGLANG.replace("max_num_seqs: 4", "max_num_seqs: 0"), "parent")
        assert refusal(write("extends: parent\n"), engine="sglang").startswith(f"{tmp_path}/parent.yaml:7: ")

    def test_a_fault_beside_the_entry_is_shown_where_it_stands(self, write: Write) -> None:
        text = FOR_SGLANG.replace("max_num_seqs: 8", "max_model_len: 1")
        assert refusal(write(text), engine="sglang").startswith("FILE:4: limits.max_model_len: ")

    def test_an_unknown_engine_is_refused_naming_the_nearest(self, write: Write) -> None:
        said = refusal(write(FOR_SGLANG.replace("  sglang:", "  sglan:")))
        assert said == "FILE:6: unknown engine 'by_engine.sglan': did you mean 'sglang'?"

    @pytest.mark.parametrize("key", ["name: a", "engine: vllm", "extends: lab-ngram", "by_engine: {}"])
    def test_what_is_the_same_for_all_engines_is_refused(self, write: Write, key: str) -> None:
        said = refusal(write(FOR_SGLANG + f"    {key}\n"))
        assert said == f"FILE:8: by_engine.sglang: `{key.partition(':')[0]}` is the same for all engines."

    def test_a_list_is_no_mapping(self, write: Write) -> None:
        assert refusal(write(BASE + "by_engine: [sglang]\n")) == (
            "FILE:5: `by_engine` is a mapping from an engine to keys of a profile."
        )

    def test_nor_is_a_word_under_an_engine(self, write: Write) -> None:
        said = refusal(write(BASE + "by_engine:\n  sglang: image\n"))
        assert said == "FILE:6: by_engine.sglang is a mapping of keys of a profile."

    def test_a_change_of_the_entry_is_refused_with_the_way(self, write: Write) -> None:
        said = refusal(write(FOR_SGLANG), "by_engine.sglang.limits.max_num_seqs=2")
        assert "set the key itself" in said

    def test_a_mistyped_key_names_it(self, write: Write) -> None:
        assert "did you mean 'by_engine'?" in refusal(write(BASE + "by_engines: {}\n"))


class TestImages:
    def test_an_image_of_another_engine_is_refused_at_its_line_with_what_to_write(self, write: Write) -> None:
        said = refusal(write(BASE + "container:\n  image: vllm/vllm-openai:v0.32.0\n"), engine="sglang")
        assert said.startswith("FILE:6: the image vllm/vllm-openai:v0.32.0 is of vllm, and the engine is sglang.")
        assert "  by_engine:\n    sglang:\n      container: {image: ...}\n" in said

    def test_it_is_the_same_the_other_way_round(self, write: Write) -> None:
        said = refusal(write(BASE + "container: {image: lmsysorg/sglang:latest}\n"))
        assert "is of sglang, and the engine is vllm" in said

    def test_an_image_that_bears_no_engines_name_is_taken(self, write: Write) -> None:
        text = BASE + "container: {image: registry.example/inference:7}\n"
        assert load_profile(write(text), engine_name="sglang").container is not None

    @pytest.mark.parametrize("name", ON_A_GPU)
    def test_each_shipped_profile_for_a_gpu_has_an_image_of_sglang(self, name: str) -> None:
        container = load_profile(name, engine_name="sglang").container
        assert container is not None
        assert container.image.startswith("lmsysorg/sglang:")

    @pytest.mark.parametrize("name", ON_A_GPU)
    def test_and_stays_vllms_for_vllm(self, name: str) -> None:
        container = load_profile(name).container
        assert container is not None
        assert container.image.startswith("vllm/")
