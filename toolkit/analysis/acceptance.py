"""Which draft tokens an arm kept: by position in the draft, by prompt category, by length of the prompt.

Counts are of the arm's answered requests without the warm-up, and of what verification kept: a stop or max_tokens may
have trimmed the last step afterwards. Ratios come from summed counts only. Where levels are summed, one that served
more requests weighs more.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from toolkit.analysis.levels import middle, tokens_per_pass
from toolkit.analysis.records import CellRecord, CounterReading, RequestRecord
from toolkit.analysis.run import Run


@dataclass(frozen=True, slots=True)
class Position:
    """One place in the draft, the first being 1. `drafts` is the number of steps that carried a draft of any length.

    `reached` is the number of steps that drafted this position and kept all before it; None when only counters tell.
    """

    position: int
    reached: int | None
    drafts: int
    accepted: int

    @property
    def given(self) -> float | None:
        """accepted / reached: the acceptance where all before were kept and this one was drafted."""
        return self.accepted / self.reached if self.reached else None

    @property
    def unconditional(self) -> float | None:
        """accepted / drafts. A draft that ends earlier counts against it."""
        return self.accepted / self.drafts if self.drafts else None


@dataclass(frozen=True, slots=True)
class AcceptanceGroup:
    """Sums over the requests that share a category or a length of prompt. `steps` are those that carried a draft."""

    name: str
    requests: int
    steps: int
    drafted: int
    accepted: int
    tokens_per_pass: float | None

    @property
    def draft_acceptance_rate(self) -> float | None:
        """accepted / drafted; None when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def acceptance_length(self) -> float | None:
        """1 + accepted / steps that carried a draft."""
        return 1 + self.accepted / self.steps if self.steps else None


def by_position(run: Run, arm: str, concurrency: int | None = None) -> list[Position]:
    """Acceptance at each position, of one level or of all.

    From per-step data where every request has them; else from histograms of what steps kept; else from the counters on
    /metrics (warm-up and other clients of the server included), where `reached` is None. Empty when none of them tells,
    and when nothing was drafted.
    """
    answered = _answered(run, arm, concurrency)
    each = [steps_of(record) for record in answered]
    known = [steps for steps in each if steps is not None]
    if known and len(known) == len(each):
        return positions([step for steps in known for step in steps])
    if answered and all(record.accepted_histogram is not None for record in answered):
        k = next((one.num_speculative_tokens for one in run.info.arms if one.name == arm), None)
        return from_histograms([record.accepted_histogram or [] for record in answered], drafted_in(answered), k)
    cells = [cell for cell in run.cells() if cell.cell.arm == arm and cell.cell.side == "arm"]
    return _from_counters([cell for cell in cells if concurrency in (None, cell.cell.concurrency)])


def positions(steps: Sequence[tuple[int, int]]) -> list[Position]:
    """Acceptance at each position over steps of (drafted, accepted) tokens, up to the longest draft."""
    drafts = sum(drafted > 0 for drafted, _ in steps)
    return [
        Position(
            position=i,
            reached=sum(drafted >= i and accepted >= i - 1 for drafted, accepted in steps),
            drafts=drafts,
            accepted=sum(accepted >= i for _, accepted in steps),
        )
        for i in range(1, max((drafted for drafted, _ in steps), default=0) + 1)
    ]


def from_histograms(histograms: Sequence[Sequence[int]], drafted: int | None, k: int | None) -> list[Position]:
    """Acceptance at each position from histograms of drafted steps, index = draft tokens kept.

    No step drafts more than `k` tokens: where `drafted` is `k` times the steps, every step drafted `k`, and a step that
    kept i - 1 had an i-th to keep. Else how many reached a position is not known.
    """
    size = max((len(one) for one in histograms), default=0)
    kept = [sum(one[i] for one in histograms if i < len(one)) for i in range(size)]
    steps = sum(kept)
    full = k is not None and steps > 0 and drafted == k * steps and size <= k + 1
    last = k if full and k is not None else size - 1
    return [Position(i, sum(kept[i - 1 :]) if full else None, steps, sum(kept[i:])) for i in range(1, last + 1)]


