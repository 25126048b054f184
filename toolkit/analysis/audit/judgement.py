"""What a test, a level and an audit come to; many tests judged at once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["lossless", "lossy", "inconclusive"]
ALARM = 0.01
"""The chance of one or more false alarms in an audit of a lossless server."""
LEVELS = ("greedy", "distribution", "acceptance", "structure")


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison. `p` is None for a figure that is shown but not judged, `counted` False for one that cannot be
    judged here, `note` says why. `n` is what was compared: tokens, requests or prompts."""

    name: str
    statistic: float
    p: float | None
    n: int
    counted: bool = True
    note: str = ""

    @property
    def judged(self) -> bool:
        return self.counted and self.p is not None

    def as_json(self) -> dict[str, Any]:
        found = {"name": self.name, "statistic": self.statistic, "p": self.p, "n": self.n}
        return {**found, **({"note": self.note} if self.note else {})}


@dataclass(frozen=True, slots=True)
class Findings:
    """One level's tests before they are judged. `gap` says what is missing for a verdict of lossless, if anything."""

    tests: list[Check] = field(default_factory=list)
    gap: str = ""
    proved: str = ""
    examples: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Level:
    """One level, judged."""

    verdict: Verdict
    tests: list[Check]
    reason: str
    examples: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {"verdict": self.verdict, "tests": [test.as_json() for test in self.tests], "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Judgement:
    """The whole audit. Lossless only where greedy and sampled output both were shown to be."""

    levels: dict[str, Level]
    power: float | None = None

    @property
    def verdict(self) -> Verdict:
        found = {level.verdict for level in self.levels.values()}
        if "lossy" in found:
            return "lossy"
        shown = all(self.levels[name].verdict == "lossless" for name in ("greedy", "distribution"))
        return "lossless" if shown else "inconclusive"

    def as_json(self) -> dict[str, Any]:
        levels = {name: self.levels[name].as_json() for name in LEVELS}
        return {"verdict": self.verdict, **levels, "smallest_total_variation_caught": self.power}


def judge(findings: dict[str, Findings], power: float | None = None) -> Judgement:
    """Every level's verdict, by Holm's step-down over all judged tests at once (Scandinavian Journal of Statistics 6,
    1979): the chance of one or more false alarms stays under `ALARM` however the tests depend on one another."""
    judged = [test for found in findings.values() for test in found.tests if test.judged]
    rejected = holm([test.p or 0.0 for test in judged])
    guilty = {id(test) for test, bad in zip(judged, rejected, strict=True) if bad}
    return Judgement({name: _level(found, guilty) for name, found in findings.items()}, power)


def holm(p: Sequence[float], alarm: float = ALARM) -> list[bool]:
    """Which hypotheses are rejected, in the order given."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    rejected = [False] * len(p)
    for rank, i in enumerate(order):
        if p[i] > alarm / (len(p) - rank):
            break
        rejected[i] = True
    return rejected


def _level(found: Findings, guilty: set[int]) -> Level:
    bad = [test for test in found.tests if id(test) in guilty]
    if bad:
        worst = min(bad, key=lambda test: test.p or 0.0)
        said = f"{worst.name}: {worst.note}" if worst.note else worst.name
        chance = f"p = {worst.p:.2g}" if worst.p else "certain"
        return Level("lossy", found.tests, f"{said} ({chance})", found.examples)
    if found.gap:
        return Level("inconclusive", found.tests, found.gap)
    return Level("lossless", found.tests, found.proved)
