"""Servers that are sound by construction, simulated: what an audit would get from them, without one.

A world is a random language: what may follow depends on the last two tokens, a few tokens take most of the mass, and
how peaked they are differs by context. Drafts are one-hot guesses from the last token, so that a token drawn from p is
a kept draft exactly if it equals the guess (Leviathan et al. 2211.17192, sec. 2.3, with q one-hot).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from toolkit.analysis.audit.replies import Reply
from toolkit.analysis.audit.transform import FloatArray, IntArray, Scored
from toolkit.engines.contract import SpecCounts

SIZE = 300
CANDIDATES = 24
LISTED = 20
K = 4
REPLIES, LENGTH = 40, 48
PROMPTS, GREEDY_TOKENS = 8, 24
FRUIT = '{"color": "red", "size": "small", "ripe": true, "count": 3}'


@dataclass(frozen=True)
class Noise:
    """Standard deviations of what each server's rounding adds to its logits, in nats; anew at every place.

    `baseline_steady`: the baseline rounds alike in every batch shape, so that its control shows nothing.
    """

    arm: float = 0.0
    baseline: float = 0.0
    reference: float = 0.0
    baseline_steady: bool = False


class World:
    """By the last two tokens [size, size, 24]: what can follow, the likeliest first, and its `logprobs`."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        by_last = np.stack([rng.permutation(SIZE)[:CANDIDATES] for _ in range(SIZE)])
        shared = rng.normal(0, 1, (SIZE, CANDIDATES))
        peaked = rng.choice((1.0, 2.0, 5.0), (SIZE, SIZE, 1))
        logits = peaked * (shared + rng.normal(0, 1, (SIZE, SIZE, CANDIDATES))) / np.sqrt(2)
        logits -= np.log(np.exp(logits).sum(axis=2, keepdims=True))
        order = np.argsort(-logits, axis=2)
        self.logprobs = np.take_along_axis(logits, order, 2)
        self.candidates = np.take_along_axis(np.broadcast_to(by_last, logits.shape), order, 2)
        self.guess = np.take_along_axis(by_last, shared.argmax(axis=1)[:, None], 1)[:, 0]


@dataclass(frozen=True)
class Drawn:
    """Tokens [n, m] of n replies, their predecessors, and the reference's rows [n, m, w] for them."""

    tokens: IntArray
    before: IntArray
    ids: IntArray
    logprobs: FloatArray

    def scored(self, part: slice, length: int, index: IntArray) -> Scored:
        def flat(values: Any) -> Any:
            return values[part, 1:length].reshape(-1, *values.shape[2:])

        before = flat(self.before)
        repeats = before % 3 == 0  # any split will do that is known before the token is drawn
        return Scored(flat(self.ids), flat(self.logprobs), flat(self.tokens), before, index, repeats, best=LISTED)


def draw(
    world: World, rng: np.random.Generator, noise: FloatArray, reference: float, length: int, top_k: int | None
) -> Drawn:
    """Replies drawn with rounding of sd `noise` [n], scored by a reference with rounding of its own."""
    n = len(noise)
    older, last = rng.integers(SIZE, size=(2, n))
    tokens, before, ids, logprobs = [], [], [], []
    for _ in range(length):
        candidates, true = world.candidates[older, last], world.logprobs[older, last]
        own, listed, seen = true, candidates, true
        if noise.any():
            own = true + noise[:, None] * rng.normal(size=true.shape)
        if reference:
            seen = true + reference * rng.normal(size=true.shape)
            seen -= np.log(np.exp(seen).sum(axis=1, keepdims=True))
            order = np.argsort(-seen, axis=1)
            listed, seen = np.take_along_axis(candidates, order, 1), np.take_along_axis(seen, order, 1)
        p = np.exp(own)
        if top_k is not None:
            p[own < np.partition(own, -top_k, axis=1)[:, -top_k, None]] = 0.0
        mass = np.cumsum(p, axis=1)
        chosen = (mass > rng.random((n, 1)) * mass[:, -1:]).argmax(axis=1)
        before.append(last)
        older, last = last, candidates[np.arange(n), chosen]
        # The 20 best and, behind them, the emitted one if it is none of them.
        further = (listed == last[:, None]) & (np.arange(CANDIDATES) >= LISTED)
        extra = np.where(further.any(axis=1), last, -1), np.max(seen, axis=1, where=further, initial=-np.inf)
        tokens.append(last)
        ids.append(np.column_stack([listed[:, :LISTED], extra[0]]))
        logprobs.append(np.column_stack([seen[:, :LISTED], extra[1]]))
    return Drawn(*(np.stack(values, axis=1) for values in (tokens, before, ids, logprobs)))


