"""The lesson's experiments that take time: what a pass costs, and which K pays."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice, pairwise
from statistics import median

import numpy as np

from toolkit import theory
from toolkit.errors import InputError
from toolkit.lab.pairing import Pair
from toolkit.lab.reference import Sampling, Step, generate

SIZES = (1, 2, 4, 8, 16, 32, 64)
"""New tokens of a pass."""

DRAFTED = 4
"""Draft tokens of one reading of a draft step, which is a quarter of it."""


@dataclass(frozen=True, slots=True)
class VerifyCost:
    """Median seconds of a target pass by its new tokens, on `context` cached ones; and of one draft step."""

    context: int
    passes: tuple[tuple[int, float], ...]
    draft_step: float | None

    @property
    def c(self) -> float | None:
        """Cost of a draft step over that of a target step of one token."""
        return None if self.draft_step is None else self.draft_step / self.passes[0][1]


def verify_cost(
    pair: Pair, text: Sequence[int], context: int = 256, repeats: int = 5, sizes: Sequence[int] = SIZES
) -> VerifyCost:
    """Time passes over `sizes` new tokens of `text`, which is repeated as long as needed, and a draft step.

    Each size once in each of `repeats` rounds, after a round that is not timed. Raises InputError for a context that
    the pair was not made for.
    """
    require(context >= 1 and repeats >= 1, "--context and --repeats take numbers of at least 1")
    longest = context + max(sizes)
    require(pair.longest is None or longest <= pair.longest, f"--context {context}: {pair.name} holds {pair.longest}")
    tokens = list(islice(cycle(text), longest))
    rng = np.random.default_rng(0)
    pair.target.crop(0)
    pair.target.extend(tokens[:context])
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    drafting = []
    for _ in range(repeats + 1):  # in turn, so that what disturbs one disturbs all
        for size in sizes:
            seconds[size].append(_timed(partial(pair.target.extend, tokens[context : context + size])))
            pair.target.crop(context)
        if pair.drafter is not None:
            drafting.append(_timed(partial(pair.drafter.propose, tokens[:context], DRAFTED, Sampling(), rng)))
    return VerifyCost(
        context,
        tuple((size, median(seconds[size][1:])) for size in sizes),
        median(drafting[1:]) / DRAFTED if drafting else None,
    )


@dataclass(frozen=True, slots=True)
class Length:
    """What K won. Tokens and seconds are of decoding: the prefill and its token are left out, in plain decoding too.

    `given[i]` is the share of the (i + 1)-th draft tokens that were kept, given that those before them were; None
    where none was drafted. `predicted` is the speedup by the measured acceptance and c, if a pass over K + 1 tokens
    cost that of one (Leviathan et al., Theorem 3.8). `same` counts the answers that equal plain decoding's.
    """

    k: int
    tokens: int
    passes: int
    seconds: float
    speedup: float
    given: tuple[float | None, ...]
    predicted: float
    same: int

    @property
    def tokens_per_pass(self) -> float:
        return self.tokens / self.passes


@dataclass(frozen=True, slots=True)
class KSweep:
    """Plain decoding, `tokens` in `seconds`, and each K against it, over `prompts` prompts. `c` as measured here."""

    prompts: int
    tokens: int
    seconds: float
    c: float
    lengths: tuple[Length, ...]


@dataclass(slots=True)
class _Decoded:
    """Decoding of all prompts, the prefill's step left out."""

    answers: list[list[int]]
    steps: list[Step]
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        return sum(len(step.tokens) for step in self.steps)


def sweep_k(
    pair: Pair,
    prompts: Sequence[Sequence[int]],
    ks: Sequence[int] = (1, 2, 4, 8),
    max_tokens: int = 32,
    sampling: Sampling = Sampling(),
    seed: int = 0,
) -> KSweep:
    """Decode each of `prompts` plainly and with drafts of each of `ks`, in turn, and time it.

    Raises InputError without a drafter, for a K below 1, and for a prompt that the pair was not made for.
    """
    check_draws(sampling, seed)
    if pair.drafter is None:
        raise InputError("sweep-k compares drafts with plain decoding: choose a --drafter.")
    require(bool(ks) and min(ks) >= 1, "--k takes numbers of at least 1")
    require(max_tokens >= 2, "--max-tokens takes at least 2: the first token comes from the prefill")
    room = max(map(len, prompts)) + max_tokens + max(ks)
    require(pair.longest is None or room <= pair.longest, f"the longest prompt needs {room}, {pair.name} holds less")
    cost = verify_cost(pair, prompts[0], len(prompts[0]), sizes=(1,))
    assert cost.c is not None
    runs = {k: _Decoded([], []) for k in (0, *ks)}
    for prompt in prompts:
        for k, run in runs.items():
            _decode(run, pair, prompt, sampling, np.random.default_rng(seed), max_tokens, k)
    plain = runs[0]
    require(plain.tokens > 0, "every answer ended with its first token: choose other prompts")
    return KSweep(
        prompts=len(prompts),
        tokens=plain.tokens,
        seconds=plain.seconds,
        c=cost.c,
        lengths=tuple(_length(k, runs[k], plain, cost.c) for k in ks),
    )


def _decode(
    run: _Decoded, pair: Pair, prompt: Sequence[int], sampling: Sampling, rng: np.random.Generator, most: int, k: int
) -> None:
    stop = frozenset({pair.tokenizer.eos})
    steps = generate(pair.target, prompt, sampling, rng, most, pair.drafter if k else None, k, stop)
    first = next(steps)
    begun = time.perf_counter()
    rest = list(steps)
    run.seconds += time.perf_counter() - begun
    run.steps += rest
    run.answers.append([token for step in (first, *rest) for token in step.tokens])


def _length(k: int, run: _Decoded, plain: _Decoded, c: float) -> Length:
    passes = max(len(run.steps), 1)
    kept = [sum(step.accepted >= place for step in run.steps) for place in range(k + 1)]  # at 0: all passes
    judged = [sum(step.drafted >= place <= step.accepted + 1 for step in run.steps) for place in range(k + 1)]
    # Passes without a draft count as drafts that were not kept: they cost as much and yield one token.
    shares = [here / before if before else 0.0 for before, here in pairwise(kept)]
    return Length(
        k=k,
        tokens=run.tokens,
        passes=passes,
        seconds=run.seconds,
        speedup=(run.tokens / run.seconds) / (plain.tokens / plain.seconds),
        given=tuple(kept[place] / judged[place] if judged[place] else None for place in range(1, k + 1)),
        predicted=theory.speedup_by_position(shares, k, c),
        same=sum(ours == theirs for ours, theirs in zip(run.answers, plain.answers, strict=True)),
    )


def check_draws(sampling: Sampling, seed: int) -> None:
    """Raises InputError for a temperature or a seed that is none."""
    require(0 <= sampling.temperature < math.inf, f"--temperature {sampling.temperature}: a finite number, 0 or more")
    require(seed >= 0, f"--seed {seed}: a whole number, 0 or more")


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def require(holds: bool, otherwise: str) -> None:
    """Raises InputError with `otherwise`, a sentence without its full stop."""
    if not holds:
        raise InputError(f"{otherwise}.")
