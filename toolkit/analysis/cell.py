"""Measuring one cell: constant concurrency, warm-up outside the numbers, a window in which n requests are in flight."""

import asyncio
import hashlib
import json
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from toolkit.analysis.client import Answer, Client
from toolkit.analysis.records import CellKey, CellRecord, CounterReading, RequestRecord
from toolkit.analysis.workload import Prompt
from toolkit.engines.contract import Counters
from toolkit.errors import EngineError

SHORT_WARMUP = 8  # tokens: enough for an engine to compile for a batch size
POLL = 2.0  # seconds between two looks at the running count


@dataclass(frozen=True, slots=True)
class Job:
    """One request to send: the prompt's index, the prompt, and for a warm-up its own max_tokens."""

    index: int
    prompt: Prompt
    max_tokens: int | None = None

    @property
    def warmup(self) -> bool:
        return self.max_tokens is not None


@dataclass(frozen=True, slots=True)
class CellPlan:
    """What a cell sends, in order, and under which names it is written down."""

    key: CellKey
    attempt: int
    order: int
    served_by: str
    jobs: Sequence[Job]
    speculates: bool | None


def warmup_lengths(concurrency: int, max_tokens: int, first_time: bool) -> list[int]:
    """max_tokens of the warm-up requests, in order.

    The last n are staggered from short to full, so that the measured requests do not start, prefill and end in step.
    The first time an engine meets this concurrency, 2n short ones come before, since new batch sizes may compile.
    """
    short = [min(SHORT_WARMUP, max_tokens)] * (2 * concurrency if first_time else 0)
    return short + [max(1, math.ceil(max_tokens * (i + 1) / concurrency)) for i in range(concurrency)]


@dataclass(slots=True)
class _Window:
    """Opens when every worker has seen a first token of a measured request; closes when one finds no work left.

    In between n requests are in flight. Whether the server runs them all at once, its running count tells.
    """

    workers: int
    seen: set[int] = field(default_factory=set)
    opened: float | None = None
    closed: float | None = None

    def saw_first_token(self, worker: int, at: float) -> bool:
        """Whether this opened the window."""
        self.seen.add(worker)
        if self.opened is None and self.closed is None and len(self.seen) == self.workers:
            self.opened = at
            return True
        return False

    def ran_dry(self, at: float) -> bool:
        """Whether this closed the window."""
        if self.closed is None:
            self.closed = at
            return self.opened is not None
        return False


async def measure(
    client: Client, plan: CellPlan, write: Callable[[RequestRecord], None], guard: Callable[[], None] = lambda: None
) -> CellRecord:
    """Run the cell and return its record; each request is handed to `write` as it ends.

    `guard` is called after a failed request and raises when the server has died. Raises EngineError when every
    warm-up or every measured request failed: such a cell says nothing, and is not finished.
    """
    start, cpu = time.perf_counter(), time.process_time()
    concurrency = plan.key.concurrency
    queue, window = deque(plan.jobs), _Window(concurrency)
    answers: list[tuple[Job, Answer]] = []
    readings: list[CounterReading] = []
    side_tasks: list[asyncio.Task[None]] = []
    peak: list[float] = []

    async def read() -> None:
        counters = await client.metrics()
        if counters is not None:
            readings.append(_reading(counters, time.perf_counter() - start))
            peak.extend([] if counters.running is None else [counters.running])

    async def poll() -> None:
        while True:
            await asyncio.sleep(POLL)
            counters = await client.metrics()
            if counters is not None:
                peak.extend([] if counters.running is None else [counters.running])

    async def work(worker: int) -> None:
        while queue:
            job = queue.popleft()
            await one(worker, job)
        if window.ran_dry(time.perf_counter()):
            side_tasks.append(asyncio.create_task(read()))

    async def one(worker: int, job: Job) -> None:
        started = asyncio.Event()
        asking = asyncio.create_task(client.ask(job.prompt, job.max_tokens, started))
        try:
            if not job.warmup:
                await started.wait()
                failed = asking.done() and asking.result().first is None
                if not failed and window.saw_first_token(worker, time.perf_counter()):
                    side_tasks.append(asyncio.create_task(read()))
            answer = await asking
        finally:
            asking.cancel()
        answers.append((job, answer))
        write(_record(client, plan, job, answer, start))
        if answer.error is not None:
            guard()
            _refuse_all_failed(client, answers)

    await read()
    poller = asyncio.create_task(poll())
    try:
        async with asyncio.TaskGroup() as workers:
            for number in range(concurrency):
                workers.create_task(work(number))
        await asyncio.gather(*side_tasks)
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    finally:
        for task in (poller, *side_tasks):
            task.cancel()
        await asyncio.gather(poller, *side_tasks, return_exceptions=True)
    await read()
    measured = [answer for job, answer in answers if not job.warmup]
    if measured and all(answer.error for answer in measured):
        raise EngineError(
            f"{client.endpoint.base_url}: every request of the cell {plan.key} failed: {measured[0].error}"
        )
    seconds = time.perf_counter() - start
    held = [answer for _, answer in answers if answer.rate_limited]
    edges = (window.opened, window.closed) if window.opened and window.closed else None
    return CellRecord(
        cell=plan.key,
        attempt=plan.attempt,
        served_by=plan.served_by,
        order=plan.order,
        finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=round(seconds, 3),
        requests=len(measured),
        failed=sum(answer.error is not None for answer in measured),
        window=(round(edges[0] - start, 4), round(edges[1] - start, 4)) if edges else None,
        window_tokens=round(sum(tokens_inside(a, *edges) for a in measured), 3) if edges else None,
        counters=readings,
        running_peak=max(peak, default=None),
        client_cpu=round((time.process_time() - cpu) / seconds, 4),
        rate_limited=len(held) or None,
        held_back=round(sum(answer.held_back for answer in held), 3) if held else None,
        prompts_digest=_prompts_digest(plan.jobs),
    )


