"""One side of an arm at one concurrency, over all rounds: rates, latencies, acceptance. By the one definition of each.

Ratios come from summed counts only. What an engine did not report is None.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from toolkit.analysis.records import CellKey, CellRecord, RequestRecord, Side
from toolkit.analysis.run import Run

EXACT_ENOUGH = 0.02  # relative width of the bounds of tokens per pass up to which their middle is shown

DISAGREE = 0.01  # share by which responses and counters may differ
TOO_FAST = 0.02  # share by which there may be more passes than fit into the iterations

_Group = tuple[str, Side, str, int]


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Milliseconds."""

    p50: float
    p95: float


@dataclass(frozen=True, slots=True)
class LevelStats:
    """Sums and percentiles of one side of one arm at one concurrency."""

    arm: str
    side: Side
    workload: str
    concurrency: int
    cells: int
    requests: int
    failed: int
    tokens_per_second: float | None
    ttft_ms: Percentiles | None
    tpot_ms: Percentiles | None
    tokens_per_pass: float | None
    drafted: float | None
    accepted: float | None
    steps: float | None
    mean_tokens_held: float | None
    per_request: bool

    @property
    def draft_acceptance_rate(self) -> float | None:
        """accepted / drafted; None when nothing was drafted or nothing is known of it."""
        return self.accepted / self.drafted if self.drafted and self.accepted is not None else None

    @property
    def acceptance_length(self) -> float | None:
        """1 + accepted / steps that carried a draft."""
        return 1 + self.accepted / self.steps if self.steps and self.accepted is not None else None

    @property
    def failed_share(self) -> float:
        return self.failed / self.requests if self.requests else 0.0


def level_stats(run: Run) -> list[LevelStats]:
    """Statistics of every (arm, side, workload, concurrency) that has a finished cell, in that order.

    What random prompts make of acceptance is nobody's traffic: it is unavailable.
    """
    found = _grouped(run.cells(), run.requests(), lambda key: (key.arm, key.side, key.workload, key.concurrency))
    if not run.info.workload.random:
        return found
    return [replace(one, tokens_per_pass=None, drafted=None, accepted=None, steps=None) for one in found]


def baseline_stats(run: Run) -> list[LevelStats]:
    """Statistics of the baseline per concurrency, over all cells that it served for any of the arms."""
    cells = [cell for cell in run.cells() if cell.cell.side == "baseline"]
    requests = [record for record in run.requests() if record.cell.side == "baseline"]
    return _grouped(cells, requests, lambda key: ("", "baseline", key.workload, key.concurrency))


def _grouped(
    cells: Sequence[CellRecord], requests: Sequence[RequestRecord], group: Callable[[CellKey], _Group]
) -> list[LevelStats]:
    by_group: dict[_Group, tuple[list[CellRecord], list[RequestRecord]]] = {}
    for cell in cells:
        by_group.setdefault(group(cell.cell), ([], []))[0].append(cell)
    for record in requests:
        by_group.setdefault(group(record.cell), ([], []))[1].append(record)
    return [_stats(key, *by_group[key]) for key in sorted(by_group) if by_group[key][0]]


def cross_check(run: Run) -> list[str]:
    """One sentence per arm whose responses and /metrics counters disagree on accepted drafts by over 1 %.

    And one per arm whose tokens came in too few iterations for what its responses say was accepted.
    """
    accepted: dict[str, int] = {}
    unknown: set[str] = set()
    for record in run.requests(warmup=True):
        if record.accepted is not None:
            accepted[record.served_by] = accepted.get(record.served_by, 0) + record.accepted
        elif record.cell.side == "arm":
            unknown.add(record.served_by)
    by_arm: dict[str, list[CellRecord]] = {}
    for cell in run.cells():
        by_arm.setdefault(cell.served_by, []).append(cell)
    said = []
    for name, responses in accepted.items():
        counted = _from_counters(by_arm.get(name, []))
        if counted is None or name in unknown:
            continue
        if abs(counted[2] - responses) > DISAGREE * max(counted[2], responses):
            said.append(
                f"{name}: its responses report {responses} accepted draft tokens, its counters {counted[2]:.0f}. "
                "They disagree: another client used the server, or one of them is wrong."
            )
    return said + [line for name in accepted if (line := _too_fast(run, name, by_arm.get(name, [])))]


