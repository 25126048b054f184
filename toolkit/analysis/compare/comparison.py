"""Contenders beside each other at every common concurrency: their numbers, and what their difference is.

All numbers are of the prompts that every contender answered; the others are dropped and counted. Where prompts in
common were waived, each contender is measured on its own, and the intervals are not paired.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from toolkit.analysis.caveats import DOES_NOTHING, REUSED
from toolkit.analysis.compare.checks import ALLOWABLE as ALLOWABLE
from toolkit.analysis.compare.checks import FEWEST_COMMON, check, common_levels, common_prompts, listed
from toolkit.analysis.compare.contenders import Contender, Depth, contenders, depth
from toolkit.analysis.compare.crosscheck import disagreements
from toolkit.analysis.compare.dialects import OwnFigure, fills_drafts, own_figures
from toolkit.analysis.compare.interval import Estimate, Ratio, paired, single, unpaired
from toolkit.analysis.compare.quantities import BY_POSITION, DEFINITIONS, NAMES, Quantities, quantities
from toolkit.analysis.levels import level_stats
from toolkit.analysis.records import RequestRecord
from toolkit.analysis.run import Run
from toolkit.errors import InputError

Between = Callable[[Ratio, Ratio], Estimate | None]


@dataclass(frozen=True, slots=True)
class PositionEstimate:
    """Acceptance at one place in the draft, by both definitions."""

    position: int
    unconditional: Estimate | None
    given: Estimate | None


@dataclass(frozen=True, slots=True)
class Row:
    """One contender at one concurrency. A name of DEFINITIONS is in `estimates`, or its reason is in `reasons`.

    `aggregate` are its server's counters over the whole cells, warm-up included, where its answers do not tell.
    """

    name: str
    dropped: int
    counts: Quantities
    estimates: dict[str, Estimate]
    positions: list[PositionEstimate]
    own: list[OwnFigure]
    aggregate: dict[str, float]

    @property
    def reasons(self) -> dict[str, str]:
        return self.counts.reasons


@dataclass(frozen=True, slots=True)
class Difference:
    """`one` less `other` in one quantity, a name of DEFINITIONS; at a place in the draft for a name of BY_POSITION."""

    one: str
    other: str
    quantity: str
    position: int | None
    estimate: Estimate | None
    reason: str

    @property
    def word(self) -> str:
        """more, less, no difference seen, inconclusive or unavailable: of `one`, against `other`."""
        return "unavailable" if self.estimate is None else self.estimate.word


@dataclass(frozen=True, slots=True)
class Answers:
    """On how many prompts two contenders gave the same tokens; `same` is None, with the reason, without their ids."""

    one: str
    other: str
    same: int | None
    prompts: int
    reason: str = ""
    silent: tuple[str, ...] = ()
    """Those that did not tell their ids."""


@dataclass(frozen=True, slots=True)
class LevelComparison:
    """All contenders at one concurrency. `prompts` in common; `paired` unless each was measured on its own."""

    concurrency: int
    prompts: int
    paired: bool
    rows: list[Row]
    differences: list[Difference]
    answers: list[Answers]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `toolkit compare` found. `idle`, `labels` (what was allowed) and `caveats` are read before any number."""

    contenders: list[Contender]
    depths: dict[str, Depth]
    left_out: list[str]
    allowed: list[str]
    idle: list[str]
    labels: list[str]
    caveats: list[str]
    disagreements: list[str]
    levels: list[LevelComparison]


def compare(
    runs: Sequence[Run], concurrency: int | None = None, allow: Collection[str] = (), arms: Collection[str] = ()
) -> Comparison:
    """Compare every speculating arm of `runs`, or those named in `arms`, at one concurrency or at all common ones.

    Raises InputError for what is not alike and not in `allow` (keys of ALLOWABLE), for synthetic acceptance, for a Run
    that cannot be read, for fewer than two contenders.
    """
    unknown = [kind for kind in allow if kind not in ALLOWABLE]
    if unknown:
        known = "; ".join(f"{kind} ({what})" for kind, what in ALLOWABLE.items())
        raise InputError(f"--allow {unknown[0]}: one or more of {known}; commas between them.")
    who, left_out = contenders(runs, arms)
    levels = common_levels(who, concurrency)
    labels = check(who, levels, allow)
    depths = {one.name: depth(one) for one in who}
    found = [_level(who, level, depths) for level in levels]
    return Comparison(
        contenders=who,
        depths=depths,
        left_out=left_out,
        allowed=[kind for kind in ALLOWABLE if kind in allow],
        idle=_idle(who, found),
        labels=labels,
        caveats=[*_left_levels(who, levels, concurrency), *_caveats(who, found)],
        disagreements=[text for one in who for text in disagreements(one, levels)],
        levels=found,
    )


def _level(who: Sequence[Contender], level: int, depths: dict[str, Depth]) -> LevelComparison:
    common = common_prompts(who, level)
    together = len(common) >= FEWEST_COMMON
    groups: list[list[list[RequestRecord]]] = []
    for one in who:
        answered = one.answered(level)
        groups.append([answered[prompt] for prompt in common] if together else list(answered.values()))
    counts = [quantities(each, one.info.engine, depths[one.name].k) for one, each in zip(who, groups, strict=True)]
    rows = [_row(one, level, each, found) for one, each, found in zip(who, groups, counts, strict=True)]
    between = paired if together else unpaired
    return LevelComparison(
        concurrency=level,
        prompts=len(common),
        paired=together,
        rows=rows,
        differences=[found for pair in combinations(rows, 2) for found in _differences(*pair, between)],
        answers=[_answers(one, other, level) for one, other in combinations(who, 2)] if together else [],
    )


