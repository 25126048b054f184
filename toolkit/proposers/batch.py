"""A batch in compiled code: take in what each sequence got, then look up what could follow. No Python in between."""

from typing import Any

import numpy as np

from toolkit.proposers.compiled import compiled
from toolkit.proposers.continuations import ORDER, count, key_at, key_of, likeliest, seen, set_of
from toolkit.proposers.memory import CORPUS_ROW, SHARED
from toolkit.proposers.pool import SIZES, unowned, view
from toolkit.proposers.suffix_index import AT, LENGTH, NONE, advance, append, follow, longest
from toolkit.proposers.survival import (
    CORPUS,
    MEMORY,
    OUTCOMES,
    OUTPUT,
    PROMPT,
    cell_of,
    is_branch,
    score,
    support_of,
    survival_of,
)
from toolkit.proposers.warm import warm

HOPELESS = 0.01
"""A draft ends where its survival falls below this."""
GROUP = 16
"""Sequences that ask memory ahead together: more than a core can wait for at once, fewer than its caches hold."""


@compiled
def step(
    table: Any,
    handles: Any,
    rows: Any,
    ends: Any,
    token_ids: Any,
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
    """`PromptLookup.step`: its arrays, with `tokens`, `survival` [n, K] and `lengths` [n] to be filled.

    By handle: `prompts` is the length of the prompt; `cursors` [SHARED, 2] is where the sequence stands in the shared
    indexes; `shadows` [2 K + 2] is the continuation that is being scored: how far, how long, its tokens, its cells.
    """
    for first in range(0, handles.shape[0], GROUP):
        part = slice(first, first + GROUP)
        some = handles[part]
        warm_all(table, some, rows[part], ends[part], token_ids, cursors, followed)
        take_in(table, some, rows[part], ends[part], token_ids, cursors, shadows, survived, followed)
        look_up(
            table,
            some,
            prompts,
            cursors,
            shadows,
            survived,
            followed,
            most,
            tokens[part],
            survival[part],
            lengths[part],
        )


@compiled
def follow_all(table: Any, cursors: Any, handle: int, tokens: Any) -> None:
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
def warm_all(table: Any, handles: Any, rows: Any, ends: Any, token_ids: Any, cursors: Any, followed: Any) -> None:
    """Ask memory ahead for what `take_in` and `look_up` will read of these sequences."""
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
def take_in(
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
def look_up(
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
