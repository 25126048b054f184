"""Prompt lookup for a batch: what to draft for each sequence, and how likely each token is to be kept.

A sequence looks in its own text, in the memory of what earlier requests wrote, and in the user's corpus, and copies
what followed the longest match, its own where two are as long. One compiled call serves the whole batch.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from toolkit.errors import InputError
from toolkit.proposers.batch import follow_all, step
from toolkit.proposers.continuations import no_counts
from toolkit.proposers.memory import CORPUS_ROW, OLD, SHARED, YOUNG, Memory
from toolkit.proposers.pool import SIZES, Pool
from toolkit.proposers.suffix_index import LENGTH, NONE
from toolkit.proposers.survival import first_counts

Int32 = NDArray[np.int32]

ROOM = 512
"""Tokens of room that a new sequence's index has beyond its prompt."""


@dataclass(frozen=True, slots=True)
class LookupOptions:
    """`max_draft`: the most tokens drafted for a request (K). `max_match`: match lengths beyond it count as it.

    `memory_tokens`: how much of what finished requests wrote is remembered, 0 for none. `corpus`: a text to look in
    too, tokenised by the caller. Raises InputError for a value that cannot be.
    """

    max_draft: int = 16
    max_match: int = 32
    memory_tokens: int = 262_144
    corpus: Path | None = None

    def __post_init__(self) -> None:
        for name, least, most in (("max_draft", 1, 128), ("max_match", 1, 128), ("memory_tokens", 0, 2**29)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise InputError(f"{name} is {value!r}: it takes a whole number from {least} to {most}.")


@dataclass(frozen=True, slots=True)
class Candidates:
    """What could be drafted: `tokens` [n, K]; `survival` [n, K], the probability that a token and all before it are
    kept, 0 past the end; `lengths` [n]. The arrays are the caller's until the next step."""

    tokens: Int32
    survival: NDArray[np.float32]
    lengths: Int32


class PromptLookup:
    """The indexes of up to `sequences` live sequences, a memory across them, and what was learned of survival."""

    def __init__(self, options: LookupOptions, sequences: int, corpus_tokens: Int32 | None = None) -> None:
        self.options = options
        self._pool = Pool(SHARED + sequences)
        self._memory = Memory(self._pool, options.memory_tokens)
        if corpus_tokens is not None and len(corpus_tokens):
            text = np.append(corpus_tokens, NONE).astype(np.int32)
            self._pool.fill(CORPUS_ROW, text, len(text))
        self._free = list(range(SHARED + sequences - 1, SHARED - 1, -1))
        self._sequences = sequences
        most = options.max_draft
        self._prompts = np.zeros(SHARED + sequences, np.int32)
        self._cursors = np.zeros((SHARED + sequences, SHARED, 2), np.int32)
        self._shadows = np.zeros((SHARED + sequences, 2 * most + 2), np.int32)
        self._survived = first_counts()
        self._followed = no_counts()
        self._tokens = np.zeros((sequences, most), np.int32)
        self._survival = np.zeros((sequences, most), np.float32)
        self._lengths = np.zeros(sequences, np.int32)

    def start(self, tokens: Int32) -> int:
        """A new sequence, `tokens` [length] its prompt. Gives its handle; raises RuntimeError when all are in use."""
        if not self._free:
            raise RuntimeError(f"there is no room for more than {self._sequences} sequences")
        tokens = np.ascontiguousarray(tokens, np.int32)
        handle = self._free.pop()
        self._pool.fill(handle, tokens, len(tokens) + max(ROOM, len(tokens) // 4), len(tokens) + ROOM)
        self._prompts[handle] = len(tokens)
        self._shadows[handle] = 0
        self._cursors[handle] = 0
        follow_all(self._pool.table, self._cursors, handle, tokens[-self.options.max_match :])
        return handle

    def finish(self, handle: int) -> None:
        """The sequence ended: what it wrote goes into the memory, its index is freed."""
        text = self._text(handle)
        begin = max(int(self._prompts[handle]) - self.options.max_match, 0)
        if len(text) > self._prompts[handle] and self._memory.add(
            text[begin:], self._pool.get(handle).outcome[begin : len(text)]
        ):
            self._cursors[:, OLD] = self._cursors[:, YOUNG]
            self._cursors[:, YOUNG] = 0
        self.forget(handle)

    def forget(self, handle: int) -> None:
        """Free the sequence's index, and remember nothing."""
        self._pool.drop(handle)
        self._free.append(handle)

    def step(self, handles: Int32, rows: Int32, ends: Int32, token_ids: Int32) -> Candidates:
        """Take in what each sequence got, and look up what could follow.

        `handles` [n]; sequence i is token_ids[rows[i], : ends[i]]; `token_ids` [any, width] int32. Survival is scored
        on the way.
        """
        n = len(handles)
        self._pool.make_room(handles, ends)
        tokens, survival, lengths = self._tokens[:n], self._survival[:n], self._lengths[:n]
        step(
            self._pool.table,
            handles,
            rows,
            ends,
            token_ids,
            self._prompts,
            self._cursors,
            self._shadows,
            self._survived,
            self._followed,
            self.options.max_match,
            tokens,
            survival,
            lengths,
        )
        return Candidates(tokens, survival, lengths)

    def length(self, handle: int) -> int:
        """Tokens of the sequence that are indexed."""
        return int(self._pool.table[handle, SIZES + LENGTH])

    def tail(self, handle: int, count: int) -> Int32:
        """The last `count` of them."""
        return self._text(handle)[-count:]

    def bytes_used(self) -> int:
        """Memory of all indexes, in bytes."""
        return self._pool.bytes_used()

    def _text(self, handle: int) -> Int32:
        return self._pool.get(handle).text[: self.length(handle)]
