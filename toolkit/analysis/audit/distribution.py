"""Level 2: are tokens drawn from the model's own distribution? Transforms against uniformity and against a control."""

import numpy as np
from scipy import optimize, stats

from toolkit.analysis.audit.judgement import ALARM, Check, Findings
from toolkit.analysis.audit.transform import FloatArray, Transformed

BINS = 20
ENOUGH = 1000
"""Tokens, of the arm and of the control: fewer say little."""
ENOUGH_AT_AN_INDEX = 100
SUSPICIOUS = 0.05
"""A control with a smaller p is not described by the reference either: uniformity cannot be asked of the arm then."""
IMPOSSIBLE, MOST_WORDS = 1e-9, 300_000
"""A probability, and tokens of the largest vocabularies."""
RESAMPLES = 400
ORDERS = {"by_probability": "by probability", "by_guess": "as a guesser orders"}
"""The orders of the transform, and what they are called."""


def judge_transforms(arm: Transformed, control: Transformed, drafted: int, rng: np.random.Generator) -> Findings:
    """The arm's transforms against the uniform distribution and against the control's, scored by the same reference.

    `drafted` is the number of draft tokens that the arm's server reported, -1 when it reports none. Uniformity counts
    only where the control passes the same test: the reference's rounding, or a sampling default of the server, moves
    both.
    """
    if not arm.possible or not control.possible:
        return Findings(gap=_gap(arm, control, drafted))
    tests = [_within(arm, control), *_unlisted(arm, control)]
    for order in ORDERS:
        u, v = _possible(arm, order), _possible(control, order)
        tests += [*_against(order, u, v), *_uniform(order, u, v)]
    u, v = arm.by_probability, _possible(control, "by_probability")
    for index in range(int(arm.index.max(initial=-1)) + 1):
        here = u[(arm.index == index) & ~arm.outside]
        if len(here) >= ENOUGH_AT_AN_INDEX:
            tests.append(_uniform("by_probability", here, v, f", token {index + 1} of its step")[0])
    tests.append(_total_variation(_possible(arm, "by_probability"), v, rng))
    return Findings(tests, _gap(arm, control, drafted), _proved(arm))


def power(n: int, control: int, tests: int, chance: float = 0.9) -> float | None:
    """The smallest total variation of the transform from uniform that n tokens would have shown, with `chance`.

    By the chi-square over equal bins at the strictest level that Holm asks of one of `tests`. A departure d_i of each
    of B bins gives the noncentrality n B sum(d_i^2), least, for one total variation t = sum|d_i| / 2, when all |d_i|
    are equal: 4 n t^2. So whatever the departure's shape over the bins, this total variation shows. (Cohen, Statistical
    Power Analysis, 2nd ed., sec. 7.2.) The total variation of the tokens' own distributions is at least as large.
    """
    if min(n, control) < ENOUGH:
        return None
    critical = stats.chi2.isf(ALARM / max(tests, 1), BINS - 1)
    needed = optimize.brentq(lambda size: stats.ncx2.sf(critical, BINS - 1, size) - chance, 1e-3, 1e4)
    return float(np.sqrt(needed / (4 * n)))


def _within(arm: Transformed, control: Transformed) -> Check:
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


def _unlisted(arm: Transformed, control: Transformed) -> list[Check]:
    """Where the whole vocabulary may be drawn from: tokens that the reference did not list among its best.

    Their number is a sum of independent indicators with known chances, so near to normal: garbage makes it larger. And
    no sampler draws tokens of one in a thousand million: all of a vocabulary together have a chance under
    `IMPOSSIBLE * MOST_WORDS`.
    """
    if not arm.rest.any() or not control.rest.any():
        return []
    (z, count, expected), (z_control, _, _) = _surplus(arm), _surplus(control)
    fair = stats.norm.sf(z_control) > SUSPICIOUS
    note = f"{count} of {len(arm.rest)} tokens are none of the model's best, where {expected:.0f} are expected"
    impossible, n = int((arm.logprob < np.log(IMPOSSIBLE)).sum()), len(arm.rest)
    chance = float(stats.binom.sf(impossible - 1, n, IMPOSSIBLE * MOST_WORDS)) if impossible else 1.0
    said = f"{impossible} of {n} tokens have a probability under {IMPOSSIBLE:g} each"
    return [
        Check("tokens beyond the model's best", z, float(stats.norm.sf(z)), n, fair, note),
        Check("impossible tokens", impossible, chance, n, note=said),
    ]


