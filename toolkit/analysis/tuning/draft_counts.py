"""Whether an arm drafted what it was told: K is proven by the drafts that the engine counted, step by step.

Under a schedule K follows the batch of each step. While n requests are asked for, the batch is n but for the moments
between two requests, and the last requests of a cell run in smaller batches: their K is that of those sizes.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from toolkit.analysis.records import CellRecord, RequestRecord
from toolkit.analysis.run import ArmInfo, Run
from toolkit.analysis.tuning.schedule import k_at
from toolkit.engines.contract import LOOKUPS

DIPS = 0.75  # of the asked concurrency: smaller batches are rare while all requests run
MOST = 0.5  # of the steps: what more than half of them did was no dip


@dataclass(frozen=True, slots=True)
class Proof:
    """What the drafted counts say of one K at one concurrency. `shares`: how often, where a batch falls below it."""

    arm: str
    concurrency: int
    k: int
    verdict: Literal["proven", "shares", "unproven", "contradicted"]
    sentence: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def proofs(run: Run, schedules: dict[str, Sequence[Sequence[int]]]) -> list[Proof]:
    """One proof per arm and level that has a finished cell; `schedules` by arm name."""
    requests, found = run.requests(), []
    for arm in run.info.arms:
        for level in sorted(run.info.levels):
            cells = [
                c for c in run.cells() if (c.cell.arm, c.cell.side, c.cell.concurrency) == (arm.name, "arm", level)
            ]
            records = [
                r
                for r in requests
                if (r.cell.arm, r.cell.side, r.cell.concurrency) == (arm.name, "arm", level) and r.error is None
            ]
            if cells:
                found.append(proof(arm, level, schedules[arm.name], cells, records))
    return found


def proof(
    arm: ArmInfo,
    level: int,
    schedule: Sequence[Sequence[int]],
    cells: Sequence[CellRecord],
    records: Sequence[RequestRecord],
) -> Proof:
    """The proof from the answered requests and the cells of one arm at one level."""
    k = k_at(schedule, level)
    counted = [[] if record.steps == 0 else record.per_step_drafted for record in records]
    steps = [n for one in counted for n in one or []] if counted and None not in counted else None
    window = _inside_windows(cells)

    def said(verdict: Literal["proven", "shares", "unproven", "contradicted"], sentence: str) -> Proof:
        return Proof(arm.name, level, k, verdict, sentence)

    allowed = max(k_at(schedule, batch) for batch in range(1, level + 1))
    if steps and max(steps) > allowed:
        return said("contradicted", f"a step drafted {max(steps)} tokens, where K is at most {allowed}")
    if steps is None and window is None:
        return said("unproven", "neither the responses nor /metrics say what was drafted")
    dips = any(k_at(schedule, batch) != k for batch in range(max(1, int(DIPS * level)), level))
    if k == 0:
        return said(*_no_drafts(steps, window, records, dips))
    if steps is not None:
        return said(*_k_drafts(steps, k, dips, exact=arm.method not in LOOKUPS))
    assert window is not None
    if not window.drafts:
        return said("unproven", "no step carried a draft")
    mean = window.drafted / window.drafts
    if mean > allowed:
        return said(
            "contradicted", f"a drafted step carried {mean:.2f} tokens on average, where K is at most {allowed}"
        )
    return said("shares", f"a drafted step carried {mean:.2f} tokens on average; the responses give no steps")


_Said = tuple[Literal["proven", "shares", "unproven", "contradicted"], str]


def _k_drafts(steps: Sequence[int], k: int, dips: bool, exact: bool) -> _Said:
    """`exact`: the method drafts K whenever it drafts; n-gram lookup may find fewer."""
    if not steps:
        return "unproven", "no step carried a draft"
    here, above = (sum(test) / len(steps) for test in ([n == k for n in steps], [n > k for n in steps]))
    sentence = (
        f"{here:.1%} of {len(steps)} drafted steps carried {k} tokens, {f'{above:.1%}' if above else 'none'} more"
    )
    if dips:
        return "shares", f"{sentence}; the batch falls below this concurrency between two requests"
    if above > MOST or (exact and here < 1 - MOST):
        return "contradicted", sentence
    return ("proven" if here else "unproven"), sentence


def _no_drafts(
    steps: Sequence[int] | None, window: "_Window | None", records: Sequence[RequestRecord], dips: bool
) -> _Said:
    if window is not None:
        drafts, passes, where = window.drafts, window.passes, "while all requests ran"
    else:
        drafts = float(len(steps or []))
        passes = float(sum(record.passes[0] for record in records if record.passes))
        where = "in its requests, those of the last batches among them"
    if not drafts:
        return "proven", f"no step carried a draft {where}"
    share = drafts / passes if passes else 1.0
    sentence = f"{share:.1%} of the passes carried a draft {where}"
    if dips:
        return "shares", f"{sentence}; the batch falls to the range below between two requests"
    return ("contradicted" if share > MOST else "shares"), sentence


@dataclass(frozen=True, slots=True)
class _Window:
    drafts: float
    drafted: float
    passes: float


def _inside_windows(cells: Sequence[CellRecord]) -> _Window | None:
    """Sums between the opening and the closing of the windows; None where no cell was read four times."""
    sums = [0.0, 0.0, 0.0]
    known = False
    for cell in cells:
        if len(cell.counters) != 4 or cell.window is None:
            continue
        before, after = cell.counters[1], cell.counters[2]
        pairs = [
            (before.drafts, after.drafts),
            (before.drafted, after.drafted),
            (before.generation_tokens, after.generation_tokens),
            (before.accepted, after.accepted),
        ]
        if any(low is None or high is None for low, high in pairs):
            continue
        drafts, drafted, tokens, accepted = ((high or 0.0) - (low or 0.0) for low, high in pairs)
        sums = [sums[0] + drafts, sums[1] + drafted, sums[2] + tokens - accepted]
        known = True
    return _Window(*sums) if known else None
