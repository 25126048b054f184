"""Prompt lookup for a batch: what to draft for each sequence, and how likely each token is to be kept.

A sequence looks in its own text, in the memory of what earlier requests wrote, and in the user's corpus; each offers
what followed the longest match there, and the offer with the most expected tokens is taken. One compiled call serves
the whole batch.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.errors import InputError
from toolkit.proposers.compiled import compiled
from toolkit.proposers.continuations import ORDER, count, key_at, key_of, likeliest, no_counts, seen, set_of
from toolkit.proposers.memory import CORPUS_ROW, OLD, SHARED, YOUNG, Memory
from toolkit.proposers.pool import SIZES, Pool, unowned, view
from toolkit.proposers.suffix_index import AT, LENGTH, NONE, advance, append, follow, longest
from toolkit.proposers.survival import (
    CORPUS,
    MEMORY,
    OUTCOMES,
    OUTPUT,
    PROMPT,
    cell_of,
    first_counts,
    is_branch,
    score,
    support_of,
    survival_of,
)
from toolkit.proposers.warm import warm

Int32 = NDArray[np.int32]

HOPELESS = 0.01
"""A draft ends where its survival falls below this."""
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
        self._pool.fill(handle, tokens, len(tokens) + max(ROOM, len(tokens) // 4))
        self._prompts[handle] = len(tokens)
        self._shadows[handle] = 0
        self._cursors[handle] = 0
        _follow_all(self._pool.table, self._cursors, handle, tokens[-self.options.max_match :])
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
        table, cursors, shadows = self._pool.table, self._cursors, self._shadows
        _warm_all(table, handles, rows, ends, token_ids, cursors, self._followed)
        _take_in(table, handles, rows, ends, token_ids, cursors, shadows, self._survived, self._followed)
        _look_up(
            table,
            handles,
            self._prompts,
            cursors,
            shadows,
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


@compiled
def _follow_all(table: Any, cursors: Any, handle: int, tokens: Any) -> None:
    """Move a sequence's cursors in the shared indexes over `tokens`."""
    for shared in range(SHARED):
        if table[shared, SIZES + LENGTH] == 0:
            continue
        index = view(table, shared)
        state, length = cursors[handle, shared]
        for token in tokens:
            state, length = advance(index, state, length, token)
        cursors[handle, shared, 0] = state
        cursors[handle, shared, 1] = length


