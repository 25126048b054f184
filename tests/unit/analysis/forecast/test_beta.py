"""`toolkit beta` on the toy pair, on files of its distributions, and on asks that cannot be met."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from toolkit.analysis.forecast.beta import Beta, BetaAsk, beta
from toolkit.analysis.forecast.estimate import Estimate
from toolkit.errors import InputError
from toolkit.lab.reference import Sampling, generate
from toolkit.lab.toy import toy_pair, toy_target

TOY = BetaAsk("toy", "bigram", prompts="chat", requests=16, tokens=96, seed=1)


@cache
def predicted(draft: str, **changes: Any) -> Beta:
    return beta(replace(TOY, draft=draft, **changes))


def apart(one: Estimate, other: float, n: float) -> float:
    """Their distance in the largest standard error that a share of `n` draws can have."""
    return abs(one.value - other) / float(np.sqrt(0.25 / n))


class TestToyPair:
    """Passing 5 standard errors by chance: once in 1.7 million; the seeds are fixed."""

    @pytest.mark.parametrize("draft", ["unigram", "bigram"])
    def test_the_rule_keeps_what_was_predicted(self, draft: str) -> None:
        found = predicted(draft).expected
        assert apart(found.observed, found.predicted.value, found.observed.n) < 5

    @pytest.mark.parametrize("draft", ["unigram", "bigram"])
    def test_the_loop_keeps_what_stepping_predicted(self, draft: str) -> None:
        found = predicted(draft).expected
        assert found.loop is not None
        assert apart(found.loop[0], found.acceptance.value, found.loop[0].n) < 5

    @pytest.mark.parametrize("draft", ["unigram", "bigram"])
    def test_stepping_has_the_rounds_of_the_loop(self, draft: str) -> None:
        found = predicted(draft).expected
        assert found.loop is not None
        assert found.acceptance.n == pytest.approx(found.loop[0].n, rel=0.05)

    def test_the_bigram_is_the_better_draft_beyond_its_error(self) -> None:
        better, worse = predicted("bigram").expected.acceptance, predicted("unigram").expected.acceptance
        assert better.low is not None
        assert worse.high is not None
        assert better.low > worse.high

    def test_the_texts_are_the_targets_own(self) -> None:
        assert predicted("bigram").expected.exact

    def test_the_loops_texts_at_another_temperature_are_too(self) -> None:
        assert predicted("bigram", temperature=0.7, top_k=16, top_p=0.95).expected.exact

    def test_at_temperature_0_the_rule_keeps_exactly_what_was_predicted(self) -> None:
        found = predicted("bigram", temperature=0.0).expected
        assert found.observed.value == pytest.approx(found.predicted.value)

    def test_a_greedy_draft_keeps_what_the_target_gives_its_likeliest_token(self) -> None:
        found = predicted("bigram", draft_sample_method="greedy").expected
        assert found.loop is not None
        assert apart(found.loop[0], found.acceptance.value, found.loop[0].n) < 5

    def test_a_greedy_draft_is_kept_less_than_a_drawn_one(self) -> None:
        greedy, drawn = predicted("bigram", draft_sample_method="greedy"), predicted("bigram")
        assert greedy.expected.predicted.value < drawn.expected.predicted.value

    def test_the_same_seed_gives_the_same_answer(self) -> None:
        few = replace(TOY, requests=3, tokens=20)
        assert beta(few).as_json() == beta(few).as_json()

    def test_json_can_be_written(self) -> None:
        assert json.loads(json.dumps(predicted("bigram").as_json(), allow_nan=False))["source"] == "two models"


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """What the toy pair says of six texts that the trigram wrote, logged to two files."""
    folder, columns = tmp_path_factory.mktemp("logs"), {name: list[Any]() for name in ("p", "q", "token", "sequence")}
    rng = np.random.default_rng(4)
    for text in range(6):
        target, prompt = toy_target(), [text]
        tokens = [t for step in generate(target, prompt, Sampling(1.0), rng, 150) for t in step.tokens]
        for name, model in zip("pq", toy_pair("bigram"), strict=True):
            columns[name].append(Sampling(1.0).of(model.extend([*prompt, *tokens[:-1]])))
        columns["token"].append(np.array(tokens))
        columns["sequence"].append(np.full(len(tokens), text))
    joined = {name: np.concatenate(values) for name, values in columns.items()}
    paths = [folder / "target.npz", folder / "draft.npz"]
    np.savez(paths[0], probs=joined["p"], token=joined["token"], sequence=joined["sequence"])
    np.savez(paths[1], probs=joined["q"].astype(np.float32), sequence=joined["sequence"])
    return str(paths[0]), str(paths[1])


class TestLoggedFiles:
    def test_they_say_what_the_models_say(self, logs: tuple[str, str]) -> None:
        files, models = beta(BetaAsk(*logs)).expected.acceptance, predicted("bigram").expected.acceptance
        assert apart(files, models.value, min(files.n, models.n)) < 5

    def test_the_targets_own_texts_make_stepping_exact(self, logs: tuple[str, str]) -> None:
        assert beta(BetaAsk(*logs)).expected.exact

    def test_no_loop_ran(self, logs: tuple[str, str]) -> None:
        assert beta(BetaAsk(*logs)).expected.loop is None

    def test_at_another_temperature_the_texts_are_not_the_targets_own(self, logs: tuple[str, str]) -> None:
        found = beta(BetaAsk(*logs, temperature=0.5))
        assert any("approximation" in note for note in found.notes)

    def test_the_temperature_sharpens_both(self, logs: tuple[str, str]) -> None:
        found = beta(BetaAsk(*logs, temperature=0.0)).expected
        assert found.observed.value == pytest.approx(found.predicted.value)

    def test_a_greedy_draft_is_the_likeliest_token(self, logs: tuple[str, str]) -> None:
        found = beta(BetaAsk(*logs, draft_sample_method="greedy")).expected
        probs = [np.load(path)["probs"] for path in logs]
        likeliest = probs[1].argmax(axis=1)
        assert found.predicted.value == pytest.approx(probs[0][np.arange(len(likeliest)), likeliest].mean())

    def test_few_texts_are_said_to_be_few(self, tmp_path: Path) -> None:
        np.save(tmp_path / "p.npy", np.full((40, 2), 0.5))
        found = beta(BetaAsk(str(tmp_path / "p.npy"), str(tmp_path / "p.npy")))
        assert any("stretches of 1 text:" in note for note in found.notes)


class TestSentence:
    @pytest.fixture
    def of(self) -> Callable[..., Beta]:
        return lambda draft, **changes: predicted(draft, requests=6, tokens=40, **changes)

    def test_stop_says_why(self, of: Callable[..., Beta]) -> None:
        found = of("unigram", c=0.3)
        assert found.sentence.startswith("stop: fix the pair: rounds of 8 keep 4")
        assert "while a draft step costs 0.30 of a target step" in found.sentence

    def test_stop_and_costs_are_faults(self, of: Callable[..., Beta]) -> None:
        assert [of("unigram", c=c).exit_code for c in (0.1, 0.3, 0.9)] == [0, 1, 1]

    def test_what_to_expect_has_its_limit(self, of: Callable[..., Beta]) -> None:
        found = of("bigram", c=0.1)
        assert found.sentence.startswith("expect 1.")
        assert "one request at a time, on hardware with compute to spare" in found.sentence

    def test_without_c_it_says_what_c_would_have_to_be(self, of: Callable[..., Beta]) -> None:
        found = of("bigram")
        even, k = found.expected.break_even
        assert f"at K = {k} this pays while a draft step costs less than {even:.2f} of a target step" in found.sentence

    def test_a_bad_draft_of_unknown_cost_is_warned_of(self, of: Callable[..., Beta]) -> None:
        assert "over 0.2 the answer is stop" in of("unigram").sentence

    def test_a_draft_that_is_never_kept_is_never_cheap_enough(self, tmp_path: Path) -> None:
        for name, row in (("p", [1.0, 0.0]), ("q", [0.0, 1.0])):
            np.save(tmp_path / f"{name}.npy", np.tile(row, (20, 1)))
        found = beta(BetaAsk(str(tmp_path / "p.npy"), str(tmp_path / "q.npy")))
        assert found.sentence.endswith("no draft is cheap enough for that")

    def test_steps_in_milliseconds_give_c(self, of: Callable[..., Beta]) -> None:
        assert of("bigram", target_step=40.0, draft_step=10.0).expected.c == 0.25

    def test_vllms_greedy_drafts_are_told_of(self, of: Callable[..., Beta]) -> None:
        assert any("vLLM drafts greedily" in note for note in of("bigram").notes)


class TestRefused:
    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"target": "p.npz"}, "--target and --draft: two models, or two files"),
            ({"target": "p.npz", "draft": "q.npz"}, "--prompts, --tokens, --requests: logged distributions have"),
            ({"prompts": None}, "--prompts: two models need prompts"),
            ({"draft": "trigram"}, "choose one of unigram, bigram"),
            ({"prompts": "chats"}, "Did you mean chat?"),
            ({"k": 0}, "--k 0: a whole number from 1"),
            ({"c": -0.1}, "--c -0.1: 0 or more"),
            ({"c": float("nan")}, "--c nan"),
            ({"c": 0.1, "draft_step": 2.0}, "--c is --draft-step over --target-step"),
            ({"draft_step": 2.0}, "--target-step and --draft-step: both"),
            ({"draft_step": 2.0, "target_step": 0.0}, "--target-step: above 0"),
            ({"temperature": -1.0}, "--temperature -1"),
            ({"top_k": 0}, "--top-k 0"),
            ({"top_p": 0.0}, "--top-p 0"),
            ({"tokens": 1}, "--tokens 1: 2 or more"),
            ({"requests": 0}, "--requests 0"),
            ({"seed": -1}, "--seed -1"),
            ({"draft_sample_method": "beam"}, "probabilistic or greedy"),
        ],
    )
    def test_with_the_flag_and_what_to_do(self, changes: dict[str, Any], said: str) -> None:
        with pytest.raises(InputError) as error:
            beta(replace(TOY, **changes))
        assert said in str(error.value)
