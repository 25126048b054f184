"""What a tuning says: every K at every level, the schedule that follows, and what came of measuring that again.

The speedups that chose a schedule flatter it, since the best of several noisy numbers was taken. So it is judged by
`validate`, which is measured after the choice, on other prompts. It is kept when no level costs and one at which it
speculates pays. Of n levels at which nothing changes, one or more are said to cost in about 2.5 n % of validations;
that is one reason for the second try, the other that a costing range can be lowered. A try that failed stays named.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from toolkit.analysis.crossover import Level
from toolkit.analysis.escape import one_line
from toolkit.analysis.records import SCHEMA
from toolkit.analysis.tuning.draft_counts import Proof
from toolkit.analysis.tuning.schedule import Schedule, as_lists, k_at, lowered, schedule_of, thresholds

TRIES = 2  # of validation: the schedule as chosen, and once more lowered where it cost

Outcome = Literal["unfinished", "kept", "not kept", "does not pay", "contradicted"]


class TuneInfo(BaseModel):
    """`tune.json`: what was asked, everything filled in."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, allow_inf_nan=False)

    schema_: int = Field(SCHEMA, alias="schema", ge=SCHEMA, le=SCHEMA)
    profile: str
    source: str = Field(description="the profile as it was asked for: a shipped name or a file")
    changes: list[str]
    ks: list[int] = Field(description="draft lengths explored, all above 0")
    levels: list[int]
    rounds: int
    most: int = Field(description="the largest batch that the schedule covers")
    workload: str
    requests: int | None
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class Explored:
    """One K at one concurrency against no speculation. `dropped_after` pairs it was clearly dominated."""

    k: int
    level: Level
    dropped_after: int | None

    def __str__(self) -> str:
        """The speedup with its interval; without one where so few pairs were measured that it would mislead."""
        if self.dropped_after is None or self.level.speedup is None:
            return interval(self.level)
        return f"{self.level.speedup:.2f}, dropped after {self.dropped_after}"

    def as_json(self) -> dict[str, Any]:
        return {"k": self.k, **self.level.as_json(), "dropped_after": self.dropped_after}


@dataclass(frozen=True, slots=True)
class Validation:
    """A schedule measured after it was chosen, against no speculation."""

    arm: str
    schedule: Schedule
    levels: list[Level]
    collapses: list[int]

    @property
    def faulty(self) -> list[int]:
        """Levels that cost, that collapse, and where it speculates without a measurement that could tell."""
        return [
            level.concurrency
            for level in self.levels
            if level.verdict == "costs"
            or level.concurrency in self.collapses
            or (level.withheld and k_at(self.schedule, level.concurrency) > 0)
        ]

    @property
    def pays(self) -> bool:
        """Whether any level at which it speculates pays; elsewhere both arms do the same, and a gain is noise."""
        return any(level.verdict == "pays" and k_at(self.schedule, level.concurrency) > 0 for level in self.levels)

    def lowered(self) -> Schedule:
        """The schedule without speculation from each faulty level to the end of its range."""
        return lowered(self.schedule, [level.concurrency for level in self.levels], self.faulty)

    def sentences(self) -> list[str]:
        """What is wrong at each faulty level, the thresholds and collapses named."""
        edges = thresholds(self.schedule)
        said = []
        for level in self.levels:
            n = level.concurrency
            edge = next((t for t in edges if abs(n - t) <= 1), None)
            where = f"at {n}" + (f", beside the threshold at {edge}," if edge is not None else "")
            if n in self.collapses:
                said.append(f"{where} throughput collapses: under half of both neighbours (as in vllm#49548)")
            elif n in self.faulty:
                said.append(f"{where} {'it costs: ' + interval(level) if level.verdict == 'costs' else level.reason}")
        return said

    def as_json(self) -> dict[str, Any]:
        return {
            "schedule": as_lists(self.schedule),
            "levels": [{"k": k_at(self.schedule, one.concurrency), **one.as_json()} for one in self.levels],
            "faulty": self.faulty,
            "collapses": self.collapses,
        }


