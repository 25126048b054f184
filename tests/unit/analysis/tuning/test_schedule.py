"""Which K is dropped and which chosen, the schedule that follows, and how it is lowered."""

import importlib.util
import math
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.analysis.tuning.schedule import (
    Schedule,
    as_lists,
    best_k,
    collapsed,
    dominated,
    k_at,
    levels_to_judge,
    lowered,
    pooled_error,
    schedule_of,
    thresholds,
)
from toolkit.engines.contract import Speculation


def _ours(schedule: list[list[Any]]) -> None:
    most = max(k for *_, k in schedule) or 1
    Speculation.model_validate({"method": "ngram", "num_speculative_tokens": most, "schedule": schedule})


def _validators() -> dict[str, Callable[[list[list[Any]]], object]]:
    """Our model, and vLLM's own validator where it is installed: its file alone, which imports nothing."""
    found: dict[str, Callable[[list[list[Any]]], object]] = {"ours": _ours}
    vllm = importlib.util.find_spec("vllm")
    if vllm is not None and vllm.origin is not None:
        path = Path(vllm.origin).parent / "v1" / "spec_decode" / "dynamic" / "utils.py"
        spec = importlib.util.spec_from_file_location("vllm_dynamic_utils", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found["vllm"] = module.validate_and_normalize_dynamic_sd_schedule
    return found


VALIDATORS = _validators()


@st.composite
def chosen(draw: st.DrawFn) -> tuple[dict[int, int], int]:
    """K by level, and the largest batch."""
    levels = draw(st.lists(st.integers(1, 200), min_size=1, max_size=6, unique=True))
    choices = {level: draw(st.sampled_from([0, 1, 2, 4, 8])) for level in levels}
    return choices, draw(st.integers(max(levels), 256))


@st.composite
def judged(draw: st.DrawFn) -> tuple[Schedule, list[int], list[int]]:
    """A schedule, the levels at which it was judged, and which of them were faulty."""
    choices, most = draw(chosen())
    schedule = schedule_of(choices, most)
    levels = levels_to_judge(schedule, list(choices))
    return schedule, levels, draw(st.lists(st.sampled_from(levels), unique=True))


def noisy(mean: float, pairs: int, noise: float, seed: int) -> list[float]:
    rng = random.Random(seed)
    return [math.log(mean) + rng.gauss(0, noise) for _ in range(pairs)]


class TestScheduleOf:
    @pytest.mark.parametrize("name", VALIDATORS)
    @given(one=chosen())
    def test_it_is_valid(self, name: str, one: tuple[dict[int, int], int]) -> None:
        VALIDATORS[name](as_lists(schedule_of(*one)))

    @given(chosen())
    def test_at_a_measured_level_the_choice_holds(self, one: tuple[dict[int, int], int]) -> None:
        choices, most = one
        schedule = schedule_of(choices, most)
        assert {level: k_at(schedule, level) for level in choices} == choices

    @given(chosen())
    def test_between_two_levels_it_never_speculates_more_than_at_either(self, one: tuple[dict[int, int], int]) -> None:
        choices, most = one
        schedule, levels = schedule_of(choices, most), sorted(choices)
        for below, above in pairwise(levels):
            for batch in range(below + 1, above):
                assert k_at(schedule, batch) == min(choices[below], choices[above])

    @given(chosen())
    def test_it_covers_every_batch_once(self, one: tuple[dict[int, int], int]) -> None:
        covered = [batch for first, last, _ in schedule_of(*one) for batch in range(first, last + 1)]
        assert covered == list(range(1, one[1] + 1))

    @given(chosen())
    def test_above_the_highest_level_there_is_none(self, one: tuple[dict[int, int], int]) -> None:
        choices, most = one
        assert {k_at(schedule_of(*one), batch) for batch in range(max(choices) + 1, most + 1)} <= {0}

    @given(chosen())
    def test_neighbours_differ(self, one: tuple[dict[int, int], int]) -> None:
        ks = [k for *_, k in schedule_of(*one)]
        assert all(a != b for a, b in pairwise(ks))

    def test_the_higher_levels_choice_holds_between_two(self) -> None:
        assert schedule_of({1: 8, 4: 4, 16: 0}, 64) == [(1, 1, 8), (2, 4, 4), (5, 64, 0)]

    def test_where_k_rises_the_smaller_one_holds_between(self) -> None:
        assert schedule_of({1: 1, 8: 4}, 8) == [(1, 7, 1), (8, 8, 4)]


class TestLevelsToJudge:
    def test_each_threshold_has_its_neighbours(self) -> None:
        assert levels_to_judge([(1, 4, 4), (5, 31, 1), (32, 64, 0)], [1, 4, 64]) == [1, 3, 4, 5, 30, 31, 32, 64]

    def test_none_lies_below_one(self) -> None:
        assert levels_to_judge([(1, 1, 4), (2, 16, 0)], [1, 16]) == [1, 2, 16]

    def test_the_end_of_speculation_at_the_highest_level_is_judged_on_both_sides(self) -> None:
        assert levels_to_judge([(1, 16, 2), (17, 64, 0)], [1, 16]) == [1, 15, 16, 17]

    @given(chosen())
    def test_none_lies_above_the_largest_batch(self, one: tuple[dict[int, int], int]) -> None:
        assert max(levels_to_judge(schedule_of(*one), list(one[0]))) <= one[1]

    def test_without_a_threshold_the_levels_stay(self) -> None:
        assert levels_to_judge([(1, 64, 4)], [1, 64]) == [1, 64]

    @given(chosen())
    def test_a_threshold_is_where_k_changes(self, one: tuple[dict[int, int], int]) -> None:
        schedule = schedule_of(*one)
        changes = [batch for batch in range(1, one[1]) if k_at(schedule, batch) != k_at(schedule, batch + 1)]
        assert thresholds(schedule) == changes


class TestLowered:
    @pytest.mark.parametrize("name", VALIDATORS)
    @given(one=judged())
    def test_it_stays_valid(self, name: str, one: tuple[Schedule, list[int], list[int]]) -> None:
        VALIDATORS[name](as_lists(lowered(*one)))

    @given(judged())
    def test_no_faulty_level_speculates(self, one: tuple[Schedule, list[int], list[int]]) -> None:
        assert [k_at(lowered(*one), level) for level in one[2]] == [0] * len(one[2])

    @given(judged())
    def test_no_batch_speculates_more_than_before(self, one: tuple[Schedule, list[int], list[int]]) -> None:
        assert all(k_at(lowered(*one), batch) <= k_at(one[0], batch) for batch in range(1, one[0][-1][1] + 1))

    @given(judged())
    def test_ranges_without_a_faulty_level_stay(self, one: tuple[Schedule, list[int], list[int]]) -> None:
        schedule, _, faulty = one
        for first, last, k in schedule:
            if not any(first <= level <= last for level in faulty):
                assert {k_at(lowered(*one), batch) for batch in range(first, last + 1)} == {k}

    def test_below_the_lowest_faulty_level_the_k_stays(self) -> None:
        assert lowered([(1, 16, 4), (17, 64, 0)], [1, 8, 15, 16, 17], [15, 16]) == [(1, 8, 4), (9, 64, 0)]

    def test_a_range_that_is_faulty_from_its_start_goes(self) -> None:
        assert lowered([(1, 4, 8), (5, 16, 4), (17, 64, 0)], [1, 4, 5, 16], [5]) == [(1, 4, 8), (5, 64, 0)]


class TestDominated:
    def test_a_k_far_below_the_best_is(self) -> None:
        ratios = {k: noisy(mean, 2, 0.02, k) for k, mean in {1: 1.2, 2: 1.4, 4: 1.6, 8: 0.6}.items()}
        assert 8 in dominated(ratios)

    def test_a_k_close_to_the_best_is_not(self) -> None:
        ratios = {k: noisy(mean, 2, 0.03, k) for k, mean in {1: 1.2, 2: 1.55, 4: 1.6}.items()}
        assert not {2, 4} & dominated(ratios)

    def test_all_are_where_none_reaches_no_speculation(self) -> None:
        assert dominated({k: noisy(0.6, 3, 0.02, k) for k in (1, 2, 4)}) == {1, 2, 4}

    def test_one_pair_each_decides_nothing(self) -> None:
        assert dominated({1: [2.0], 8: [-2.0]}) == frozenset()

    @given(st.dictionaries(st.integers(1, 8), st.lists(st.floats(-1, 1), min_size=2, max_size=6), min_size=1))
    def test_a_best_k_that_beats_no_speculation_never_is(self, ratios: dict[int, list[float]]) -> None:
        best = max(ratios, key=lambda k: sum(ratios[k]) / len(ratios[k]))
        assert best not in dominated(ratios) or sum(ratios[best]) < 0

    def test_the_best_k_survives_a_look_after_every_round(self) -> None:
        """Planted: K = 4 is 4 % ahead of the next one, at a noise of 5 %."""
        truth = {1: 1.2, 2: 1.35, 4: 1.4, 8: 1.3}
        lost = 0
        for seed in range(100):
            pairs = {k: noisy(mean, 6, 0.05, 10 * seed + k) for k, mean in truth.items()}
            lost += any(4 in dominated({k: logs[:rounds] for k, logs in pairs.items()}) for rounds in range(2, 7))
        assert lost <= 3

    def test_pooling_decides_where_single_intervals_cannot(self) -> None:
        """Two pairs of one K: a t-quantile of 12.7. Four K of two pairs pooled: 2.8."""
        ratios = {k: noisy(mean, 2, 0.02, k) for k, mean in {1: 1.2, 2: 1.3, 4: 1.6, 8: 0.9}.items()}
        assert pooled_error(ratios)[1] == 4
        assert {1, 2, 8} <= dominated(ratios)


class TestBestK:
    def test_where_none_pays_it_is_0(self) -> None:
        assert best_k({4: [-0.1, -0.1]}, ()) == 0

    def test_the_best_mean_wins(self) -> None:
        assert best_k({1: noisy(1.2, 6, 0.02, 1), 4: noisy(1.6, 6, 0.02, 2)}, {1, 4}) == 4

    def test_within_a_standard_error_the_smaller_k_wins(self) -> None:
        assert best_k({2: [0.40, 0.44, 0.42, 0.38], 4: [0.41, 0.45, 0.43, 0.37]}, {2, 4}) == 2

    def test_a_k_that_does_not_pay_is_not_chosen(self) -> None:
        assert best_k({2: [0.1, 0.11], 8: [0.9, -0.2]}, {2}) == 2


PLAIN = {3: 300.0, 4: 400.0, 5: 450.0, 16: 900.0}  # tokens per second without speculation


class TestCollapse:
    def test_a_hole_behind_a_threshold_is_named(self) -> None:
        assert collapsed({3: 450.0, 4: 500.0, 5: 50.0, 16: 900.0}, PLAIN) == [5]

    def test_a_smooth_fall_is_none(self) -> None:
        assert collapsed({3: 450.0, 4: 400.0, 5: 300.0, 16: 250.0}, PLAIN) == []

    def test_a_hole_that_the_baseline_has_too_is_none(self) -> None:
        assert collapsed({3: 450.0, 4: 500.0, 5: 50.0, 16: 900.0}, {**PLAIN, 5: 40.0}) == []
