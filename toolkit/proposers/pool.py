"""Many indexes that one compiled call can reach: a table of numbers, a row for each.

A row holds the addresses of an index's arrays, their lengths and its `sizes`, so that a batch of sequences goes into
compiled code as one array, and an index can grow without the others.
"""

from typing import Any

import numpy as np
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from toolkit.proposers.compiled import compiled
from toolkit.proposers.suffix_index import EDGES, FULL, Automaton, append, bytes_used, empty, grown

# Columns of a row. The last ones are the automaton's `sizes`.
TEXT, OUTCOME, STATES_AT, EDGES_AT, CAPACITY, ROWS, PLACES, SIZES = range(8)
COLUMNS = SIZES + 5


class Pool:
    """`rows` indexes, each absent until `put`. `table` [rows, COLUMNS] int64 is what compiled code takes."""

    def __init__(self, rows: int) -> None:
        self.table: NDArray[np.int64] = np.zeros((rows, COLUMNS), np.int64)
        self._held: dict[int, Automaton] = {}

    def put(self, row: int, index: Automaton) -> None:
        """Let `row` be this index. Its `sizes` move into the table."""
        entry = self.table[row]
        entry[TEXT : EDGES_AT + 1] = [array.ctypes.data for array in index[:4]]
        entry[CAPACITY], entry[ROWS], entry[PLACES] = len(index.text), len(index.states), len(index.edges)
        entry[SIZES:] = index.sizes
        self._held[row] = index._replace(sizes=entry[SIZES:])

    def fill(self, row: int, tokens: NDArray[np.int32], capacity: int, places: int | None = None) -> None:
        """Let `row` be an index of `tokens` with room for `capacity` tokens and `places` edges, see `empty`."""
        self.put(row, empty(capacity, places))
        self.append(row, tokens)

    def append(self, row: int, tokens: NDArray[np.int32]) -> None:
        """Append tokens to the index of `row`; there must be room for them."""
        _append_all(self.table, row, tokens)
        if self.table[row, SIZES + FULL]:
            self.put(row, grown(self.get(row), int(self.table[row, CAPACITY])))

    def get(self, row: int) -> Automaton:
        """The index of `row`; raises KeyError when there is none."""
        return self._held[row]

    def drop(self, row: int) -> None:
        """Free the index of `row`."""
        del self._held[row]
        self.table[row] = 0

    def make_room(self, rows: NDArray[np.int32], lengths: NDArray[np.int32]) -> None:
        """Let each of `rows` [n] have room for `lengths` [n] tokens, and places for their edges."""
        entries = self.table[rows]
        crowded = entries[:, SIZES + EDGES] * 5 > entries[:, PLACES] * 4
        short = (lengths > entries[:, CAPACITY]) | crowded | (entries[:, SIZES + FULL] != 0)
        if short.any():
            for row, length in zip(rows[short].tolist(), lengths[short].tolist(), strict=True):
                self.put(row, grown(self.get(row), max(length, 2 * int(self.table[row, CAPACITY]))))

    def bytes_used(self) -> int:
        """What all indexes occupy."""
        return sum(map(bytes_used, self._held.values()))


@intrinsic
def _pointer(typing_context: Any, address: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), code


@compiled
def unowned(array: Any) -> Any:
    """The same array with no owner: numba counts references to an owned one, atomically, at every slice of it."""
    return carray(_pointer(array.ctypes.data), array.shape, array.dtype)


@compiled
def view(table: Any, row: int) -> Any:
    """The automaton of a row, inside compiled code."""
    entry = table[row]
    return Automaton(
        carray(_pointer(entry[TEXT]), (entry[CAPACITY],), np.int32),
        carray(_pointer(entry[OUTCOME]), (entry[CAPACITY],), np.int8),
        carray(_pointer(entry[STATES_AT]), (entry[ROWS], 8), np.int32),
        carray(_pointer(entry[EDGES_AT]), (entry[PLACES], 4), np.int32),
        entry[SIZES:],
    )


@compiled
def _append_all(table: Any, row: int, tokens: Any) -> None:
    """Append to the index of a row. Arrays that are made of addresses are not counted by numba: twice as fast."""
    index = view(table, row)
    for token in tokens:
        append(index, token)