def _row(one: Contender, level: int, groups: Sequence[Sequence[RequestRecord]], counts: Quantities) -> Row:
    estimates = {name: found for name, ratio in counts.ratios.items() if (found := single(ratio)) is not None}
    records = [record for group in groups for record in group]
    served = len({record.prompt_hash for record in one.requests(level)})
    return Row(
        name=one.name,
        dropped=served - len(groups),
        counts=counts,
        estimates=estimates,
        positions=[
            PositionEstimate(p.position, single(p.unconditional), single(p.given) if p.given else None)
            for p in counts.positions
        ],
        own=own_figures(records, {name: found.value for name, found in estimates.items()}),
        aggregate=_aggregate(one, level) if counts.accepted is None else {},
    )


def _aggregate(one: Contender, level: int) -> dict[str, float]:
    """Ratios by the server's counters; empty where they do not tell either. They do not count passes."""
    stats = next(s for s in level_stats(one.run) if (s.arm, s.side, s.concurrency) == (one.info.name, "arm", level))
    told = {"acceptance_length": stats.acceptance_length, "draft_acceptance_rate": stats.draft_acceptance_rate}
    return {name: value for name, value in told.items() if value is not None}


def _differences(one: Row, other: Row, between: Between) -> Iterator[Difference]:
    for name in DEFINITIONS:
        ours, theirs = one.counts.ratios.get(name), other.counts.ratios.get(name)
        estimate = between(ours, theirs) if ours and theirs else None
        reason = "; ".join(f"{row.name}: {row.reasons[name]}" for row in (one, other) if name in row.reasons)
        yield Difference(one.name, other.name, name, None, estimate, reason)
    for mine, yours in zip(one.counts.positions, other.counts.positions, strict=False):
        yield _at(one, other, mine.position, "unconditional", between(mine.unconditional, yours.unconditional))
        if mine.given and yours.given:
            yield _at(one, other, mine.position, "given", between(mine.given, yours.given))


def _at(one: Row, other: Row, position: int, quantity: str, estimate: Estimate | None) -> Difference:
    assert quantity in BY_POSITION
    return Difference(one.name, other.name, quantity, position, estimate, "" if estimate else "no draft came so far")


def _answers(one: Contender, other: Contender, level: int) -> Answers:
    ours, theirs = one.answered(level), other.answered(level)
    prompts = [prompt for prompt in ours if prompt in theirs]
    pairs = [(ours[prompt][0].answer_ids_hash, theirs[prompt][0].answer_ids_hash) for prompt in prompts]
    silent = [who.name for who, side in ((one, 0), (other, 1)) if any(pair[side] is None for pair in pairs)]
    if silent:
        lengths = sum(ours[p][0].completion_tokens != theirs[p][0].completion_tokens for p in prompts)
        told = f"{' and '.join(silent)} did not tell the token ids of every answer"
        reason = f"{told}; {lengths} were of other lengths"
        return Answers(one.name, other.name, None, len(prompts), reason, tuple(silent))
    return Answers(one.name, other.name, sum(a == b for a, b in pairs), len(prompts))


def _idle(who: Sequence[Contender], levels: Sequence[LevelComparison]) -> list[str]:
    """Drafts that do nothing, which is said before any number."""
    said = []
    for number, one in enumerate(who):
        rows = [level.rows[number] for level in levels]
        lengths = [length for row in rows if (length := _length(row)) is not None]
        if lengths and max(lengths) < DOES_NOTHING:
            said.append(
                f"{one.name}: this draft does nothing here, its acceptance length is {max(lengths):.2f} at best"
            )
        elif one.info.speculates and all(row.counts.drafted == 0 for row in rows):
            said.append(f"{one.name}: this draft does nothing here, not one token was drafted")
    return said


def _length(row: Row) -> float | None:
    found = row.estimates.get("acceptance_length")
    return found.value if found else row.aggregate.get("acceptance_length")


def _left_levels(who: Sequence[Contender], levels: Sequence[int], asked: int | None) -> Iterator[str]:
    """Levels that some contenders were measured at and others not, unless one level was asked for."""
    for level in sorted(set().union(*(one.levels for one in who)) - set(levels)) if asked is None else ():
        without = [one.name for one in who if level not in one.levels]
        yield f"concurrency {level} is left out: {', '.join(without)} has no finished cell there"


def _caveats(who: Sequence[Contender], levels: Sequence[LevelComparison]) -> Iterator[str]:
    precisions = {one.name: one.info.precision or "unknown" for one in who}
    if len(set(precisions.values())) > 1:
        yield f"the precisions differ: {listed(precisions)}; so may the answers"
    for one in who:
        if fills_drafts(one.info.engine, one.info.method):
            yield (
                f"{one.name}: SGLang's n-gram fills every draft up to K, found or not, so its rate, its length and its "
                "positions count drafts that a lookup elsewhere never makes; tokens per pass compares"
            )
    for level in levels:
        for found in level.answers:
            if found.same is not None and found.same < found.prompts:
                yield (
                    f"at {level.concurrency}: {found.one} and {found.other} gave the same answer on {found.same} of "
                    f"{found.prompts} prompts; on the others acceptance is of different texts"
                )
    silent = dict.fromkeys(name for level in levels for found in level.answers for name in found.silent)
    if silent:
        yield (
            f"{' and '.join(silent)} did not tell the token ids of every answer: whether the answers are those of the "
            "others is not known"
        )
    if any(one.run.info.workload.reuse for one in who):
        yield REUSED


__all__ = ["ALLOWABLE", "DEFINITIONS", "NAMES", "Comparison", "compare"]