def tokens_inside(answer: Answer, opened: float, closed: float) -> float:
    """Output tokens of `answer` that arrived in (opened, closed].

    Where chunks do not say how many tokens they carry, the tokens by usage are spread evenly over them. A failed
    request counts nothing.
    """
    if answer.error is not None or not answer.chunks:
        return 0.0
    inside = [tokens for at, tokens in answer.chunks if opened < at <= closed]
    if all(tokens is not None for _, tokens in answer.chunks):
        return float(sum(tokens or 0 for tokens in inside))
    return (answer.completion_tokens or 0) * len(inside) / len(answer.chunks)


def _refuse_all_failed(client: Client, answers: Sequence[tuple[Job, Answer]]) -> None:
    warmups = [answer for job, answer in answers if job.warmup]
    enough = len(warmups) >= 3 or len(answers) > len(warmups)
    if enough and warmups and all(answer.error is not None for _, answer in answers):
        raise EngineError(f"{client.endpoint.base_url}: every request failed so far: {answers[-1][1].error}")


def _record(client: Client, plan: CellPlan, job: Job, answer: Answer, start: float) -> RequestRecord:
    counts = answer.counts
    return RequestRecord(
        cell=plan.key,
        attempt=plan.attempt,
        served_by=plan.served_by,
        warmup=job.warmup,
        category=job.prompt.category,
        prompt=job.index,
        prompt_hash=job.prompt.digest,
        sent=round(answer.sent - start, 4),
        ttft=round(answer.first - answer.sent, 4) if answer.first is not None else None,
        ended=round(answer.ended - answer.sent, 4),
        chunks=[(round(at - answer.sent, 4), tokens) for at, tokens in answer.chunks],
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        finish_reason=answer.finish_reason,
        steps=counts.steps if counts else None,
        drafted=counts.drafted if counts else None,
        accepted=counts.accepted if counts else None,
        per_step_drafted=counts.per_step_drafted if counts else None,
        per_step_accepted=counts.per_step_accepted if counts else None,
        accepted_histogram=counts.accepted_histogram if counts else None,
        own=counts.own if counts else {},
        prompt_ids_hash=_ids_hash(answer.prompt_ids),
        answer_ids_hash=_ids_hash(answer.answer_ids) if len(answer.answer_ids) == answer.completion_tokens else None,
        passes=answer.passes(client.endpoint, plan.speculates) if answer.error is None else None,
        rate_limited=answer.rate_limited or None,
        held_back=round(answer.held_back, 4) if answer.rate_limited else None,
        error=answer.error,
    )


def _reading(counters: Counters, at: float) -> CounterReading:
    return CounterReading(
        at=round(at, 4),
        iterations=counters.iterations,
        generation_tokens=counters.generation_tokens,
        preemptions=counters.preemptions,
        drafts=counters.drafts,
        drafted=counters.drafted,
        accepted=counters.accepted,
        accepted_per_position=counters.accepted_per_position,
    )


def _ids_hash(ids: Sequence[int] | None) -> str | None:
    """First 16 hex digits of the SHA-256 of token ids, None of none: to be compared between engines, not read."""
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16] if ids else None


def _prompts_digest(jobs: Sequence[Job]) -> str:
    digests = "".join(job.prompt.digest for job in jobs if not job.warmup)
    return hashlib.sha256(digests.encode()).hexdigest()[:16]
