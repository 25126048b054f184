"""Pairs of cells, and the interval of a speedup over them.

A pair is two cells of one round, arm and baseline, on the same prompts, adjacent where both engines stay in memory. Its
speedup is the ratio of their output tokens per second. The mean is of the logarithms: a ratio and its inverse weigh the
same, and what slows both cells alike (another load on the machine, the heat of a long sweep) cancels.

The pairs are the sample, not the requests: the requests of one cell share its batch, its prompts' difficulty and
whatever else the machine did meanwhile. Thousands of them say little of how the next cell would come out, and an
interval over pooled requests finds an effect in most sweeps that have none.

The order is ABBA: the side that goes first changes from round to round, so a steady drift raises one pair's ratio and
lowers the next one's. It widens the interval and does not move its middle.

The interval is Student's t at 95 %. Five or six pairs are few, which is why it is neither a z-interval nor a bootstrap:
both take the spread of six values for the truth and are wrong about twice as often as they say (a percentile bootstrap
of six pairs is 0.7 times as long as the t-interval). The t-interval wants log ratios that are near normal. Each is a
difference of two sums over many requests, and without an effect its two cells are alike, so it is symmetric; heavier
tails make the t-interval too long rather than too short. With many pairs all three agree. The tests show each of these.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from toolkit.analysis.records import CellRecord, Side
from toolkit.analysis.run import Run

CONFIDENCE = 0.95
ENOUGH_PAIRS = 5


@dataclass(frozen=True, slots=True)
class Pair:
    """The two cells of one round at one concurrency."""

    arm: CellRecord
    baseline: CellRecord

    @property
    def has_windows(self) -> bool:
        """Whether all requests ran at once for a while on both sides."""
        return None not in (self.arm.tokens_per_second, self.baseline.tokens_per_second)

    @property
    def log_ratio(self) -> float | None:
        """Logarithm of the pair's speedup; None without a window or with a rate of zero."""
        ours, theirs = self.arm.tokens_per_second, self.baseline.tokens_per_second
        return math.log(ours / theirs) if ours and theirs else None


def pairs_of(run: Run, arm: str) -> dict[int, list[Pair]]:
    """The pairs of `arm` with both cells finished, by concurrency, each level's by round; none over random prompts."""
    if run.info.workload.random:
        return {}
    cells = {record.cell: record for record in run.cells() if record.cell.arm == arm}
    found: dict[int, list[Pair]] = {}
    for key in sorted(cells, key=lambda key: (key.concurrency, key.round)):
        other = cells.get(key.model_copy(update={"side": "baseline"}))
        if key.side == "arm" and other is not None:
            found.setdefault(key.concurrency, []).append(Pair(cells[key], other))
    return found


def running_peaks(run: Run, arm: str, concurrency: int) -> dict[Side, float]:
    """The most requests that each side of `arm` was seen to run at once, where that was looked at."""
    peaks: dict[Side, float] = {}
    for record in run.cells():
        key = record.cell
        if (key.arm, key.concurrency) == (arm, concurrency) and record.running_peak is not None:
            peaks[key.side] = max(record.running_peak, peaks.get(key.side, 0.0))
    return peaks


def mean_and_half(logs: Sequence[float]) -> tuple[float, float]:
    """Mean of the log ratios and half the length of its 95 % t-interval, which is infinite under two of them.

    >>> mean_and_half([math.log(2.0)] * 3)
    (0.6931471805599453, 0.0)
    """
    if len(logs) < 2:
        return math.fsum(logs), math.inf
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(logs) - 1)) * float(stats.sem(logs))
    return float(np.mean(logs)), half
