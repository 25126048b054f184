"""How often each token followed the last four, over all that was written: bounded counts, in one bounded table.

A long match says what followed *once*; where text branches (which tool, which path) only counting says how it branches.
A set is one cache line: a tag of its context, its total, and up to seven tokens with their counts. Contexts share sets:
a strange one halves what it finds and takes the set when nothing is left, so what is not used any more goes first.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.proposers.compiled import compiled

ORDER = 4
"""Tokens of context."""
SETS = 2**15
WAYS = 7
# Columns of a set; tokens and counts follow.
TAG, TOTAL, TOKENS, COUNTS = 0, 1, 2, 2 + WAYS
SET_BYTES = 64
MOST = 255


def no_counts() -> NDArray[np.int32]:
    """[SETS, 16]: nothing was seen."""
    return np.zeros((SETS, COUNTS + WAYS), np.int32)


@compiled
def key_of(first: int, second: int, third: int, fourth: int) -> Any:
    """A 64-bit mix of the four tokens of a context."""
    key = np.uint64(np.uint32(first)) * np.uint64(0x9E3779B97F4A7C15)
    key = (key ^ (key >> np.uint64(29)) ^ np.uint64(np.uint32(second))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(32)) ^ np.uint64(np.uint32(third))) * np.uint64(0x94D049BB133111EB)
    key = (key ^ (key >> np.uint64(29)) ^ np.uint64(np.uint32(fourth))) * np.uint64(0x9E3779B97F4A7C15)
    return key ^ (key >> np.uint64(32))


@compiled
def key_at(text: Any, position: int) -> Any:
    """The key of the context of text[position]; position is at least ORDER."""
    return key_of(text[position - 4], text[position - 3], text[position - 2], text[position - 1])


@compiled
def set_of(counts: Any, key: Any) -> Any:
    """The set of a context; -1 when nothing was counted for it."""
    place = np.int64(key & np.uint64(SETS - 1))
    tag = np.int32(np.uint32(key >> np.uint64(32)) | np.uint32(1))
    return place if counts[place, TAG] == tag else -1


@compiled
def count(counts: Any, key: Any, token: int) -> tuple[int, int]:
    """Count that `token` followed the context of `key`. Returns how often it had, and how often anything had."""
    place = np.int64(key & np.uint64(SETS - 1))
    tag = np.int32(np.uint32(key >> np.uint64(32)) | np.uint32(1))
    entry = counts[place]
    if entry[TAG] != tag:
        if entry[TOTAL] > 1:
            _halve(entry)
            return 0, 0
        entry[:] = 0
        entry[TAG] = tag
    if entry[TOTAL] >= MOST:
        _halve(entry)
    least = 0
    for way in range(WAYS):
        if entry[COUNTS + way] > 0 and entry[TOKENS + way] == token:
            least = way
            break
        if entry[COUNTS + way] < entry[COUNTS + least]:
            least = way
    if entry[TOKENS + least] != token:
        entry[TOTAL] -= entry[COUNTS + least]
        entry[TOKENS + least] = token
        entry[COUNTS + least] = 0
    times, total = entry[COUNTS + least], entry[TOTAL]
    entry[COUNTS + least] = times + 1
    entry[TOTAL] = total + 1
    return times, total


@compiled
def _halve(entry: Any) -> None:
    entry[TOTAL] = 0
    for way in range(WAYS):
        entry[COUNTS + way] //= 2
        entry[TOTAL] += entry[COUNTS + way]


@compiled
def seen(entry: Any, token: int) -> int:
    """How often `token` followed the context of a set."""
    for way in range(WAYS):
        if entry[TOKENS + way] == token:
            return entry[COUNTS + way]
    return 0


@compiled
def likeliest(entry: Any) -> tuple[int, int]:
    """(token, count) of what followed the context most often."""
    best = 0
    for way in range(1, WAYS):
        if entry[COUNTS + way] > entry[COUNTS + best]:
            best = way
    return entry[TOKENS + best], entry[COUNTS + best]
