"""What does a step of the engine cost? Seconds of (requests, draft tokens verified), learned from the steps themselves.

The model is additive, t(R, V) = F(R + V) + G(R) + D(R) [V > 0]: the work of the tokens in the pass, what each request
adds to that (attention, sampling), and what verifying anything costs at all (another graph, the rejection sampler). All
three are values at knots, linear between them; what one batch size shows of F holds for all of them.

It is learned as a Gaussian process, by a Kalman filter on the values at the knots (Särkkä, "Bayesian Filtering and
Smoothing", 2013, section 4.3; Rasmussen and Williams, "Gaussian Processes", 2006, chapter 2), made to fit an engine:

- The prior is on *slopes*, correlated along log N: what was seen at 64 tokens says something, but not much, of 128.
- The process noise is a common factor: a busier machine or longer contexts scale the whole table and leave its ratios,
  which are all that a decision needs. Beside that, certainty fades toward the prior; the values stay.
- A step counts as if it were at most `SURPRISE` standard deviations off, however far it is, so that one odd step moves
  nothing that is known; several in a row on one side are a jump of the level.

What is read is non-decreasing in V: the learned values after a weighted isotonic regression.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.errors import InputError
from toolkit.proposers.compiled import compiled

Float = NDArray[np.float64]
Int = NDArray[np.int64]

# The prior, in units of t(1, 0). Slopes per token at N tokens are FAR + NEAR / N: a mixture of experts adds much from
# one token to two, a dense model nothing until compute binds it, and then a CPU up to 0.05 and a GPU 0.003.
SLOPE_FAR, SLOPE_NEAR = 0.003, 0.03
SPREAD_FAR, SPREAD_NEAR = 0.02, 0.2
SLOPE_REQUEST, SPREAD_REQUEST = 0.003, 0.02
DRAFTING, SPREAD_DRAFTING = 0.02, 0.05
SPREAD_HERE = 0.1  # of D at one batch size beside others: so that no speculation is tried at each of them, not inferred
SPREAD_FIRST = 0.3  # of the first step, relative
REACH = math.log(4.0)  # how far along log N slopes are alike
STAIRS = 0.3  # the share of a slope's variance that is its own: what makes stairs likely

NOISE = 0.1  # relative standard deviation of a step, to begin with
NOISE_LEAST, NOISE_MOST = 0.01, 0.3
NOISE_GAIN = 0.01
DRIFT = 0.005  # of the level, per step, relative
FADE = 1e-6  # of the certainty, per step
FADE_AT_JUMP = 1e-2  # the same at a jump, which may not be one of the level alone

SURPRISE = 2.0  # standard deviations
OUTLIER = 4.0  # the same
JUMP = 3  # outliers in a row

FEATURES = 6  # a step weighs two knots each of F, G and D


class StepTimes:
    """t(R, V) for up to `requests` requests with up to `most` draft tokens each. Raises InputError below 1."""

    def __init__(self, requests: int, most: int) -> None:
        if requests < 1 or most < 1:
            raise InputError(f"Step times for {requests} requests of {most} draft tokens: at least 1 of each.")
        self._tokens = _token_knots(requests * (1 + most))
        self._requests = _request_knots(requests)
        self._prior_mean, self._prior = _prior(self._tokens, self._requests)
        self._mean, self._cov = self._prior_mean.copy(), self._prior.copy()
        self._noise = NOISE**2
        self._run = 0  # outliers in a row: their number, with their sign
        self.steps = 0

    @property
    def noise(self) -> float:
        """The relative standard deviation of a step's time around t."""
        return math.sqrt(self._noise)

    def observe(self, requests: int, verified: int, seconds: float) -> None:
        """A step of `requests` requests that verified `verified` draft tokens took `seconds`. Nonsense is left out."""
        if requests < 1 or verified < 0 or not 0.0 < seconds < math.inf:
            return
        requests, verified, seconds = int(requests), int(verified), float(seconds)  # each other type is compiled anew
        if self.steps == 0:
            self._begin(requests, verified, seconds)
        self._noise, self._run = _observe(
            self._tokens, self._requests, requests, verified, seconds,
            self._prior, self._mean, self._cov, self._noise, self._run,
        )  # fmt: skip
        self.steps += 1

    def seconds(self, requests: int, most: int) -> Float:
        """[most + 1]: t(requests, 0), ..., t(requests, most); non-decreasing.

        Before any step this is the prior, in units of t(1, 0).
        """
        return _curve(self._tokens, self._requests, self._mean, self._cov, requests, most)

    def errors(self, requests: int, choices: Int, against: int, seconds: Float) -> tuple[Float, Float, float]:
        """Standard errors at some numbers of draft tokens, `seconds` being their t.

        [choices] of log t(requests, choice) / t(requests, against), in which the level cancels; [choices] of
        log t(requests, choice); and of log t(requests, against).
        """
        return _errors(self._tokens, self._requests, self._cov, requests, choices, against, seconds)

    def choices(self, requests: int, most: int) -> Int:
        """The numbers of draft tokens from 0 to `most` between which t is linear: 0, 1, the knots, `most`."""
        return _choices(self._tokens, requests, most)

    def _begin(self, requests: int, verified: int, seconds: float) -> None:
        index, weight = _features(self._tokens, self._requests, requests, verified)
        unit = seconds / float(weight @ self._prior_mean[index])
        self._mean[:] = unit * self._prior_mean
        self._cov[:] = unit**2 * (self._prior + SPREAD_FIRST**2 * np.outer(self._prior_mean, self._prior_mean))


