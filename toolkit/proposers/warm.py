"""Ask memory for what a step will read, for the whole batch at once.

An index that does not fit a cache answers each read after 100 ns or more, and a token needs several, one after the
other. The sequences of a batch do not wait for each other, so a walk of all of them, one read each at a time, overlaps
the waits ("asynchronous memory access chaining", Kocberber et al., VLDB 2015). It changes nothing: `append` and
`advance`, which come after, find what they need in the cache.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from toolkit.proposers.compiled import compiled
from toolkit.proposers.continuations import ORDER, SET_BYTES, SETS, key_at
from toolkit.proposers.pool import OUTCOME, SIZES, STATES_AT, TEXT, unowned, view
from toolkit.proposers.suffix_index import (
    AT,
    FIRST,
    LAST,
    LINK,
    NEXT,
    STATE_BYTES,
    TARGET,
    place_of,
)


@intrinsic
def _prefetch(typing_context: Any, address: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        pointer = builder.inttoptr(arguments[0], cgutils.voidptr_t)
        builder.call(function, [pointer, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(address), code


# What a walker waits for: a state's row, or a place in the table of edges.
_ROW, _EDGE, _DONE = range(3)


@compiled
def warm(
    table: Any, indexes: Any, cursors: Any, rows: Any, begins: Any, ends: Any, token_ids: Any, followed: Any
) -> None:
    """Walk stream i, token_ids[rows[i], begins[i] : ends[i]], through index `indexes[i]` from state `cursors[i]` on.

    All [n]; a cursor of -1 is the index's own longest match. `followed` is the table of continuations, or empty.
    """
    table, token_ids, followed = unowned(table), unowned(token_ids), unowned(followed)
    n = indexes.shape[0]
    states, positions = np.empty(n, np.int64), np.empty(n, np.int64)
    places, phases = np.empty(n, np.int64), np.empty(n, np.int8)
    for i in range(n):
        row = indexes[i]
        positions[i] = begins[i]
        state = cursors[i] if cursors[i] >= 0 else table[row, SIZES + LAST]
        states[i] = state
        _prefetch(table[row, STATES_AT] + STATE_BYTES * state)
        _prefetch(token_ids[rows[i], begins[i] :].ctypes.data)
    for i in range(n):
        phases[i] = _ROW if begins[i] < ends[i] else _DONE
        if cursors[i] < 0:
            state = max(view(table, indexes[i]).states[states[i], LINK], 0)
            states[i] = state
            _prefetch(table[indexes[i], STATES_AT] + STATE_BYTES * state)
    live = n
    while live > 0:
        live = 0
        for i in range(n):
            if phases[i] == _DONE:
                continue
            live += 1
            row, state, position = indexes[i], states[i], positions[i]
            index = view(table, row)
            token = token_ids[rows[i], position]
            found = 0
            if phases[i] == _ROW:
                if position >= ORDER and followed.shape[0] > 0:
                    key = key_at(token_ids[rows[i]], position)
                    _prefetch(followed.ctypes.data + SET_BYTES * np.int64(key & np.uint64(SETS - 1)))
                if index.states[state, FIRST] == token:
                    found = index.states[state, NEXT]
                else:
                    places[i] = place_of(index.edges, state, token)
                    _prefetch(index.edges[places[i] :].ctypes.data)
                    phases[i] = _EDGE
                    continue
            else:
                found = index.edges[places[i], TARGET]
                phases[i] = _ROW
            if found == 0 and state != 0:
                states[i] = index.states[state, LINK]
            else:
                states[i] = found
                positions[i] = position + 1
                if position + 1 == ends[i]:
                    phases[i] = _DONE
            _prefetch(table[row, STATES_AT] + STATE_BYTES * states[i])
    for i in range(n):
        row = indexes[i]
        at = view(table, row).states[states[i], AT] + 1
        _prefetch(table[row, TEXT] + 4 * at)
        _prefetch(table[row, TEXT] + 4 * at + 64)
        _prefetch(table[row, OUTCOME] + at)
