"""A world of three tokens, where the law of whole answers is known: the reference loop is held against it.

A chi-square over all 81 answers of four tokens sees what a test of single tokens may miss. Answers come with a fixed
seed; a sound loop would fail less than once in a million seeds (NEVER).
"""

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy import stats

from toolkit.lab.reference import EXACT, Drafter, Rule, Sampling, generate
from toolkit.sampling import FloatArray

SIZE = 3
PROMPT = [0, 1]
LENGTH = 4
ANSWERS = 1_000
NEVER = 1e-6


class Table:
    """A model whose next token depends on the last `memory` tokens of its cache, by random logits."""

    size = SIZE

    def __init__(self, memory: int, seed: int) -> None:
        self.cached: list[int] = []
        self._memory = memory
        self._logits = np.random.default_rng(seed).normal(0, 1, (SIZE,) * (memory + 1))

    @property
    def length(self) -> int:
        return len(self.cached)

    def extend(self, tokens: Sequence[int]) -> FloatArray:
        return np.stack([self._next(token) for token in tokens])

    def _next(self, token: int) -> FloatArray:
        self.cached.append(token)
        context = [0] * self._memory + self.cached
        row: FloatArray = self._logits[tuple(context[len(context) - self._memory :])]
        return row

    def crop(self, length: int) -> None:
        assert length <= len(self.cached), "a cache cannot be cropped to more than it holds"
        del self.cached[length:]


def target() -> Table:
    return Table(memory=2, seed=1)


def draft() -> Table:
    return Table(memory=1, seed=2)


def law_p_value(sampling: Sampling, drafter: Drafter | None, k: int = 2, rule: Rule = EXACT) -> float:
    """Chi-square of ANSWERS answers of the loop against the target's own law of them, rare ones pooled."""
    model, rng = target(), np.random.default_rng(3)

    def answer() -> tuple[int, ...]:
        steps = generate(model, PROMPT, sampling, rng, LENGTH, drafter, k, rule=rule)
        return tuple(token for step in steps for token in step.tokens)

    seen = Counter(answer() for _ in range(ANSWERS))
    answers = list(itertools.product(range(SIZE), repeat=LENGTH))
    expected = ANSWERS * np.array([_chance(answer, sampling) for answer in answers])
    counts = np.array([seen[answer] for answer in answers])
    rarest_first = np.argsort(expected)
    rare = int(np.searchsorted(np.cumsum(expected[rarest_first]), 5)) + 1  # together expected five times or more
    pooled = [
        np.append(values[rarest_first[rare:]], values[rarest_first[:rare]].sum()) for values in (counts, expected)
    ]
    return float(stats.chisquare(*pooled).pvalue)


def _chance(answer: tuple[int, ...], sampling: Sampling) -> float:
    p = sampling.of(target().extend([*PROMPT, *answer]))[len(PROMPT) - 1 : -1]
    return float(np.prod([row[token] for row, token in zip(p, answer, strict=True)]))
