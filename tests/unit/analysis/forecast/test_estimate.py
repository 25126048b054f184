"""Intervals of clustered counts: they hold the truth as often as they say, and few draws are never certain."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.analysis.forecast.estimate import Estimate, estimate, per_unit, share, units

counts = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=2, max_size=12)


def held(clusters: int, size: int, spread: float, trials: int = 800) -> float:
    """Share of intervals that hold the mean when each cluster has a rate of its own."""
    rng = np.random.default_rng(5)
    rates = np.clip(rng.normal(0.6, spread, (trials, clusters)), 0, 1)
    mean = float(np.clip(np.random.default_rng(6).normal(0.6, spread, 400_000), 0, 1).mean())
    found = [share(rng.binomial(size, rate).astype(float), np.full(clusters, float(size))) for rate in rates]
    return float(np.mean([one is not None and (one.low or 0) <= mean <= (one.high or 0) for one in found]))


class TestUnits:
    @pytest.mark.parametrize("lengths", [[3] * 5, [1, 9, 1, 1, 4, 4]])
    def test_five_texts_and_more_are_units(self, lengths: list[int]) -> None:
        assert units(lengths).tolist() == np.repeat(range(len(lengths)), lengths).tolist()

    def test_one_text_is_cut_into_ten_stretches(self) -> None:
        assert np.bincount(units([103])).tolist() == [11] * 3 + [10] * 7

    def test_no_stretch_holds_tokens_of_two_texts(self) -> None:
        first, second = np.split(units([40, 25]), [40])
        assert set(first) & set(second) == set()

    def test_a_short_text_has_a_stretch_per_token(self) -> None:
        assert units([3]).tolist() == [0, 1, 2]

    def test_sums_are_of_each_unit(self) -> None:
        assert per_unit([[1, 5], [2, 6], [3, 7]], np.array([0, 0, 1])).tolist() == [[3, 11], [3, 7]]


class TestShare:
    @pytest.mark.parametrize(("clusters", "size", "spread"), [(10, 30, 0.0), (10, 30, 0.2), (5, 99, 0.1), (40, 8, 0.1)])
    def test_the_interval_holds_the_truth_in_95_of_100(self, clusters: int, size: int, spread: float) -> None:
        assert held(clusters, size, spread) == pytest.approx(0.95, abs=0.035)  # 4.5 standard errors

    def test_tokens_taken_for_independent_would_be_wrong_more_often(self) -> None:
        """300 tokens of 10 texts with rates of their own: what the clustering is for."""
        rng = np.random.default_rng(5)
        rates = np.clip(rng.normal(0.6, 0.2, (1500, 10)), 0, 1)
        means = np.array([rng.binomial(30, rate).mean() / 30 for rate in rates])
        half = 1.96 * np.sqrt(means * (1 - means) / 300)
        assert float(np.mean(np.abs(means - rates.mean()) <= half)) < 0.75

    def test_it_is_a_ratio_of_sums_not_a_mean_of_ratios(self) -> None:
        found = share(np.array([1.0, 9.0]), np.array([1.0, 99.0]))
        assert found is not None
        assert found.value == pytest.approx(0.1)

    @given(counts)
    def test_the_interval_lies_in_0_to_1_around_the_value(self, pairs: list[tuple[int, int]]) -> None:
        low, high = np.sort(np.array(pairs, dtype=float), axis=1).T
        found = share(low, high)
        assert found is None or 0 <= (found.low or 0) <= found.value <= (found.high or 0) <= 1

    @pytest.mark.parametrize(("kept", "bound"), [(3.0, "low"), (0.0, "high")])
    def test_nine_of_nine_and_none_of_nine_are_no_certainty(self, kept: float, bound: str) -> None:
        """Wilson's limits at t of 2 degrees of freedom: 9 / (9 + 4.303^2) from the far end."""
        found = share(np.full(3, kept), np.full(3, 3.0))
        assert found is not None
        near, far = 9 / (9 + 4.3027**2), 4.3027**2 / (9 + 4.3027**2)
        assert getattr(found, bound) == pytest.approx(near if bound == "low" else far, abs=1e-4)

    def test_one_unit_tells_no_spread(self) -> None:
        assert share(np.array([3.0]), np.array([4.0])) == Estimate(0.75, None, None, 4.0)

    def test_of_nothing_there_is_no_share(self) -> None:
        assert share(np.zeros(3), np.zeros(3)) is None


class TestEstimate:
    def test_of_a_mean_it_is_the_t_interval(self) -> None:
        values = np.array([1.0, 2.0, 4.0])
        found = estimate(np.stack([values, np.ones(3)], axis=1), lambda sums: float(sums[0] / sums[1]), 3)
        half, mean = 4.302653 * values.std(ddof=1) / np.sqrt(3), 7 / 3
        assert (found.value, found.low, found.high) == pytest.approx((mean, mean - half, mean + half), rel=1e-5)

    def test_shown_with_its_interval(self) -> None:
        assert Estimate(0.581, 0.5523, 0.61, 40).percent == "58.1% [55.2, 61.0]"

    def test_shown_without_what_is_unknown(self) -> None:
        assert Estimate(0.581, None, None, 40).percent == "58.1%"
