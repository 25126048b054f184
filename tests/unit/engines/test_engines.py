"""The list of engines, the contract that each keeps, and the endpoint that is only talked to."""

import inspect

import pytest
from pydantic import ValidationError

from toolkit.engines import ENGINES, engine
from toolkit.engines.contract import Container, Counters, Engine, Profile, SpecCounts, Speculation
from toolkit.engines.openai import OpenAIEndpoint
from toolkit.errors import InputError

METHODS = [name for name, member in vars(Engine).items() if inspect.isfunction(member) and not name.startswith("_")]
MINIMAL = {"name": "p", "engine": "openai", "target": {"model": "a/b"}}
PROFILE = Profile.model_validate(MINIMAL)


class TestList:
    @pytest.mark.parametrize("name", ENGINES)
    def test_an_engine_is_found_under_its_own_name(self, name: str) -> None:
        assert engine(name).name == name

    @pytest.mark.parametrize("name", ENGINES)
    @pytest.mark.parametrize("method", METHODS)
    def test_each_has_every_method_of_the_contract(self, name: str, method: str) -> None:
        ours = inspect.signature(getattr(ENGINES[name], method))
        asked = inspect.signature(getattr(Engine, method))
        assert list(ours.parameters) == [parameter for parameter in asked.parameters if parameter != "self"]

    def test_an_unknown_one_is_refused_naming_the_nearest(self) -> None:
        with pytest.raises(InputError, match="Did you mean 'vllm'"):
            engine("vlm")

    def test_one_that_resembles_none_is_refused_naming_all(self) -> None:
        with pytest.raises(InputError, match="Known: vllm, openai"):
            engine("zzz")


class TestEndpoint:
    def test_its_schedule_is_not_ours_to_set(self) -> None:
        assert "the schedule that it was started with" in (OpenAIEndpoint().schedule_refusal(PROFILE) or "")

    def test_it_cannot_be_launched_and_the_refusal_says_what_to_do(self) -> None:
        with pytest.raises(InputError, match="sweep --base-url"):
            OpenAIEndpoint().command(PROFILE, str)

    def test_it_adds_nothing_to_a_request(self) -> None:
        assert OpenAIEndpoint().request_fields() == {}

    def test_its_chunks_do_not_tell_their_tokens(self) -> None:
        assert OpenAIEndpoint().chunk_tokens({"choices": [{"token_ids": [1, 2]}]}) is None

    def test_its_acceptance_is_unavailable(self) -> None:
        assert OpenAIEndpoint().spec_counts({"choices": []}) is None

    def test_its_passes_are_unavailable(self) -> None:
        assert OpenAIEndpoint().passes(5, [5], SpecCounts(1, 4, 4)) is None

    def test_its_counters_are_unavailable(self) -> None:
        assert OpenAIEndpoint().counters("anything") == Counters()


class TestModels:
    def test_an_image_is_referred_to_by_its_digest_when_pinned(self) -> None:
        digest = "sha256:" + "0" * 64
        assert Container(image="a/b:1", digest=digest).reference == f"a/b:1@{digest}"

    def test_the_served_model_is_the_targets_own_name_by_default(self) -> None:
        assert PROFILE.served_model == "a/b"

    @pytest.mark.parametrize("method", ["draft_model", "eagle", "eagle3", "medusa"])
    def test_a_method_with_a_draft_needs_one(self, method: str) -> None:
        with pytest.raises(ValueError, match="needs `draft`"):
            Speculation.model_validate({"method": method, "num_speculative_tokens": 2})

    @pytest.mark.parametrize("method", ["ngram", "mtp", "suffix"])
    def test_a_method_without_a_draft_takes_none(self, method: str) -> None:
        with pytest.raises(ValueError, match="takes no `draft`"):
            Speculation.model_validate({"method": method, "num_speculative_tokens": 2, "draft": "a/b"})

    def test_lookup_lengths_belong_to_ngram(self) -> None:
        with pytest.raises(ValueError, match="belong to method ngram"):
            Speculation(method="mtp", num_speculative_tokens=2, lookup_max=4)

    def test_the_shortest_lookup_is_not_above_the_longest(self) -> None:
        with pytest.raises(ValueError, match="lookup_min 6 is above lookup_max 4"):
            Speculation(method="ngram", num_speculative_tokens=2, lookup_min=6, lookup_max=4)

    @pytest.mark.parametrize(
        ("schedule", "why"),
        [
            ([[2, 4, 1]], "ranges start at 1"),
            ([[1, 4, 2], [6, 8, 0]], "without a gap"),
            ([[1, 4, 2], [4, 8, 0]], "without a gap"),
            ([[1, 4, 2], [5, 4, 0]], "do not end before they begin"),
            ([[1, 4, 5]], "K is above num_speculative_tokens"),
            ([[1, 4, -1]], "greater than or equal to 0"),
            ([[1, 4]], "Field required"),
        ],
    )
    def test_a_schedule_with_a_fault_is_refused(self, schedule: list[list[int]], why: str) -> None:
        with pytest.raises(ValueError, match=why):
            Speculation.model_validate({"method": "ngram", "num_speculative_tokens": 4, "schedule": schedule})

    def test_a_right_schedule_is_taken(self) -> None:
        spec = {"method": "ngram", "num_speculative_tokens": 5, "schedule": [[1, 16, 5], [17, 64, 0]]}
        assert Speculation.model_validate(spec).schedule == [(1, 16, 5), (17, 64, 0)]


@pytest.mark.parametrize("name", ["HF_TOKEN", "VLLM_API_KEY", "aws_secret", "DB_PASSWORD"])
def test_a_profile_refuses_a_secret_in_its_environment(name: str) -> None:
    with pytest.raises(ValidationError, match="is a secret"):
        Profile.model_validate({**MINIMAL, "environment": {name: "hunter2"}})


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "CUDA_VISIBLE_DEVICES", "KEYBOARD"])
def test_a_profile_takes_an_environment_that_only_looks_like_one(name: str) -> None:
    assert name in Profile.model_validate({**MINIMAL, "environment": {name: "1"}}).environment


@pytest.mark.parametrize("argument", ["--api-key", "--api-key=hunter2", "--hf-token=hunter2"])
def test_a_profile_refuses_a_secret_in_the_engines_arguments(argument: str) -> None:
    with pytest.raises(ValidationError, match="everyone on this machine"):
        Profile.model_validate({**MINIMAL, "engine_args": [argument]})


def test_a_profile_takes_arguments_about_tokens() -> None:
    arguments = ["--max-num-batched-tokens", "2048", "--tokenizer-mode=slow"]
    assert Profile.model_validate({**MINIMAL, "engine_args": arguments}).engine_args == arguments


@pytest.mark.parametrize("argument", ["--api_key=hunter2", "--hf_token"])
def test_underscores_hide_no_secret(argument: str) -> None:
    with pytest.raises(ValidationError, match="everyone on this machine"):
        Profile.model_validate({**MINIMAL, "engine_args": [argument]})


def test_a_container_takes_no_value_of_a_secret() -> None:
    with pytest.raises(ValidationError, match="give --env=HF_TOKEN alone"):
        Profile.model_validate({**MINIMAL, "container": {"image": "i", "arguments": ["--env=HF_TOKEN=hunter2"]}})
