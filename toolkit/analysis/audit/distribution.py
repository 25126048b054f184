"""Level 2: are tokens drawn from the model's own distribution? Transforms against uniformity and against a control."""

from dataclasses import replace

import numpy as np
from scipy import optimize, special, stats

from toolkit.analysis.audit.judgement import ALARM, Check, Findings
from toolkit.analysis.audit.transform import FloatArray, Transformed

BINS = 20
ENOUGH = 1000
"""Tokens, of the arm and of the control: fewer say little."""
UNLIKELY = 0.001
"""Tail mass of a token from which on it is one that is hardly ever drawn."""
IMPOSSIBLE, LARGEST = 1e-9, 300_000
"""A probability, and the tokens of the largest vocabularies."""
SLACK = 1.2
"""Logits that are off by 0.1 make unlikely tokens so much more frequent at most."""
FEWEST = 100
"""Tokens of either side without which nothing is tested."""
ENOUGH_DRAFTED = 100
"""Draft tokens, or tokens at one index of their step: as above."""
SUSPICIOUS = 0.05
"""A control with a smaller p is not described by the reference either: uniformity cannot be asked of the arm then."""
MOST = 40_000
"""The tokens that uniformity is worth at most. Logits that are off by 0.1 move the transform as chance moves that of
so many tokens (a Kolmogorov-Smirnov distance of 0.01): rounding must not become a fault as the sample grows."""
REPEATS = ", behind two tokens that stood so before"
ORDERS = {"by_probability": "by probability", "by_guess": "as a guesser orders"}
"""The orders of the transform, and what they are called."""


def judge_transforms(arm: Transformed, control: Transformed, drafted: int) -> Findings:
    """The arm's transforms against the uniform distribution and against the control's, scored by the same reference.

    `drafted` is the number of draft tokens that the arm's server reported, -1 when it reports none. Uniformity counts
    only where the control passes the same test: the reference's rounding, or a sampling default of the server, moves
    both.
    """
    if not len(arm.outside) or not len(control.outside):
        return Findings(gap=_gap(arm, control, drafted))
    tests = _beyond(arm, control) if arm.rest.any() else [_within(arm, control)]
    tests.append(_unlikely(arm, control))
    if min(arm.possible, control.possible) < FEWEST:
        return Findings(tests, _gap(arm, control, drafted))
    for order in ORDERS:
        u, v = _possible(arm, order), _possible(control, order)
        tests += [*_against(order, u, v), *_uniform(order, u, v)]
    u, v = arm.by_probability, _possible(control, "by_probability")
    for index in range(int(arm.index.max(initial=-1)) + 1):
        here = u[(arm.index == index) & ~arm.outside]
        if len(here) >= ENOUGH_DRAFTED:
            tests.append(_uniform("by_probability", here, v, f", token {index + 1} of its step")[0])
    here, there = (one.by_probability[one.repeats & ~one.outside] for one in (arm, control))
    if len(here) >= ENOUGH_DRAFTED:
        tests += _uniform("by_probability", here, there if len(there) >= ENOUGH_DRAFTED else v, REPEATS)
    tests.append(total_variation(_possible(arm, "by_probability"), v))
    return Findings(tests, _gap(arm, control, drafted), _proved(arm))


def power(n: int, control: int, tests: int, chance: float = 0.9) -> float | None:
    """The smallest total variation of the transform from uniform that n tokens would have shown, with `chance`.

    By the chi-square over equal bins at the strictest level that Holm asks of one of `tests`; that a sound control
    fails it, and so takes it from the judged, is reckoned with. A departure d_i of each of B bins gives the
    noncentrality n B sum(d_i^2), least, for one total variation t = sum|d_i| / 2, when all |d_i| are equal: 4 n t^2. So
    whatever the departure's shape over the bins, this total variation shows. (Cohen, Statistical Power Analysis, 2nd
    ed., sec. 7.2.) The total variation of the tokens' own distributions is at least as large.
    """
    if min(n, control) < ENOUGH:
        return None
    critical, missed = stats.chi2.isf(ALARM / max(tests, 1), BINS - 1), 1 - chance / (1 - SUSPICIOUS)
    needed = optimize.brentq(lambda size: stats.ncx2.cdf(critical, BINS - 1, size) - missed, 1e-3, 1e4)
    return float(np.sqrt(needed / (4 * _worth(n))))


