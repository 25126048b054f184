"""How many pairs show a speedup of 1.10: exact against simulation, and with the noise of the committed run."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from toolkit.analysis.crossover import crossover
from toolkit.analysis.pairs import pairs_of
from toolkit.analysis.power import likely_sd, pairs_needed, power_at
from toolkit.analysis.run import Run

MakeRun = Callable[..., Run]
MEASURED = Path(__file__).parents[2] / "data" / "runs" / "lab-copy-code"
DEFAULT_PAIRS = 6

noise = st.floats(0.01, 0.3)


@pytest.fixture(scope="module")
def measured() -> dict[int, list[float]]:
    """Log ratios of the committed run's pairs, by concurrency."""
    found = pairs_of(Run(MEASURED), "lab-ngram")
    return {level: [pair.log_ratio or math.nan for pair in pairs] for level, pairs in found.items()}


def simulated(pairs: int, sd: float, speedup: float = 1.10, sweeps: int = 4000) -> float:
    """Share of sweeps that say "pays"."""
    logs = np.random.default_rng(3).normal(math.log(speedup), sd, (sweeps, pairs))
    half = stats.t.ppf(0.975, pairs - 1) * stats.sem(logs, axis=1)
    return float((logs.mean(axis=1) > half).mean())


class TestPower:
    @pytest.mark.parametrize(("pairs", "sd"), [(5, 0.05), (6, 0.08), (6, 0.11), (17, 0.11), (60, 0.2)])
    def test_it_is_the_share_of_simulated_sweeps_that_pay(self, pairs: int, sd: float) -> None:
        assert power_at(pairs, sd) == pytest.approx(simulated(pairs, sd), abs=0.025)  # three standard errors

    @pytest.mark.parametrize(("pairs", "sd"), [(2, 0.02), (6, 0.06), (30, 0.15)])
    def test_it_is_the_integral_over_the_spread_of_the_sample(self, pairs: int, sd: float) -> None:
        shift, point = math.log(1.1) * math.sqrt(pairs) / sd, stats.t.ppf(0.975, pairs - 1)

        def passes(chi: float) -> float:
            above = stats.norm.sf(point * chi / math.sqrt(pairs - 1) - shift)
            return float(stats.chi.pdf(chi, pairs - 1) * above)

        assert power_at(pairs, sd) == pytest.approx(integrate.quad(passes, 0, 60)[0], abs=1e-6)

    def test_a_cost_is_as_easily_seen_as_the_speedup_that_undoes_it(self) -> None:
        assert power_at(6, 0.08, 1 / 1.1) == pytest.approx(power_at(6, 0.08, 1.1))

    def test_without_an_effect_one_in_forty_pays(self) -> None:
        assert power_at(6, 0.08, 1.0) == pytest.approx(0.025)

    def test_without_noise_it_is_certain(self) -> None:
        assert power_at(2, 0.0) == 1.0


class TestPairsNeeded:
    @given(noise)
    def test_it_is_the_fewest_with_the_power(self, sd: float) -> None:
        fewest = pairs_needed(sd)
        assert power_at(fewest, sd) >= 0.9
        assert fewest == 2 or power_at(fewest - 1, sd) < 0.9

    @given(noise, noise)
    def test_more_noise_never_needs_fewer(self, sd: float, other: float) -> None:
        low, high = sorted((sd, other))
        assert pairs_needed(low) <= pairs_needed(high)

    def test_it_goes_with_the_square_of_the_noise(self) -> None:
        assert pairs_needed(1.0) == pytest.approx(100 * pairs_needed(0.1), rel=0.2)

    def test_without_noise_two_do(self) -> None:
        assert pairs_needed(0.0) == 2

    def test_no_effect_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no number of pairs"):
            pairs_needed(0.1, speedup=1.0)


class TestLikelySd:
    @pytest.mark.parametrize("pairs", [5, 6, 30])
    def test_the_noise_lies_below_it_in_seven_of_ten(self, pairs: int) -> None:
        samples = np.random.default_rng(4).normal(0, 0.1, (2000, pairs))
        assert np.mean([likely_sd(list(sample)) > 0.1 for sample in samples]) == pytest.approx(0.7, abs=0.04)

    def test_many_pairs_tell_their_noise(self) -> None:
        assert likely_sd(list(np.random.default_rng(4).normal(0, 0.1, 5000))) == pytest.approx(0.1, rel=0.02)


class TestMeasuredNoise:
    """A true speedup of 1.10 with the noise of the committed run: seen in 9 of 10 sweeps, or the rounds are said."""

    def test_pooled_over_the_levels(self, measured: dict[int, list[float]]) -> None:
        # Equal numbers of pairs: the pooled variance is the mean of the variances.
        pooled = math.sqrt(np.mean([np.var(logs, ddof=1) for logs in measured.values()]))
        rounds = max(DEFAULT_PAIRS, pairs_needed(pooled))
        assert simulated(rounds, pooled) >= 0.885  # 0.9, three standard errors let pass

    @pytest.mark.parametrize("level", [1, 4, 16, 64])
    def test_it_pays_in_nine_of_ten_sweeps_or_the_number_of_rounds_is_said(
        self, make_run: MakeRun, tmp_path: Path, measured: dict[int, list[float]], level: int
    ) -> None:
        """Forty sweeps at the default rounds, read by the product, each as a level of one run."""
        sd = float(np.std(measured[level], ddof=1))
        logs = np.random.default_rng(level).normal(math.log(1.1), sd, (40, DEFAULT_PAIRS))
        sweeps = {("a", n): [(100 * math.exp(log), 100.0) for log in sweep] for n, sweep in enumerate(logs, start=1)}
        run = make_run(tmp_path, sweeps, on_disk=0, cell={"requests": 0})
        levels = crossover(run).results[0].levels
        unseen = [one for one in levels if one.verdict != "pays"]
        assert len(unseen) <= 4 or power_at(DEFAULT_PAIRS, sd) < 0.9
        assert all(one.verdict == "inconclusive" and one.pairs_needed is not None for one in unseen)
        told = [one.pairs_needed for one in unseen if one.pairs_needed is not None]
        if told:  # who follows the advice sees the effect in nine of ten sweeps
            assert np.mean([power_at(pairs, sd) for pairs in told]) >= 0.9
