"""The interval over pairs: what cancels in it, that it holds what it says, and why it is no other interval."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from toolkit.analysis.crossover import crossover
from toolkit.analysis.pairs import mean_and_half, pairs_of, running_peaks
from toolkit.analysis.run import Run

MakeRun = Callable[..., Run]
Floats = NDArray[np.float64]
LEVELS, PAIRS = 200, 6
MOST_WRONG = 16  # of 200 verdicts, 10 expected

rates = st.floats(0.1, 1e5)
pairs = st.lists(st.tuples(rates, rates), min_size=2, max_size=12)


def interval(both: list[tuple[float, float]]) -> tuple[float, float, float]:
    """(speedup, low, high) of pairs of rates."""
    mean, half = mean_and_half([math.log(arm) - math.log(base) for arm, base in both])
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


class TestInterval:
    @pytest.mark.filterwarnings("ignore:Precision loss")
    @given(pairs)
    def test_it_is_the_t_interval_of_scipy_on_the_log_ratios(self, both: list[tuple[float, float]]) -> None:
        logs = [math.log(a) - math.log(b) for a, b in both]
        expected = stats.ttest_1samp(logs, 0.0).confidence_interval(0.95)
        assert interval(both) == pytest.approx(
            (math.exp(math.fsum(logs) / len(logs)), math.exp(expected.low), math.exp(expected.high)), rel=1e-6
        )

    @given(pairs)
    def test_swapping_the_sides_inverts_it(self, both: list[tuple[float, float]]) -> None:
        speedup, low, high = interval(both)
        assert interval([(b, a) for a, b in both]) == pytest.approx((1 / speedup, 1 / high, 1 / low), rel=1e-6)

    @given(pairs, st.data())
    def test_what_slows_one_pair_alike_cancels(self, both: list[tuple[float, float]], data: st.DataObject) -> None:
        factors = data.draw(st.lists(st.floats(0.01, 100), min_size=len(both), max_size=len(both)))
        slowed = [(a * f, b * f) for (a, b), f in zip(both, factors, strict=True)]
        assert interval(slowed) == pytest.approx(interval(both), rel=1e-6)

    @given(pairs, st.randoms(use_true_random=False))
    def test_the_order_of_pairs_does_not_matter(self, both: list[tuple[float, float]], random: Any) -> None:
        assert interval(random.sample(both, len(both))) == pytest.approx(interval(both), rel=1e-6)

    @given(pairs)
    def test_it_holds_the_speedup(self, both: list[tuple[float, float]]) -> None:
        speedup, low, high = interval(both)
        assert low <= speedup <= high

    def test_two_pairs_by_hand(self) -> None:
        # Log ratios ln 2 and ln 8: mean ln 4, standard error ln 2, t(0.975, 1) = 12.706.
        found = interval([(2.0, 1.0), (8.0, 1.0)])
        assert found == pytest.approx((4.0, 4 / 2**12.7062, 4 * 2**12.7062), rel=1e-4)

    def test_one_pair_has_no_end(self) -> None:
        assert mean_and_half([0.5]) == (0.5, math.inf)

    def test_a_steady_drift_does_not_move_its_middle(self) -> None:
        # ABBA, four cells a pair of rounds, each 3 % slower than the one before.
        pace = 0.97 ** np.arange(12)
        arm, base = pace[[0, 3, 4, 7, 8, 11]], pace[[1, 2, 5, 6, 9, 10]]
        assert interval(list(zip(arm, base, strict=True)))[0] == pytest.approx(1.0)

    def test_a_true_speedup_lies_within_in_nineteen_cases_of_twenty(self) -> None:
        random = np.random.default_rng(7)
        inside = 0
        for _ in range(400):
            arm, base = random.lognormal(0, 0.08, (2, PAIRS))
            _, low, high = interval(list(zip(130 * arm, 100 * base, strict=True)))
            inside += low <= 1.3 <= high
        assert 0.91 <= inside / 400 <= 0.98


def normal(random: np.random.Generator, *shape: int) -> Floats:
    return random.normal(0, 0.06, shape)


def heavy(random: np.random.Generator, *shape: int) -> Floats:
    """Student's t with three degrees of freedom: a stall now and then."""
    return 0.06 * random.standard_t(3, shape) / math.sqrt(3)


