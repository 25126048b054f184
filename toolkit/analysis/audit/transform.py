"""The randomised probability integral transform of emitted tokens under the reference's conditional distributions.

For a token drawn from a discrete distribution whose tokens stand in some order, the mass before it plus a uniform share
of its own mass is uniform on [0, 1]. Along a sequence, each token under the distribution given what was emitted before
it, the transforms are also independent (Rosenblatt, Annals of Mathematical Statistics 23, 1952, sec. 1; Dunn and Smyth,
Journal of Computational and Graphical Statistics 5, 1996, sec. 2 for the randomised form). So every token of a reply
counts, and a server that emits another distribution shows it, unless its errors cancel over the contexts.

They cancel less in an order that fits the fault. Two are used: by probability, and by what a cheap guesser would favour
beyond it, since a wrong rule gives tokens to the draft or takes them from it. Any order is valid that is fixed before
the token is drawn; the guesser is made from the other side's replies.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from toolkit.analysis.audit.replies import Reply

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
EDGE = 0.1
"""Nats. Tokens this near to the k-th best share one bin: rounding alone can put one in the place of another."""
PRIOR = 2.0
"""Contexts that the guesser's unigram counts for beside those that share the last token."""


@dataclass(frozen=True, slots=True)
class Scored:
    """n emitted tokens in their contexts, the first token of each reply left out (it comes from the prefill).

    `ids`, `logprobs` [n, w]: the reference's best tokens, raw, the likeliest first, padded with -1 and -inf. `token`,
    `before` [n]: the emitted one and its predecessor. `own` [n]: the emitted one's log probability, NaN where the
    reference did not tell. `index` [n]: how many tokens the same step emitted before it, -1 unknown.
    """

    ids: IntArray
    logprobs: FloatArray
    token: IntArray
    before: IntArray
    own: FloatArray
    index: IntArray


@dataclass(frozen=True, slots=True)
class Transformed:
    """Of n tokens: the transforms [n] in each order (NaN where the token is impossible), `index` as in `Scored`.

    `outside` marks tokens that the reference's top k does not hold. `probability` is the token's own, temperature and
    top-k applied. Without a top k, `unlisted` marks tokens that the reference did not list, and `rest` is the
    probability of there being one; zero with a top k. `logprob` is the token's raw one, NaN unknown.
    """

    by_probability: FloatArray
    by_guess: FloatArray
    index: IntArray
    outside: BoolArray
    probability: FloatArray
    unlisted: BoolArray
    rest: FloatArray
    logprob: FloatArray

    @property
    def possible(self) -> int:
        """The number of tokens that have a transform."""
        return int((~self.outside).sum())


def scored(replies: Sequence[Reply]) -> Scored:
    """The scored tokens of `replies`, those without scores left out.

    Every row is cut to the shortest: a longer one lists the emitted token besides the best, and what is listed must not
    depend on what was emitted.
    """
    kept = [reply for reply in replies if reply.scores is not None]
    rows = [row for reply in kept for row in (reply.scores or [])[1:]]
    emitted = [token for reply in kept for token in reply.token_ids[1:]]
    width = min((len(row) for row in rows), default=1)
    ids, logprobs = np.full((len(rows), width), -1), np.full((len(rows), width), -np.inf)
    for number, row in enumerate(rows):
        ordered = sorted(row, key=lambda pair: (-pair[1], pair[0]))[:width]
        ids[number], logprobs[number] = zip(*ordered, strict=True)
    return Scored(
        ids,
        logprobs,
        np.array(emitted, dtype=np.int64),
        np.array([token for reply in kept for token in reply.token_ids[:-1]], dtype=np.int64),
        np.array([dict(row).get(token, np.nan) for row, token in zip(rows, emitted, strict=True)]),
        np.array([place for reply in kept for place in indices(reply)[1:]], dtype=np.int64),
    )


def indices(reply: Reply) -> list[int]:
    """The index of each token in its step, by chunks: a step's tokens arrive in one. -1 where chunks do not tell.

    A server that falls behind may merge steps; that depends on time, not on the tokens, so that the transforms of a
    lossless server stay uniform at every index.
    """
    if sum(reply.chunks) != len(reply.token_ids) or (reply.chunks and reply.chunks[0] != 1):
        return [-1] * len(reply.token_ids)
    return [place for size in reply.chunks for place in range(size)]


