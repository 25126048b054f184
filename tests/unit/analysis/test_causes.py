"""Which factor is said to have turned the sign, and what is never claimed of it."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.analysis.causes import Evidence, Factor, cause, room, runs_few

factor = st.floats(0.3, 3.0)
noise = st.floats(0.0, 0.3)


def evidence(
    concurrency: int = 64,
    per_pass: float | None = 2.0,
    passes: float | None = 1.0,
    seconds: float | None = 1.0,
    half: float = 0.01,
    **fields: Any,
) -> Evidence:
    """A level with these ratios and the speedup that they make."""

    def of(ratio: float | None) -> Factor | None:
        return None if ratio is None else Factor(math.log(ratio), half)

    speedup = (per_pass or 1.0) * (passes or 1.0) / (seconds or 1.0)
    values = {
        "concurrency": concurrency,
        "pairs": 6,
        "speedup": Factor(math.log(speedup), half),
        "tokens_per_pass": of(per_pass),
        "passes_per_iteration": of(passes),
        "seconds_per_iteration": of(seconds),
        "passes_per_second": of((passes or 1.0) / (seconds or 1.0)),
        "arm_tokens_per_pass": per_pass,
        "arm_seconds_per_iteration": None if seconds is None else seconds * concurrency,
        "acceptance_length": 3.0,
        "drafted": 1000.0,
        "preempted": 0.0,
    }
    return Evidence(**{**values, **fields})


LOWEST = evidence(1, seconds=1.1)


class TestLowest:
    def test_what_a_pass_gives_and_what_an_iteration_takes(self) -> None:
        assert (
            cause(LOWEST, LOWEST) == "each pass gives 2.00 tokens; each iteration takes 1.1x longer than the baseline's"
        )

    def test_iterations_that_take_as_long(self) -> None:
        one = evidence(1, seconds=1.02)
        assert cause(one, one).endswith("each iteration takes as long as the baseline's")

    def test_drafting_that_costs_more_than_it_saves(self) -> None:
        one = evidence(1, per_pass=1.2, seconds=1.6)
        assert cause(one, one).endswith("takes 1.6x longer than the baseline's: drafting costs more than it saves")

    def test_a_cost_within_the_noise_is_not_called_one(self) -> None:
        one = evidence(1, per_pass=1.5, seconds=1.55, half=0.1)
        assert "costs" not in cause(one, one)


class TestTurn:
    def test_longer_iterations_are_saturated_compute(self) -> None:
        assert cause(evidence(seconds=1.9), LOWEST) == (
            "acceptance is unchanged; each iteration takes 1.9x longer than the baseline's (1.1x at 1): "
            "compute is saturated"
        )

    def test_fewer_tokens_per_pass_are_said_to_be_acceptance(self) -> None:
        found = cause(evidence(per_pass=1.2, seconds=1.1, acceptance_length=1.6), LOWEST)
        assert found.startswith("acceptance itself fell: 1.20 tokens per pass, 2.00 at 1; ")
        assert "saturated" not in found

    def test_fewer_tokens_per_pass_at_the_same_length_are_fewer_drafts(self) -> None:
        found = cause(evidence(per_pass=1.2, seconds=1.1), LOWEST)
        assert found.startswith("fewer passes carry a draft: 1.20 tokens per pass, 2.00 at 1")

    def test_both_are_said_where_both_turned(self) -> None:
        found = cause(evidence(per_pass=1.6, seconds=1.9, acceptance_length=2.0), LOWEST)
        assert "acceptance itself fell" in found
        assert found.endswith("compute is saturated")

    def test_the_smaller_of_the_two_gives_no_conclusion(self) -> None:
        assert "saturated" not in cause(evidence(per_pass=1.1, seconds=1.25, acceptance_length=1.3), LOWEST)

    def test_fewer_requests_an_iteration(self) -> None:
        assert cause(evidence(passes=0.5, seconds=1.1), LOWEST) == (
            "acceptance is unchanged; 0.5x as many requests share an iteration as in the baseline"
        )

    def test_preempted_requests_are_counted(self) -> None:
        found = cause(evidence(passes=0.5, seconds=1.1, preempted=31.0), LOWEST)
        assert found.endswith("as in the baseline: 31 were preempted for want of KV cache")

    def test_no_change_seen_in_wide_noise_is_not_called_unchanged(self) -> None:
        found = cause(evidence(per_pass=1.3, half=0.2), evidence(1, per_pass=1.6, half=0.2))
        assert found.startswith("no change in acceptance was seen; ")

    @given(st.floats(0.8, 1.25), st.floats(0.0, 0.1))
    def test_unchanged_means_that_a_change_of_ten_per_cent_is_ruled_out(self, ratio: float, half: float) -> None:
        found = cause(evidence(per_pass=2 * ratio, half=half), evidence(1, half=half))
        widest = abs(math.log(ratio)) + math.hypot(half, half)
        if "acceptance is unchanged" in found:
            assert widest <= math.log(1.1) + 1e-9

    @pytest.mark.parametrize("lowest", [LOWEST, None], ids=["since the lowest", "at the lowest"])
    def test_where_nothing_is_drafted_drafting_is_not_blamed(self, lowest: Evidence | None) -> None:
        here = evidence(64 if lowest else 1, per_pass=1.0, seconds=3.0, drafted=0.0, acceptance_length=None)
        found = cause(here, lowest or here)
        assert found.startswith("nothing is drafted; each iteration takes 3.0x longer than the baseline's")
        assert "saturated" not in found
        assert "costs" not in found

    def test_a_level_that_drafts_nothing(self) -> None:
        # vLLM's num_speculative_tokens_per_batch_size with K = 0 at this load.
        found = cause(evidence(per_pass=1.0, seconds=1.0, drafted=0.0, acceptance_length=None), LOWEST)
        assert found == "nothing is drafted; each iteration takes as long as the baseline's (1.1x at 1)"

    def test_a_speedup_that_held_has_no_conclusion(self) -> None:
        found = cause(evidence(4, per_pass=2.3, seconds=1.25), LOWEST)
        assert found == (
            "acceptance rose: 2.30 tokens per pass, 2.00 at 1; each iteration takes 1.2x longer than the baseline's "
            "(1.1x at 1)"
        )

    def test_a_change_within_the_noise_is_none(self) -> None:
        found = cause(evidence(seconds=1.5, half=0.3), replace(LOWEST, seconds_per_iteration=Factor(0.1, 0.3)))
        assert "saturated" not in found

    @given(st.tuples(factor, factor, factor), st.tuples(factor, factor, factor), noise)
    def test_compute_is_never_saturated_where_iterations_did_not_grow(
        self, then: tuple[float, float, float], now: tuple[float, float, float], half: float
    ) -> None:
        lowest, here = evidence(1, *then, half=half), evidence(64, *now, half=half)
        if "saturated" in cause(here, lowest):
            assert here.seconds_per_iteration is not None
            assert lowest.seconds_per_iteration is not None
            assert here.seconds_per_iteration.ratio > max(1.05, 1.05 * lowest.seconds_per_iteration.ratio)
            assert here.speedup.ratio < lowest.speedup.ratio

    def test_nor_where_the_arms_own_iterations_did_not(self) -> None:
        # The baseline's became shorter.
        assert "saturated" not in cause(evidence(seconds=1.9, arm_seconds_per_iteration=1.1), LOWEST)


class TestUnavailable:
    def test_without_iterations_passes_per_second_are_compared(self) -> None:
        lowest = evidence(1, seconds=None, passes=0.9)
        here = evidence(64, seconds=None, passes=0.5)
        assert cause(here, lowest) == "acceptance is unchanged; passes per second are 0.5x the baseline's (0.9x at 1)"

    def test_without_tokens_per_pass_only_iterations_are_and_nothing_is_concluded(self) -> None:
        lowest = evidence(1, per_pass=None, seconds=1.1, passes_per_iteration=None)
        here = evidence(64, per_pass=None, seconds=1.9, passes_per_iteration=None)
        assert cause(here, lowest) == "each iteration takes 1.9x longer than the baseline's (1.1x at 1)"

    def test_without_either_nothing_is_said(self) -> None:
        one = evidence(per_pass=None, seconds=None, passes_per_iteration=None, passes_per_second=None)
        assert cause(one, one) == ""


class TestRoom:
    def said(self, **fields: Any) -> str:
        values = {
            "running": 22.0,
            "baseline_running": 64.0,
            "fits": 22.7,
            "baseline_fits": 70.0,
            "method": "draft_model",
        }
        return room(64, **{**values, **fields})

    def test_a_draft_that_takes_the_room(self) -> None:
        assert self.said() == "only 22 of 64 requests run: the draft's KV cache takes the room"

    def test_where_nobody_counted_the_cache_tells(self) -> None:
        found = self.said(running=None, baseline_running=None)
        assert found == "only 22 of 64 requests run: the draft's KV cache takes the room"

    @pytest.mark.parametrize(
        "unknown", [{"fits": None}, {"baseline_fits": None}, {"fits": None, "baseline_fits": None}, {"method": None}]
    )
    def test_what_is_unknown_blames_nothing(self, unknown: dict[str, None]) -> None:
        # A server that runs and does not tell may have been started with fewer slots.
        assert self.said(**unknown) == "only 22 of 64 requests run, the baseline runs 64"

    @pytest.mark.parametrize(
        ("running", "baseline"), [(64.0, 64.0), (58.0, 64.0), (22.0, 22.0), (None, 64.0), (22.0, None)]
    )
    def test_silent_unless_the_arm_alone_runs_few(self, running: float | None, baseline: float | None) -> None:
        assert self.said(running=running, baseline_running=baseline, fits=None, baseline_fits=None) == ""

    @pytest.mark.parametrize("method", ["ngram", "suffix", "medusa"])
    def test_a_lookup_has_no_cache_to_blame(self, method: str) -> None:
        assert self.said(method=method) == "only 22 of 64 requests run, the baseline runs 64"

    def test_a_cache_as_large_as_the_baselines_is_not_blamed(self) -> None:
        assert "takes the room" not in self.said(fits=60.0, baseline_fits=60.0)

    def test_a_cache_that_holds_them_all_is_not_blamed(self) -> None:
        # SGLang lowers its limit on running requests under speculation.
        found = self.said(running=48.0, fits=80.0, baseline_fits=90.0)
        assert found == "only 48 of 64 requests run, and not for want of room: the KV cache holds 80"


@pytest.mark.parametrize(("running", "few"), [(3, True), (4, False), (57, True), (58, False)])
def test_a_slot_may_be_empty_for_a_moment(running: float, few: bool) -> None:
    assert runs_few(running, 4 if running < 10 else 64) is few
