"""Which sequence stands in which row of the batch? vLLM tells a proposer rows, not requests.

Rows are slots: a request moves when another ends, leaves when it is preempted or finds no place in a step's token
budget, and may come back to another slot. Each sequence has a **seat**, a number that stays. It is recognised by its
length before this step, its last tokens and a few spread over what it started with: first in the row where it was, then
among all others. A mistake costs speed, never correctness, since a draft is only a guess.
"""

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from toolkit.proposers.compiled import compiled

Int32: TypeAlias = NDArray[np.int32]

TAIL = 16
"""Last tokens that must agree."""
SPREAD = 8
"""Further tokens that must agree, spread over those that the sequence started with."""
NEW = -1
"""The seat of a row whose sequence nobody knows."""


class Rows:
    """Who stands where: seats in [0, sequences) for rows in [0, rows)."""

    def __init__(self, rows: int, sequences: int) -> None:
        self._in_row = np.full(rows, NEW, np.int32)
        self._lengths = np.full(sequences, -1, np.int32)  # tokens so far; -1: no such sequence
        self._starts = np.zeros(sequences, np.int32)
        self._marks = np.zeros((sequences, TAIL + SPREAD), np.int32)
        self._seen = np.zeros(sequences, np.int64)
        self._step = 0
        self._free = list(range(sequences))[::-1]

    def recognise(self, ends: Int32, fresh: Int32, token_ids: Int32) -> tuple[Int32, int]:
        """The seat of each row [n], NEW where it is unknown, and how many are known; `seat` the others after this.

        `ends` [n]: length of each row's sequence now; `fresh` [n]: how many of these tokens this step brought;
        `token_ids` [rows, width]: the tokens of each row.
        """
        self._step += 1
        seats = np.empty(len(ends), np.int32)
        known = _recognise(
            seats,
            ends,
            fresh,
            token_ids,
            self._in_row,
            self._lengths,
            self._starts,
            self._marks,
            self._seen,
            self._step,
        )
        return seats, known

    def seat(self, row: int, start: int, end: int, tokens: Int32) -> int:
        """A seat for the new sequence in `row`: `tokens` [width], of which it started with `start` and has `end`."""
        seat = self._free.pop()
        self._in_row[row] = seat
        self._starts[seat] = start
        self._seen[seat] = self._step
        _mark(seat, end, tokens, self._lengths, self._starts, self._marks, True)
        return seat

    def absent(self, known: int, for_steps: int = 1) -> Iterator[int]:
        """Seats that were in none of the last `for_steps` calls; `known`: how many the last one knew."""
        if len(self._lengths) - len(self._free) > known:
            gone = (self._lengths >= 0) & (self._seen <= self._step - for_steps)
            yield from map(int, np.flatnonzero(gone))

    def leave(self, seat: int) -> None:
        """The sequence is over."""
        self._lengths[seat] = -1
        self._free.append(seat)


@compiled
def _mark(seat: int, end: int, tokens: Any, lengths: Any, starts: Any, marks: Any, all_of_it: bool) -> None:
    lengths[seat] = end
    for k in range(min(TAIL, end)):
        marks[seat, k] = tokens[end - 1 - k]
    if all_of_it:
        for k in range(SPREAD):
            marks[seat, TAIL + k] = tokens[starts[seat] * k // SPREAD]


@compiled
def _is(seat: int, before: int, tokens: Any, lengths: Any, starts: Any, marks: Any) -> bool:
    if lengths[seat] != before:
        return False
    for k in range(min(TAIL, before)):
        if marks[seat, k] != tokens[before - 1 - k]:
            return False
    for k in range(SPREAD):  # noqa: SIM110 - numba compiles no generator
        if marks[seat, TAIL + k] != tokens[starts[seat] * k // SPREAD]:
            return False
    return True


@compiled
def _recognise(
    seats: Any,
    ends: Any,
    fresh: Any,
    token_ids: Any,
    in_row: Any,
    lengths: Any,
    starts: Any,
    marks: Any,
    seen: Any,
    step: int,
) -> int:
    n = len(ends)
    for i in range(n):
        seat, before = in_row[i], ends[i] - fresh[i]
        seats[i] = NEW
        if seat != NEW and seen[seat] < step and _is(seat, before, token_ids[i], lengths, starts, marks):
            seats[i] = seat
            seen[seat] = step
    for i in range(n):
        before = ends[i] - fresh[i]
        if seats[i] == NEW:
            for seat in range(len(lengths)):
                if seen[seat] < step and _is(seat, before, token_ids[i], lengths, starts, marks):
                    seats[i] = seat
                    seen[seat] = step
                    break
    known = 0
    for i in range(n):
        in_row[i] = seats[i]
        if seats[i] != NEW:
            known += 1
            _mark(seats[i], ends[i], token_ids[i], lengths, starts, marks, False)
    in_row[n:] = NEW
    return known