def drafted_in(records: Sequence[RequestRecord]) -> int | None:
    """Draft tokens of all records; None when one does not tell."""
    each = [record.drafted for record in records]
    return None if None in each else sum(one or 0 for one in each)


def by_category(run: Run, arm: str) -> list[AcceptanceGroup]:
    """Acceptance per prompt category, by name, over all levels; empty when a request does not tell its counts."""
    return _groups(_answered(run, arm), lambda record: (0, record.category))


def by_context(run: Run, arm: str) -> list[AcceptanceGroup]:
    """Acceptance per length of the prompt in powers of two (`257-512 tokens`), shortest first, `unknown` last.

    Over all levels; empty when a request does not tell its counts.
    """
    return _groups(_answered(run, arm), _context)


def _answered(run: Run, arm: str, concurrency: int | None = None) -> list[RequestRecord]:
    return [
        record
        for record in run.requests()
        if record.cell.arm == arm
        and record.cell.side == "arm"
        and record.error is None
        and concurrency in (None, record.cell.concurrency)
    ]


def steps_of(record: RequestRecord) -> list[tuple[int, int]] | None:
    """(drafted, accepted) per step; None when the engine did not tell, or told what no step can have."""
    if record.steps == 0:
        return []
    drafted, accepted = record.per_step_drafted, record.per_step_accepted
    if drafted is None or accepted is None or len(drafted) != len(accepted):
        return None
    steps = list(zip(drafted, accepted, strict=True))
    return steps if all(0 <= kept <= asked for asked, kept in steps) else None


def _from_counters(cells: Sequence[CellRecord]) -> list[Position]:
    """What the counters gained from first to last reading of each cell; empty where one cell cannot tell."""
    gains = []
    for cell in cells:
        if len(cell.counters) < 2:
            return []
        before, after = _row(cell.counters[0]), _row(cell.counters[-1])
        gain = [high - low for low, high in zip(before, after, strict=False)]
        # A position that only one reading has, or a counter that fell: the engine was started anew in between.
        if len(before) != len(after) or not gain or min(gain) < 0:
            return []
        gains.append(gain)
    if len({len(gain) for gain in gains}) != 1:
        return []
    drafts, *accepted = (round(sum(column)) for column in zip(*gains, strict=True))
    return [Position(i, None, drafts, kept) for i, kept in enumerate(accepted, start=1)] if drafts else []


def _row(reading: CounterReading) -> list[float]:
    return [] if reading.drafts is None else [reading.drafts, *reading.accepted_per_position]


def _context(record: RequestRecord) -> tuple[float, str]:
    if record.prompt_tokens is None or record.prompt_tokens < 1:
        return math.inf, "unknown"
    most = 1 << (record.prompt_tokens - 1).bit_length()
    return most, f"{most // 2 + 1}-{most} tokens"


def _groups(
    records: Sequence[RequestRecord], group: Callable[[RequestRecord], tuple[float, str]]
) -> list[AcceptanceGroup]:
    """One group per (place, name) that `group` gives, in the order of place, then name."""
    if any(None in (record.steps, record.drafted, record.accepted) for record in records):
        return []
    members: dict[tuple[float, str], list[RequestRecord]] = {}
    for record in records:
        members.setdefault(group(record), []).append(record)
    return [_group(name, members[place, name]) for place, name in sorted(members)]


def _group(name: str, records: Sequence[RequestRecord]) -> AcceptanceGroup:
    bounds = tokens_per_pass(records)
    return AcceptanceGroup(
        name=name,
        requests=len(records),
        steps=sum(record.steps or 0 for record in records),
        drafted=sum(record.drafted or 0 for record in records),
        accepted=sum(record.accepted or 0 for record in records),
        tokens_per_pass=middle(bounds),
    )
