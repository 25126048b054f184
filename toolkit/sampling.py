"""The exact rule: draft tokens are accepted or fixed so that what is emitted follows the target alone. NumPy only.

`p` is the target's distribution of the next token and `q` the draft's, rows over one vocabulary of size V, both after
temperature, top-k and top-p (`adjust`). A token drawn from q is accepted with chance min(1, p/q); otherwise a fix is
drawn from what p has above q (`residual`). The emitted token then follows p whatever q is:
min(p, q) + (1 - alpha) residual(p, q) = p, with alpha = sum of min(p, q). Where all K drafts are accepted, the row
behind them gives one bonus token. Sources: Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative
Decoding" (arXiv 2211.17192), section 2.3 and appendix A.1; Chen et al., "Accelerating Large Language Model Decoding
with Speculative Sampling" (arXiv 2302.01318), Algorithm 2 and Theorem 1.

A draft without a distribution (argmax, prompt lookup) is one that was certain: q = `one_hot(token)`. The rule is then
to accept with chance p[token] and else to draw from p without that token. At temperature 0, p is one-hot as well and
the rule keeps exactly the argmax chain.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def adjust(
    logits: npt.ArrayLike, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> FloatArray:
    """Probabilities [..., V] of `logits` [..., V] after temperature, then top-k, then top-p.

    Temperature 0 is the argmax alone, the lowest id where several are highest. `top_k` keeps all that tie with the
    k-th; None, or one of V and more, keeps all. `top_p` keeps the smallest set of likeliest tokens whose mass reaches
    it, the one that crosses included, the lower id first where two are equal; None or 1 keeps all.
    Raises ValueError for a negative or infinite temperature, top_k below 1, top_p outside (0, 1], and rows that hold
    NaN, +inf, or no finite logit.
    """
    _require(0 <= temperature < math.inf, f"temperature must be finite and at least 0, not {temperature}")
    _require(top_k is None or top_k >= 1, f"top_k must be at least 1, not {top_k}")
    _require(top_p is None or 0 < top_p <= 1, f"top_p must lie in (0, 1], not {top_p}")
    rows = np.asarray(logits, dtype=np.float64)
    _require(rows.ndim > 0 and rows.shape[-1] > 0, "logits must have a vocabulary")
    highest = rows.max(axis=-1, keepdims=True)
    _require(bool(np.isfinite(highest).all()), "each row of logits needs a finite highest one, without NaN")
    if temperature == 0:
        return one_hot(rows.argmax(axis=-1), rows.shape[-1])
    weights = rows - highest  # so that none overflows however low the temperature
    if top_k is not None and top_k < rows.shape[-1]:
        weights[weights < np.partition(weights, -top_k, axis=-1)[..., -top_k, None]] = -np.inf
    with np.errstate(over="ignore"):  # to -inf, at a temperature near 0
        p: FloatArray = np.exp(weights / temperature)
    p /= p.sum(axis=-1, keepdims=True)
    if top_p is not None and top_p < 1:
        order = np.argsort(-p, axis=-1, kind="stable")
        ranked = np.take_along_axis(p, order, axis=-1)
        before_the_last = np.cumsum(ranked[..., :-1], axis=-1)
        ranked[..., 1:][before_the_last >= top_p] = 0.0
        np.put_along_axis(p, order, ranked, axis=-1)
        p /= p.sum(axis=-1, keepdims=True)
    return p


def one_hot(token: npt.ArrayLike, size: int) -> FloatArray:
    """All mass on `token` (an id, or an array of ids [...]): [..., size]. Raises ValueError for an id outside it."""
    ids = np.asarray(token, dtype=np.int64)
    _require(bool(((ids >= 0) & (ids < size)).all()), f"token {ids} lies outside the vocabulary of {size}")
    return np.asarray(ids[..., None] == np.arange(size), dtype=np.float64)


def residual(p: FloatArray, q: FloatArray) -> FloatArray:
    """norm(max(p - q, 0)) [V]: what a fix is drawn from. p itself where p = q, which rejects nothing."""
    above = np.maximum(p - q, 0.0)
    total = above.sum()
    return above / total if total > 0 else p


def draw(p: FloatArray, rng: np.random.Generator) -> int:
    """One token of p [V]. Never one of probability 0."""
    reached = np.cumsum(p)
    return int(np.searchsorted(reached, rng.random() * reached[-1], side="right"))


def accept_or_fix(p: FloatArray, q: FloatArray, token: int, rng: np.random.Generator) -> tuple[int, bool]:
    """The emitted token, and whether it is the draft's `token`, which was drawn from q. `p`, `q`: [V].

    Raises ValueError where q[token] is 0: the draft then did not draw it from this q, and no rule is exact.
    """
    _require(bool(q[token] > 0), f"the draft proposed token {token}, to which its distribution gives no chance")
    if rng.random() * q[token] < p[token]:
        return token, True
    return draw(residual(p, q), rng), False


@dataclass(frozen=True, slots=True)
class Verified:
    """What one step emits: the `accepted` draft tokens, then one that is the target's own (a fix, or the bonus)."""

    tokens: tuple[int, ...]
    accepted: int


def verify(p: FloatArray, q: FloatArray, drafts: Sequence[int], rng: np.random.Generator) -> Verified:
    """One step over K drafts: `p` [K + 1, V], row i the target's after i drafts; `q` [K, V]; `drafts` K tokens.

    K = 0 draws one token of the target's. Raises ValueError where the shapes do not belong together.
    """
    k = len(drafts)
    _require(len(p) == k + 1, f"{k} drafts need {k + 1} rows of the target, not {len(p)}")
    _require(len(q) == k, f"{k} drafts need {k} rows of the draft, not {len(q)}")
    _require(k == 0 or p.shape[1] == q.shape[1], "target and draft must have one vocabulary")
    for i, draft in enumerate(drafts):
        token, accepted = accept_or_fix(p[i], q[i], draft, rng)
        if not accepted:
            return Verified((*drafts[:i], token), i)
    return Verified((*drafts, draw(p[k], rng)), k)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
