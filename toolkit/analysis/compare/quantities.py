"""The numbers that are compared, each by its one definition, from raw counts summed over the same prompts."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from toolkit.analysis.acceptance import from_histograms, positions, steps_of
from toolkit.analysis.compare.dialects import how_to_know
from toolkit.analysis.compare.interval import Floats, Ratio
from toolkit.analysis.levels import middle, tokens_per_pass
from toolkit.analysis.records import RequestRecord

DEFINITIONS = {
    "acceptance_length": "1 + accepted / steps that carried a draft",
    "tokens_per_pass": "completion tokens / target passes, the prefill and passes without a draft counted",
    "draft_acceptance_rate": "accepted / drafted",
}
BY_POSITION = {
    "unconditional": "drafts that kept at least i tokens / drafts",
    "given": "drafts that kept at least i tokens / drafts that had an i-th token and kept all before it",
}
NAMES = {
    "acceptance_length": "acceptance length",
    "tokens_per_pass": "tokens per pass",
    "draft_acceptance_rate": "draft acceptance rate",
}
NOTHING_DRAFTED = "not one token was drafted"
NOTHING_KEPT = "of all drafts not one token was kept, and how long each was is not told"
Groups = Sequence[Sequence[RequestRecord]]


@dataclass(frozen=True, slots=True)
class PositionRatios:
    """One place in the draft, the first being 1. `given` is None where how many drafts reached it is not known."""

    position: int
    unconditional: Ratio
    given: Ratio | None


@dataclass(frozen=True, slots=True)
class Quantities:
    """Of one contender at one concurrency. A name of DEFINITIONS is in `ratios`, or its reason is in `reasons`."""

    requests: int
    steps: int | None
    drafted: int | None
    accepted: int | None
    completion_tokens: int | None
    passes: tuple[int, int] | None
    ratios: dict[str, Ratio] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    positions: list[PositionRatios] = field(default_factory=list)
    no_positions: str = ""


def quantities(groups: Groups, engine: str, k: int | None) -> Quantities:
    """From one group of records per prompt, in an order that all contenders share.

    A count that one record lacks is not known of all: ratios that need it have a reason instead.
    """
    records = [record for group in groups for record in group]
    counts = {name: _sum(records, name) for name in ("steps", "drafted", "accepted", "completion_tokens")}
    ratios: dict[str, Ratio] = {}
    reasons: dict[str, str] = {}
    for name, below, plus_one in (("acceptance_length", "steps", True), ("draft_acceptance_rate", "drafted", False)):
        if counts[below] is None or counts["accepted"] is None:
            reasons[name] = _missing(records, (below, "accepted"), engine)
        elif counts[below] == 0:
            reasons[name] = NOTHING_DRAFTED
        else:
            ratios[name] = Ratio(_each(groups, "accepted"), _each(groups, below), plus_one)
    bounds = tokens_per_pass(records)
    if bounds is None:
        reasons["tokens_per_pass"] = _missing(records, ("passes",), engine)
    elif middle(bounds) is None:
        reasons["tokens_per_pass"] = (
            f"only bounds are known, {bounds[0]:.2f} to {bounds[1]:.2f}: the server merged chunks of its streams"
        )
    else:
        passes = np.array([sum(sum(one.passes or (0, 0)) / 2 for one in group) for group in groups])
        ratios["tokens_per_pass"] = Ratio(_each(groups, "completion_tokens"), passes)
    found = _positions(groups, k)
    return Quantities(
        requests=len(records),
        **counts,
        passes=_passes(records),
        ratios=ratios,
        reasons=reasons,
        positions=found or [],
        no_positions="" if found else _no_positions(found, records, engine),
    )


def _no_positions(found: list[PositionRatios] | None, records: Sequence[RequestRecord], engine: str) -> str:
    if found is not None:
        return NOTHING_KEPT if any(sum(record.accepted_histogram or []) for record in records) else NOTHING_DRAFTED
    without_steps = sum(steps_of(record) is None for record in records)
    without_histogram = sum(record.accepted_histogram is None and record.steps != 0 for record in records)
    lacking = min(without_steps, without_histogram)  # either would do
    return _untold(lacking, len(records), how_to_know(engine, ("per_step_accepted", "accepted_histogram")))


def _sum(records: Sequence[RequestRecord], name: str) -> int | None:
    each = [getattr(record, name) for record in records]
    return None if None in each or not each else sum(each)


def _each(groups: Groups, name: str) -> Floats:
    """Shape [prompts]."""
    return np.array([float(sum(getattr(record, name) for record in group)) for group in groups])


def _passes(records: Sequence[RequestRecord]) -> tuple[int, int] | None:
    each = [record.passes for record in records if record.passes is not None]
    if len(each) != len(records) or not each:
        return None
    return sum(low for low, _ in each), sum(high for _, high in each)


def _missing(records: Sequence[RequestRecord], names: Sequence[str], engine: str) -> str:
    lacking = sum(any(getattr(record, name) is None for name in names) for record in records)
    return _untold(lacking, len(records), how_to_know(engine, names))


def _untold(lacking: int, of: int, how: str) -> str:
    return f"{'no answer tells it' if lacking == of else f'{lacking} of {of} answers do not tell it'}: {how}"


def _positions(groups: Groups, k: int | None) -> list[PositionRatios] | None:
    """From per-step data where every record has them, else from histograms; None where neither is whole."""
    rows = [_of_steps(group) for group in groups]
    if any(row is None for row in rows):
        rows = [_of_histograms(group, k) for group in groups]
    told = [row for row in rows if row is not None]
    if len(told) != len(rows):
        return None
    last = max((len(row.kept) for row in told), default=0)
    reached = all(row.reached is not None for row in told)
    drafts = np.array([float(row.drafts) for row in told])
    found = []
    for i in range(last):
        kept = _at([row.kept for row in told], i)
        given = Ratio(kept, _at([row.reached or [] for row in told], i)) if reached else None
        found.append(PositionRatios(i + 1, Ratio(kept, drafts), given))
    return found


def _at(rows: Sequence[Sequence[int]], i: int) -> Floats:
    return np.array([float(row[i]) if i < len(row) else 0.0 for row in rows])


@dataclass(frozen=True, slots=True)
class _Row:
    """One prompt: its drafts, and by position how many kept it and how many reached it."""

    drafts: int
    kept: list[int]
    reached: list[int] | None


def _of_steps(group: Sequence[RequestRecord]) -> _Row | None:
    each = [steps_of(record) for record in group]
    if any(steps is None for steps in each):
        return None
    steps = [step for one in each for step in one or ()]
    found = positions(steps)
    return _Row(sum(drafted > 0 for drafted, _ in steps), [p.accepted for p in found], [p.reached or 0 for p in found])


def _of_histograms(group: Sequence[RequestRecord], k: int | None) -> _Row | None:
    if any(record.accepted_histogram is None and record.steps != 0 for record in group):
        return None
    histograms = [record.accepted_histogram or [] for record in group]
    drafts = sum(map(sum, histograms))
    if drafts == 0:
        return _Row(0, [], [])
    drafted = _sum(group, "drafted")
    found = from_histograms(histograms, drafted, k)
    reached = [p.reached for p in found if p.reached is not None]
    full = k is not None and drafted == k * drafts
    return _Row(drafts, [p.accepted for p in found], reached if full and len(reached) == len(found) else None)