@compiled
def _copy(
    index: Any,
    state: int,
    length: int,
    most: int,
    prompt: int,
    place: int,
    context: Any,
    survived: Any,
    followed: Any,
    tokens: Any,
    survival: Any,
    cells: Any,
) -> int:
    """Copy what followed the state's occurrence into `tokens`, `survival` and `cells` [K].

    `context` is the sequence's last ORDER tokens. Where another token followed such a context more often, the copy
    goes on from an occurrence of that one. Returns how many were copied. A copy that reaches the end of the text goes
    on with itself.
    """
    text, outcome, size = index.text, index.outcome, index.sizes[LENGTH]
    at = index.states[state, AT] + 1
    walked = 0
    if len(context) < ORDER:
        return 0
    first, second, third, fourth = context
    alive = 1.0
    for drafted in range(tokens.shape[0]):
        token = text[at] if at < size else tokens[at - size]
        if token == NONE:
            return drafted
        told = outcome[at] if at < size else 0
        if is_branch(told // OUTCOMES):
            entry = set_of(followed, key_of(first, second, third, fourth))
            if entry >= 0:
                better, more = likeliest(followed[entry])
                if better != token and more > seen(followed[entry], token):
                    for position in range(walked, drafted):
                        state = follow(index, state, tokens[position])
                    walked = drafted
                    branch = follow(index, state, better)
                    if branch != 0 and index.states[branch, AT] + 1 < size:
                        token, state = better, branch
                        walked += 1
                        at = index.states[branch, AT]
                        told = outcome[at]
        where = place if place != PROMPT or at < prompt else OUTPUT
        cell = cell_of(min(length, most) + drafted, where, told)
        alive *= survival_of(survived, cell)
        if alive < HOPELESS:
            return drafted
        tokens[drafted] = token
        survival[drafted] = alive
        cells[drafted] = cell
        at += 1
        first, second, third, fourth = second, third, fourth, token
    return tokens.shape[0]


@compiled
def _warm_all(table: Any, handles: Any, rows: Any, ends: Any, token_ids: Any, cursors: Any, followed: Any) -> None:
    begins = np.empty(handles.shape[0], np.int64)
    first = np.full(handles.shape[0], -1, np.int64)
    for i in range(handles.shape[0]):
        begins[i] = table[handles[i], SIZES + LENGTH]
    warm(table, handles, first, rows, begins, ends, token_ids, followed)
    shared_rows = np.empty(handles.shape[0], np.int32)
    for shared in range(SHARED):
        if table[shared, SIZES + LENGTH] != 0:
            for i in range(handles.shape[0]):
                first[i] = cursors[handles[i], shared, 0]
                shared_rows[i] = shared
            warm(table, shared_rows, first, rows, begins, ends, token_ids, followed[:0])


@compiled
def _take_in(
    table: Any,
    handles: Any,
    rows: Any,
    ends: Any,
    token_ids: Any,
    cursors: Any,
    shadows: Any,
    survived: Any,
    followed: Any,
) -> None:
    """Score, count and append what each sequence got, and move its cursors."""
    table, cursors, shadows = unowned(table), unowned(cursors), unowned(shadows)
    survived, followed = unowned(survived), unowned(followed)
    width = shadows.shape[1] // 2 - 1
    for i in range(handles.shape[0]):
        handle = handles[i]
        index = view(table, handle)
        shadow = shadows[handle]
        begin = index.sizes[LENGTH]
        for position in range(begin, ends[i]):
            token = token_ids[rows[i], position]
            if shadow[0] < shadow[1]:
                kept = shadow[2 + shadow[0]] == token
                score(survived, shadow[2 + width + shadow[0]], kept)
                shadow[0] = shadow[0] + 1 if kept else shadow[1]
            append(index, token)
            if position >= ORDER:
                times, total = count(followed, key_at(index.text, position), token)
                index.outcome[position] += OUTCOMES * support_of(times, total)
        for shared in range(SHARED):
            if table[shared, SIZES + LENGTH] != 0:
                other = view(table, shared)
                state, length = cursors[handle, shared]
                for position in range(begin, ends[i]):
                    state, length = advance(other, state, length, index.text[position])
                cursors[handle, shared, 0] = state
                cursors[handle, shared, 1] = length


@compiled
def _look_up(
    table: Any,
    handles: Any,
    prompts: Any,
    cursors: Any,
    shadows: Any,
    survived: Any,
    followed: Any,
    most: int,
    tokens: Any,
    survival: Any,
    lengths: Any,
) -> None:
    """Draft for each sequence from the longest match in its own text, in the memory or in the corpus."""
    table, cursors, shadows = unowned(table), unowned(cursors), unowned(shadows)
    survived, followed = unowned(survived), unowned(followed)
    tokens, survival, lengths = unowned(tokens), unowned(survival), unowned(lengths)
    width = tokens.shape[1]
    cells = np.empty(width, np.int32)
    for i in range(handles.shape[0]):
        handle = handles[i]
        own = view(table, handle)
        state, length = longest(own)
        source = handle
        for shared in range(SHARED):
            if cursors[handle, shared, 1] > length:
                state, length = cursors[handle, shared]
                source = shared
        drafted = 0
        if state != 0:
            place = PROMPT if source == handle else CORPUS if source == CORPUS_ROW else MEMORY
            drafted = _copy(
                own if source == handle else view(table, source),
                state,
                length,
                most,
                prompts[handle],
                place,
                own.text[max(own.sizes[LENGTH] - ORDER, 0) : own.sizes[LENGTH]],
                survived,
                followed,
                tokens[i],
                survival[i],
                cells,
            )
        lengths[i] = drafted
        survival[i, drafted:] = 0.0
        shadow = shadows[handle]
        if shadow[0] == shadow[1] and drafted > 0:
            shadow[0] = 0
            shadow[1] = drafted
            shadow[2 : 2 + drafted] = tokens[i, :drafted]
            shadow[2 + width : 2 + width + drafted] = cells[:drafted]
