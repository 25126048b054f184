"""The reference loop: speculative decoding as the papers write it, one request at a time. An oracle, no competitor.

Short and plainly right: every round feeds the target what it has not seen and the drafts behind it, asks the rule
(`toolkit.sampling.verify`), and takes the rejected drafts out of the cache. The discipline that makes it right: with
`seq` the prompt and all emitted tokens, each cache covers seq[:-1] or less when a round begins, and never a token that
is not in seq. `Rule` is the seam through which `toolkit.lab.faults` plants what engines get wrong.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Protocol

import numpy as np

from toolkit.errors import InputError
from toolkit.sampling import FloatArray, Verified, adjust, draw, one_hot, verify


class Model(Protocol):
    """A causal language model with a cache."""

    @property
    def size(self) -> int:
        """Tokens in the vocabulary."""

    @property
    def length(self) -> int:
        """Tokens in the cache."""

    def extend(self, tokens: Sequence[int]) -> FloatArray:
        """Append one or more `tokens` to the cache. Logits [len(tokens), size], row i the prediction after token i."""

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens of the cache, at most as many as it holds."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a request wants its tokens drawn: see `toolkit.sampling.adjust`. Greedy by default."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    def of(self, logits: FloatArray) -> FloatArray:
        return adjust(logits, self.temperature, self.top_k, self.top_p)


@dataclass(frozen=True, slots=True)
class Draft:
    """Guessed tokens, and for each the distribution that it was drawn from: `q` [len(tokens), size]."""

    tokens: list[int]
    q: FloatArray


class Drafter(Protocol):
    """Guesses what follows."""

    @property
    def size(self) -> int:
        """Tokens in the vocabulary, the target's."""

    def propose(self, sequence: Sequence[int], k: int, sampling: Sampling, rng: np.random.Generator) -> Draft:
        """At most `k` tokens to follow `sequence`; none is an answer too."""


Verify = Callable[[FloatArray, FloatArray, Sequence[int], np.random.Generator], Verified]


@dataclass(frozen=True, slots=True)
class Rule:
    """What a round does with the drafts once the target has seen them."""

    verify: Verify = verify
    rollback: bool = True
    """Whether rejected drafts leave the target's cache. What a draft model has read cannot change the answers' law."""


