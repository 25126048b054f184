"""The sweep: cells over concurrency x round x arm, arm and baseline adjacent in ABBA order, into a Run directory."""

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

from toolkit.analysis.arms import Arm, Live
from toolkit.analysis.cell import CellPlan, Job, measure, warmup_lengths
from toolkit.analysis.client import Client, Sampling
from toolkit.analysis.pairs import ENOUGH_PAIRS
from toolkit.analysis.records import CellKey, CellRecord, Side
from toolkit.analysis.run import Recorder, Run
from toolkit.analysis.workload import Workload

RETRY_STRIDE = 10_000_000  # prompt indices between two attempts on a server that has seen the first


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked of a sweep. `rounds` is a number, or a budget in seconds allocates the pairs."""

    arms: Sequence[Arm]
    baseline: Arm | None
    workload: Workload
    levels: Sequence[int]
    requests: Mapping[int, int]
    sampling: Sampling
    rounds: int
    budget: float | None = None
    stall: float = 300.0
    resident: bool = True
    skip: frozenset[tuple[str, int]] = frozenset()
    """(arm, concurrency) that are measured no further. The prompts of all others stay theirs."""

    def block(self, level: int) -> int:
        """Prompt indices that one pair at `level` uses: the longest warm-up and the measured requests."""
        return 3 * level + self.requests[level]

    def first_prompt(self, key: CellKey) -> int:
        """Index of the pair's first prompt: no two pairs share one, and both sides of a pair have the same.

        Without a baseline the arms are compared with each other: all have the same.
        """
        names = [arm.name for arm in self.arms] if self.baseline else [""]
        blocks = [self.block(level) for level in self.levels]
        per_round = sum(blocks) * len(names)
        level, arm = self.levels.index(key.concurrency), names.index(key.arm) if self.baseline else 0
        before = [0, *accumulate(blocks)][level] * len(names)
        return (key.round - 1) * per_round + before + arm * blocks[level]

    def prompts_needed(self) -> int:
        """Prompts that all rounds together use."""
        shared = len(self.arms) if self.baseline else 1
        return sum(self.block(level) for level in self.levels) * shared * self.rounds


class Progress(Protocol):
    """How a sweep tells where it is."""

    def stage(self, text: str) -> None:
        """What is waited for now."""

    def cells(self, done: int, total: int | None, seconds_left: float | None) -> None:
        """Finished cells, all cells (None under a budget), and the time that is left."""


def sides(plan: Plan, number: int) -> tuple[Side, ...]:
    """The order of a pair's cells: A B in odd rounds, B A in even ones."""
    if plan.baseline is None:
        return ("arm",)
    return ("baseline", "arm") if number % 2 else ("arm", "baseline")


def all_cells(plan: Plan) -> list[CellKey]:
    """The cells of every round, in the order in which they are measured.

    With resident engines the cells of a pair are adjacent, and arms without a baseline take turns at being first.
    Otherwise an engine measures all levels of a round before
    the other one takes the memory, and stays up for the next round's beginning.
    """
    keys = []
    for number in range(1, plan.rounds + 1):
        if plan.resident:
            arms = plan.arms if plan.baseline or number % 2 else plan.arms[::-1]
            order = [(a, s, n) for n in plan.levels for a in arms for s in sides(plan, number)]
        else:
            order = [(a, s, n) for a in plan.arms for s in sides(plan, number) for n in plan.levels]
        keys += [
            CellKey(arm=arm.name, side=side, workload=plan.workload.name, concurrency=level, round=number)
            for arm, side, level in order
            if (arm.name, level) not in plan.skip
        ]
    return keys


