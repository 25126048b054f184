"""An engine without a model: it serves recorded answers, and verifies drafts against what was answered.

Its steps are those of a server (vLLM v1, `gpu_model_runner.py`): the prefill gives a request's first token; then the
proposer drafts for every row, once per step, also for a request whose last token has just come and whose draft nobody
will verify. A pass keeps the longest prefix of the draft that agrees with the answer and gives one token more. The last
pass ends where the answer ends: what was drafted beyond it counts as drafted, and never as accepted.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from time import process_time
from typing import Protocol

import numpy as np
import numpy.typing as npt

from toolkit.analysis.replay.traces import Request, Tokens

Ints = npt.NDArray[np.int32]
StepSeconds = Callable[[int, int, int], npt.NDArray[np.float64]]
"""Of `requests`, `most` and `held`, the tokens of context that the requests hold together: seconds of a step that
verifies 0, 1 ... `most` draft tokens [most + 1]."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What a proposer is told after a step; the arrays are the engine's own, and only for reading.

    `sampled` [rows]: the tokens that each row has just got, empty for an idle one. `handles` [rows] as `start` gave
    them, `ends` [rows] the tokens so far, `token_ids` [rows, width]. `live` are the rows that are not idle.
    """

    live: Ints
    handles: Ints
    ends: Ints
    token_ids: Ints
    sampled: list[list[int]]


class Proposer(Protocol):
    """Guesses what comes next. The engine tells it of requests as vLLM tells a proposer of its own."""

    def start(self, prompt: Tokens) -> int:
        """A new request; the handle by which a batch names it. This is where an index is built."""
        ...

    def propose(self, batch: Batch) -> list[list[int]]:
        """A draft for each row, empty for an idle one."""
        ...

    def finish(self, handle: int) -> None:
        """The request has ended; all of its tokens were in a batch."""
        ...

    def bytes_used(self) -> int:
        """Bytes of what is kept of all requests now."""
        ...


@dataclass(slots=True)
class Tally:
    """What was counted over all requests: tokens, and CPU seconds of the proposer, `building` and `proposing`.

    `steps` are passes that could carry a draft, all but the prefill's. `engine_seconds` are predicted, of the steps
    after the prefill, and 0 when no step's time is known. `index_bytes` is what the first prompts' index takes.
    """

    requests: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    proposals: int = 0
    building: float = 0.0
    proposing: float = 0.0
    engine_seconds: float = 0.0
    index_bytes: int = 0
    index_tokens: int = 0

    @property
    def passes(self) -> int:
        """Target passes, the prefill of each request being one."""
        return self.steps + self.requests


def serve(
    proposer: Proposer,
    requests: Sequence[Request],
    in_flight: int = 1,
    step_seconds: StepSeconds | None = None,
    most_steps: int | None = None,
) -> Tally:
    """Serve each request once, in order, `in_flight` at a time; or over and over until `most_steps` engine steps."""
    waiting = iter(requests) if most_steps is None else cycle(requests)
    engine = _Engine(proposer, waiting, in_flight, max(request.length for request in requests))
    before = proposer.bytes_used()
    engine.fill(range(in_flight))
    engine.tally.index_bytes = proposer.bytes_used() - before
    engine.tally.index_tokens = engine.tally.prompt_tokens
    count = 0
    while engine.running and (most_steps is None or count < most_steps):
        engine.step(step_seconds)
        count += 1
    return engine.tally


@dataclass(slots=True)
class _Engine:
    proposer: Proposer
    waiting: Iterator[Request]
    rows: int
    width: int
    running: dict[int, list[int]] = field(default_factory=dict)
    """Row to the tokens still to come."""
    tally: Tally = field(default_factory=Tally)
    handles: Ints = field(init=False)
    ends: Ints = field(init=False)
    token_ids: Ints = field(init=False)
    sampled: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.handles = np.zeros(self.rows, dtype=np.int32)
        self.ends = np.zeros(self.rows, dtype=np.int32)
        self.token_ids = np.zeros((self.rows, self.width), dtype=np.int32)
        self.sampled = [[] for _ in range(self.rows)]

    def fill(self, rows: Sequence[int]) -> None:
        """Prefill the next requests into these rows, while there are any."""
        for row in rows:
            request = next(self.waiting, None)
            if request is None:
                return
            begun = process_time()
            self.handles[row] = self.proposer.start(request.prompt)
            self.tally.building += process_time() - begun
            self.tally.requests += 1
            self.tally.prompt_tokens += len(request.prompt)
            self.ends[row] = len(request.prompt)
            self.token_ids[row, : len(request.prompt)] = request.prompt
            self.running[row] = request.output.tolist()[::-1]  # the next token is the last: popped as they come
            self._emit(row, 1)

    def step(self, step_seconds: StepSeconds | None) -> None:
        """Draft for all, end what has all its tokens, verify the rest."""
        drafts = self._propose()
        going = [row for row, left in self.running.items() if left]
        ended = [row for row, left in self.running.items() if not left]
        verified = sum(len(drafts[row]) for row in going)
        if step_seconds is not None and going:
            self.tally.engine_seconds += float(step_seconds(len(going), verified, int(self.ends[going].sum()))[-1])
        for row in going:
            self._verify(row, drafts[row])
        for row in ended:
            begun = process_time()
            self.proposer.finish(int(self.handles[row]))
            self.tally.proposing += process_time() - begun
            del self.running[row]
            self.sampled[row], self.ends[row] = [], 0
        self.fill(ended)

    def _propose(self) -> list[list[int]]:
        live = np.array(list(self.running), dtype=np.int32)
        batch = Batch(live, self.handles, self.ends, self.token_ids, self.sampled)
        begun = process_time()
        drafts = self.proposer.propose(batch)
        self.tally.proposing += process_time() - begun
        self.tally.proposals += len(live)
        return drafts

    def _verify(self, row: int, draft: list[int]) -> None:
        left = self.running[row]
        kept = 0
        while kept < len(draft) and kept < len(left) and draft[kept] == left[-1 - kept]:
            kept += 1
        self.tally.steps += 1
        self.tally.drafted += len(draft)
        self.tally.accepted += kept
        self._emit(row, min(kept + 1, len(left)))

    def _emit(self, row: int, count: int) -> None:
        left = self.running[row]
        self.sampled[row] = [left.pop() for _ in range(count)]
        end = int(self.ends[row])
        self.token_ids[row, end : end + count] = self.sampled[row]
        self.ends[row] = end + count
        self.tally.tokens += count
