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

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from toolkit.analysis.audit.replies import LOWEST, Ranked, Reply

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
EDGE = 0.1
"""Nats. Tokens this near to the k-th best share one bin: rounding alone can put one in the place of another."""
NEAR = 0.5
"""Nats. A token further below the k-th best could not have been drawn. A nearer one joins the bin."""
PRIOR = 2.0
"""Contexts that the guesser's unigram counts for beside those that share the last token."""
FEWEST_LISTED = 5
"""Tokens that a row must tell where all may be drawn; the others share one bin."""
WHOLE = 0.9999
"""Mass of a row that holds the whole vocabulary, rounding aside."""


@dataclass(frozen=True, slots=True)
class Scored:
    """n emitted tokens in their contexts, the first token of each reply left out (it comes from the prefill).

    `ids`, `logprobs` [n, w]: the reference's best tokens, raw, the likeliest first, padded with -1 and -inf. They are
    `best` ones and, behind them, the emitted one where it is none of these. `token`, `before` [n]: the emitted one and
    its predecessor. `index` [n]: how many tokens the same step emitted before it, -1 unknown. `repeats` [n]: whether
    the two tokens before it stood like that earlier, which is where lookups draft and models draft well.
    """

    ids: IntArray
    logprobs: FloatArray
    token: IntArray
    before: IntArray
    index: IntArray
    repeats: BoolArray
    best: int


@dataclass(frozen=True, slots=True)
class Transformed:
    """Of n tokens: the transforms [n] in each order (NaN where it is impossible), `index` and `repeats` as in `Scored`.

    `outside` marks tokens that could not have been drawn. `probability` is the token's own, temperature and top-k
    applied; 0 where it is not known. `tail` is the mass of what is no likelier than the token, itself included, or
    more. `logprob` is the token's raw one, NaN unknown. Without a top k, `unlisted` marks tokens that are none of the
    reference's best, and `rest` is the chance of one.
    """

    by_probability: FloatArray
    by_guess: FloatArray
    index: IntArray
    repeats: BoolArray
    outside: BoolArray
    probability: FloatArray
    tail: FloatArray
    unlisted: BoolArray
    rest: FloatArray
    logprob: FloatArray

    @property
    def possible(self) -> int:
        """The number of tokens that have a transform."""
        return int((~self.outside).sum())


def scored(replies: Sequence[Reply]) -> Scored:
    """The scored tokens of `replies`, those without scores left out."""
    kept = [reply for reply in replies if reply.scores is not None]
    rows = [row for reply in kept for row in (reply.scores or [])[1:]]
    width = max(map(len, rows), default=1)
    ids, logprobs = np.full((len(rows), width), -1, dtype=np.int64), np.full((len(rows), width), -np.inf)
    for number, row in enumerate(rows):
        ordered = sorted(row, key=lambda pair: (-pair[1], pair[0]))
        ids[number, : len(row)], logprobs[number, : len(row)] = zip(*ordered, strict=True)
    logprobs[logprobs <= LOWEST] = -np.inf
    return Scored(
        ids,
        logprobs,
        np.array([token for reply in kept for token in reply.token_ids[1:]], dtype=np.int64),
        np.array([token for reply in kept for token in reply.token_ids[:-1]], dtype=np.int64),
        np.array([place for reply in kept for place in indices(reply)[1:]], dtype=np.int64),
        np.array([repeat for reply in kept for repeat in repeats(reply)[1:]], dtype=bool),
        best=min(map(len, rows), default=1),
    )


def indices(reply: Reply) -> list[int]:
    """The index of each token in its step, by chunks: a step's tokens arrive in one. -1 where chunks do not tell.

    A server that falls behind may merge steps; that depends on time, not on the tokens, so that the transforms of a
    lossless server stay uniform at every index.
    """
    if sum(reply.chunks) != len(reply.token_ids) or (reply.chunks and reply.chunks[0] != 1):
        return [-1] * len(reply.token_ids)
    return [place for size in reply.chunks for place in range(size)]


def repeats(reply: Reply) -> list[bool]:
    """Of each token, whether the two tokens before it stood side by side earlier, in the prompt or the reply."""
    sequence, seen, found = [*reply.prompt_ids, *reply.token_ids], set[tuple[int, ...]](), list[bool]()
    for end in range(len(sequence)):
        pair = tuple(sequence[max(end - 2, 0) : end])
        found.append(pair in seen)
        if len(pair) == 2:
            seen.add(pair)
    return found[len(reply.prompt_ids) :]


def lacking(row: Ranked, top_k: int | None) -> str:
    """What `row` lacks to say what could be drawn; "" when it says it. A small vocabulary may be told as a whole."""
    mass, needed = math.fsum(math.exp(min(logprob, 0.0)) for _, logprob in row), top_k or FEWEST_LISTED
    if len(row) < needed and mass < WHOLE:
        return f"it gives {len(row)} log probabilities of a place where {needed} are needed"
    if top_k is None and mass > 1.01:
        return "what it gives are no log probabilities of the whole vocabulary: they add up to more than 1"
    return ""