def _surplus(sample: Transformed) -> tuple[float, int, float]:
    """By how many standard deviations there are too many unlisted tokens, their number, and the number expected."""
    count, expected = int(sample.unlisted.sum()), float(sample.rest.sum())
    return (count - expected) / float(np.sqrt((sample.rest * (1 - sample.rest)).sum())), count, expected


def _against(order: str, u: FloatArray, v: FloatArray) -> list[Check]:
    table = np.array([_counts(u), _counts(v)])
    table = table[:, table.sum(axis=0) > 0]
    chi, p_chi = stats.chi2_contingency(table)[:2] if table.shape[1] > 1 else (0.0, 1.0)
    ks = stats.ks_2samp(u, v)
    n, note = len(u) + len(v), "the tokens are drawn otherwise than the baseline's"
    return [
        Check(f"like the baseline, {ORDERS[order]}: chi-square", float(chi), float(p_chi), n, note=note),
        Check(f"like the baseline, {ORDERS[order]}: KS", float(ks.statistic), float(ks.pvalue), n, note=note),
    ]


def _uniform(order: str, u: FloatArray, control: FloatArray, which: str = "") -> list[Check]:
    found = []
    for kind, test in (("chi-square", _chi_square), ("KS", _kolmogorov_smirnov)):
        (statistic, p), (_, p_control) = test(u), test(control)
        fair = p_control > SUSPICIOUS
        note = "the tokens are not drawn from the model's distribution" if fair else "the baseline fails it as well"
        found.append(Check(f"uniform, {ORDERS[order]}{which}: {kind}", statistic, p, len(u), fair, note))
    return found


def _chi_square(u: FloatArray) -> tuple[float, float]:
    found = stats.chisquare(_counts(u))
    return float(found.statistic), float(found.pvalue)


def _kolmogorov_smirnov(u: FloatArray) -> tuple[float, float]:
    found = stats.kstest(u, "uniform")
    return float(found.statistic), float(found.pvalue)


def _counts(u: FloatArray) -> FloatArray:
    return np.histogram(u, bins=BINS, range=(0.0, 1.0))[0].astype(np.float64)


def _possible(sample: Transformed, order: str) -> FloatArray:
    u: FloatArray = getattr(sample, order)
    return u[~sample.outside]


def _total_variation(u: FloatArray, v: FloatArray, rng: np.random.Generator) -> Check:
    """Shown with a 95 % interval: bootstrap, less what two samples of this size differ by when nothing differs."""
    seen = _distance(u, v)
    pooled = np.concatenate([u, v])
    exchanged = [rng.permutation(pooled) for _ in range(RESAMPLES)]
    chance = float(np.mean([_distance(one[: len(u)], one[len(u) :]) for one in exchanged]))
    drawn = [_distance(rng.choice(u, len(u)), rng.choice(v, len(v))) for _ in range(RESAMPLES)]
    beyond, spread = seen - chance, float(np.std(drawn, ddof=1))
    low, high = max(beyond - 1.96 * spread, 0.0), max(beyond, 0.0) + 1.96 * spread
    return Check(
        "total variation from the baseline",
        max(beyond, 0.0),
        None,
        len(pooled),
        note=f"95 % interval [{low:.3f}, {high:.3f}]",
    )


def _distance(u: FloatArray, v: FloatArray) -> float:
    return float(np.abs(_counts(u) / len(u) - _counts(v) / len(v)).sum() / 2)


def _gap(arm: Transformed, control: Transformed, drafted: int) -> str:
    if min(len(arm.outside), len(control.outside)) < ENOUGH:
        sizes = f"{len(arm.outside)} tokens of the arm and {len(control.outside)} of the baseline"
        return f"{sizes} were scored; {ENOUGH} are needed"
    if drafted == 0:
        return "nothing was drafted: the path that speculation takes was not seen"
    if drafted < 0 and (arm.index > 0).sum() < ENOUGH_AT_AN_INDEX:
        return "the server does not say what it drafted, and hardly a chunk carried two tokens"
    return ""


def _proved(arm: Transformed) -> str:
    later = int((arm.index > 0).sum())
    return (
        f"{len(arm.outside)} tokens, {later} of them behind a kept draft in their step, "
        "lie as draws from the model's own distribution must"
    )