def total_variation(u: FloatArray, v: FloatArray) -> Check:
    """Shown with a 95 % interval. Chance alone makes shares differ, so the difference that was seen is too large.

    What is told are the factors on it that could have led to a total variation as it was seen: in the mean, and within
    1.96 standard deviations. The shares' differences are taken as normal, so their amounts as folded normal (Leone,
    Nelson, Nottingham, Technometrics 3, 1961).
    """
    ours, theirs = _counts(u) / len(u), _counts(v) / len(v)
    pooled = (ours * len(u) + theirs * len(v)) / (len(u) + len(v))
    sd = np.sqrt(pooled * (1 - pooled) * (1 / len(u) + 1 / len(v))) + 1e-12
    factors = np.linspace(0, 2, 401)
    means = factors[:, None] * (ours - theirs)
    amounts = sd * np.sqrt(2 / np.pi) * np.exp(-((means / sd) ** 2) / 2) + means * special.erf(means / sd / np.sqrt(2))
    expected, spread = amounts.sum(axis=1) / 2, np.sqrt((means**2 + sd**2 - amounts**2).sum(axis=1)) / 2
    seen = float(np.abs(ours - theirs).sum() / 2)
    likely, low = (seen * factors[np.argmax(reach >= seen)] for reach in (expected, expected + 1.96 * spread))
    high = seen * factors[len(factors) - 1 - np.argmax((expected - 1.96 * spread <= seen)[::-1])]
    note = f"95 % interval [{low:.3f}, {high:.3f}]"
    return Check("total variation from the baseline", float(likely), None, len(u) + len(v), note=note)


def _worth(n: int) -> float:
    """The tokens that n count for against uniformity: nearly all of few, never more than `MOST`.

    As if each bin's share varied by chance and, with the variance that MOST tokens have, by rounding.
    """
    return n / (1 + n / MOST)


def _within(arm: Transformed, control: Transformed) -> Check:
    """Where the likeliest may be drawn: tokens that are none of them."""
    out, out_control = int(arm.outside.sum()), int(control.outside.sum())
    table = [[out, arm.possible], [out_control, control.possible]]
    return Check(
        "within the top k",
        out / len(arm.outside),
        float(stats.fisher_exact(table, alternative="greater").pvalue),
        len(arm.outside),
        note=f"{out} of {len(arm.outside)} tokens are none that the model could have drawn "
        f"({out_control} of {len(control.outside)} of the baseline's)",
    )


def _beyond(arm: Transformed, control: Transformed) -> list[Check]:
    """Where all may be drawn: tokens that are none of the reference's best, which share the last bin, and impossible
    ones. No sampler draws one of a thousand million: all such of a vocabulary have a chance of `IMPOSSIBLE * LARGEST`.
    """
    n = len(arm.rest)
    ours, theirs = ((int(one.unlisted.sum()), float(one.rest.sum())) for one in (arm, control))
    beyond = f"{ours[0]} of {n} tokens are none of the model's best, where {ours[1]:.0f} are expected"
    out, out_control = (int((one.logprob < np.log(IMPOSSIBLE)).sum()) for one in (arm, control))
    p, p_control = (
        float(stats.binom.sf(k - 1, of, IMPOSSIBLE * LARGEST)) for k, of in ((out, n), (out_control, len(control.rest)))
    )
    impossible = f"{out} of {n} tokens have a probability under {IMPOSSIBLE:g} each"
    return [
        _too_many("tokens beyond the model's best", ours, theirs, n, beyond),
        _if_fair(Check("impossible tokens", out, p, n, note=impossible), p_control),
    ]


def _unlikely(arm: Transformed, control: Transformed) -> Check:
    """Tokens from the far tail, where there is hardly a bin of the transform, and hardly ever a token."""
    (ours, n), (theirs, m) = ((int((one.tail <= UNLIKELY).sum()), len(one.tail)) for one in (arm, control))
    note = f"{ours} of {n} tokens are of the least likely {UNLIKELY:.1%} ({theirs} of {m} of the baseline's)"
    return _too_many("unlikely tokens", (ours, n * UNLIKELY), (theirs, m * UNLIKELY), n, note)