@dataclass(frozen=True)
class Tuning:
    """What is known of a tuning. `path` is the profile that was written, None when none was."""

    info: TuneInfo
    explored: list[Explored]
    choices: dict[int, int]
    validations: list[Validation]
    parent: list[Level] | None
    proofs: list[Proof]
    explored_all: bool
    provenance: dict[str, str]
    path: Path | None = None

    @cached_property
    def schedule(self) -> Schedule | None:
        """The schedule to measure next, or the one that was decided on; None where nothing pays or is known."""
        if not self.explored_all or not any(self.choices.values()):
            return None
        if not self.validations:
            return schedule_of(self.choices, self.info.most)
        last = self.validations[-1]
        return last.lowered() if self._tries_again else last.schedule

    @property
    def _tries_again(self) -> bool:
        last = self.validations[-1]
        return bool(last.faulty) and len(self.validations) < TRIES and any(k for *_, k in last.lowered())

    @property
    def outcome(self) -> Outcome:
        """`kept`: no level costs and one that speculates pays, measured after the choice."""
        if any(proof.verdict == "contradicted" for proof in self.proofs):
            return "contradicted"
        if not self.explored_all:
            return "unfinished"
        if not any(self.choices.values()):
            return "does not pay"
        if not self.validations or self._tries_again:
            return "unfinished"
        last = self.validations[-1]
        return "kept" if last.pays and not last.faulty else "not kept"

    @property
    def exit_code(self) -> int:
        """0 for an answer; 1 where a fault was found, the schedule not holding or an arm drafting otherwise."""
        return 0 if self.outcome in ("kept", "does not pay") else 1

    @property
    def reason(self) -> str:
        """Why the outcome is what it is, in one sentence."""
        wrong = [proof for proof in self.proofs if proof.verdict == "contradicted"]
        if wrong:
            first = wrong[0]
            return f"{first.arm} at {first.concurrency} does not draft by its K = {first.k}: {first.sentence}."
        if self.outcome == "does not pay":
            return "Speculation does not pay here at any level, with any K tried: leave it off."
        if self.outcome == "unfinished":
            return "The measurement has not ended; the same command goes on."
        last = self.validations[-1]
        if self.outcome == "kept":
            before = "; a try before it did not hold" if self.failed else ""
            return f"Measured again, it pays and costs at no level{before}."
        if last.faulty:
            again = " again" if len(self.validations) > 1 else ""
            return f"The schedule does not hold: measured{again}, {'; '.join(last.sentences())}."
        return (
            "The gain did not come back: measured after the choice, the schedule pays at no level where it speculates."
        )

    @property
    def failed(self) -> list[str]:
        """A sentence for each try before the last: a schedule that was measured and did not hold."""
        return [
            f"A try before it, {in_words(one.schedule)}, did not hold: {'; '.join(one.sentences())}."
            for one in self.validations[:-1]
        ]

    @property
    def beyond(self) -> str | None:
        """What the schedule does above the highest level, where no K was measured; None where it ends there."""
        top = max(self.info.levels)
        if not self.schedule or self.schedule[-1][1] <= top:
            return None
        k = self.schedule[-1][2]
        return f"Above {top} no K was measured: {f'K = {k} is carried on' if k else 'off'}."

    def as_json(self) -> dict[str, Any]:
        """The keys of `toolkit tune --json`."""
        return {
            "schema": SCHEMA,
            "profile": self.info.profile,
            "outcome": self.outcome,
            "reason": self.reason,
            "schedule": as_lists(self.schedule) if self.schedule and self.outcome == "kept" else None,
            "path": str(self.path) if self.path else None,
            "k_by_level": {str(level): k for level, k in self.choices.items()},
            "explored": [one.as_json() for one in self.explored],
            "validations": [one.as_json() for one in self.validations],
            "against_parent": None if self.parent is None else [level.as_json() for level in self.parent],
            "proofs": [one.as_json() for one in self.proofs],
            **self.provenance,
        }

    def lines(self) -> list[str]:
        """The tuning for people, a line each: the table, the schedule, what measuring it again said, the proofs."""
        seen = self.provenance
        said = [f"{self.info.profile}: {self.reason}"]
        if seen:
            said.append(f"{seen['machine']}; {seen['engine']}; workload {seen['workload']}; {seen['date']}.")
        if self.explored:
            said += ["", "Speedup over no speculation by K and concurrency, exploring (95 % intervals, * chosen):"]
            said += _aligned(self._table())
        if self.schedule and self.outcome in ("kept", "unfinished"):
            kept = "Schedule" if self.outcome == "kept" else "Schedule still to be judged"
            said += ["", f"{kept}: {in_words(self.schedule)}."]
            said += [self.beyond] if self.beyond else []
        for number, validation in enumerate(self.validations, start=1):
            said += ["", f"Measured again ({number}), {in_words(validation.schedule)}:"]
            said += _aligned([_judged(level, validation.schedule) for level in validation.levels])
            said += validation.sentences()
        if self.parent is not None:
            said += ["", f"Throughput over {self.info.profile} as written:"]
            said += _aligned([[f"at {one.concurrency}", interval(one), _VERSUS[one.verdict]] for one in self.parent])
        if self.proofs:
            said += ["", "Drafted counts:"]
            said += _aligned(_proven(self.proofs))
            said += not_proven(self.proofs)
        if self.path is not None:
            said += ["", f"Written: {self.path}"]
        return [line[: len(line) - len(line.lstrip(" "))] + one_line(line) for line in said]

    def _table(self) -> list[list[str]]:
        by_place = {(one.k, one.level.concurrency): one for one in self.explored}
        rows = [["", *(f"at {n}" for n in self.info.levels)]]
        for k in self.info.ks:
            row = [f"K = {k}"]
            for n in self.info.levels:
                one = by_place.get((k, n))
                chosen = " *" if self.choices.get(n) == k else ""
                row.append("" if one is None else f"{one}{chosen}")
            rows.append(row)
        return rows


