"""One step of the batch: what was verified, what follows, what is drafted. Knows rows and sequences, no engine.

A step is **clean**, and its time says what verification costs, when every request in it decoded and no prompt was
computed beside it: each was here one call ago, had its whole prompt computed then, and got between one token and one
more than were drafted for it. An idle gap ends with a new request, so it is never taken for a step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from toolkit.proposers.compiled import compiled
from toolkit.proposers.identity import NEW, Rows

if TYPE_CHECKING:
    from toolkit.proposers.lookup import Candidates

HELD = 64
"""Steps for which a sequence that left the batch keeps its index at least, while no new one comes."""

Int32 = NDArray[np.int32]


class Lookup(Protocol):
    """What is asked of `lookup.PromptLookup`."""

    def start(self, tokens: Int32, /) -> int: ...

    def finish(self, handle: int, /) -> None: ...

    def step(self, handles: Int32, rows: Int32, ends: Int32, token_ids: Int32, /) -> "Candidates": ...

    def bytes_used(self) -> int: ...


class LengthRule(Protocol):
    """What is asked of `draft_length.DraftLength`."""

    def choose(self, survival: NDArray[np.float32], lengths: Int32, /) -> Int32: ...

    def observe(self, requests: int, verified: int, seconds: float, /) -> None: ...


@dataclass(slots=True)
class Totals:
    """Sums over steps. `clean_seconds` and `clean_own` are of the `clean` steps, `own` our share of each in seconds."""

    steps: int = 0
    requests: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    own: float = 0.0
    clean: int = 0
    clean_seconds: float = 0.0
    clean_own: float = 0.0


class BatchDrafter:
    """Drafts for all requests of a step.

    `caps` [batch size + 1] is the most to draft for each request at each batch size.
    """

    def __init__(self, lookup: Lookup, rule: LengthRule, sequences: int, caps: Sequence[int]) -> None:
        self.lookup = lookup
        self.totals = Totals()
        self._rule = rule
        self._caps = caps
        self._rows = Rows(sequences, sequences)
        self._all_rows = np.arange(sequences, dtype=np.int32)
        self._handles = np.zeros(sequences, np.int32)  # by seat: the lookup's name for it
        self._drafted = np.zeros(sequences, np.int32)  # by seat: what was drafted for it in the last call
        self._decoded = np.full(sequences, -1, np.int64)  # by seat: the last step that gave it a token
        self._step = 0
        self._began: float | None = None
        self._own = 0.0

    def draft(self, sampled: Sequence[Sequence[int]], lengths: Int32, token_ids: Int32, now: float) -> list[list[int]]:
        """The draft of each row, [] for none.

        `sampled`: the tokens that the step gave each row, none while its prompt is still being computed; `lengths`
        [rows] and `token_ids` [rows, width]: the batch with these tokens, width the longest that a sequence may be;
        `now`: seconds, when the step ended. Raises ValueError for more rows than there are sequences.
        """
        n = len(sampled)
        if n > len(self._all_rows):
            raise ValueError(f"a batch of {n}, where {len(self._all_rows)} were announced")
        ends = lengths[:n]
        fresh = np.fromiter(map(len, sampled), np.int32, n)
        seats, known = self._rows.recognise(ends, fresh, token_ids)
        self._learn(seats, fresh, now)
        self._admit(seats, known, ends, fresh, token_ids)
        found = self.lookup.step(self._handles[seats], self._all_rows[:n], ends, token_ids)
        cap = self._caps[min(n, len(self._caps) - 1)]
        chosen = self._rule.choose(found.survival, _bounded(found.lengths, ends, fresh, cap, token_ids.shape[1]))
        drafted = _note(seats, fresh, chosen, self._decoded, self._drafted, self._step)
        self.totals.drafted += drafted
        self._step += 1
        self._began = now
        if drafted == 0:
            return [[] for _ in sampled]
        counts = chosen.tolist()
        most = max(counts)
        tokens = found.tokens[:, :most].tolist()
        return [row if count == most else row[:count] for row, count in zip(tokens, counts, strict=True)]

    def took(self, seconds: float) -> None:
        """What the last `draft` took."""
        self._own = seconds
        self.totals.own += seconds

    def _learn(self, seats: Int32, fresh: Int32, now: float) -> None:
        """Score the step that ended `now`: its time if it was clean, and its drafts."""
        verified, accepted, clean = _score(seats, fresh, self._decoded, self._drafted, self._step)
        totals = self.totals
        totals.steps += 1
        totals.requests += len(seats)
        totals.verified += verified
        totals.accepted += accepted
        if clean and self._began is not None:
            totals.clean += 1
            totals.clean_seconds += now - self._began
            totals.clean_own += self._own
            self._rule.observe(len(seats), verified, now - self._began)

    def _admit(self, seats: Int32, known: int, ends: Int32, fresh: Int32, token_ids: Int32) -> None:
        """Index the new sequences, and let go those that are over: `seats`, `known` of them, is completed in place.

        vLLM admits a new request only when all that run were scheduled and none that was preempted waits, so whoever
        is absent when a new one comes has ended. (Under its priority policy a wrong guess costs an index.)
        """
        if known == len(seats) and self._step % HELD:
            return
        for seat in self._rows.absent(known, 1 if known < len(seats) else HELD):
            self._rows.leave(seat)
            self.lookup.finish(int(self._handles[seat]))
        for row in map(int, np.flatnonzero(seats == NEW)):
            start = int(ends[row] - fresh[row])
            seats[row] = self._rows.seat(row, start, int(ends[row]), token_ids[row])
            self._handles[seats[row]] = self.lookup.start(token_ids[row, :start])


@compiled
def _score(seats: Any, fresh: Any, decoded: Any, drafted: Any, step: int) -> tuple[int, int, bool]:
    """How many drafted tokens the step verified, how many it kept, and whether it was clean."""
    verified, accepted, clean = 0, 0, True
    for seat, got in zip(seats, fresh):  # noqa: B905 - numba knows no strict
        if seat == NEW or decoded[seat] != step - 1:
            clean = False
            continue
        verified += drafted[seat]
        accepted += max(0, min(got - 1, drafted[seat]))
        clean = clean and 1 <= got <= drafted[seat] + 1
    return verified, accepted, clean


@compiled
def _bounded(lengths: Any, ends: Any, fresh: Any, most: int, width: int) -> Any:
    """What may be drafted of `lengths` [n]: none where the prompt is not computed, none past the longest sequence."""
    bounded = np.zeros(len(lengths), np.int32)
    for i in range(len(lengths)):
        if fresh[i] > 0:
            bounded[i] = max(0, min(lengths[i], most, width - 1 - ends[i]))
    return bounded


@compiled
def _note(seats: Any, fresh: Any, chosen: Any, decoded: Any, drafted: Any, step: int) -> int:
    """Keep by seat what was chosen, and who decoded in this step. Returns how many tokens are drafted."""
    total = 0
    for i in range(len(seats)):
        drafted[seats[i]] = chosen[i]
        total += chosen[i]
        if fresh[i] > 0:
            decoded[seats[i]] = step
    return total
