"""How far does it pay to draft, at this moment's load?

Let a step verify V draft tokens of R requests and take t(R, V) seconds. A draft token is kept when it and all before it
are right, with probability s (its *survival*), so the step yields R + sum of s tokens: the bonus token of each request
and the drafts that survive. The rule drafts the tokens that make

    (R + S(V)) / t(R, V),    S(V) = the sum of the V highest survivals in the batch,

greatest. For a given V nothing beats the V highest; and survival never rises along a request's draft, so these are a
prefix of every draft. Where t is convex in V the best V is where one more token no longer earns its time,

    s (one more token) >= (t(R, V + 1) - t(R, V)) x (R + S(V)) / t(R, V):

*P(survives) >= marginal seconds x tokens per second*, the current rate being the price of a second. (S is concave, so
the quotient rises while this holds and falls after.) A GPU pads its batches, t is a staircase, and what does not pay
token by token may pay up to the end of the stair: so the whole curve is searched, which costs no more.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.errors import InputError
from toolkit.proposers.compiled import compiled
from toolkit.proposers.step_time import StepTimes

Float = NDArray[np.float64]
Int32 = NDArray[np.int32]

LEVELS = 1024
"""Survivals are sorted by counting, in this many levels: tokens of a level may change places, each swap losing less
than 1 / LEVELS expected tokens."""

DOUBT_MOST = 0.005  # of the throughput: the most that sticking to the last decision may cost
WORTH = 0.02  # of the throughput: what a probe must be able to find
DEVIATIONS = 1.5  # how far from what is believed a probe may hope for
SAVED = 20.0  # the time that probes may lose is saved up to the budget's share of so many steps


def admit(survival: NDArray[np.float32], lengths: Int32, seconds: Float) -> Int32:
    """How much of each draft to verify, [n]: the best expected tokens per second, as the module says.

    `survival` [n, K]: P(token is kept), non-increasing along a row; `lengths` [n]: how many of them there are;
    `seconds` [sum of lengths + 1 or more]: t(n, 0), t(n, 1), .... Of equal survivals the earlier position goes first,
    of equal rates the fewer tokens. At most `LEVELS`ths of a token are lost to the coarse sort.
    """
    expected = _expected(survival, lengths)
    return _cut(survival, lengths, int(np.argmax(expected / seconds[: len(expected)])))


def warm() -> None:
    """Compile, or load from numba's cache, all that the rule runs, so that no step of an engine waits for it."""
    rule = DraftLength(most=1, requests=1)
    for _ in range(2):
        rule.choose(np.ones((1, 1), np.float32), np.ones(1, np.int32))
        rule.observe(1, 1, 1.0)


@dataclass(frozen=True, slots=True)
class LengthReport:
    """The rule so far: steps seen, probes made and the share of all time that they lost, the relative noise of a step,
    and for the last batch size, `requests`, the seconds of a step that verifies 0, 1, ... `most` draft tokens."""

    steps: int
    probes: int
    probing_share: float
    noise: float
    requests: int
    seconds: tuple[float, ...]


class DraftLength:
    """The rule for an engine that serves up to `requests` requests with drafts of up to `most` tokens.

    `choose` drafts by the times that `observe` taught. Where they are not known well enough to rule out a gain it
    **probes**: it drafts as if they were as low as they may be. A probe drafts what is likeliest to survive; it waits
    until `probe_budget` of the time that has passed has paid for what the ones before lost; and what could not pay if
    it took no time at all is not probed. Between drafting and not drafting the rule changes its mind only for a gain
    beyond the standard error of that gain.

    Nothing waits for the compiler after `warm()`. Raises InputError on a bad option.
    """

    def __init__(self, most: int, requests: int, probe_budget: float = 0.01) -> None:
        if not 0.0 <= probe_budget <= 0.5:
            raise InputError(f"probe_budget {probe_budget}: the share of time that probes may lose, from 0 to 0.5.")
        self.times = StepTimes(requests, most)
        self._most = most
        self._budget = probe_budget
        self._drafting = True
        self._saved = 0.0  # seconds that probes may lose
        self._lost = 0.0
        self._charged = self._worth = 0.0  # of the last probe: what it was expected to lose, what its tokens are worth
        self._total = 0.0
        self._probes = 0
        self._last = 1

    def choose(self, survival: NDArray[np.float32], lengths: Int32) -> Int32:
        """How much of each draft to verify in the next step, [n]; arguments as for `admit`."""
        requests = len(lengths)
        survival = np.ascontiguousarray(survival, np.float32)  # each other type is compiled anew
        lengths = np.ascontiguousarray(lengths, np.int32)
        expected = _expected(survival, lengths)
        most = len(expected) - 1
        if most == 0:
            return np.zeros(requests, np.int32)
        self._last = requests
        self._charged = 0.0
        seconds = self.times.seconds(requests, most)
        chosen = self._decide(expected, seconds)
        if self._saved >= 0.0 and self.times.steps:
            chosen = self._probe(expected, seconds, chosen)
        return _cut(survival, lengths, chosen)

    def observe(self, requests: int, verified: int, seconds: float) -> None:
        """The step that just ended had `requests` requests, verified `verified` draft tokens and took `seconds`."""
        self.times.observe(requests, verified, seconds)
        if self._charged > 0.0:
            self._pay(min(max(seconds - self._worth, 0.0), self._charged) - self._charged)
            self._charged = 0.0
        if 0.0 < seconds < math.inf:
            self._total += seconds
            self._saved = min(self._saved + self._budget * seconds, self._budget * SAVED * seconds)

    def report(self) -> LengthReport:
        share = self._lost / self._total if self._total else 0.0
        seconds = tuple(self.times.seconds(self._last, self._most).tolist())
        return LengthReport(self.times.steps, self._probes, share, self.times.noise, self._last, seconds)

    def _decide(self, expected: Float, seconds: Float) -> int:
        requests = int(expected[0])
        best = _best(expected, seconds, 1)
        gain = math.log(expected[best] / requests * seconds[0] / seconds[best])
        ratio, _, _ = self.times.errors(requests, np.array([best]), 0, seconds)
        doubt = min(ratio[0], DOUBT_MOST)
        self._drafting = gain > (-doubt if self._drafting else doubt)
        return best if self._drafting else 0

    def _probe(self, expected: Float, seconds: Float, chosen: int) -> int:
        """`chosen`, or what would be chosen if times were as low as they may be."""
        requests = int(expected[0])
        choices = self.times.choices(requests, len(expected) - 1)
        ratio, alone, known = self.times.errors(requests, choices, chosen, seconds)
        probe, lost = _hopeful(expected, seconds, choices, ratio, alone, chosen, known)
        if probe == chosen:
            return chosen
        self._probes += 1
        self._charged, self._worth = lost, expected[probe] * seconds[chosen] / expected[chosen]
        self._pay(lost)
        return int(probe)

    def _pay(self, seconds: float) -> None:
        self._lost += seconds
        self._saved -= seconds


