"""The vLLM adapter on a configuration like vLLM's: options, what it asks of the config, its guard, its log lines."""

import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from slots import Engine, Request

from toolkit import proposers
from toolkit.errors import InputError
from toolkit.proposers import PromptLookupProposer, prompt_lookup
from toolkit.proposers.drafting import Totals
from toolkit.proposers.prompt_lookup import Options, caps_by_load, told

WIDTH = 300


def config(k: int = 4, requests: int = 4, schedule: Any = None, **options: Any) -> Any:
    """As much of a VllmConfig as is read; a draft config that is the target's, as custom_class has it."""
    model = SimpleNamespace(max_model_len=WIDTH)
    return SimpleNamespace(
        model_config=model,
        scheduler_config=SimpleNamespace(max_num_seqs=requests),
        speculative_config=SimpleNamespace(
            num_speculative_tokens=k, num_speculative_tokens_per_batch_size=schedule, draft_model_config=model
        ),
        additional_config={"toolkit": options} if options else {},
    )


def copying(length: int, times: int = 1, seed: int = 0) -> Request:
    prompt = np.random.default_rng(seed).integers(0, 1000, length).tolist()
    return Request(prompt, prompt * times)


def run(proposer: PromptLookupProposer, engine: Engine, *requests: Request) -> int:
    """Serve to the end; returns how many steps it took."""
    engine.waiting.extend(requests)
    steps = 0
    while not engine.idle:
        engine.step(proposer.propose)
        steps += 1
    return steps


@pytest.fixture(scope="module")
def shared() -> PromptLookupProposer:
    """For tests that leave it as it was."""
    return PromptLookupProposer(config())


class TestPropose:
    def test_copies_take_fewer_steps_than_tokens(self) -> None:
        requests = [copying(40, 3, seed) for seed in range(4)]
        steps = run(PromptLookupProposer(config()), Engine(4, WIDTH, budget=400), *requests)
        assert steps < 120 / 2

    def test_one_request_drafts_from_what_another_wrote(self) -> None:
        """Of the second one the prompt tells nothing: all that is kept comes from the first one's output."""
        proposer, text = PromptLookupProposer(config()), copying(60).prompt
        engine = Engine(4, WIDTH, budget=400)
        run(proposer, engine, Request([1, 2, 3], text))
        assert run(proposer, engine, Request([1, 2, 3], text)) < 60 / 2

    def test_unless_the_profile_keeps_them_apart(self) -> None:
        proposer, text = PromptLookupProposer(config(memory_tokens=0)), copying(60).prompt
        engine = Engine(4, WIDTH, budget=400)
        run(proposer, engine, Request([1, 2, 3], text))
        run(proposer, engine, Request([1, 2, 3], text))
        assert engine.accepted == 0

    def test_unknown_arguments_of_a_later_vllm_are_let_be(self, shared: PromptLookupProposer) -> None:
        assert shared.propose([], np.zeros(4, np.int32), np.zeros((4, WIDTH), np.int32), None, later=1) == []

    def test_tokens_are_plain_numbers(self) -> None:
        """vLLM sends them to its scheduler in another process."""
        proposer, seen = PromptLookupProposer(config()), []

        def propose(*batch: Any) -> list[list[int]]:
            seen.extend(drafts := proposer.propose(*batch))
            return drafts

        engine = Engine(4, WIDTH)
        engine.waiting.append(copying(20, 2))
        while not engine.idle:
            engine.step(propose)
        assert {type(token) for draft in seen for token in draft} == {int}


class TestConfig:
    def test_the_model_runner_asks_up_to_the_last_token(self) -> None:
        """It compares the longest sequence and K with the draft's max_model_len, and asks nobody beyond."""
        asked = config(k=4)
        PromptLookupProposer(asked)
        assert asked.speculative_config.draft_model_config.max_model_len >= WIDTH + 4

    def test_the_target_keeps_its_length(self) -> None:
        asked = config()
        PromptLookupProposer(asked)
        assert asked.model_config.max_model_len == WIDTH

    def test_a_config_without_a_draft_is_let_be(self) -> None:
        asked = config()
        asked.speculative_config.draft_model_config = None
        PromptLookupProposer(asked)
        assert asked.speculative_config.draft_model_config is None

    def test_a_schedule_that_switches_off_is_followed(self) -> None:
        proposer = PromptLookupProposer(config(schedule=[(1, 64, 0)]))
        assert run(proposer, Engine(4, WIDTH, budget=400), copying(40, 2)) == 80

    def test_the_modules_of_the_target_are_not_needed(self, shared: PromptLookupProposer) -> None:
        shared.load_model(object())


class TestCaps:
    @pytest.mark.parametrize(
        ("schedule", "caps"),
        [
            (None, [4] * 6),
            ([[1, 2, 3], [3, 3, 1], [4, 9, 0]], [4, 3, 3, 1, 0, 0]),
            ([[1, 2, 3]], [4, 3, 3, 3, 3, 3]),
            ([[3, 9, 1], [1, 2, 9]], [4, 4, 4, 1, 1, 1]),
        ],
        ids=["none", "by load", "the last one goes on", "never above K"],
    )
    def test_the_most_by_batch_size(self, schedule: list[list[int]] | None, caps: list[int]) -> None:
        assert caps_by_load(4, 5, schedule) == caps