EXACT = Rule()


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass of the target: what it emitted, and of how many drafts it kept how many.

    `accepted` is counted before a stop token or max_tokens trims `tokens`, as engines count it.
    """

    tokens: tuple[int, ...]
    drafted: int
    accepted: int


def generate(
    target: Model,
    prompt: Sequence[int],
    sampling: Sampling,
    rng: np.random.Generator,
    max_tokens: int,
    drafter: Drafter | None = None,
    k: int = 0,
    stop: frozenset[int] = frozenset(),
    rule: Rule = EXACT,
) -> Iterator[Step]:
    """The steps of one answer: the prefill's single token first, then rounds of up to `k` drafts.

    It ends with the first token of `stop`, which is emitted, or with `max_tokens`. The caches start empty; what an
    earlier answer left in them is dropped. Plain decoding without a drafter or at k = 0.
    Raises ValueError for an empty prompt, max_tokens below 1, a negative k; InputError when target and drafter have
    vocabularies of different size.
    """
    if not prompt or max_tokens < 1 or k < 0:
        raise ValueError(f"needs a prompt, max_tokens of 1 or more and k of 0 or more, not {max_tokens} and {k}")
    if drafter is not None and drafter.size != target.size:
        raise InputError(
            f"The target's vocabulary has {target.size} tokens and the draft's {drafter.size}: "
            "drafts are checked by token id, so both models need one tokenizer. Take a draft of the target's family."
        )
    return _generate(target, list(prompt), sampling, rng, max_tokens, drafter if k else None, k, stop, rule)


def _generate(
    target: Model,
    sequence: list[int],
    sampling: Sampling,
    rng: np.random.Generator,
    max_tokens: int,
    drafter: Drafter | None,
    k: int,
    stop: frozenset[int],
    rule: Rule,
) -> Iterator[Step]:
    target.crop(0)
    end = len(sequence) + max_tokens
    fresh = sequence.copy()  # what the target has not seen: the prompt, then always the newest token alone
    draft = nothing = Draft([], np.empty((0, target.size)))
    while True:
        logits = target.extend([*fresh, *draft.tokens])
        p = sampling.of(logits[len(fresh) - 1 :])
        verified = rule.verify(p, draft.q, draft.tokens, rng)
        tokens = _until(verified.tokens[: end - len(sequence)], stop)
        sequence += tokens
        yield Step(tokens, len(draft.tokens), verified.accepted)
        if len(sequence) == end or tokens[-1] in stop:
            return
        if rule.rollback:
            target.crop(len(sequence) - 1)
        fresh = sequence[-1:]
        draft = drafter.propose(sequence, k, sampling, rng) if drafter else nothing


def _until(tokens: tuple[int, ...], stop: frozenset[int]) -> tuple[int, ...]:
    """`tokens` to the first one of `stop`, that one included."""
    kept = len(list(takewhile(lambda token: token not in stop, tokens)))
    return tokens[: kept + 1]


Choose = Callable[[FloatArray, Sampling, np.random.Generator], tuple[int, FloatArray]]
"""From a row of draft logits [size] to the draft token and the q that is declared for it."""


def honest(logits: FloatArray, sampling: Sampling, rng: np.random.Generator) -> tuple[int, FloatArray]:
    """Drawn as the request is sampled, and declared as drawn: the best draft that is exact."""
    q = sampling.of(logits)
    return draw(q, rng), q


@dataclass(slots=True)
class ModelDrafter:
    """Drafts with a model: a smaller one of the target's family, or the target with layers left out.

    Its cache keeps the longest prefix that it shares with the sequence, so it holds nothing that was rejected.
    """

    model: Model
    choose: Choose = honest
    _cached: list[int] = field(default_factory=list)

    @property
    def size(self) -> int:
        return self.model.size

    def propose(self, sequence: Sequence[int], k: int, sampling: Sampling, rng: np.random.Generator) -> Draft:
        shared = _common_prefix(self._cached, sequence[:-1])
        self.model.crop(shared)
        self._cached = list(sequence[:shared])
        fresh = list(sequence[shared:])
        tokens: list[int] = []
        q = np.empty((k, self.size))
        for i in range(k):
            logits = self.model.extend(fresh)[-1]
            self._cached += fresh
            token, q[i] = self.choose(logits, sampling, rng)
            tokens.append(token)
            fresh = [token]
        return Draft(tokens, q)


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@dataclass(frozen=True, slots=True)
class LookupDrafter:
    """Prompt lookup: what followed the last earlier place that reads like the end of the sequence.

    The longest suffix of `longest` down to `shortest` tokens that stood there before wins. It is certain of its drafts,
    so q is one-hot. Source: Saxena, "Prompt Lookup Decoding" (2023); vLLM's `ngram` method.
    """

    size: int
    shortest: int = 2
    longest: int = 5

    def propose(self, sequence: Sequence[int], k: int, sampling: Sampling, rng: np.random.Generator) -> Draft:
        tokens = self._continuation(list(sequence), k)
        return Draft(tokens, one_hot(np.array(tokens, dtype=np.int64), self.size))

    def _continuation(self, sequence: list[int], k: int) -> list[int]:
        for n in range(min(self.longest, len(sequence) - 1), self.shortest - 1, -1):
            suffix = sequence[-n:]
            for start in range(len(sequence) - n - 1, -1, -1):
                if sequence[start] == suffix[0] and sequence[start : start + n] == suffix:
                    return sequence[start + n : start + n + k]
        return []