def transform(
    sample: Scored, other: Scored, temperature: float, top_k: int | None, rng: np.random.Generator
) -> Transformed:
    """The transforms of `sample`, the guesser made from `other`.

    The top k holds ties with the k-th, as vLLM's does (v1/sample/ops/topk_topp_sampler.py masks what is *below* the
    k-th value). Tokens about the k-th come last in either order, in one bin; without a top k, those that the reference
    did not list do.
    """
    p, above, edge = _adjusted(sample, temperature, top_k)
    draws = rng.random(len(sample.token))
    favour = _guess(sample, other, temperature, top_k)
    emitted = (sample.ids == sample.token[:, None]) & (above | edge)
    listed = emitted.any(axis=1)
    rest = np.maximum(1 - p.sum(axis=1), 0.0) if top_k is None else np.zeros(len(listed))
    outside = ~listed if top_k is not None else np.zeros_like(listed)
    found = []
    for key in (-p, -favour / np.maximum(p, 1e-300)):
        order = np.argsort(np.where(above, key, np.inf), axis=1, kind="stable")
        sorted_p, sorted_emitted = np.take_along_axis(p, order, 1), np.take_along_axis(emitted, order, 1)
        before = ((np.cumsum(sorted_p, axis=1) - sorted_p) * sorted_emitted).sum(axis=1)
        own = (p * emitted).sum(axis=1)
        at_edge = (emitted & edge).any(axis=1)
        before = np.where(at_edge, (p * above).sum(axis=1), before)
        u = before + draws * np.where(at_edge, (p * edge).sum(axis=1), own)
        u = np.where(listed, u, 1 - rest * (1 - draws))
        found.append(np.where(outside, np.nan, np.clip(u, 0.0, 1.0)))
    probability = np.where(outside, 0.0, (p * emitted).sum(axis=1))
    unlisted = ~listed & ~outside
    return Transformed(found[0], found[1], sample.index, outside, probability, unlisted, rest, sample.own)


def _adjusted(sample: Scored, temperature: float, top_k: int | None) -> tuple[FloatArray, BoolArray, BoolArray]:
    """Probabilities [n, w] after temperature and top-k, which tokens lie clearly within it, and which at its edge."""
    logprobs = sample.logprobs
    if top_k is None:
        within = np.isfinite(logprobs)
        return np.exp(logprobs), within, np.zeros_like(within)
    kth = logprobs[:, min(top_k, logprobs.shape[1]) - 1][:, None]
    above, edge = logprobs > kth + EDGE, (logprobs <= kth + EDGE) & (logprobs >= kth - EDGE)
    weight = np.where(logprobs >= kth, np.exp((logprobs - logprobs[:, :1]) / temperature), 0.0)
    return weight / weight.sum(axis=1, keepdims=True), above, edge


def _guess(sample: Scored, other: Scored, temperature: float, top_k: int | None) -> FloatArray:
    """What a bigram smoothed by a unigram would give each token [n, w], both averaged from the rows of `other`."""
    p, _, _ = _adjusted(other, temperature, top_k)
    tokens = np.unique(np.concatenate([other.ids.ravel(), sample.ids.ravel()]))
    contexts = np.unique(np.concatenate([other.before, sample.before]))
    known, asked = np.searchsorted(tokens, other.ids), np.searchsorted(tokens, sample.ids)
    behind, wanted = np.searchsorted(contexts, other.before), np.searchsorted(contexts, sample.before)
    unigram = np.bincount(known.ravel(), weights=p.ravel(), minlength=len(tokens)) / max(len(other.before), 1)
    pairs, place = np.unique(behind[:, None] * len(tokens) + known, return_inverse=True)
    mass = np.bincount(place.ravel(), weights=p.ravel(), minlength=len(pairs))
    seen = np.bincount(behind, minlength=len(contexts))[wanted][:, None]
    key = wanted[:, None] * len(tokens) + asked
    at = np.minimum(np.searchsorted(pairs, key), max(len(pairs) - 1, 0))
    bigram = np.where(pairs[at] == key, mass[at], 0.0) if len(pairs) else np.zeros(key.shape)
    favour: FloatArray = (bigram + PRIOR * unigram[asked] + 1e-12) / (seen + PRIOR)
    return favour
