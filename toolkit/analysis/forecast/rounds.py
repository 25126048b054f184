"""Where drafts start: rounds of speculative decoding along a text that the target wrote.

A *place* is a token of the text with the two distributions that stood before it, p of the target and q of the draft;
a *position* is a place in the draft, the first being 1. At a place that a round reaches, the draft token is kept with
chance sum of min(p, q) (Leviathan et al. 2211.17192, Corollary 3.6). Which places are reached, and at which position,
depends on the text: after a rejection the next draft starts right there, where it was hard.

The rule emits token y as a kept draft with chance min(p(y), q(y)) and in all with chance p(y). So where the text says
that y was emitted, the draft was kept with chance min(1, q(y) / p(y)), and that is independent from place to place: the
steps of the engine given its text. Hence no draws are needed. From the first place on, the chance that a round has its
position i at place t follows from the place before (`reach`). It is exact for a text that the target wrote itself under
the same sampling, and for a draft whose q depends on the text alone. A head that drafts from its own hidden states
(EAGLE) has another q at depth 2 than logged at depth 1; there only the first position is exact.

Without the tokens, or with tokens that the target did not draw (`written_by_target`), sum of min(p, q) stands in for
the chance given the token: whether the draft was kept is then taken to tell nothing of the token that followed, and so
nothing of how hard the next place is beyond what the text shows.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from toolkit.analysis.forecast.estimate import IntArray
from toolkit.sampling import FloatArray, accept_or_fix, draw

UNKNOWN = -1
"""The token of a place where the log does not say which one followed."""

FOREIGN = 4.0  # standard errors of mean surprise; a text of the target's own passes it once in 16,000


@dataclass(frozen=True, slots=True)
class Places:
    """One text, place by place: arrays [n].

    `overlap` is the sum of min(p, q). `given_token` is the chance that the draft was kept, given which token followed;
    NaN where that is unknown or no token that p allows. `kept` says whether the rule, run once with a draft of its own,
    kept it. `surprise` is -log p(token) less its mean under p, and `surprise_variance` its variance under p.
    """

    overlap: FloatArray
    given_token: FloatArray
    kept: FloatArray
    surprise: FloatArray
    surprise_variance: FloatArray

    def __len__(self) -> int:
        return len(self.overlap)


def judge(p: FloatArray, q: FloatArray, tokens: IntArray, rng: np.random.Generator) -> Places:
    """The places of rows `p` and `q` [n, V], each followed by one of `tokens` [n] or UNKNOWN."""
    rows = np.arange(len(p))
    known = tokens != UNKNOWN
    p_token, q_token = p[rows, tokens], q[rows, tokens]
    given = np.minimum(1.0, np.divide(q_token, p_token, out=np.full(len(p), np.nan), where=known & (p_token > 0)))
    logs = np.log(p, out=np.zeros_like(p), where=p > 0)
    entropy = -(p * logs).sum(axis=1)
    with np.errstate(divide="ignore"):
        surprise = np.where(known, -np.log(p_token) - entropy, np.nan)
    kept = [accept_or_fix(p[row], q[row], draw(q[row], rng), rng)[1] for row in rows]
    return Places(
        overlap=np.minimum(1.0, np.minimum(p, q).sum(axis=1)),
        given_token=given,
        kept=np.array(kept, dtype=np.float64),
        surprise=surprise,
        surprise_variance=np.maximum(0.0, (p * logs**2).sum(axis=1) - entropy**2),
    )


def joined(parts: Iterable[Places]) -> Places:
    """Places that follow one another, as one."""
    found = list(parts)
    return Places(*(np.concatenate([getattr(one, name) for one in found]) for name in Places.__slots__))


def written_by_target(texts: Sequence[Places]) -> bool:
    """Whether the tokens are known and may be the target's own draws from p: as surprising as p says, on average."""
    # NaN with a token that is unknown, infinite with one that p forbids: neither passes.
    surprise = sum(float(one.surprise.sum()) for one in texts)
    variance = sum(float(one.surprise_variance.sum()) for one in texts)
    rounding = 1e-6 * sum(map(len, texts))
    return abs(surprise) <= FOREIGN * math.sqrt(variance) + rounding


def reach(kept: FloatArray, k: int, everywhere: bool = False) -> FloatArray:
    """The chance that a round of `k` drafts has its position i + 1 at place t and gets that far: [n, k].

    `kept` [n] is the chance that the draft at a place is kept, given the text. Rounds start at the first place and then
    where the last one ended: behind a rejection, or behind the bonus token that follows k kept drafts. `everywhere`
    starts one at every place instead, as an average over all places does.
    """
    found = np.zeros((len(kept), k))
    state = np.zeros(k + 1)  # position 1, ..., k, and the bonus
    state[0] = 1.0
    for t, chance in enumerate(kept):
        found[t] = state[:k]
        rejected = (1 - chance) * state[:k].sum()
        start = 1.0 if everywhere else rejected + state[k]
        state[1:] = chance * state[:k]
        state[0] = start
    return found
