"""Method layer_skip in a profile: its words, the draft that they name, what vLLM is told."""

import json
from typing import Any

import pytest
import yaml

from toolkit.engines.contract import Profile, Speculation
from toolkit.engines.vllm import VLLM
from toolkit.launch.profile import load_profile

ENGINE = VLLM()


def profile(**speculation: Any) -> Profile:
    given = {"method": "layer_skip", "num_speculative_tokens": 3, **speculation}
    return Profile.model_validate({"name": "p", "engine": "vllm", "target": {"model": "a/b"}, "speculation": given})


def command(of: Profile) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """The speculative config, the environment, the whole argv."""
    what = ENGINE.command(of, lambda name: f"<{name}>")
    argv = list(what.argv)
    return json.loads(argv[argv.index("--speculative-config") + 1]), what.env, argv


class TestTheDraft:
    @pytest.mark.parametrize("layers", ["0-3,28,29", " 0-3, 28, 29 "])
    def test_it_is_named_after_the_target_and_its_layers(self, layers: str) -> None:
        found = profile(layers=layers).speculation
        assert found is not None
        assert found.draft == "a/b#layers=0-3,28,29"

    @pytest.mark.parametrize("layers", [[0, 1, 5], "0,1,5"])
    def test_layers_may_be_a_list(self, layers: Any) -> None:
        found = profile(layers=layers).speculation
        assert found is not None
        assert (found.layers, found.draft) == ("0,1,5", "a/b#layers=0,1,5")

    def test_one_layer_is_a_number_in_yaml(self) -> None:
        found = profile(**yaml.safe_load("layers: 5")).speculation
        assert found is not None
        assert found.draft == "a/b#layers=5"

    def test_a_profile_that_was_read_can_be_read_again(self) -> None:
        once = profile(layers="0-3")
        assert Profile.model_validate(once.model_dump()) == once

    def test_a_directory_may_be_given_in_their_place(self) -> None:
        found = profile(draft="/d").speculation
        assert found is not None
        assert (found.draft, found.layers) == ("/d", None)

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ({}, "needs `layers`, like 0-3,28,29, or `draft`"),
            ({"layers": "0-3", "draft": "/d"}, "give one"),
            ({"layers": "first four"}, "layers"),
            ({"layers": [0, "x"]}, "layers"),
            ({"layers": "0-3", "layer_cache": "both"}, "layer_cache"),
            ({"layers": "0-3", "lookup_max": 3}, "belong to method ngram"),
        ],
    )
    def test_what_is_unclear_is_refused(self, words: dict[str, Any], said: str) -> None:
        with pytest.raises(ValueError, match=said):
            profile(**words)

    def test_its_words_belong_to_it(self) -> None:
        with pytest.raises(ValueError, match="layers and layer_cache belong to method layer_skip, not ngram"):
            Speculation(method="ngram", num_speculative_tokens=2, layers="0-3")


class TestVllm:
    def test_it_is_a_draft_model_to_vllm(self) -> None:
        assert command(profile(layers="0-3"))[0] == {
            "method": "draft_model",
            "model": "<a/b#layers=0-3>",
            "num_speculative_tokens": 3,
        }

    def test_options_of_vllm_go_with_it(self) -> None:
        found = command(profile(layers="0-3", options={"draft_sample_method": "probabilistic"}))[0]
        assert found["draft_sample_method"] == "probabilistic"

    def test_model_runner_v1_is_pinned_for_the_shared_cache(self) -> None:
        assert command(profile(layers="0-3"))[1]["VLLM_USE_V2_MODEL_RUNNER"] == "0"
        assert command(profile(layers="0-3", layer_cache="shared"))[1]["VLLM_USE_V2_MODEL_RUNNER"] == "0"

    def test_a_cache_of_its_own_runs_on_either(self) -> None:
        assert "VLLM_USE_V2_MODEL_RUNNER" not in command(profile(layers="0-3", layer_cache="own"))[1]

    def test_what_the_environment_says_stands(self) -> None:
        asked = load_profile("lab-layer-skip", ["environment.VLLM_USE_V2_MODEL_RUNNER='1'"])
        assert command(asked)[1]["VLLM_USE_V2_MODEL_RUNNER"] == "1"

    def test_the_form_is_told_where_it_is_asked_for(self) -> None:
        argv = command(profile(layers="0-3", layer_cache="own"))[2]
        assert json.loads(argv[argv.index("--additional-config") + 1]) == {"toolkit": {"layer_cache": "own"}}
        assert "--additional-config" not in command(profile(layers="0-3"))[2]

    def test_other_methods_keep_the_runner_that_vllm_chooses(self) -> None:
        assert "VLLM_USE_V2_MODEL_RUNNER" not in ENGINE.command(load_profile("draft-1b"), lambda name: name).env

    @pytest.mark.parametrize(("name", "mode"), [("lab-layer-skip", "synchronous"), ("layer-skip-8b", "asynchronous")])
    def test_scheduling_is_that_of_a_draft_model(self, name: str, mode: str) -> None:
        assert ENGINE.scheduling(load_profile(name)) == mode

    def test_a_schedule_of_k_works(self) -> None:
        assert ENGINE.schedule_refusal(load_profile("lab-layer-skip")) is None


@pytest.mark.parametrize("name", ["lab-layer-skip", "layer-skip-8b", "layerskip-llama3-8b"])
def test_the_draft_of_a_shipped_profile_is_named_after_its_target(name: str) -> None:
    shipped = load_profile(name)
    assert shipped.speculation is not None
    assert (shipped.speculation.draft or "").startswith(f"{shipped.target.model}#layers=")