def _too_fast(run: Run, name: str, cells: Sequence[CellRecord]) -> str:
    """What contradicts the accepted drafts that the responses of `name` report; empty where nothing does.

    An iteration makes one pass at most for each of n requests, and passes = tokens - accepted: so these cannot be more
    than n x iterations. Other clients, chunked prefills and trimmed last steps only make room. In 554 cells of the runs
    in tests/data the ratio of the two was 1.000 at most.
    """
    records: dict[CellKey, list[RequestRecord]] = {}
    for record in run.requests(warmup=True):
        if record.served_by == name:
            records.setdefault(record.cell, []).append(record)
    tokens = accepted = 0
    room = iterations = 0.0
    for cell in cells:
        counted = [one.iterations for one in cell.counters if one.iterations is not None]
        mine = [one for one in records.get(cell.cell, []) if one.completion_tokens is not None]
        if len(counted) < 2 or any(one.accepted is None for one in mine):
            continue
        iterations += counted[-1] - counted[0]
        room += (counted[-1] - counted[0]) * cell.cell.concurrency
        tokens += sum(one.completion_tokens or 0 for one in mine)
        accepted += sum(one.accepted or 0 for one in mine)
    if not room > 0 or tokens - accepted <= (1 + TOO_FAST) * room:
        return ""
    return (
        f"{name}: its {tokens} tokens came in {iterations:.0f} iterations, too few for the {accepted} accepted draft "
        "tokens that its responses report: more were accepted, or its counter is wrong."
    )


def tpot(record: RequestRecord) -> float | None:
    """Seconds per output token after the first chunk: (last - first arrival) / (tokens - tokens in the first chunk).

    None for a single chunk, and for a server whose chunks do not say how many tokens they carry.
    """
    if len(record.chunks) < 2 or record.completion_tokens is None:
        return None
    (first, in_first), (last, _) = record.chunks[0], record.chunks[-1]
    if in_first is None:
        return None
    after = record.completion_tokens - in_first
    return (last - first) / after if after > 0 else None


def tokens_per_pass(records: Iterable[RequestRecord]) -> tuple[float, float] | None:
    """Bounds of completion tokens / target passes over all records; None when a record has no passes."""
    tokens, low, high = 0, 0, 0
    for record in records:
        if record.passes is None or record.completion_tokens is None:
            return None
        tokens += record.completion_tokens
        low, high = low + record.passes[0], high + record.passes[1]
    return (tokens / high, tokens / low) if low else None


def middle(bounds: tuple[float, float] | None) -> float | None:
    """What is shown for bounds of tokens per pass: their middle, None where they are wider than EXACT_ENOUGH."""
    return sum(bounds) / 2 if bounds and bounds[1] - bounds[0] <= EXACT_ENOUGH * bounds[1] else None


def _stats(key: _Group, cells: Sequence[CellRecord], records: list[RequestRecord]) -> LevelStats:
    answered = [record for record in records if record.error is None]
    windows = [cell for cell in cells if cell.tokens_per_second is not None]
    seconds = sum(cell.window[1] - cell.window[0] for cell in windows if cell.window)
    bounds = tokens_per_pass(answered)
    counts = [(r.steps, r.drafted, r.accepted) for r in answered]
    per_request = bool(counts) and all(None not in one for one in counts)
    sums: Sequence[float | None] | None
    sums = [float(sum(one[i] or 0 for one in counts)) for i in range(3)] if per_request else _from_counters(cells)
    if sums is None and counts and all(None not in one[1:] for one in counts):  # tokens are told, steps are not
        sums, per_request = [None, *(float(sum(one[i] or 0 for one in counts)) for i in (1, 2))], True
    held = [(r.prompt_tokens or 0) + (r.completion_tokens or 0) for r in answered]
    return LevelStats(
        arm=key[0],
        side=key[1],
        workload=key[2],
        concurrency=key[3],
        cells=len(cells),
        requests=sum(cell.requests for cell in cells),
        failed=sum(cell.failed for cell in cells),
        tokens_per_second=sum(cell.window_tokens or 0.0 for cell in windows) / seconds if windows else None,
        ttft_ms=_percentiles(record.ttft for record in answered),
        tpot_ms=_percentiles(tpot(record) for record in answered),
        tokens_per_pass=middle(bounds),
        steps=sums[0] if sums else None,
        drafted=sums[1] if sums else None,
        accepted=sums[2] if sums else None,
        mean_tokens_held=float(np.mean(held)) if held else None,
        per_request=per_request,
    )


def _from_counters(cells: Sequence[CellRecord]) -> list[float] | None:
    """Drafts, drafted and accepted over the cells from /metrics, warm-up included; None where one lacks them."""
    sums = [0.0, 0.0, 0.0]
    for cell in cells:
        if len(cell.counters) < 2:
            return None
        before, after = cell.counters[0], cell.counters[-1]
        for i, (low, high) in enumerate(
            ((before.drafts, after.drafts), (before.drafted, after.drafted), (before.accepted, after.accepted))
        ):
            if low is None or high is None or high < low:
                return None
            sums[i] += high - low
    return sums


def _percentiles(seconds: Iterable[float | None]) -> Percentiles | None:
    known = [value * 1000 for value in seconds if value is not None]
    if not known:
        return None
    p50, p95 = np.percentile(known, [50, 95])
    return Percentiles(round(float(p50), 2), round(float(p95), 2))
