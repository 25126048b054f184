"""lab-reference: the reference loop as an engine that profiles can name."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from toolkit.engines import lab
from toolkit.engines.contract import Profile
from toolkit.engines.lab import LabReference
from toolkit.engines.vllm import VLLM
from toolkit.errors import EngineError, InputError
from toolkit.launch.models import config_folder
from toolkit.launch.profile import load_profile

DRAFT = {"method": "draft_model", "draft": "a/b", "num_speculative_tokens": 3}
STREAM = Path(__file__).parents[2] / "data" / "vllm" / "stream.jsonl"
PAGE = Path(__file__).parents[2] / "data" / "vllm" / "metrics.txt"


def profile(**changes: Any) -> Profile:
    values = {"name": "p", "engine": "lab-reference", "device": "cpu", "target": {"model": "a/b"}}
    return Profile.model_validate({**values, **changes})


def argv(**changes: Any) -> list[str]:
    return list(LabReference().command(profile(**changes), lambda name: f"/models/{name}").argv)


def value(argv: list[str], flag: str) -> str | None:
    return argv[argv.index(flag) + 1] if flag in argv else None


class TestCommand:
    def test_it_is_this_python_serving_the_lab(self) -> None:
        assert argv()[:5] == [sys.executable, "-m", "toolkit", "lab", "serve"]

    @pytest.mark.parametrize(
        ("changes", "flag", "expected"),
        [
            ({}, "--target", "/models/a/b"),
            ({}, "--served-name", "a/b"),
            ({"target": {"model": "a/b", "served_name": "me"}}, "--served-name", "me"),
            ({"server": {"host": "::1", "port": 7}}, "--host", "::1"),
            ({"server": {"port": 7}}, "--port", "7"),
            ({"limits": {"max_model_len": 512}}, "--max-model-len", "512"),
            ({}, "--max-model-len", None),
            ({}, "--drafter", "none"),
            ({"speculation": DRAFT}, "--drafter", "model"),
            ({"speculation": DRAFT}, "--draft", "/models/a/b"),
            ({"speculation": DRAFT}, "--k", "3"),
            ({"speculation": {**DRAFT, "options": {"layers": [0, 2]}}}, "--drafter", "layers"),
            ({"speculation": {**DRAFT, "options": {"layers": [0, 2]}}}, "--layers", "0,2"),
            ({"speculation": {"method": "ngram", "num_speculative_tokens": 5}}, "--k", "5"),
        ],
    )
    def test_what_the_profile_says_is_what_it_is_told(
        self, changes: dict[str, Any], flag: str, expected: str | None
    ) -> None:
        assert value(argv(**changes), flag) == expected

    @pytest.mark.parametrize(
        ("lengths", "expected"),
        [
            ({}, "2,5"),
            ({"lookup_min": 3, "lookup_max": 4}, "3,4"),
            ({"lookup_min": 7}, "7,7"),
            ({"lookup_max": 1}, "1,1"),
        ],
    )
    def test_lookup_lengths_are_those_that_vllm_would_take(self, lengths: dict[str, int], expected: str) -> None:
        speculation = {"method": "ngram", "num_speculative_tokens": 2, **lengths}
        assert value(argv(speculation=speculation), "--lookup") == expected

    def test_further_arguments_are_passed_on(self) -> None:
        assert argv(engine_args=["--fault", "no-rollback"])[-2:] == ["--fault", "no-rollback"]

    def test_the_environment_is_the_profiles(self) -> None:
        command = LabReference().command(profile(environment={"OMP_NUM_THREADS": "1"}), str)
        assert command.env == {"OMP_NUM_THREADS": "1"}

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"device": "gpu"}, "device gpu"),
            ({"container": {"image": "x"}}, "container"),
            ({"target": {"model": "a/b", "dtype": "bfloat16"}}, "target.dtype bfloat16"),
            ({"target": {"model": "a/b", "quantization": "fp8"}}, "target.quantization"),
            ({"target": {"model": "a/b", "revision": "main"}}, "target.revision"),
            ({"limits": {"tensor_parallel": 2}}, "limits.tensor_parallel"),
            ({"speculation": {"method": "suffix", "num_speculative_tokens": 2}}, "speculation.method suffix"),
            ({"speculation": {**DRAFT, "method": "eagle"}}, "speculation.method eagle"),
            ({"speculation": {**DRAFT, "schedule": [[1, 4, 0]]}}, "speculation.schedule"),
            ({"speculation": {**DRAFT, "options": {"foo": 1}}}, "speculation.options.foo"),
            ({"speculation": {**DRAFT, "draft": "c/d", "options": {"layers": [1]}}}, "speculation.draft as a/b"),
            ({"speculation": {**DRAFT, "options": {"layers": [1, "2"]}}}, "speculation.options.layers: a list"),
            ({"speculation": {**DRAFT, "options": {"layers": []}}}, "speculation.options.layers: a list"),
            (
                {"speculation": {"method": "ngram", "num_speculative_tokens": 2, "options": {"layers": [1]}}},
                "speculation.options.layers",
            ),
        ],
    )
    def test_what_the_loop_has_not_is_refused(self, changes: dict[str, Any], said: str) -> None:
        with pytest.raises(InputError) as caught:
            argv(**changes)
        assert said in str(caught.value)


class TestCheck:
    @pytest.fixture(autouse=True)
    def _installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lab, "_installed", lambda: True)

    @pytest.fixture
    def configs(self, tmp_path: Path) -> Any:
        """Gives the folder of a model: `a/b` of 4 layers, `c/d` with another vocabulary, `e/f` without a config."""
        for name, vocabulary in (("a/b", 10), ("c/d", 11)):
            (tmp_path / name).mkdir(parents=True)
            facts = {"vocab_size": vocabulary, "num_hidden_layers": 4, "max_position_embeddings": 100}
            (tmp_path / name / "config.json").write_text(json.dumps(facts))
        return lambda name: str(tmp_path / name)

    def problems(self, configs: Any, **changes: Any) -> list[str]:
        return LabReference().check(profile(**changes), configs)

    @pytest.mark.parametrize("name", ["lab-reference", "lab-reference-lookup"])
    def test_the_shipped_profiles_pass(self, name: str) -> None:
        assert LabReference().check(load_profile(name), config_folder) == []

    def test_a_draft_of_layers_passes(self, configs: Any) -> None:
        assert self.problems(configs, speculation={**DRAFT, "options": {"layers": [0, 3]}}) == []

    def test_a_layer_that_is_not_there(self, configs: Any) -> None:
        found = self.problems(configs, speculation={**DRAFT, "options": {"layers": [0, 4, 5]}})
        assert found == ["speculation.options.layers: the target has no layer 4."]

    def test_a_draft_with_another_vocabulary(self, configs: Any) -> None:
        found = self.problems(configs, speculation={**DRAFT, "draft": "c/d"})
        assert found == ["target and draft have vocabularies of 10 and 11 tokens."]

    def test_longer_than_the_model(self, configs: Any) -> None:
        found = self.problems(configs, limits={"max_model_len": 101})
        assert found == ["limits.max_model_len 101 is longer than the 100 that the model was made for."]

    @pytest.mark.parametrize("content", ["{", "[]", "\udcff"])
    def test_a_config_that_cannot_be_read(self, configs: Any, content: str) -> None:
        Path(configs("a/b"), "config.json").write_bytes(content.encode(errors="surrogateescape"))
        with pytest.raises(InputError, match=r"config\.json: "):
            self.problems(configs)

    def test_what_the_loop_has_not_is_refused_here_too(self, configs: Any) -> None:
        with pytest.raises(InputError, match="device gpu"):
            self.problems(configs, device="gpu")


class TestInstalled:
    def test_without_torch_nothing_can_be_checked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lab, "_NEEDS", ("no_such_module",))
        with pytest.raises(EngineError, match="with torch and transformers"):
            LabReference().check(profile(), str)

    def test_without_torch_it_has_no_version(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lab, "_NEEDS", ("no_such_module",))
        assert LabReference().installed_version() is None

    def test_its_version_tells_what_it_runs_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lab, "_installed", lambda: True)
        monkeypatch.setattr(lab, "version", lambda name: f"5 of {name}")
        assert (LabReference().installed_version() or "").endswith("(transformers 5 of transformers)")


class TestDialect:
    """What it says is read as vLLM's."""

    def test_the_counts_of_a_response(self) -> None:
        chunks = [json.loads(line) for line in STREAM.read_text().splitlines()]
        assert LabReference().spec_counts(chunks[-1]) == VLLM().spec_counts(chunks[-1])

    def test_the_tokens_of_a_chunk(self) -> None:
        assert LabReference().chunk_tokens({"choices": [{"token_ids": [1, 2]}]}) == 2

    def test_the_page(self) -> None:
        assert LabReference().counters(PAGE.read_text()) == VLLM().counters(PAGE.read_text())

    def test_the_passes(self) -> None:
        counts = VLLM().spec_counts(json.loads(STREAM.read_text().splitlines()[-1]))
        assert counts is not None
        assert LabReference().passes(30, [1, 1, 2, 5, 5, 2, 1, 1, 1, 1, 5, 5], counts) == (12, 12)

    def test_what_a_request_asks_for(self) -> None:
        assert LabReference().request_fields() == {"return_token_ids": True}

    def test_there_is_no_load_to_schedule_by(self) -> None:
        assert "one request at a time" in (LabReference().schedule_refusal(profile()) or "")

    def test_it_has_one_way_of_scheduling(self) -> None:
        assert LabReference().scheduling(profile()) is None