_VERSUS = {"pays": "faster", "costs": "slower", "inconclusive": "no difference seen"}


def in_words(schedule: Schedule) -> str:
    """`K = 4 for 1-8 requests, none for 9-64`.

    >>> in_words([(1, 1, 8), (2, 8, 4), (9, 64, 0)])
    'K = 8 for 1 request, K = 4 for 2-8, none for 9-64'
    """
    ranges = [(f"{first}-{last}" if first < last else f"{first}", k) for first, last, k in schedule]
    parts = [f"{f'K = {k}' if k else 'none'} for {batch}" for batch, k in ranges]
    return ", ".join([f"{parts[0]} request{'' if ranges[0][0] == '1' else 's'}", *parts[1:]])


def _judged(level: Level, schedule: Schedule) -> list[str]:
    k = k_at(schedule, level.concurrency)
    return [f"at {level.concurrency}", f"K = {k}", interval(level), level.verdict, level.reason]


def not_proven(proofs: Sequence[Proof]) -> list[str]:
    """One sentence that names each K above 0 that the drafted counts do not prove; none where they prove all."""
    open_ = [one for one in proofs if one.k and one.verdict in ("unproven", "shares")]
    places = [f"K = {k} of {arm} at {levels}" for (arm, k, _), levels, _ in _grouped(open_)]
    return [f"Not proven by the drafted counts: {'; '.join(places)}."] if places else []


def _proven(proofs: Sequence[Proof]) -> list[list[str]]:
    return [
        [arm, f"K = {k}", f"{verdict} at {levels}", sentence]
        for (arm, k, verdict), levels, sentence in _grouped(proofs)
    ]


def _grouped(proofs: Sequence[Proof]) -> list[tuple[tuple[str, int, str], str, str]]:
    """By arm, K and verdict: the levels as text, and the sentence of the lowest."""
    groups: dict[tuple[str, int, str], list[Proof]] = {}
    for one in proofs:
        groups.setdefault((one.arm, one.k, one.verdict), []).append(one)
    return [(key, ", ".join(str(one.concurrency) for one in group), group[0].sentence) for key, group in groups.items()]


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def interval(level: Level) -> str:
    """`1.20 [1.10, 1.30]`, as far as it is known."""
    if level.speedup is None:
        return "unavailable"
    known = level.low is not None and level.high is not None
    return f"{level.speedup:.2f}" + (f" [{level.low:.2f}, {level.high:.2f}]" if known else "")
