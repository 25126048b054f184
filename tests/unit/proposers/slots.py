"""vLLM's side of the seam, in small: a scheduler and the slots of its persistent batch, after version 0.32.0.

What matters to a proposer is kept: requests are admitted first come first served, preempted when the KV cache is full
and resumed before anyone new, left out of a step when its token budget is spent, computed in chunks; their rows are
filled from the lowest empty slot, moved down into gaps, swapped; rows hold rejected drafts behind what was kept.
Sources: v1/core/sched/scheduler.py (schedule), v1/worker/gpu_input_batch.py (add_request, condense, swap_states),
v1/worker/gpu_model_runner.py (_update_states, _bookkeeping_sync).
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

Propose = Callable[[list[list[int]], np.ndarray, np.ndarray], list[list[int]]]


@dataclass(eq=False)
class Request:
    """A prompt, and the output that its model will give whatever is drafted."""

    prompt: list[int]
    output: list[int]
    made: int = 0
    computed: int = 0
    draft: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output[: self.made]

    @property
    def over(self) -> bool:
        return self.made == len(self.output)


class Engine:
    """`step` until `idle`; `rows` are the requests by slot in the last step."""

    def __init__(self, slots: int, width: int, budget: int = 64, cache: int = 10**9, seed: int | None = None) -> None:
        self.slots, self.budget, self.cache = slots, budget, cache
        self.token_ids = np.zeros((slots, width), np.int32)
        self.lengths = np.zeros(slots, np.int32)
        self.rows: list[Request] = []
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.preemptions = 0
        self.passed = 0  # tokens in the last pass
        self.verified = self.accepted = 0
        self._swaps = random.Random(seed) if seed is not None else None

    @property
    def idle(self) -> bool:
        return not self.running and not self.waiting

    def step(self, propose: Propose) -> list[list[int]]:
        """Schedule, compute, keep what the model would have said, ask for drafts. Returns the tokens of each row."""
        scheduled = self._schedule()
        if not scheduled:
            return []
        self.passed = sum(scheduled.values())
        self._place(list(scheduled))
        sampled = [self._computed(slot, one, scheduled[one]) for slot, one in enumerate(self.rows)]
        drafts = propose(sampled, self.lengths, self.token_ids)
        assert len(drafts) == len(self.rows)
        for one, draft in zip(self.rows, drafts, strict=True):
            room = self.token_ids.shape[1] - 1 - len(one.tokens)
            assert len(draft) <= max(room, 0), "a draft past max_model_len"
            one.draft = list(draft)
        for one in [one for one in self.running if one.over]:
            self.running.remove(one)
        return sampled

    def _schedule(self) -> dict[Request, int]:
        scheduled: dict[Request, int] = {}
        budget, preempted = self.budget, False
        for one in list(self.running):
            if one not in self.running:
                continue
            count = min(len(one.tokens) + len(one.draft) - one.computed, budget)
            if count == 0:
                continue
            while self._held() + count > self.cache and one in self.running:
                self._preempt()
                preempted = True
            if one in self.running:
                scheduled[one] = count
                budget -= count
        while self.waiting and not preempted and budget and len(self.running) < self.slots:
            count = min(len(self.waiting[0].tokens), budget)
            if self.running and self._held() + count > self.cache:
                break
            one = self.waiting.popleft()
            self.running.append(one)
            scheduled[one] = count
            budget -= count
        return {one: count for one, count in scheduled.items() if one in self.running}

    def _held(self) -> int:
        return sum(one.computed for one in self.running)

    def _preempt(self) -> None:
        last = self.running.pop()
        last.computed, last.draft = 0, []
        self.waiting.appendleft(last)
        self.preemptions += 1

    def _place(self, scheduled: Sequence[Request]) -> None:
        slots: list[Request | None] = [one if one in scheduled else None for one in self.rows]
        for one in scheduled:
            if one not in slots:
                slot = slots.index(None) if None in slots else len(slots)
                slots[slot : slot + 1] = [one]
        while None in slots:  # condense: the last one moves down into the lowest gap
            last = slots.pop()
            if last is not None:
                slots[slots.index(None)] = last
        rows = [one for one in slots if one is not None]
        if self._swaps is not None and len(rows) > 1 and self._swaps.random() < 0.3:
            a, b = self._swaps.sample(range(len(rows)), 2)
            rows[a], rows[b] = rows[b], rows[a]
        self.rows = rows

    def _computed(self, slot: int, one: Request, count: int) -> list[int]:
        before = len(one.tokens)
        drafted = one.draft[: max(0, count - (before - one.computed))]
        one.computed += count
        kept: list[int] = []
        if one.computed >= before:
            truth = one.output[one.made :]
            while len(kept) < len(drafted) and len(kept) < len(truth) - 1 and drafted[len(kept)] == truth[len(kept)]:
                kept.append(truth[len(kept)])
            kept.append(truth[len(kept)])
            one.made += len(kept)
            one.computed = len(one.tokens) - 1
            self.verified += len(drafted)
            self.accepted += len(kept) - 1
        one.draft = []
        row = self.token_ids[slot]
        row[: len(one.tokens)] = one.tokens
        row[before : before + len(drafted)] = drafted
        row[before : before + len(kept)] = kept
        self.lengths[slot] = len(one.tokens)
        return kept