def steps(
    tokens: Sequence[int], drafts: Sequence[int], drafted: Sequence[bool], length: int
) -> tuple[list[int], SpecCounts]:
    """Chunks and counts of one reply: up to K drafts a step where one was `drafted`, counted before an end trims it."""
    chunks, accepted = [1], list[int]()
    while (at := sum(chunks)) < length:
        kept = 0
        if drafted[at]:
            while kept < K and tokens[at + kept] == drafts[at + kept]:
                kept += 1
            accepted.append(kept)
        chunks.append(min(kept + 1, length - at))
    counts = SpecCounts(len(accepted), K * len(accepted), sum(accepted), K, [K] * len(accepted), accepted)
    return chunks, counts


@dataclass(frozen=True)
class Sampled:
    """Both sides' scored samples, and the arm's replies that they come from."""

    arm: Scored
    control: Scored
    replies: list[Reply]


def sampled(world: World, rng: np.random.Generator, noise: Noise, top_k: int | None = None) -> Sampled:
    own = np.repeat([noise.arm, noise.baseline], REPLIES)
    drawn = draw(world, rng, own, noise.reference, LENGTH + K + 1, top_k)
    guesses, wanted = world.guess[drawn.before], rng.random(drawn.tokens.shape) < 0.7
    replies, places = [], []
    for i in range(REPLIES):
        tokens = drawn.tokens[i].tolist()
        chunks, counts = steps(tokens, guesses[i].tolist(), wanted[i].tolist(), LENGTH)
        places += [place for size in chunks for place in range(size)][1:]
        replies.append(
            reply("sample", "arm", i // 8, tokens[:LENGTH], seed=i, chunks=chunks, counts=counts, scores=[], text="")
        )
    index = np.array(places)
    nothing = np.zeros(REPLIES * (LENGTH - 1), dtype=np.int64)
    return Sampled(
        drawn.scored(slice(REPLIES), LENGTH, index),
        drawn.scored(slice(REPLIES, None), LENGTH, nothing),
        replies,
    )


def greedy(world: World, rng: np.random.Generator, noise: Noise) -> list[Reply]:
    """Both sides' greedy replies alone and eight at once; rounding differs by side and, as a rule, by shape."""
    sides = [("arm", 1), ("arm", 8), ("baseline", 1), ("baseline", 8)]
    starts = rng.integers(SIZE, size=(2, PROMPTS))
    older, last = (np.tile(start, len(sides)) for start in starts)
    found, tops = [], []
    scale = np.repeat([noise.arm, noise.arm, noise.baseline, noise.baseline], PROMPTS)[:, None]
    for _ in range(GREEDY_TOKENS):
        fuzz = rng.normal(size=(len(sides), PROMPTS, CANDIDATES))
        if noise.baseline_steady:
            fuzz[3] = fuzz[2]
        own = world.logprobs[older, last] + scale * fuzz.reshape(-1, CANDIDATES)
        best = np.argsort(-own, axis=1)[:, :5]
        ids = np.take_along_axis(world.candidates[older, last], best, 1)
        logprobs = np.take_along_axis(own, best, 1)
        older, last = last, ids[:, 0]
        found.append(last)
        tops.append((ids.tolist(), logprobs.tolist()))
    tokens = np.stack(found, axis=1).tolist()
    return [
        reply(
            "greedy",
            side,
            prompt,
            tokens[row],
            concurrency=concurrency,
            top=[list(zip(ids[row], logprobs[row], strict=True)) for ids, logprobs in tops],
        )
        for number, (side, concurrency) in enumerate(sides)
        for prompt in range(PROMPTS)
        for row in [number * PROMPTS + prompt]
    ]


def structured() -> list[Reply]:
    sides = ("arm", "baseline")
    return [reply("structure", side, i, [1, 2], text=FRUIT, finish_reason="stop") for side in sides for i in range(8)]


def reply(question: Any, side: Any, prompt: int, token_ids: list[int], **rest: Any) -> Reply:
    """A Reply whose text, chunks and reason to finish are as simple as can be, unless given."""
    simple = {
        "concurrency": 8,
        "seed": None,
        "prompt_ids": [prompt],
        "chunks": [1] * len(token_ids),
        "text": "".join(f" {token}" for token in token_ids),
        "finish_reason": "length",
    }
    return Reply(question=question, side=side, prompt=prompt, token_ids=token_ids, **{**simple, **rest})
