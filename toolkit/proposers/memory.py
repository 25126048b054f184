"""What earlier requests wrote, within a bound: two generations, the older one dropped whole.

Every finished output is added, so text that is still in use is written again into the young generation before the old
one goes: the least recently used text leaves first. A bound of n tokens is two indexes of n / 2. They have places for
all edges there can be, since an index that is built anew would leave the cursors into it behind.
"""

import numpy as np
from numpy.typing import NDArray

from toolkit.proposers.pool import SIZES, Pool
from toolkit.proposers.suffix_index import LENGTH, NONE
from toolkit.proposers.survival import OUTCOMES

# Rows of the shared indexes in a pool; sequences follow.
YOUNG, OLD, CORPUS_ROW, SHARED = range(4)


class Memory:
    """Remembers in rows YOUNG and OLD of `pool` up to `bound` tokens."""

    def __init__(self, pool: Pool, bound: int) -> None:
        self._pool = pool
        self._most = bound // 2

    def add(self, text: NDArray[np.int32], told: NDArray[np.int8]) -> bool:
        """Remember `text` [length], its end if it is longer than half the bound, and what was `told` of each token.

        Returns whether the generations turned: cursors into YOUNG are then cursors into OLD.
        """
        if self._most == 0:
            return False
        kept = min(len(text), self._most - 1)
        entry = np.append(text[len(text) - kept :], NONE).astype(np.int32)
        turned = self._length() > 0 and self._length() + len(entry) > self._most
        if turned:
            young = self._pool.get(YOUNG)
            self._pool.put(OLD, young._replace(sizes=young.sizes.copy()))
        if turned or self._length() == 0:
            self._pool.fill(YOUNG, entry[:0], self._most, 2 * self._most)
        begin = self._length()
        self._pool.make_room(np.array([YOUNG], np.int32), np.array([begin + len(entry)], np.int32))
        self._pool.append(YOUNG, entry)
        young = self._pool.get(YOUNG)
        young.outcome[begin : begin + kept] += told[len(told) - kept :] // OUTCOMES * OUTCOMES
        return turned

    def _length(self) -> int:
        return int(self._pool.table[YOUNG, SIZES + LENGTH])
