"""How many pairs it takes to see a speedup, given how much the log ratios of pairs differ from one another.

A level "pays" when the lower end of its t-interval lies above 1. With n pairs, a true speedup s and log ratios of
standard deviation sd, the t statistic has Student's noncentral distribution with n - 1 degrees of freedom and
noncentrality log(s) * sqrt(n) / sd (Johnson, Kotz, Balakrishnan, Continuous Univariate Distributions 2, ch. 31), so its
chance to pass the 97.5 % point is exact for normal noise.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from toolkit.analysis.pairs import CONFIDENCE

WORTH_SEEING = 1.10  # the speedup that a level should be able to tell from 1
POWER = 0.9
LIKELY = 0.7


def power_at(pairs: int, sd_log: float, speedup: float = WORTH_SEEING) -> float:
    """Chance that `pairs` (2 or more) give the verdict of a true `speedup`: pays above 1, costs below it.

    >>> round(power_at(6, 0.06), 2), round(power_at(6, 0.11), 2)
    (0.87, 0.41)
    """
    effect = abs(math.log(speedup))
    if sd_log == 0:
        return float(effect > 0)
    point = stats.t.ppf(0.5 + CONFIDENCE / 2, pairs - 1)
    return float(stats.nct.sf(point, pairs - 1, effect * math.sqrt(pairs) / sd_log))


def pairs_needed(sd_log: float, speedup: float = WORTH_SEEING, power: float = POWER) -> int:
    """The fewest pairs, 2 or more, that give the verdict of a true `speedup` with chance `power`.

    Raises ValueError for a speedup of 1, which no number of pairs shows.

    >>> pairs_needed(0.06), pairs_needed(0.11)
    (7, 17)
    """
    if speedup == 1:
        raise ValueError("a speedup of 1 is no effect: no number of pairs shows it")
    enough = 2
    while power_at(enough, sd_log, speedup) < power:
        enough *= 2
    too_few = enough // 2
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        if power_at(middle, sd_log, speedup) < power:
            too_few = middle
        else:
            enough = middle
    return enough


def likely_sd(logs: Sequence[float]) -> float:
    """Standard deviation below which the noise of these log ratios lies with 70 % confidence (chi-squared limit).

    A few pairs tell their own spread badly. Planned with the spread as it is, the next sweep would show its effect less
    often than promised; with this limit it does so in nine of ten (the tests follow the advice).
    """
    freedom = len(logs) - 1
    return float(np.std(logs, ddof=1)) * math.sqrt(freedom / float(stats.chi2.ppf(1 - LIKELY, freedom)))