def skewed(random: np.random.Generator, *shape: int) -> Floats:
    """Cells are never faster than the machine allows, and slower at times."""
    return -random.exponential(0.06, shape)


NOISE = {"normal": normal, "heavy tails": heavy, "skewed": skewed}


def null(noise: Callable[..., Floats], seed: int = 20260102) -> Floats:
    """Log rates of `LEVELS` sweeps of the same profile twice: shape (levels, pairs, side).

    The machine wanders from pair to pair by far more than the noise of a cell, and slows by 1 % from cell to cell.
    """
    random = np.random.default_rng(seed)
    wander = random.normal(0, 0.2, (LEVELS, PAIRS, 1)).cumsum(axis=1)
    abba = np.array([[0, 1], [1, 0]] * (PAIRS // 2))
    return 5 + wander - 0.01 * abba + noise(random, LEVELS, PAIRS, 2)


class TestNull:
    """The same profile twice: 5 % of the verdicts may be wrong, at most 16 of 200 are let pass."""

    def test_at_most_16_of_200_verdicts_of_a_run_are_wrong(self, make_run: MakeRun, tmp_path: Path) -> None:
        cells = {("a", n): [tuple(pair) for pair in level] for n, level in enumerate(np.exp(null(normal)), start=1)}
        run = make_run(tmp_path, cells, on_disk=0, cell={"requests": 0})
        verdicts = [level.verdict for level in crossover(run).results[0].levels]
        assert len(verdicts) == LEVELS
        assert sum(verdict != "inconclusive" for verdict in verdicts) == wrong(normal, t_half) <= MOST_WRONG

    @pytest.mark.parametrize("noise", NOISE.values(), ids=NOISE)
    def test_at_most_16_of_200_intervals_leave_out_1(self, noise: Callable[..., Floats]) -> None:
        assert wrong(noise, t_half) <= MOST_WRONG

    @pytest.mark.parametrize("noise", NOISE.values(), ids=NOISE)
    def test_a_z_interval_would_be_wrong_twice_as_often(self, noise: Callable[..., Floats]) -> None:
        assert wrong(noise, lambda logs: 1.96 * float(stats.sem(logs))) > 2 * wrong(noise, t_half)

    def test_the_bound_is_one_that_a_z_interval_breaks(self) -> None:
        assert wrong(normal, lambda logs: 1.96 * float(stats.sem(logs))) > MOST_WRONG

    @pytest.mark.parametrize("noise", NOISE.values(), ids=NOISE)
    def test_a_percentile_bootstrap_of_six_pairs_would_break_it_too(self, noise: Callable[..., Floats]) -> None:
        random = np.random.default_rng(1)
        assert (
            sum(not low <= 0 <= high for low, high in (bootstrap(x, random, 400) for x in ratios(noise))) > MOST_WRONG
        )

    def test_an_interval_over_pooled_requests_would_be_wrong_most_often(self) -> None:
        # 16 requests a cell: they differ by 20 % among each other, and share what their cell met.
        random, found = np.random.default_rng(2), 0
        for level in null(normal):
            cells = level - level.mean(axis=1, keepdims=True)
            requests = cells[:, :, None] + random.normal(0, 0.2, (PAIRS, 2, 16))
            found += stats.ttest_ind(requests[:, 0].ravel(), requests[:, 1].ravel()).pvalue < 0.05
        assert found > 2 * MOST_WRONG


def ratios(noise: Callable[..., Floats]) -> Floats:
    """Log ratios of the null sweeps: shape (levels, pairs)."""
    logs = null(noise)
    return logs[:, :, 0] - logs[:, :, 1]


def t_half(logs: Floats) -> float:
    return mean_and_half(list(logs))[1]


def wrong(noise: Callable[..., Floats], half: Callable[[Floats], float]) -> int:
    """How many of the null sweeps have an interval that leaves out 1."""
    return sum(bool(abs(logs.mean()) > half(logs)) for logs in ratios(noise))


def bootstrap(logs: Floats, random: np.random.Generator, draws: int) -> tuple[float, float]:
    """The 95 % percentile interval of the mean."""
    low, high = np.percentile(random.choice(logs, (draws, len(logs))).mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def bootstrap_t(logs: Floats, random: np.random.Generator, draws: int) -> tuple[float, float]:
    """The 95 % bootstrap-t interval of the mean (Efron and Tibshirani, An Introduction to the Bootstrap, ch. 12.5)."""
    samples = random.choice(logs, (draws, len(logs)))
    t = (samples.mean(axis=1) - logs.mean()) / stats.sem(samples, axis=1)
    high, low = np.percentile(t, [2.5, 97.5])
    return float(logs.mean() - low * stats.sem(logs)), float(logs.mean() - high * stats.sem(logs))


class TestBootstrap:
    """Where rounds are many, the intervals that assume no shape agree with the one that assumes normal noise."""

    def off(self, noise: Callable[..., Floats], other: Callable[..., tuple[float, float]], seed: int) -> float:
        """How far the ends lie apart at 60 pairs, at most, as a share of the interval's length."""
        random = np.random.default_rng(seed)
        logs = math.log(1.1) + noise(random, 60) - noise(random, 60)
        mean, half = mean_and_half(list(logs))
        low, high = other(logs, random, 20_000)
        return max(abs(low - (mean - half)), abs(high - (mean + half))) / (2 * half)

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("noise", NOISE.values(), ids=NOISE)
    def test_the_percentile_bootstrap_agrees_to_a_twentieth(self, noise: Callable[..., Floats], seed: int) -> None:
        assert self.off(noise, bootstrap, seed) < 0.05

    @pytest.mark.parametrize("seed", range(3))
    def test_the_bootstrap_t_agrees_to_a_fiftieth_where_the_noise_is_normal(self, seed: int) -> None:
        assert self.off(normal, bootstrap_t, seed) < 0.02


class TestPairs:
    def test_they_stand_by_level_and_round(self, make_run: MakeRun, tmp_path: Path) -> None:
        run = make_run(tmp_path, {("a", 16): [(1.0, 2.0), (3.0, 4.0)], ("a", 4): [(5.0, 6.0)], ("b", 4): [(7.0, 8.0)]})
        found = [
            (level, pair.arm.tokens_per_second, pair.baseline.tokens_per_second)
            for level, of_level in pairs_of(run, "a").items()
            for pair in of_level
        ]
        assert found == [(4, 5.0, 6.0), (16, 1.0, 2.0), (16, 3.0, 4.0)]

    def test_a_cell_without_its_other_side_makes_none(self, make_run: MakeRun, tmp_path: Path) -> None:
        make_run(tmp_path, {("a", 4): [(1.0, 2.0), (3.0, 4.0)]})
        lines = (tmp_path / "cells.jsonl").read_text().splitlines(keepends=True)
        (tmp_path / "cells.jsonl").write_text("".join(lines[:-1]))
        assert [len(found) for found in pairs_of(Run(tmp_path), "a").values()] == [1]

    @pytest.mark.parametrize("rates", [(None, 1.0), (1.0, None), (0.0, 1.0), (1.0, 0.0)])
    def test_one_without_two_rates_has_no_ratio(self, make_run: MakeRun, tmp_path: Path, rates: Any) -> None:
        assert pairs_of(make_run(tmp_path, {("a", 4): [rates]}), "a")[4][0].log_ratio is None

    def test_the_peak_is_the_highest_of_a_sides_cells(self, make_run: MakeRun, tmp_path: Path) -> None:
        run = make_run(tmp_path, {("a", 4): [(1.0, 2.0), (3.0, 4.0)]})
        peaks = iter([3.0, 4.0, None, 2.0])  # arm, baseline, arm, baseline
        cells = [cell.model_copy(update={"running_peak": next(peaks)}) for cell in run.cells()]
        (tmp_path / "cells.jsonl").write_text("".join(cell.model_dump_json(by_alias=True) + "\n" for cell in cells))
        assert running_peaks(Run(tmp_path), "a", 4) == {"arm": 3.0, "baseline": 4.0}
