"""Where speculation stops paying: per concurrency the speedup with its interval, a verdict, and the bracket.

The interval and why it is this one: `pairs`. A crossover is a bracket, the highest concurrency that still pays and the
lowest that costs, and never a point between them; where a level costs below one that pays there is none. A level whose
interval holds 1 says how many pairs would show a speedup of 1.10 at its own noise.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any, Literal

from toolkit.analysis.acceptance import AcceptanceGroup, Position, by_category, by_context, by_position
from toolkit.analysis.causes import runs_few
from toolkit.analysis.caveats import REQUESTS_PER_SLOT as REQUESTS_PER_SLOT
from toolkit.analysis.caveats import caveats, does_nothing, no_verdict, notes
from toolkit.analysis.factors import LevelFactors, factors
from toolkit.analysis.levels import LevelStats, level_stats
from toolkit.analysis.pairs import ENOUGH_PAIRS as ENOUGH_PAIRS
from toolkit.analysis.pairs import Pair, mean_and_half, pairs_of, running_peaks
from toolkit.analysis.power import likely_sd, pairs_needed
from toolkit.analysis.records import CellRecord
from toolkit.analysis.run import RANDOM, SYNTHETIC, ArmInfo, Run

Verdict = Literal["pays", "costs", "inconclusive"]
MOST_PAIRS = 1000  # a level that needs more is said to need at least these


@dataclass(frozen=True, slots=True)
class Level:
    """One concurrency of one arm. `speedup`, `low`, `high` are ratios of output tokens per second."""

    concurrency: int
    speedup: float | None
    low: float | None
    high: float | None
    verdict: Verdict
    reason: str
    pairs: int
    tokens_per_pass: float | None
    draft_acceptance_rate: float | None
    acceptance_length: float | None = None
    withheld: bool = False
    """Whether `reason` says why there can be no verdict, rather than where the interval lies."""
    notes: tuple[str, ...] = ()
    """What a reader must know before believing the numbers of this level."""
    running: float | None = None
    """The most requests that were seen to run at once, on the side that ran fewer."""
    pairs_needed: int | None = None
    """Of a level whose interval holds 1: pairs that would show a speedup of 1.10 here in nine of ten sweeps."""
    factors: LevelFactors | None = None

    @property
    def reached(self) -> bool | None:
        """Whether the asked concurrency was ever seen to run."""
        return None if self.running is None else not runs_few(self.running, self.concurrency)

    @property
    def advice(self) -> str:
        """Of a level whose interval holds 1: what it takes to see an effect of 10 % there; else empty."""
        if self.pairs_needed is None:
            return ""
        if self.pairs_needed <= self.pairs:
            return f"an effect of 10 % would have shown in 9 of 10 sweeps of {self.pairs} pairs"
        least = "at least" if self.pairs_needed >= MOST_PAIRS else "about"
        return f"an effect of 10 % here needs {least} {self.pairs_needed} pairs (--rounds {self.pairs_needed})"

    def as_json(self) -> dict[str, Any]:
        """The keys of a level in `toolkit crossover --json`; the notes follow the reason."""
        keys = ("concurrency", "speedup", "low", "high", "verdict", "reason", "pairs", "tokens_per_pass")
        more = ("draft_acceptance_rate", "acceptance_length", "running", "reached", "pairs_needed")
        values = {key: getattr(self, key) for key in (*keys, *more)}
        why = asdict(self.factors) if self.factors else None
        return {**values, "reason": "; ".join([self.reason, *self.notes]), "factors": why}


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Where an arm's draft tokens were kept, over all its levels. Empty lists are unavailable."""

    by_position: list[Position]
    by_category: list[AcceptanceGroup]
    by_context: list[AcceptanceGroup]

    def as_json(self) -> dict[str, Any]:
        """Counts and ratios alike, in `toolkit crossover --json`."""
        groups = {"by_category": self.by_category, "by_context": self.by_context}
        return {
            "by_position": [
                {**asdict(one), "given": one.given, "unconditional": one.unconditional} for one in self.by_position
            ],
            **{
                name: [
                    {
                        **asdict(one),
                        "draft_acceptance_rate": one.draft_acceptance_rate,
                        "acceptance_length": one.acceptance_length,
                    }
                    for one in found
                ]
                for name, found in groups.items()
            },
        }


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One arm on one workload, its levels by rising concurrency, and the bracket of the crossover."""

    arm: str
    workload: str
    levels: list[Level]
    synthetic: bool = False
    """Whether a side accepted drafts by lot: then everything here is for sizing only."""
    acceptance: Acceptance = field(default_factory=lambda: Acceptance([], [], []))
    idle: bool = False
    """Whether its draft does nothing here, which is said before any verdict."""
    load_only: bool = False
    """Whether the prompts were random: then neither acceptance nor speedup is claimed."""

    @property
    def label(self) -> str:
        """The arm's name as every title and sentence shows it."""
        if self.load_only:
            return f"{self.arm} (load only)"
        return f"{self.arm} ({SYNTHETIC})" if self.synthetic else self.arm

    @property
    def pays_up_to(self) -> int | None:
        """The highest concurrency that still pays."""
        return max(self._at("pays"), default=None)

    @property
    def costs_from(self) -> int | None:
        """The lowest concurrency that costs."""
        return min(self._at("costs"), default=None)

    @property
    def monotone(self) -> bool:
        """Whether no level that costs lies below one that pays; an inconclusive one between two that pay may."""
        return not (self.pays_up_to and self.costs_from) or self.pays_up_to < self.costs_from

    def answer(self, baseline: str | None) -> str:
        """What this arm's levels say against `baseline`: one sentence, the same wherever it stands, no full stop."""
        who = f"{self.label}, whose draft does nothing here" if self.idle else self.label
        if not self.levels:
            return f"{who}: no cell is finished"
        if self.load_only:
            return f"{self.arm}: {RANDOM}"
        if baseline is None:
            return f"{who}: speedup is unavailable, no baseline was measured"
        return f"{who}{',' if self.idle else ''} {self.bracket_sentence}"

    @property
    def bracket(self) -> str:
        """The bracket in a few words, for a legend: `pays up to 4, costs from 16`."""
        if not self.monotone:
            return "not monotone"
        parts = [f"pays up to {self.pays_up_to}"] if self.pays_up_to is not None else []
        parts += [f"costs from {self.costs_from}"] if self.costs_from is not None else []
        return ", ".join(parts) or "inconclusive at every concurrency"

    @property
    def bracket_sentence(self) -> str:
        """The bracket, to follow the arm's name: `pays up to concurrency 4 and costs from 16; ...`."""
        pays, costs = self.pays_up_to, self.costs_from
        if not self.monotone:
            told = groupby((one for one in self.levels if one.verdict != "inconclusive"), lambda one: one.verdict)
            turns = [f"{verdict} at {_and([one.concurrency for one in levels])}" for verdict, levels in told]
            return f"is not monotone: it {_and(turns)}"
        doubts = [n for n in self._at("inconclusive") if (pays and n < pays) or (costs and n > costs)]
        doubt = f" (inconclusive at {_and(doubts)})" if doubts else ""
        if pays is None and costs is None:
            return "is inconclusive at every concurrency measured"
        if pays is None:
            return f"costs from concurrency {costs} on and was not seen to pay{doubt}"
        if costs is None:
            return f"pays up to concurrency {pays} and was not seen to cost{doubt}"
        return f"pays up to concurrency {pays} and costs from {costs}; the crossover lies between{doubt}"

    def _at(self, verdict: Verdict) -> list[int]:
        return [level.concurrency for level in self.levels if level.verdict == verdict]


