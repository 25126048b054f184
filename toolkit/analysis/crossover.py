"""Where speculation stops paying: per concurrency the speedup with its interval, a verdict, and the bracket.

The speedup of one pair is the ratio of output tokens per second of two cells, arm over baseline, on the same prompts,
adjacent where both engines stay in memory. Its logarithm is averaged over the pairs of a level: a ratio and its inverse
weigh the same, and what slows both cells of a pair alike (another load on the machine) cancels. The interval is
Student's t at 95 % on the mean log ratio, with the pairs as the sample, since requests within a cell share its
conditions and are not independent.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats

from toolkit.analysis.levels import LevelStats, level_stats
from toolkit.analysis.records import CellKey, CellRecord
from toolkit.analysis.run import ArmInfo, Run

Verdict = Literal["pays", "costs", "inconclusive"]
CONFIDENCE = 0.95
ENOUGH_PAIRS = 5
TOO_MANY_FAILED = 0.01
REQUESTS_PER_SLOT = 4
NEARLY_ALL = 0.9  # of the asked concurrency: between two requests a slot is empty for a moment


@dataclass(frozen=True, slots=True)
class Level:
    """One concurrency of one arm. `speedup`, `low`, `high` are ratios of output tokens per second."""

    concurrency: int
    speedup: float | None
    low: float | None
    high: float | None
    verdict: Verdict
    reason: str
    pairs: int
    tokens_per_pass: float | None
    draft_acceptance_rate: float | None
    acceptance_length: float | None = None
    withheld: bool = False
    """Whether `reason` says why there can be no verdict, rather than where the interval lies."""
    notes: tuple[str, ...] = ()
    """What a reader must know before believing the numbers of this level."""

    def as_json(self) -> dict[str, Any]:
        """The keys of a level in `toolkit crossover --json`; the notes follow the reason."""
        keys = ("concurrency", "speedup", "low", "high", "verdict", "reason", "pairs", "tokens_per_pass")
        values = {key: getattr(self, key) for key in (*keys, "draft_acceptance_rate")}
        return {**values, "reason": "; ".join([self.reason, *self.notes])}


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One arm on one workload, its levels by rising concurrency, and the bracket of the crossover."""

    arm: str
    workload: str
    levels: list[Level]

    @property
    def pays_up_to(self) -> int | None:
        """The highest concurrency that still pays."""
        return max((level.concurrency for level in self.levels if level.verdict == "pays"), default=None)

    @property
    def costs_from(self) -> int | None:
        """The lowest concurrency that costs."""
        return min((level.concurrency for level in self.levels if level.verdict == "costs"), default=None)


@dataclass(frozen=True, slots=True)
class Crossover:
    """What a Run says. `as_json` is the stable form."""

    baseline: str | None
    results: list[ArmResult]

    def as_json(self) -> dict[str, Any]:
        """The keys of `toolkit crossover --json`."""
        return {
            "schema": 1,
            "baseline": self.baseline,
            "results": [
                {
                    "arm": result.arm,
                    "workload": result.workload,
                    "levels": [level.as_json() for level in result.levels],
                    "pays_up_to": result.pays_up_to,
                    "costs_from": result.costs_from,
                }
                for result in self.results
            ],
        }


def crossover(run: Run) -> Crossover:
    """Analyse a Run directory; no engine is needed. Raises InputError when it is not whole."""
    run.check_whole()
    table = {(s.arm, s.side, s.workload, s.concurrency): s for s in level_stats(run)}
    rates: dict[CellKey, CellRecord] = {record.cell: record for record in run.cells()}
    results = []
    for arm in run.info.arms:
        workload = run.info.workload.name
        levels = [
            _level(run, arm, table, rates, level)
            for level in sorted(run.info.levels)
            if (arm.name, "arm", workload, level) in table
        ]
        results.append(ArmResult(arm.name, workload, levels))
    return Crossover(run.info.baseline.name if run.info.baseline else None, results)


def paired_speedup(arm: Sequence[float], baseline: Sequence[float]) -> tuple[float, float, float]:
    """(speedup, low, high) of paired rates: mean log ratio with its t-interval. At least two pairs of positive rates.

    >>> paired_speedup([2.0, 2.0, 2.0], [1.0, 1.0, 1.0])
    (2.0, 2.0, 2.0)
    """
    logs = np.log(np.asarray(arm, dtype=float) / np.asarray(baseline, dtype=float))
    mean, error = float(logs.mean()), float(stats.sem(logs))
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(logs) - 1)) * error
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def verdict_of(low: float, high: float) -> Verdict:
    """pays above 1, costs below 1, inconclusive when the interval contains 1."""
    return "pays" if low > 1 else "costs" if high < 1 else "inconclusive"