def _too_many(name: str, ours: tuple[int, float], theirs: tuple[int, float], n: int, note: str) -> Check:
    """More tokens of a kind than can be expected, by (number, expectation). A sum of independent indicators has no
    heavier a tail above its mean than Poisson's (Hoeffding, Annals of Mathematical Statistics 27, 1956)."""
    p, p_control = (float(stats.poisson.sf(count - 1, SLACK * expected)) for count, expected in (ours, theirs))
    return _if_fair(Check(name, ours[0] / n, p, n, note=note), p_control)


def _if_fair(check: Check, p_control: float) -> Check:
    """`check`, not counted where the control fails it as well."""
    fails = p_control <= SUSPICIOUS
    return replace(check, counted=False, note=f"{check.note}: the baseline fails it as well") if fails else check


def _against(order: str, u: FloatArray, v: FloatArray) -> list[Check]:
    table = np.array([_counts(u), _counts(v)])
    table = table[:, table.sum(axis=0) > 0]
    chi, p_chi = stats.chi2_contingency(table)[:2] if table.shape[1] > 1 else (0.0, 1.0)
    ks = stats.ks_2samp(u, v, method="asymp")
    n, note = len(u) + len(v), "the tokens are drawn otherwise than the baseline's"
    return [
        Check(f"like the baseline, {ORDERS[order]}: chi-square", float(chi), float(p_chi), n, note=note),
        Check(f"like the baseline, {ORDERS[order]}: KS", float(ks.statistic), float(ks.pvalue), n, note=note),
    ]


def _uniform(order: str, u: FloatArray, control: FloatArray, which: str = "") -> list[Check]:
    found = []
    for kind, test in (("chi-square", _chi_square), ("KS", _kolmogorov_smirnov)):
        (statistic, p), (_, p_control) = test(u), test(control)
        note = "the tokens are not drawn from the model's distribution"
        found.append(
            _if_fair(Check(f"uniform, {ORDERS[order]}{which}: {kind}", statistic, p, len(u), note=note), p_control)
        )
    return found


def _chi_square(u: FloatArray) -> tuple[float, float]:
    shares = _counts(u) / len(u)
    statistic = _worth(len(u)) * BINS * float(((shares - 1 / BINS) ** 2).sum())
    return statistic, float(stats.chi2.sf(statistic, BINS - 1))


def _kolmogorov_smirnov(u: FloatArray) -> tuple[float, float]:
    reached, ordered = np.arange(len(u) + 1) / len(u), np.sort(u)
    statistic = float(max((reached[1:] - ordered).max(), (ordered - reached[:-1]).max()))
    return statistic, float(stats.kstwo.sf(statistic, round(_worth(len(u)))))


def _counts(u: FloatArray) -> FloatArray:
    return np.histogram(u, bins=BINS, range=(0.0, 1.0))[0].astype(np.float64)


def _possible(sample: Transformed, order: str) -> FloatArray:
    u: FloatArray = getattr(sample, order)
    return u[~sample.outside]


def _gap(arm: Transformed, control: Transformed, drafted: int) -> str:
    if min(arm.possible, control.possible) < ENOUGH:
        sizes = f"{arm.possible} tokens of the arm and {control.possible} of the baseline"
        return f"{sizes} are such as the reference could have drawn; {ENOUGH} are needed"
    if 0 <= drafted < ENOUGH_DRAFTED:
        return f"{drafted or 'no'} tokens were drafted: the path that speculation takes was hardly seen"
    if drafted < 0 and (arm.index > 0).sum() < ENOUGH_DRAFTED:
        return "the server does not say what it drafted, and hardly a chunk carried two tokens"
    return ""


def _proved(arm: Transformed) -> str:
    later = int((arm.index > 0).sum())
    return (
        f"{len(arm.outside)} tokens, {later} of them behind a kept draft in their step, "
        "lie as draws from the model's own distribution must"
    )