@dataclass(frozen=True, slots=True)
class Crossover:
    """What a Run says. `as_json` is the stable form. `caveats` are to be read before any speedup."""

    baseline: str | None
    results: list[ArmResult]
    caveats: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """The keys of `toolkit crossover --json`."""
        return {
            "schema": 1,
            "baseline": self.baseline,
            "caveats": self.caveats,
            "results": [
                {
                    "arm": result.arm,
                    "workload": result.workload,
                    "synthetic": result.synthetic,
                    "levels": [level.as_json() for level in result.levels],
                    "pays_up_to": result.pays_up_to,
                    "costs_from": result.costs_from,
                    "monotone": result.monotone,
                    "answer": result.answer(self.baseline),
                    "acceptance": result.acceptance.as_json(),
                }
                for result in self.results
            ],
        }


def crossover(run: Run) -> Crossover:
    """Analyse a Run directory; no engine is needed. Raises InputError when it is not whole."""
    run.check_whole()
    stats = level_stats(run)
    baseline = run.info.baseline
    synthetic = {info.name for info in [*run.info.arms, *([baseline] if baseline else [])] if info.synthetic}
    load_only = run.info.workload.random
    results = [
        ArmResult(
            arm.name,
            run.info.workload.name,
            _levels(run, arm, stats),
            synthetic=bool(synthetic & {arm.name, baseline.name if baseline else ""}),
            acceptance=Acceptance([], [], []) if load_only else _acceptance(run, arm),
            idle=bool(does_nothing(arm, [one for one in stats if (one.arm, one.side) == (arm.name, "arm")])),
            load_only=load_only,
        )
        for arm in run.info.arms
    ]
    return Crossover(baseline.name if baseline else None, results, caveats(run, stats))


