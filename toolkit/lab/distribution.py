"""The lesson's experiment on exactness: what the rule emits in many draws, against the target's own distribution."""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from toolkit import theory
from toolkit.errors import InputError
from toolkit.lab.experiments import check_draws, require
from toolkit.lab.pairing import Pair
from toolkit.lab.reference import Sampling
from toolkit.sampling import FloatArray, accept_or_fix, draw, one_hot, verify

P = np.array([0.38, 0.22, 0.16, 0.12, 0.08, 0.04])
Q = np.array([0.30, 0.20, 0.20, 0.10, 0.14, 0.06])
"""The lesson's target and draft over six words: alpha 0.88, 3.9356 tokens per pass at K = 4."""

WORDS_K = 4
LEAST_EXPECTED = 5.0
"""Draws that chi-square needs to expect of a token before it is a bin of its own."""


@dataclass(frozen=True, slots=True)
class Emitted:
    """What the rule emitted in `draws` draws, against the target's own distribution.

    `total_variation` is over the same bins as chi-square; `noise` is what so many exact draws are expected to show.
    `alpha` is the sum of min(p, q), `kept` the share of drafts that were kept. Tokens per pass where K tokens were
    drafted.
    """

    name: str
    vocabulary: int
    draws: int
    alpha: float
    kept: float
    chi_square: float
    bins: int
    p_value: float
    total_variation: float
    noise: float
    tokens_per_pass: float | None = None
    expected_tokens_per_pass: float | None = None


def distribution(pair: Pair, text: str, draws: int, sampling: Sampling, seed: int) -> list[Emitted]:
    """The rule on six words, with drafts of Q and with one-hot drafts, and after `text`. Raises as `prefix` does."""
    after = prefix(pair, text, draws, sampling, seed)
    return [words(draws, seed), words(draws, seed, certain=True), after]


def words(draws: int, seed: int, certain: bool = False) -> Emitted:
    """The rule on the lesson's six words, K = 4; `certain` drafts Q's likeliest word alone, with a one-hot q."""
    rng = np.random.default_rng(seed)
    q = one_hot(int(Q.argmax()), len(Q)) if certain else Q
    p_rows, q_rows = np.tile(P, (WORDS_K + 1, 1)), np.tile(q, (WORDS_K, 1))
    counts, tokens, kept = np.zeros(len(P)), 0, 0
    for _ in range(draws):
        verified = verify(p_rows, q_rows, [draw(q, rng) for _ in range(WORDS_K)], rng)
        counts[verified.tokens[0]] += 1
        kept += verified.accepted > 0
        tokens += len(verified.tokens)
    alpha = theory.acceptance(P.tolist(), q.tolist())
    return _emitted(
        f"P, {'one-hot drafts' if certain else 'drafts of Q'}",
        counts,
        P,
        alpha,
        kept,
        tokens / draws,
        theory.expected_tokens(alpha, WORDS_K),
    )


def prefix(pair: Pair, text: str, draws: int, sampling: Sampling, seed: int) -> Emitted:
    """The rule on the two distributions of the token after `text`, the target's and the drafter's.

    Raises InputError without a drafter, or when it drafts nothing there.
    """
    require(draws >= 1, "--draws takes at least 1")
    check_draws(sampling, seed)
    if pair.drafter is None:
        raise InputError("the experiment needs a draft's distribution: choose a --drafter.")
    rng = np.random.default_rng(seed)
    sequence = pair.tokenizer.encode(text)
    require(bool(sequence), "--prefix is empty")
    pair.target.crop(0)
    p = sampling.of(pair.target.extend(sequence)[-1])
    draft = pair.drafter.propose(sequence, 1, sampling, rng)
    require(bool(draft.tokens), f"the drafter guesses nothing after {text!r}: choose another --prefix or --drafter")
    q = draft.q[0]
    counts, kept = np.zeros(len(p)), 0
    for _ in range(draws):
        token, accepted = accept_or_fix(p, q, draw(q, rng), rng)
        counts[token] += 1
        kept += accepted
    return _emitted(f"{pair.name} after {text!r}", counts, p, float(np.minimum(p, q).sum()), kept)


def _emitted(
    name: str,
    counts: FloatArray,
    p: FloatArray,
    alpha: float,
    kept: int,
    tokens_per_pass: float | None = None,
    expected_tokens_per_pass: float | None = None,
) -> Emitted:
    draws = int(counts.sum())
    seen, expected = binned(counts, p * draws)
    shares = expected / draws
    statistic = float(((seen - expected) ** 2 / expected).sum())
    return Emitted(
        name=name,
        vocabulary=len(p),
        draws=draws,
        alpha=alpha,
        kept=kept / draws,
        chi_square=statistic,
        bins=len(seen),
        p_value=float(stats.chi2.sf(statistic, len(seen) - 1)) if len(seen) > 1 else 1.0,
        total_variation=float(np.abs(seen / draws - shares).sum() / 2),
        # The mean of |X / n - p| for X binomial, by the normal law.
        noise=float(np.sqrt(2 * shares * (1 - shares) / (np.pi * draws)).sum() / 2),
        tokens_per_pass=tokens_per_pass,
        expected_tokens_per_pass=expected_tokens_per_pass,
    )


def binned(counts: FloatArray, expected: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Counts and expectations with all tokens that are expected less than LEAST_EXPECTED times in one bin.

    What can never be emitted is in that bin too: a bin of its own would expect nothing. `counts`, `expected`: [V].
    """
    order = np.argsort(expected, kind="stable")
    rest = int((expected < LEAST_EXPECTED).sum())
    while 0 < rest < len(order) and expected[order[:rest]].sum() < LEAST_EXPECTED:
        rest += 1
    together = [np.array([values[order[:rest]].sum()]) if rest else np.empty(0) for values in (counts, expected)]
    return (
        np.concatenate([together[0], counts[order[rest:]]]),
        np.concatenate([together[1], expected[order[rest:]]]),
    )
