"""A schedule of draft lengths by batch size, made of what was measured: `[[first, last, K], ...]`. Pure functions.

The engine looks K up by the requests of a step (vLLM: `dynamic_sd_lookup` in v1/core/sched/scheduler.py), and carries
the last K on beyond the last range. Speedups are log ratios of paired cells, K over no speculation.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

Schedule = list[tuple[int, int, int]]
CONFIDENCE = 0.95


def pooled_error(ratios: Mapping[int, Sequence[float]]) -> tuple[float, int]:
    """(variance of one log ratio, its degrees of freedom) at one level, over all K that have two pairs or more.

    Two pairs of one K leave one degree of freedom: its own interval is 13 standard errors wide and decides nothing. All
    cells of a level send as many requests at the same concurrency on the same machine in turn, so that they share their
    noise, whatever K is: the variances within each K are pooled (four K with two pairs: four degrees, 2.8 standard
    errors). They are not pooled over levels, where windows differ in length.

    >>> pooled_error({1: [0.0, 0.2], 2: [0.5, 0.5]})
    (0.01, 2)
    """
    several = [np.asarray(logs, dtype=float) for logs in ratios.values() if len(logs) > 1]
    freedom = sum(len(logs) - 1 for logs in several)
    squares = sum(float(((logs - logs.mean()) ** 2).sum()) for logs in several)
    return (round(squares / freedom, 12), freedom) if freedom else (math.nan, 0)


def dominated(ratios: Mapping[int, Sequence[float]]) -> frozenset[int]:
    """The K that need not be measured further at one level: another K is clearly better, or none at all is.

    K is dominated when its upper bound lies below the lower bound of the best one, no speculation (exactly 1) among
    them; bounds at 95 % with the pooled variance. That is stricter than a test of the difference, since there is a look
    after every round: simulated over six rounds, the best of four K, 4 % ahead, is dropped in under 1 of 100, and of
    four equal ones one goes in 13 of 100, which loses nothing. Dropping only saves time: what it can lose is a better
    K, never honesty, since the schedule is judged by a measurement of its own.
    """
    variance, freedom = pooled_error(ratios)
    if not freedom:
        return frozenset()
    width = float(stats.t.ppf(0.5 + CONFIDENCE / 2, freedom)) * math.sqrt(variance)
    bounds = {
        k: (float(np.mean(logs)) - width / math.sqrt(len(logs)), float(np.mean(logs)) + width / math.sqrt(len(logs)))
        for k, logs in ratios.items()
        if len(logs) > 1
    }
    floor = max(0.0, *(low for low, _ in bounds.values()))
    return frozenset(k for k, (_, high) in bounds.items() if high < floor)


def best_k(ratios: Mapping[int, Sequence[float]], pays: Collection[int]) -> int:
    """The K for one level: of those that pay the best on average, 0 where none does.

    A smaller K within one standard error of the best is taken instead (the one-standard-error rule of Breiman et al.,
    Classification and Regression Trees, 1984): what drafts less loses less where traffic is harder than the workload.
    """
    means = {k: float(np.mean(ratios[k])) for k in pays}
    if not means:
        return 0
    best = max(means, key=lambda k: (means[k], -k))
    variance, freedom = pooled_error(ratios)
    error = math.sqrt(variance / len(ratios[best])) if freedom else 0.0
    return min(k for k, mean in means.items() if mean >= means[best] - error)


def schedule_of(choices: Mapping[int, int], most: int) -> Schedule:
    """The schedule that follows from K at each measured level, for batch sizes 1 to `most`.

    Between two levels the smaller of their K holds. K falls with load, so that is the higher level's: nothing is
    known in between, and too little speculation loses a gain where too much costs. Below the lowest level its own K
    holds (a smaller batch gains more). Above the highest one there is none: loss is likeliest there, and nothing was
    measured.

    >>> schedule_of({1: 4, 8: 4, 16: 2}, 64)
    [(1, 8, 4), (9, 16, 2), (17, 64, 0)]
    """
    levels = sorted(choices)
    ranges: Schedule = []
    first = 1
    for below, level in zip([None, *levels], levels, strict=False):
        if below is not None and first < level:
            ranges.append((first, level - 1, min(choices[below], choices[level])))
            first = level
        ranges.append((first, level, choices[level]))
        first = level + 1
    if most >= first:
        ranges.append((first, most, 0))
    return merged(ranges)


def merged(ranges: Schedule) -> Schedule:
    """Neighbours of equal K as one range.

    >>> merged([(1, 4, 2), (5, 8, 2), (9, 9, 0)])
    [(1, 8, 2), (9, 9, 0)]
    """
    result: Schedule = []
    for first, last, k in ranges:
        if result and result[-1][2] == k:
            result[-1] = (result[-1][0], last, k)
        else:
            result.append((first, last, k))
    return result


def k_at(schedule: Sequence[Sequence[int]], batch: int) -> int:
    """K at a batch size; the last range's beyond its end."""
    return next((k for _, last, k in schedule if batch <= last), schedule[-1][2])


def thresholds(schedule: Sequence[Sequence[int]]) -> list[int]:
    """The last batch size of every range but the last: from there to the next one K changes.

    >>> thresholds([(1, 8, 4), (9, 64, 0)])
    [8]
    """
    return [last for _, last, _ in schedule[:-1]]


def levels_to_judge(schedule: Sequence[Sequence[int]], levels: Collection[int]) -> list[int]:
    """The levels as asked, and every threshold with its neighbours; the upper one may lie above the highest level.

    >>> levels_to_judge([(1, 8, 4), (9, 64, 0)], [1, 16])
    [1, 7, 8, 9, 16]
    """
    near = {t + step for t in thresholds(schedule) for step in (-1, 0, 1)}
    return sorted({*levels, *near} - {0})


def lowered(schedule: Schedule, judged: Collection[int], faulty: Collection[int]) -> Schedule:
    """`schedule` without speculation from each `faulty` level to the end of its range.

    Up to the nearest judged level below, which was not faulty, its K stays.

    >>> lowered([(1, 8, 4), (9, 64, 0)], judged=[1, 4, 8, 9], faulty=[8])
    [(1, 4, 4), (5, 64, 0)]
    """
    ranges: Schedule = []
    for first, last, k in schedule:
        bad = min((level for level in faulty if first <= level <= last), default=None)
        if bad is None:
            ranges.append((first, last, k))
            continue
        good = max((level for level in judged if first <= level < bad), default=first - 1)
        if good >= first:
            ranges.append((first, good, k))
        ranges.append((good + 1, last, 0))
    return merged(ranges)


def collapsed(rates: Mapping[int, float], baseline: Mapping[int, float]) -> list[int]:
    """Levels whose throughput is under half that of both neighbours, though the baseline's is not.

    `rates` and `baseline` are output tokens per second by level. vllm#49548 reports a threshold at which throughput
    fell tenfold.
    """

    def falls(by_level: Mapping[int, float], below: int, level: int, above: int) -> bool:
        return by_level[level] < 0.5 * min(by_level[below], by_level[above])

    levels = sorted(set(rates) & set(baseline))
    return [
        level
        for below, level, above in zip(levels, levels[1:], levels[2:], strict=False)
        if falls(rates, below, level, above) and not falls(baseline, below, level, above)
    ]


def as_lists(schedule: Sequence[Sequence[int]]) -> list[list[Any]]:
    """The form of a profile and of JSON."""
    return [list(one) for one in schedule]