def _acceptance(run: Run, arm: ArmInfo) -> Acceptance:
    return Acceptance(by_position(run, arm.name), by_category(run, arm.name), by_context(run, arm.name))


def verdict_of(low: float, high: float) -> Verdict:
    """pays above 1, costs below 1, inconclusive when the interval contains 1."""
    return "pays" if low > 1 else "costs" if high < 1 else "inconclusive"


def _levels(run: Run, arm: ArmInfo, stats: Sequence[LevelStats]) -> list[Level]:
    sides = {(one.side, one.concurrency): one for one in stats if one.arm == arm.name}
    pairs = pairs_of(run, arm.name)
    why = {one.concurrency: one for one in factors(run, arm.name)}
    cells: dict[int, list[CellRecord]] = {}
    for record in run.cells():
        if record.cell.arm == arm.name:
            cells.setdefault(record.cell.concurrency, []).append(record)
    return [
        _level(run, arm, sides["arm", n], sides.get(("baseline", n)), pairs.get(n, []), cells[n], why.get(n))
        for n in sorted(run.info.levels)
        if ("arm", n) in sides
    ]


def _level(
    run: Run,
    arm: ArmInfo,
    ours: LevelStats,
    theirs: LevelStats | None,
    pairs: Sequence[Pair],
    cells: Sequence[CellRecord],
    why: LevelFactors | None,
) -> Level:
    logs = [pair.log_ratio for pair in pairs if pair.log_ratio is not None]
    speedup = low = high = None
    if logs:
        mean, half = mean_and_half(logs)
        speedup = math.exp(mean)
        low, high = (math.exp(mean - half), math.exp(mean + half)) if math.isfinite(half) else (None, None)
    peaks = running_peaks(run, arm.name, ours.concurrency)
    reason = no_verdict(run, arm, ours, theirs, pairs, peaks, cells)
    withheld = bool(reason)
    verdict: Verdict = "inconclusive"
    if not reason and low is not None and high is not None:
        verdict = verdict_of(low, high)
        reason = _verdict_reason(verdict)
    needed = None
    if verdict == "inconclusive" and not withheld:
        needed = min(max(pairs_needed(likely_sd(logs)), ENOUGH_PAIRS), MOST_PAIRS)
    return Level(
        concurrency=ours.concurrency,
        speedup=speedup,
        low=low,
        high=high,
        verdict=verdict,
        reason=reason,
        pairs=len(logs),
        tokens_per_pass=ours.tokens_per_pass,
        draft_acceptance_rate=ours.draft_acceptance_rate,
        acceptance_length=ours.acceptance_length,
        withheld=withheld,
        notes=tuple(notes(run, arm, cells)),
        running=min(peaks.values(), default=None),
        pairs_needed=needed,
        factors=why,
    )


def _verdict_reason(verdict: Verdict) -> str:
    where = {"pays": "lies above 1", "costs": "lies below 1", "inconclusive": "contains 1"}[verdict]
    return f"the 95 % interval {where}"


def _and(things: Sequence[object]) -> str:
    """`1, 4 and 16`."""
    *before, last = map(str, things)
    return f"{', '.join(before)} and {last}" if before else last
