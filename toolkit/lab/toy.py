"""A toy pair: n-gram models of characters over a short text of our own. Exact, fast, and a fair victim for an audit.

The target is an interpolated trigram, the drafts a unigram and a bigram of the same text. A model predicts from what is
in its cache, like any other, so a cache that holds what it should not shows in the answers.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files

import numpy as np

from toolkit.errors import InputError
from toolkit.sampling import FloatArray

WEIGHTS = (0.98, 0.75, 0.75)
"""Share of its own counts in the prediction from a context of 0, 1, 2 tokens; the rest is the next shorter one's."""

DRAFTS = {"unigram": 1, "bigram": 2}
TARGET_ORDER = 3


class ToyTokenizer:
    """One token a character: printable ASCII, the newline, and the end of a text. All else is read as "?"."""

    characters = "\n" + "".join(map(chr, range(32, 127)))
    eos = len(characters)
    size = eos + 1
    _ids: Mapping[str, int] = {character: i for i, character in enumerate(characters)}

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(character, self._ids["?"]) for character in text]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`; the end token has none."""
        return "".join(self.characters[i] for i in ids if i != self.eos)

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The contents of `messages` (`role`, `content`) as paragraphs, and the answer's place behind them."""
        return self.encode("".join(message["content"] + "\n\n" for message in messages))


class NgramTable:
    """What n-gram models know of one text: log p(w | h) for each context h of up to len(WEIGHTS) - 1 tokens.

    p(w | h) = WEIGHTS[len(h)] count(hw) / count(h) + (1 - WEIGHTS[len(h)]) p(w | h'), where h' is h without its oldest
    token, and below the empty context all tokens are alike; p(w | h) = p(w | h') where h never occurred. Interpolation
    as in Jelinek and Mercer (1980). Rows are computed when first asked for, and kept.
    """

    def __init__(self, text: Sequence[int], size: int) -> None:
        self.size = size
        self._counts: dict[tuple[int, ...], FloatArray] = {}
        for end, token in enumerate(text):
            for start in range(max(0, end - len(WEIGHTS) + 1), end + 1):
                self._counts.setdefault(tuple(text[start:end]), np.zeros(size))[token] += 1
        self._logits: dict[tuple[int, ...], FloatArray] = {}

    def logits(self, context: tuple[int, ...]) -> FloatArray:
        """log p(. | context) [size], not to be written to."""
        if context not in self._logits:
            self._logits[context] = np.log(self._probabilities(context))
        return self._logits[context]

    def _probabilities(self, context: tuple[int, ...]) -> FloatArray:
        shorter = self._probabilities(context[1:]) if context else np.full(self.size, 1 / self.size)
        counts = self._counts.get(context)
        if counts is None:
            return shorter
        weight = WEIGHTS[len(context)]
        interpolated: FloatArray = weight * counts / counts.sum() + (1 - weight) * shorter
        return interpolated


class NgramModel:
    """An n-gram model of `order` 1 (unigram) to len(WEIGHTS). Models may share their table, never their cache."""

    def __init__(self, order: int, table: NgramTable) -> None:
        self.size = table.size
        self._context = order - 1
        self._table = table
        self._cached: list[int] = []

    @property
    def length(self) -> int:
        return len(self._cached)

    def extend(self, tokens: Sequence[int]) -> FloatArray:
        first = len(self._cached) + 1
        self._cached += tokens
        ends = range(first, first + len(tokens))
        return np.stack([self._table.logits(tuple(self._cached[max(0, end - self._context) : end])) for end in ends])

    def crop(self, length: int) -> None:
        del self._cached[length:]


@cache
def toy_text() -> tuple[int, ...]:
    """`toy.txt` as tokens, each paragraph with an end."""
    paragraphs = files("toolkit.lab").joinpath("toy.txt").read_text(encoding="utf-8").strip().split("\n\n")
    tokenizer = ToyTokenizer()
    return tuple(token for paragraph in paragraphs for token in (*tokenizer.encode(paragraph), tokenizer.eos))


@cache
def toy_table() -> NgramTable:
    return NgramTable(toy_text(), ToyTokenizer.size)


def toy_target() -> NgramModel:
    return NgramModel(TARGET_ORDER, toy_table())


def toy_draft(name: str = "bigram") -> NgramModel:
    """A draft of `DRAFTS`. Raises InputError for another name."""
    if name not in DRAFTS:
        raise InputError(f"There is no toy draft {name!r}: choose one of {', '.join(DRAFTS)}.")
    return NgramModel(DRAFTS[name], toy_table())


def toy_pair(name: str = "bigram") -> tuple[NgramModel, NgramModel]:
    """The target and a draft of `DRAFTS`, each with an empty cache of its own. Raises InputError for another name."""
    return toy_target(), toy_draft(name)