def _level(
    run: Run,
    arm: ArmInfo,
    table: dict[tuple[str, Any, str, int], LevelStats],
    cells: dict[CellKey, CellRecord],
    level: int,
) -> Level:
    workload = run.info.workload.name
    ours = table[arm.name, "arm", workload, level]
    theirs = table.get((arm.name, "baseline", workload, level))
    pairs = [
        (record.tokens_per_second, other.tokens_per_second)
        for key, record in sorted(cells.items(), key=lambda item: item[0].round)
        if (key.arm, key.side, key.concurrency) == (arm.name, "arm", level)
        and (other := cells.get(key.model_copy(update={"side": "baseline"}))) is not None
    ]
    windows = [(a, b) for a, b in pairs if a is not None and b is not None]
    usable = [(a, b) for a, b in windows if a > 0 and b > 0]
    speedup = low = high = None
    if len(usable) >= 2:
        speedup, low, high = paired_speedup([a for a, _ in usable], [b for _, b in usable])
    elif usable:
        speedup = usable[0][0] / usable[0][1]
    verdict: Verdict = "inconclusive"
    peaks = _running_peaks(cells, arm, level)
    reason = _no_verdict(run, arm, ours, theirs, level, len(pairs) - len(windows), len(usable), peaks)
    withheld = bool(reason)
    if not reason and low is not None and high is not None:
        verdict = verdict_of(low, high)
        reason = _verdict_reason(verdict)
    return Level(
        concurrency=level,
        speedup=speedup,
        low=low,
        high=high,
        verdict=verdict,
        reason=reason,
        pairs=len(usable),
        tokens_per_pass=ours.tokens_per_pass,
        draft_acceptance_rate=ours.draft_acceptance_rate,
        acceptance_length=ours.acceptance_length,
        withheld=withheld,
        notes=tuple(_notes(run, arm, cells, level)),
    )


def _verdict_reason(verdict: Verdict) -> str:
    where = {"pays": "lies above 1", "costs": "lies below 1", "inconclusive": "contains 1"}[verdict]
    return f"the 95 % interval {where}"


def _no_verdict(
    run: Run,
    arm: ArmInfo,
    ours: LevelStats,
    theirs: LevelStats | None,
    level: int,
    without: int,
    usable: int,
    peaks: dict[str, float],
) -> str:
    """Why this level can have no verdict, or an empty string."""
    if run.info.baseline is None:
        return "no baseline was measured"
    failed = max((side.failed_share for side in (ours, theirs) if side), default=0.0)
    if failed > TOO_MANY_FAILED:
        return f"{failed:.1%} of the requests failed"
    if run.info.requests.get(level, 0) < REQUESTS_PER_SLOT * level:
        return f"{run.info.requests.get(level, 0)} requests a cell are too few: 4 x {level} are needed"
    for info, side in ((arm, ours), (run.info.baseline, theirs)):
        if info.kv_tokens and side and side.mean_tokens_held and info.kv_tokens < level * side.mean_tokens_held:
            fit = int(info.kv_tokens / side.mean_tokens_held)
            return f"the KV cache of {info.name} holds about {fit} of {level} requests"
    for name, peak in sorted(peaks.items()):
        if peak < NEARLY_ALL * level:
            return f"{name} never ran more than {peak:.0f} of {level} requests at once"
    if without:
        return f"{_count(without, 'pair')} had no window in which all {level} requests ran"
    if usable < ENOUGH_PAIRS:
        return f"{_count(usable, 'pair')} measured, {ENOUGH_PAIRS} are needed"
    return ""


def _running_peaks(cells: dict[CellKey, CellRecord], arm: ArmInfo, level: int) -> dict[str, float]:
    """The most requests that each server was seen to run at once, where that was looked at."""
    peaks: dict[str, float] = {}
    for key, record in cells.items():
        if (key.arm, key.concurrency) == (arm.name, level) and record.running_peak is not None:
            peaks[record.served_by] = max(record.running_peak, peaks.get(record.served_by, 0.0))
    return peaks


def _notes(run: Run, arm: ArmInfo, cells: dict[CellKey, CellRecord], level: int) -> list[str]:
    notes = []
    baseline = run.info.baseline
    here = [record for key, record in cells.items() if key.arm == arm.name and key.concurrency == level]
    if baseline is not None and baseline.speculates:
        notes.append(f"the baseline {baseline.name} speculates too")
    if baseline is not None and arm.scheduling and baseline.scheduling and arm.scheduling != baseline.scheduling:
        notes.append(
            f"{arm.name} schedules {arm.scheduling}ly, {baseline.name} {baseline.scheduling}ly: "
            "part of the difference is that"
        )
    if baseline is not None and run.info.resident is False:
        notes.append("the engines took turns in memory, so the sides of a pair were minutes apart")
    if any(record.client_cpu > 0.9 for record in here):
        notes.append("the load client itself was near its limit")
    if run.info.workload.reuse:
        notes.append("prompts were reused, caches may have answered")
    digests: dict[int, set[str]] = {}
    for record in here:
        digests.setdefault(record.cell.round, set()).add(record.prompts_digest)
    if any(len(found) > 1 for found in digests.values()):
        notes.append("a resumed pair had different prompts on its two sides")
    return notes


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
