"""Predictions with chosen costs: the closed forms come out of the general one, and its limits are named."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit import theory
from toolkit.analysis.forecast.cost import Curve, MeasuredCost, Point, Seconds
from toolkit.analysis.forecast.plan import drafts_of
from toolkit.analysis.forecast.predict import NONE, Drafts, Load, iteration, predictions, speedup, throughput
from toolkit.analysis.run import Run


@dataclass(frozen=True)
class Flat:
    """Passes that cost the same however many tokens; a draft pass costs `c` of one. `room` requests fit."""

    c: float = 0.0
    per_token: float = 0.0
    room: float | None = None
    draft_room: float | None = None
    source: str = "chosen"

    def target(self, tokens: float, held: float) -> Seconds:
        return Seconds(1 + self.per_token * tokens, "chosen")

    def draft(self, tokens: float, held: float) -> float:
        return self.c

    def fits(self, held_per_request: float, drafting: bool) -> float | None:
        return self.draft_room if drafting else self.room


@given(alpha=st.floats(0, 1), k=st.integers(1, 8), c=st.floats(0, 1))
def test_one_long_answer_on_flat_passes_is_the_closed_form(alpha: float, k: int, c: float) -> None:
    """Leviathan et al. (2023), Theorem 3.8."""
    tokens = theory.expected_tokens(alpha, k)
    predicted, _ = speedup(Flat(c), Load(1, 0, 1e9), Drafts(tokens, k, k))
    assert predicted == pytest.approx(theory.speedup(alpha, k, c), rel=1e-6)


@given(n=st.integers(1, 256), k=st.integers(1, 8), tokens=st.floats(1, 9), per_token=st.floats(0, 0.1))
def test_a_prompt_is_worked_off_once_in_the_passes_of_its_answer(
    n: int, k: int, tokens: float, per_token: float
) -> None:
    """Where passes are linear in their tokens, the mean pass is the pass over the mean of its tokens."""
    load, drafts = Load(n, 200, 50), Drafts(tokens, k * 0.5, k)
    mean = n * (1 + k * 0.5) + n * 200 / (50 / tokens)
    assert iteration(Flat(per_token=per_token), load, drafts).seconds == pytest.approx(1 + per_token * mean)


@given(n=st.integers(1, 256), per_token=st.floats(0.0001, 0.1))
def test_drafts_that_are_never_kept_never_pay(n: int, per_token: float) -> None:
    assert speedup(Flat(per_token=per_token), Load(n, 100, 50), Drafts(1.0, 4, 4))[0] < 1


def test_speculation_pays_less_the_more_requests_share_a_pass() -> None:
    ratios = [speedup(Flat(per_token=0.01), Load(n, 100, 50), Drafts(2.0, 3, 3))[0] for n in (1, 4, 16, 64)]
    assert ratios == sorted(ratios, reverse=True)


class TestRoom:
    def test_requests_that_do_not_fit_do_not_run(self) -> None:
        rate, limit = throughput(Flat(room=8), Load(64, 0, 1e9), NONE)
        assert (rate, limit) == (pytest.approx(8), "KV cache: 8 of 64 requests fit")

    def test_the_cache_of_a_draft_takes_room_from_the_arm_alone(self) -> None:
        ratio, limit = speedup(Flat(room=64, draft_room=16), Load(64, 0, 1e9), Drafts(2.0, 3, 3))
        assert (ratio, limit) == (pytest.approx(2 * 16 / 64), "KV cache: 16 of 64 requests fit")

    def test_room_that_is_unknown_is_no_limit(self) -> None:
        assert throughput(Flat(), Load(64, 0, 1e9), NONE) == (pytest.approx(64), "chosen")


def test_the_prefill_is_a_pass_without_a_draft() -> None:
    drafts = drafts_of(tokens=5.0, k=4, answer_tokens=51)
    assert (drafts.tokens_per_pass, drafts.drafted_per_pass) == (pytest.approx(51 / 11), pytest.approx(4 * 10 / 11))


class TestOfARun:
    cost = MeasuredCost(
        created="2026-11-30T00:00:00+00:00", name="p", model="m", hardware={}, overhead=0.0,
        plain=Curve(
            points=[Point(tokens=t, seconds=0.05 + 0.0006 * t, low=0, high=0, repeats=5) for t in (1, 64, 512)],
            context=0,
        ),
    )  # fmt: skip

    def test_every_level_of_an_arm_is_predicted_beside_its_measurement(
        self, make_run: Callable[..., Run], tmp_path: Path
    ) -> None:
        run = make_run(tmp_path, {("lab-ngram", 1): [(200, 100)] * 5, ("lab-ngram", 4): [(180, 120)] * 5})
        found = predictions(run, self.cost)
        assert [(p.concurrency, round(p.measured or 0, 3)) for p in found] == [(1, 2.0), (4, 1.5)]

    def test_the_acceptance_of_the_run_is_what_is_predicted_from(
        self, make_run: Callable[..., Run], tmp_path: Path
    ) -> None:
        """20 tokens in 8 passes with 24 drafted, after a prompt of 100: see `make_run`."""
        run = make_run(tmp_path, {("lab-ngram", 1): [(200, 100)] * 5})
        arm, base = 1 + 24 / 8 + 100 / 8, 1 + 100 / 20
        right = 20 / 8 * (0.05 + 0.0006 * base) / (0.05 + 0.0006 * arm)
        assert predictions(run, self.cost)[0].speedup == pytest.approx(right)

    @pytest.mark.parametrize("arm", [{"method": "draft_model", "draft": "small"}, {"method": None}])
    def test_nothing_is_predicted_where_the_draft_has_no_cost(
        self, make_run: Callable[..., Run], tmp_path: Path, arm: dict[str, Any]
    ) -> None:
        assert predictions(make_run(tmp_path, {("arm", 1): [(200, 100)] * 5}, arm=arm), self.cost) == []

    def test_k_is_what_a_drafted_step_carried(self, make_run: Callable[..., Run], tmp_path: Path) -> None:
        """24 drafted in 6 steps, whatever the arm says of its K or does not say."""
        run = make_run(tmp_path, {("arm", 1): [(200, 100)] * 5}, arm={"num_speculative_tokens": None})
        assert predictions(run, self.cost)[0].k == 4

    def test_an_arm_without_speculation_is_no_prediction(self, make_run: Callable[..., Run], tmp_path: Path) -> None:
        run = make_run(tmp_path, {("arm", 1): [(200, 100)] * 5}, arm={"method": "none", "speculates": False})
        assert predictions(run, self.cost) == []

    def test_nothing_is_predicted_without_a_cost(self, make_run: Callable[..., Run], tmp_path: Path) -> None:
        assert predictions(make_run(tmp_path, {("arm", 1): [(200, 100)] * 5}), None) == []