@dataclass(slots=True)
class _Costs:
    """Seconds per cell, learned as cells end; unseen levels are guessed from the requests they send."""

    plan: Plan
    seen: dict[tuple[int, str, Side], list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def spent(self) -> float:
        """Seconds that finished cells took; boots and interrupted cells are nobody's measurement."""
        return sum(map(sum, self.seen.values()))

    def learn(self, record: CellRecord) -> None:
        self.seen[record.cell.concurrency, record.cell.arm, record.cell.side].append(record.seconds)

    def expect(self, key: CellKey) -> float | None:
        """Expected seconds of a cell; None before any cell has ended."""
        exact = self.seen.get((key.concurrency, key.arm, key.side))
        if exact:
            return sum(exact) / len(exact)
        rates = [
            sum(seconds) / len(seconds) / self.plan.block(level) * math.sqrt(level)
            for (level, _, _), seconds in self.seen.items()
        ]
        if not rates:
            return None
        mean: float = sum(rates) / len(rates)
        return mean * self.plan.block(key.concurrency) / math.sqrt(key.concurrency)

    def total(self, keys: Sequence[CellKey]) -> float | None:
        """Expected seconds of all `keys`."""
        parts = [self.expect(key) for key in keys]
        return None if None in parts else sum(part for part in parts if part is not None)


def pending_pairs(plan: Plan, finished: set[CellKey], costs: _Costs) -> Iterator[list[CellKey]]:
    """Cells still to measure, a pair (or what is missing of one) at a time.

    Under a budget a pair whose expected time does not fit any more is left out, cheaper ones may follow. What is
    measured never depends on what was found, so that no verdict is reached by looking until it comes.
    """
    for group in _groups(plan):
        missing = [key for key in group if key not in finished]
        if not missing:
            continue
        left = None if plan.budget is None else plan.budget - costs.spent
        expected = costs.total(missing)
        if left is None or (left > 0 if expected is None else expected <= left):
            yield missing


def _learned(plan: Plan, cells: Sequence[CellRecord]) -> _Costs:
    costs = _Costs(plan)
    for record in cells:
        costs.learn(record)
    return costs


def _groups(plan: Plan) -> list[list[CellKey]]:
    """Pairs in the order in which they are measured; single cells where an engine keeps the memory for a round.

    Under a budget: two pairs everywhere, then enough for a verdict at the lowest and the highest concurrency, which
    bracket the crossover, then between them, then more of all.
    """
    if not plan.resident:
        return [[key] for key in all_cells(plan)]
    pairs: dict[tuple[int, int, str], list[CellKey]] = {}
    for key in all_cells(plan):
        pairs.setdefault((key.round, key.concurrency, key.arm), []).append(key)
    groups = list(pairs.values())
    if plan.budget is None:
        return groups
    ends = {min(plan.levels), max(plan.levels)}

    def phase(group: list[CellKey]) -> int:
        key = group[0]
        if key.round <= 2:
            return 0
        if key.round <= ENOUGH_PAIRS:
            return 1 if key.concurrency in ends else 2
        return 3

    return sorted(groups, key=phase)


def run_sweep(plan: Plan, recorder: Recorder, live: Live, progress: Progress, last_round: int | None = None) -> None:
    """Measure what is still missing of `plan`, no round after `last_round`. `live` brings endpoints up and down.

    Raises EngineError when an engine dies or nothing can be measured, InputError when the disk refuses. Whatever was
    measured until then stays, and the same call goes on from there.
    """
    run = Run(recorder.folder)
    cells, attempts = run.cells(), run.attempts()
    finished, costs = {record.cell for record in cells}, _learned(plan, cells)
    everything = list(dict.fromkeys([*(record.cell for record in cells), *all_cells(plan)]))
    order = len(cells)
    for group in pending_pairs(plan, finished, costs):
        if last_round is not None and group[0].round > last_round:
            break
        for key in group:
            arm = _arm(plan, key)
            endpoint = live.endpoint(arm, progress.stage)
            attempt = attempts.get(key, 0) + 1
            first_time = live.first_time(arm, key.concurrency)
            jobs = _jobs(plan, key, attempt if arm.outlives_us else 1, first_time)
            cell = CellPlan(key, attempt, order, arm.name, jobs, live.speculates(arm))
            recorder.begin(key, attempt)
            progress.stage(f"{key.workload} at {key.concurrency}, round {key.round}, {arm.name}")
            record = asyncio.run(_measure(live, arm, Client(endpoint, plan.sampling, plan.stall), cell, recorder))
            recorder.cell(record)
            costs.learn(record)
            finished.add(key)
            order += 1
            left = [key for key in everything if key not in finished]
            remaining = None if plan.budget is None else max(0.0, plan.budget - costs.spent)
            progress.cells(
                len(finished), None if plan.budget else len(everything), remaining if plan.budget else costs.total(left)
            )


async def _measure(live: Live, arm: Arm, client: Client, cell: CellPlan, recorder: Recorder) -> CellRecord:
    async with client:
        return await measure(client, cell, recorder.request, lambda: live.check(arm))


def _arm(plan: Plan, key: CellKey) -> Arm:
    if key.side == "baseline" and plan.baseline is not None:
        return plan.baseline
    return next(arm for arm in plan.arms if arm.name == key.arm)


def _jobs(plan: Plan, key: CellKey, attempt: int, first_time: bool) -> list[Job]:
    start = plan.first_prompt(key) + (attempt - 1) * RETRY_STRIDE
    lengths = warmup_lengths(key.concurrency, plan.sampling.max_tokens, first_time)
    measured = start + 3 * key.concurrency
    warmups = [
        Job(index, plan.workload.prompt(index), length)
        for index, length in zip(range(measured - len(lengths), measured), lengths, strict=True)
    ]
    return warmups + [
        Job(index, plan.workload.prompt(index)) for index in range(measured, measured + plan.requests[key.concurrency])
    ]


def is_finished(plan: Plan) -> Callable[[Run], bool]:
    """Whether a Run leaves nothing of `plan` to measure: every cell is there, or nothing fits into the budget."""

    def finished(run: Run) -> bool:
        cells = run.cells()
        left = pending_pairs(plan, {record.cell for record in cells}, _learned(plan, cells))
        return next(left, None) is None

    return finished
