"""A number from counts of a text, with a 95 % interval that knows that neighbouring tokens are not independent.

Text has easy stretches and hard ones, so a thousand tokens of one answer say less than a thousand of a thousand
answers. The sample is therefore the units, not the tokens: counts are summed per unit, ratios come from summed counts
only, and the spread comes from leaving out one unit at a time (the jackknife; Efron and Tibshirani, An Introduction to
the Bootstrap, 1993, ch. 11), with Student's t for how few the units are.

A share stays in [0, 1] and is never certain because few were seen: its interval is Wilson's at the number of
independent draws that would have the jackknife's variance (Korn and Graubard, Survey Methodology 24, 1998).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from toolkit.analysis.pairs import CONFIDENCE
from toolkit.sampling import FloatArray

IntArray = npt.NDArray[np.int64]

ENOUGH_SEQUENCES = 5
STRETCHES = 10  # units that fewer sequences are cut into, all together


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value, its 95 % interval (None where the sample is one unit), and the count `n` that it was taken over.

    `n` is a number of tokens, drafts or rounds; an expected number where those were not drawn but calculated.
    """

    value: float
    low: float | None
    high: float | None
    n: float

    @property
    def percent(self) -> str:
        """`58.1% [55.2, 61.0]`, as far as it is known."""
        if self.low is None or self.high is None:
            return f"{self.value:.1%}"
        return f"{self.value:.1%} [{100 * self.low:.1f}, {100 * self.high:.1f}]"

    def as_json(self) -> dict[str, Any]:
        return {"value": self.value, "low": self.low, "high": self.high, "n": round(self.n, 1)}


def units(lengths: Sequence[int]) -> IntArray:
    """The unit of every token [sum of lengths], from 0: its sequence, or a stretch of it where sequences are few.

    Stretches show how well these very texts were measured. They cannot show how other texts differ.

    >>> units([2, 1, 1, 1, 2]).tolist()
    [0, 0, 1, 2, 3, 4, 4]
    """
    cuts = 1 if len(lengths) >= ENOUGH_SEQUENCES else math.ceil(STRETCHES / max(1, len(lengths)))
    parts = [len(part) for length in lengths for part in np.array_split(np.arange(length), cuts) if len(part)]
    return np.repeat(np.arange(len(parts)), parts)


def per_unit(values: npt.ArrayLike, unit: IntArray) -> FloatArray:
    """Sums of `values` [n, ...] over the tokens of each unit: [units, ...]."""
    rows = np.asarray(values, dtype=np.float64)
    sums = np.zeros((int(unit.max(initial=-1)) + 1, *rows.shape[1:]))
    np.add.at(sums, unit, rows)
    return sums


def share(kept: FloatArray, of: FloatArray) -> Estimate | None:
    """sum of `kept` / sum of `of`, both per unit [units], 0 <= kept <= of. None where `of` is nothing."""
    total = float(of.sum())
    if total <= 0:
        return None
    value = min(1.0, float(kept.sum()) / total)
    totals = np.stack([kept, of], axis=1)
    error = _standard_error(totals, lambda sums: sums[0] / sums[1] if sums[1] > 0 else value)
    if error is None:
        return Estimate(value, None, None, total)
    spread = value * (1 - value)
    seen_both = spread > 1e-12
    draws = (spread / error**2 if error > 0 else math.inf) if seen_both else total
    z = _quantile(len(totals))
    middle = (value + z**2 / (2 * draws)) / (1 + z**2 / draws)
    half = z / (1 + z**2 / draws) * math.sqrt(spread / draws + (z / (2 * draws)) ** 2)
    return Estimate(value, max(0.0, min(value, middle - half)), min(1.0, max(value, middle + half)), total)


def estimate(totals: FloatArray, statistic: Callable[[FloatArray], float], n: float) -> Estimate:
    """`statistic` of the sums of `totals` [units, m] over the units, with a t-interval.

    A statistic of ratios: the same when all sums are twice as large. Otherwise leaving out a unit is no like sample.
    """
    value = statistic(totals.sum(axis=0))
    error = _standard_error(totals, statistic)
    if error is None:
        return Estimate(value, None, None, n)
    half = _quantile(len(totals)) * error
    return Estimate(value, value - half, value + half, n)


def _standard_error(totals: FloatArray, statistic: Callable[[FloatArray], float]) -> float | None:
    count = len(totals)
    if count < 2:
        return None
    everything = totals.sum(axis=0)
    without = np.array([statistic(everything - one) for one in totals])
    return math.sqrt((count - 1) / count * float(((without - without.mean()) ** 2).sum()))


def _quantile(count: int) -> float:
    return float(stats.t.ppf(0.5 + CONFIDENCE / 2, count - 1))