def _token_knots(most: int) -> Float:
    """1 to 8, then 16, 24, ... as vLLM captures its graphs, and from 64 on eight in each doubling."""
    knots = list(range(1, 9))
    while knots[-1] < most:
        knots.append(knots[-1] + max(8, 1 << (knots[-1].bit_length() - 4)))
    return np.array(knots, np.float64)


def _request_knots(most: int) -> Float:
    return np.array([1 << k for k in range(max(1, (most - 1).bit_length()) + 1)], np.float64)


def _prior(tokens: Float, requests: Float) -> tuple[Float, Float]:
    """The mean and covariance of the values at the knots of F, of G and of D, where t(1, 0) is 1."""
    middle = (tokens[1:] + tokens[:-1]) / 2
    work, work_cov = _from_slopes(tokens, SLOPE_FAR + SLOPE_NEAR / middle, SPREAD_FAR + SPREAD_NEAR / middle)
    flat = np.ones(len(requests) - 1)
    own, own_cov = _from_slopes(requests, SLOPE_REQUEST * flat, SPREAD_REQUEST * flat)
    n, m = len(tokens), len(requests)
    cov = np.zeros((n + 2 * m, n + 2 * m))
    cov[:n, :n], cov[n : n + m, n : n + m] = work_cov, own_cov
    cov[n + m :, n + m :] = SPREAD_DRAFTING**2 + SPREAD_HERE**2 * np.eye(m)
    return np.concatenate([1 + work, own, np.full(m, DRAFTING)]), cov


def _from_slopes(knots: Float, slope: Float, spread: Float) -> tuple[Float, Float]:
    """Integrate slopes between knots, correlated along the logarithm: what they add to the value at the first knot."""
    place = np.log((knots[1:] + knots[:-1]) / 2)
    alike = (1 - STAIRS) * np.exp(-np.abs(place[:, None] - place) / REACH) + STAIRS * np.eye(len(place))
    slopes = np.outer(spread, spread) * alike
    integral = np.vstack([np.zeros(len(slope)), np.tril(np.ones((len(slope), len(slope))))]) * np.diff(knots)
    return integral @ slope, integral @ slopes @ integral.T


@compiled
def _place(knots: Any, at: float) -> Any:
    """(knot, weight of the next one): `at` lies between them, or beyond the last two."""
    k, last = 0, len(knots) - 2
    while k < last:
        middle = (k + last + 1) // 2
        if knots[middle] <= at:
            k = middle
        else:
            last = middle - 1
    return k, (at - knots[k]) / (knots[k + 1] - knots[k])


@compiled
def _features(tokens: Any, requests: Any, count: int, verified: int) -> Any:
    """(index, weight) [FEATURES]: t is the weighted sum of these values."""
    index = np.empty(FEATURES, np.int64)
    weight = np.empty(FEATURES, np.float64)
    k, w = _place(tokens, float(count + verified))
    index[0], index[1], weight[0], weight[1] = k, k + 1, 1 - w, w
    k, w = _place(requests, float(count))
    k += len(tokens)
    index[2], index[3], weight[2], weight[3] = k, k + 1, 1 - w, w
    k += len(requests)
    any_verified = min(verified, 1)
    index[4], index[5], weight[4], weight[5] = k, k + 1, any_verified * (1 - w), any_verified * w
    return index, weight


@compiled
def _observe(
    tokens: Any, requests: Any, count: int, verified: int, seconds: float,
    prior: Any, mean: Any, cov: Any, noise: float, run: int,
) -> Any:  # fmt: skip
    """One step of the filter, in place. Returns the noise variance and the run of outliers after it."""
    index, weight = _features(tokens, requests, count, verified)
    size = len(mean)
    expected = 0.0
    for a in range(FEATURES):
        expected += weight[a] * mean[index[a]]
    unit = max(mean[0], 0.05 * seconds)
    expected = max(expected, 0.05 * unit)
    off = seconds - expected
    doubt = max(noise * expected**2, (off / SURPRISE) ** 2)
    fade, drift = FADE, DRIFT**2
    gain = np.empty(size)
    known = _against(cov, prior, mean, index, weight, expected, fade, drift, unit, gain)
    run = _run(run, off, known + noise * expected**2)
    if abs(run) >= JUMP:
        fade, drift, run = FADE_AT_JUMP, (off / expected) ** 2, 0
        known = _against(cov, prior, mean, index, weight, expected, fade, drift, unit, gain)
    else:
        share = noise * expected**2 / (known + noise * expected**2)
        surprise = min(off**2 / (known + noise * expected**2), SURPRISE**2) - 1.0
        noise = min(max(noise * (1 + NOISE_GAIN * share * surprise), NOISE_LEAST**2), NOISE_MOST**2)
    keep, leak, spread = 1 - fade, fade * unit**2, known + doubt
    for i in range(size):
        for j in range(size):
            cov[i, j] = keep * cov[i, j] + leak * prior[i, j] + drift * mean[i] * mean[j] - gain[i] * gain[j] / spread
    for i in range(size):
        mean[i] += gain[i] / spread * off
    return noise, run