@compiled
def _level(survival: float) -> int:
    return min(max(int(survival * LEVELS), 0), LEVELS - 1)


@compiled
def _expected(survival: Any, lengths: Any) -> Any:
    """[sum of lengths + 1]: the expected tokens of a step that verifies the V tokens of highest survival."""
    n = len(lengths)
    count = np.zeros(LEVELS, np.int64)
    total = np.zeros(LEVELS)
    tokens = 0
    for i in range(n):
        tokens += lengths[i]
        for j in range(lengths[i]):
            level = _level(survival[i, j])
            count[level] += 1
            total[level] += survival[i, j]
    out = np.empty(tokens + 1)
    out[0] = n
    v = 0
    for level in range(LEVELS - 1, -1, -1):
        for _ in range(count[level]):
            out[v + 1] = out[v] + total[level] / count[level]
            v += 1
    return out


@compiled
def _cut(survival: Any, lengths: Any, tokens: int) -> Any:
    """[n]: the drafts cut to the `tokens` tokens of highest survival, of equal ones the earlier position first."""
    n = len(lengths)
    count = np.zeros(LEVELS, np.int64)
    for i in range(n):
        for j in range(lengths[i]):
            count[_level(survival[i, j])] += 1
    last, left = LEVELS - 1, tokens
    while last > 0 and left >= count[last]:
        left -= count[last]
        last -= 1
    out = np.zeros(n, np.int32)
    for i in range(n):
        while out[i] < lengths[i] and _level(survival[i, out[i]]) > last:
            out[i] += 1
    position = 0
    while left > 0 and position < survival.shape[1]:
        for i in range(n):
            if left > 0 and out[i] == position and position < lengths[i] and _level(survival[i, position]) == last:
                out[i] += 1
                left -= 1
        position += 1
    return out


@compiled
def _best(expected: Any, seconds: Any, first: int) -> int:
    """The V >= first of the highest rate, the fewest tokens of equal ones."""
    best = first
    for v in range(first + 1, len(expected)):
        if expected[v] * seconds[best] > expected[best] * seconds[v]:
            best = v
    return best


@compiled
def _hopeful(expected: Any, seconds: Any, choices: Any, ratio: Any, alone: Any, chosen: int, known: float) -> Any:
    """(V, seconds it is expected to lose): the fewest tokens that may be about as good as any, or `chosen` and 0.

    Arguments as `StepTimes.errors` has them; `known` is the error of log t(chosen).
    """
    hopes = np.full(len(choices), -np.inf)
    highest, faster = -np.inf, np.inf
    for c in range(len(choices)):
        v = choices[c]
        faster = min(faster, math.log(seconds[chosen] / seconds[v]) + DEVIATIONS * ratio[c])
        if v >= chosen:
            faster = min(faster, 0.0)  # more tokens take no less time; nor, by `min`, less than any fewer tokens may
        if alone[c] > known:  # else drafting `chosen` tells more
            hopes[c] = faster + math.log(expected[v] / expected[chosen])
            highest = max(highest, hopes[c])
    if highest < WORTH:
        return chosen, 0.0
    for c in range(len(choices)):
        if hopes[c] > highest - WORTH / 2:
            v = choices[c]
            return v, max(seconds[v] - expected[v] * seconds[chosen] / expected[chosen], 0.0)
    return chosen, 0.0