def transform(
    sample: Scored, other: Scored, temperature: float, top_k: int | None, rng: np.random.Generator
) -> Transformed:
    """The transforms of `sample`, the guesser made from `other`.

    The top k holds ties with the k-th, as vLLM's does (v1/sample/ops/topk_topp_sampler.py masks what is *below* the
    k-th value). Tokens about the k-th come last in either order, in one bin. Without a top k, those beyond the best do.
    """
    p, above, edge = adjusted(sample, temperature, top_k)
    draws, favour = rng.random(len(sample.token)), _guess(sample, other, temperature, top_k)
    emitted = sample.ids == sample.token[:, None]
    listed = emitted.any(axis=1) | (top_k is not None)  # without a top k, what is not listed is in the last bin
    outside = listed & ~(emitted & (above | edge)).any(axis=1)
    last = (emitted & edge).any(axis=1) | ~listed
    own, mass_above = (p * emitted).sum(axis=1), (p * above).sum(axis=1)

    def mass_before(key: FloatArray) -> FloatArray:
        """By ascending `key` [n, w] of the tokens that stand apart; all others are one bin behind them."""
        order = np.argsort(np.where(above, key, np.inf), axis=1, kind="stable")
        ordered, place = np.take_along_axis(p, order, 1), np.take_along_axis(emitted, order, 1)
        return np.where(last, mass_above, ((np.cumsum(ordered, axis=1) - ordered) * place).sum(axis=1))

    likelier, favoured = mass_before(-p), mass_before(-favour / np.maximum(p, 1e-300))
    share = np.where(last, 1 - mass_above, own)
    by_probability, by_guess = (
        np.where(outside, np.nan, np.clip(mass + draws * share, 0.0, 1.0)) for mass in (likelier, favoured)
    )
    logprob = np.where(emitted, sample.logprobs, -np.inf).max(axis=1)
    return Transformed(
        by_probability,
        by_guess,
        sample.index,
        sample.repeats,
        outside,
        probability=np.where(outside, 0.0, own),
        tail=np.where(outside, 0.0, 1 - likelier),
        unlisted=last & (top_k is None),
        rest=np.maximum(1 - mass_above, 0.0) * (top_k is None),
        logprob=np.where(emitted.any(axis=1), logprob, np.nan),
    )


def adjusted(sample: Scored, temperature: float, top_k: int | None) -> tuple[FloatArray, BoolArray, BoolArray]:
    """Probabilities [n, w] after temperature and top-k, which tokens stand apart, and which share the last bin.

    Neither: tokens that could not have been drawn. Without a top k, the temperature is 1, and those in the last bin are
    given none: not all of them are listed.
    """
    logprobs = sample.logprobs
    possible = np.isfinite(logprobs)
    if top_k is None:
        apart = possible & (np.arange(logprobs.shape[1]) < sample.best)
        return np.where(apart, np.exp(logprobs), 0.0), apart, possible & ~apart
    kth = logprobs[:, min(top_k, logprobs.shape[1]) - 1][:, None]
    above = possible & (logprobs > kth + EDGE)
    edge = possible & ~above & (logprobs >= kth - NEAR)
    weight = np.where(possible & (logprobs >= kth), np.exp((logprobs - logprobs[:, :1]) / temperature), 0.0)
    return weight / weight.sum(axis=1, keepdims=True), above, edge


def _guess(sample: Scored, other: Scored, temperature: float, top_k: int | None) -> FloatArray:
    """What a bigram smoothed by a unigram would give each token [n, w], both averaged from the rows of `other`."""
    mass = adjusted(other, temperature, top_k)[0].ravel()
    _, token = np.unique(np.concatenate([other.ids.ravel(), sample.ids.ravel()]), return_inverse=True)
    _, context = np.unique(np.concatenate([other.before, sample.before]), return_inverse=True)
    here, there = context[: len(other.before)], context[len(other.before) :]
    behind = np.concatenate([np.repeat(here, other.ids.shape[1]), np.repeat(there, sample.ids.shape[1])])
    _, pair = np.unique(behind * (token.max(initial=0) + 1) + token, return_inverse=True)
    known, asked = slice(len(mass)), slice(len(mass), None)
    unigram = np.bincount(token[known], mass, token.max(initial=0) + 1)[token[asked]] / max(len(other.before), 1)
    bigram = np.bincount(pair[known], mass, pair.max(initial=0) + 1)[pair[asked]]
    seen = np.bincount(here, minlength=context.max(initial=0) + 1)[behind[asked]]
    favour: FloatArray = (bigram + PRIOR * unigram + 1e-12) / (seen + PRIOR)
    return favour.reshape(sample.ids.shape)