@compiled
def _against(
    cov: Any, prior: Any, mean: Any, index: Any, weight: Any,
    expected: float, fade: float, drift: float, unit: float, out: Any,
) -> float:  # fmt: skip
    """The covariance of the values with what the features weigh, after the process noise; returns its variance."""
    for i in range(len(out)):
        out[i] = drift * expected * mean[i]
        for a in range(FEATURES):
            out[i] += weight[a] * ((1 - fade) * cov[i, index[a]] + fade * unit**2 * prior[i, index[a]])
    known = 0.0
    for a in range(FEATURES):
        known += weight[a] * out[index[a]]
    return known


@compiled
def _run(run: int, off: float, variance: float) -> int:
    """Outliers in a row on the same side, negative when below."""
    if off**2 <= OUTLIER**2 * variance:
        return 0
    sign = 1 if off > 0 else -1
    return run + sign if run * sign > 0 else sign


@compiled
def _curve(tokens: Any, requests: Any, mean: Any, cov: Any, count: int, most: int) -> Any:
    """The learned values at the knots, made monotone, and linear between them."""
    choices = _choices(tokens, count, most)
    values, precision = np.empty(len(choices)), np.empty(len(choices))
    for c in range(len(choices)):
        index, weight = _features(tokens, requests, count, choices[c])
        values[c] = 0.0
        for a in range(FEATURES):
            values[c] += weight[a] * mean[index[a]]
        precision[c] = 1 / (_variance(cov, index, weight) + (1e-3 * values[c]) ** 2)
    _isotonic(values, precision)
    least = 1e-3 * max(values[-1], 1e-9)
    out = np.empty(most + 1)
    out[0] = max(values[0], least)
    for c in range(1, len(choices)):
        first, last = choices[c - 1], choices[c]
        for v in range(first + 1, last + 1):
            rise = (values[c] - values[c - 1]) * ((v - first) / (last - first))
            out[v] = max(min(values[c - 1] + rise, values[c]), least)
    return out


@compiled
def _isotonic(values: Any, weight: Any) -> None:
    """Make `values` the nearest non-decreasing ones, weighed, in place (pool adjacent violators)."""
    n = len(values)
    level, mass, ends = np.empty(n), np.empty(n), np.empty(n, np.int64)
    blocks = 0
    for i in range(n):
        level[blocks], mass[blocks], ends[blocks] = values[i], weight[i], i + 1
        blocks += 1
        while blocks > 1 and level[blocks - 2] >= level[blocks - 1]:
            both = mass[blocks - 2] + mass[blocks - 1]
            level[blocks - 2] = (level[blocks - 2] * mass[blocks - 2] + level[blocks - 1] * mass[blocks - 1]) / both
            mass[blocks - 2], ends[blocks - 2] = both, ends[blocks - 1]
            blocks -= 1
    i = 0
    for b in range(blocks):
        while i < ends[b]:
            values[i] = level[b]
            i += 1


@compiled
def _errors(tokens: Any, requests: Any, cov: Any, count: int, choices: Any, against: int, seconds: Any) -> Any:
    ratio, alone = np.empty(len(choices)), np.empty(len(choices))
    index, weight = _features(tokens, requests, count, against)
    own = _variance(cov, index, weight) / seconds[against] ** 2
    shared = np.zeros(len(cov))
    for a in range(FEATURES):
        shared += weight[a] / seconds[against] * cov[index[a]]
    for c in range(len(choices)):
        index, weight = _features(tokens, requests, count, choices[c])
        weight /= seconds[choices[c]]
        both = 0.0
        for a in range(FEATURES):
            both += weight[a] * shared[index[a]]
        variance = _variance(cov, index, weight)
        ratio[c] = math.sqrt(max(variance - 2 * both + own, 0.0))
        alone[c] = math.sqrt(variance)
    return ratio, alone, math.sqrt(own)


@compiled
def _variance(cov: Any, index: Any, weight: Any) -> float:
    total = 0.0
    for a in range(len(index)):
        for b in range(len(index)):
            total += weight[a] * weight[b] * cov[index[a], index[b]]
    return max(total, 0.0)


@compiled
def _choices(tokens: Any, count: int, most: int) -> Any:
    out = np.empty(len(tokens) + 3, np.int64)
    out[0], n = 0, 1
    if most > 1:
        out[n], n = 1, 2
    for k in range(len(tokens)):
        v = np.int64(tokens[k]) - count
        if 1 < v < most:
            out[n] = v
            n += 1
    if most > 0:
        out[n] = most
        n += 1
    return out[:n]