class TestOptions:
    def test_they_are_the_defaults_when_nothing_is_said(self) -> None:
        assert Options.read({}) == Options()

    def test_other_entries_of_additional_config_are_others_business(self) -> None:
        assert Options.read({"someone": {"memory_tokens": 1}}) == Options()

    def test_what_is_said_is_read(self) -> None:
        read = Options.read({"toolkit": {"max_match": 8, "memory_tokens": 0, "corpus": "/a", "probe_budget": 0}})
        assert read == Options(8, 0, "/a", 0)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"memory_token": 1}, "toolkit.memory_token: unknown, known are max_match, memory_tokens"),
            ({"max_match": "8"}, "toolkit.max_match: '8' is no int"),
            ({"memory_tokens": True}, "toolkit.memory_tokens: True is no int"),
            ({"corpus": 5}, "toolkit.corpus: 5 is no str"),
        ],
    )
    def test_what_cannot_be_is_refused(self, options: dict[str, Any], said: str) -> None:
        with pytest.raises(InputError, match=said):
            Options.read({"toolkit": options})

    @pytest.mark.parametrize("options", [{"max_match": 0}, {"memory_tokens": -1}, {"probe_budget": 0.9}])
    def test_a_value_out_of_bounds_ends_the_boot(self, options: dict[str, Any]) -> None:
        with pytest.raises(InputError, match=next(iter(options))):
            PromptLookupProposer(config(**options))

    def test_a_corpus_that_is_not_there_ends_the_boot(self) -> None:
        with pytest.raises(InputError, match="no such file or folder"):
            PromptLookupProposer(config(corpus="/nowhere/at/all"))


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vLLM whose tokenizer knows a token a character, and 3 for the end of a text."""
    module = ModuleType("vllm.tokenizers")
    tokenizer = SimpleNamespace(eos_token_id=3, encode=lambda text, add_special_tokens: [ord(one) for one in text])
    module.cached_tokenizer_from_config = lambda model_config: tokenizer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.tokenizers", module)


class TestCorpus:
    @pytest.mark.usefixtures("letters")
    def test_files_end_with_the_end_of_a_text(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("AB")
        (tmp_path / "b").write_text("C")
        assert prompt_lookup.tokens_of(tmp_path, None).tolist() == [65, 66, 3, 67, 3]

    @pytest.mark.usefixtures("letters")
    def test_the_first_request_drafts_from_it(self, tmp_path: Path) -> None:
        text = "".join(chr(65 + token % 50) for token in np.random.default_rng(1).permutation(50))
        (tmp_path / "a").write_text(text)
        proposer = PromptLookupProposer(config(corpus=str(tmp_path)))
        engine = Engine(4, WIDTH)
        run(proposer, engine, Request([1, 2, 3], [ord(one) for one in text]))
        assert engine.accepted > 25


class Broken:
    """A drafter that fails."""

    def draft(self, *_: Any) -> list[list[int]]:
        raise RuntimeError("all wrong")


class TestGuard:
    @pytest.fixture
    def broken(self) -> PromptLookupProposer:
        proposer = PromptLookupProposer(config())
        proposer._drafter = Broken()  # type: ignore[assignment]
        return proposer

    def test_requests_survive_its_failure(self, broken: PromptLookupProposer) -> None:
        request = copying(20, 2)
        run(broken, Engine(4, WIDTH), request)
        assert request.over

    def test_it_is_logged_once_with_its_cause(
        self, broken: PromptLookupProposer, caplog: pytest.LogCaptureFixture
    ) -> None:
        run(broken, Engine(4, WIDTH), copying(20, 2))
        (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert "drafts no more" in record.message
        assert record.exc_info is not None
        assert str(record.exc_info[1]) == "all wrong"


class TestLog:
    @pytest.mark.parametrize(
        ("ran", "said"), [(True, "registered by the entry point"), (False, "the entry point did not run here")]
    )
    def test_the_worker_says_whether_the_entry_point_ran_in_it(
        self, ran: bool, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(proposers, "registered", ran)
        with caplog.at_level(logging.INFO, "vllm.toolkit"):
            PromptLookupProposer(config())
        assert said in caplog.text

    def test_now_and_then_it_says_what_it_did_and_took(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(prompt_lookup, "LOG_SECONDS", 0.0)
        with caplog.at_level(logging.INFO, "vllm.toolkit"):
            run(PromptLookupProposer(config()), Engine(4, WIDTH), copying(20, 2))
        assert "1 steps of 1.0 requests" in caplog.text

    def test_but_not_at_every_step(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO, "vllm.toolkit"):
            run(PromptLookupProposer(config()), Engine(4, WIDTH), copying(20, 2))
        assert "steps of" not in caplog.text

    def test_the_totals_in_words(self) -> None:
        totals = Totals(100, 250, 400, 300, 150, own=0.02, clean=80, clean_seconds=4.0, clean_own=0.008)
        assert told(totals) == (
            "100 steps of 2.5 requests, 4.0 tokens drafted a step, draft acceptance rate 0.50; "
            "own time where all only decode 100 us, 0.20% of the step, 200 us over all steps"
        )

    def test_what_was_not_seen_is_unavailable(self) -> None:
        assert "acceptance rate unavailable" in told(Totals())
