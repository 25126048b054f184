"""The sections that answer: where it pays, why it stops paying, and whether that was to be expected."""

from collections.abc import Sequence
from functools import partial

from toolkit.analysis.crossover import ArmResult, Crossover, Level
from toolkit.analysis.factors import LevelFactors
from toolkit.analysis.forecast.cost import MeasuredCost
from toolkit.analysis.forecast.predict import Prediction, predictions
from toolkit.analysis.levels import LevelStats, cross_check, level_stats
from toolkit.analysis.plots import crossover_figure, factors_figure
from toolkit.analysis.records import Side
from toolkit.analysis.report.page import NONE, Section, Table, number, percent, picture, ratio, sentence
from toolkit.analysis.run import RANDOM, Run

SIGNS = {"pays": "▲ pays", "costs": "▼ costs", "inconclusive": "○ inconclusive"}  # as the markers of the figure
COLUMNS = ("n", "speedup", "95 % interval", "verdict", "tok/s", "baseline", "tok/pass", "accepted", "pairs")
PLANNED = ("n", "K", "predicted", "measured", "error", "what binds")
MOST_ERRORS = 5
CLOSE = 0.15  # of the measured speedup
OWN = (
    "A pass costs what the iterations of this Run's own baseline took, and the arm's own time was not used: this is no "
    "test of a plan."
)

Stats = dict[tuple[str, Side, int], LevelStats]


def speedups(run: Run, result: Crossover, name: str, heading: str) -> Section:
    """The crossover with its intervals, and what must be said of single levels."""
    stats: Stats = {(one.arm, one.side, one.concurrency): one for one in level_stats(run)}
    shown = [one for one in result.results if one.levels]
    points = [
        f"{one.arm} at {level.concurrency}: {ratio(level.speedup)} {level.verdict}"
        for one in shown
        for level in one.levels
    ]
    return Section(
        heading=heading,
        picture=picture(
            lambda width: crossover_figure(result, "", width),
            f"{name}-crossover",
            f"Speedup over concurrency. {'; '.join(points)}.",
            "Output tokens per second, arm over baseline: above 1 speculation pays.",
        ),
        tables=[
            Table(
                caption=f"{one.arm} against {result.baseline}" if result.baseline else f"{one.arm}, no baseline",
                columns=COLUMNS,
                rows=[_speedup_row(level, stats, one.arm, result.baseline) for level in one.levels],
                words=frozenset({COLUMNS.index("verdict")}),
            )
            for one in shown
        ],
        remarks=[*(text for one in shown for text in _doubts(one)), *_failures(run), *cross_check(run)],
    )


def why(one: ArmResult, name: str, remark: str) -> Section:
    """Which factor turned the sign. The heading is of the first level that lost, or of the last one."""
    levels = [level.factors for level in one.levels if level.factors is not None]
    reasons = list(dict.fromkeys(sentence(level.reason) for level in levels if level.reason))
    told = [level for level in levels if level.sentence]
    if not any(level.tokens_per_pass or level.passes_per_iteration for level in levels):
        nothing = sentence(RANDOM) if one.load_only else "It takes both sides of a pair, and no level has one."
        texts = [*(_said(level) for level in told), *reasons]
        return Section(f"Why {one.arm} gains or loses is unavailable", texts=texts or [nothing])
    turn = next((level for level in told if level.speedup and level.speedup < 1), told[-1] if told else None)
    columns = ["n", "speedup", "tok/pass", "passes/iter.", "s/iter."]
    rows, product = [_three(level) for level in levels], "passes per iteration / seconds per iteration"
    if not any(level.seconds_per_iteration for level in levels):
        columns = [*columns[:3], "passes/s"]
        rows, product = [_two(level) for level in levels], "passes per second"
    points = "; ".join(f"at {row[0]}: speedup {row[1]}, tokens per pass {row[2]}" for row in rows)
    others = [_said(level) for level in told if level is not turn]
    return Section(
        heading=f"Why, for {one.arm}: {turn.sentence}" if turn else f"What makes the speedup of {one.arm}",
        picture=picture(
            partial(factors_figure, levels, "", remark),
            f"{name}-factors",
            f"The factors of the speedup of {one.arm}. {points}.",
            "Each factor, arm over baseline, on one scale: above 1 it helps, below 1 it costs. Their product is the "
            "speedup.",
        ),
        tables=[Table(f"{one.arm}: speedup = tokens per pass x {product}", columns, rows)],
        remarks=[*others, *reasons],
    )


def plan(run: Run, cost: MeasuredCost | None) -> Section:
    """Predicted beside measured, with what binds."""
    found = predictions(run, cost)
    if cost is None or not found:
        return Section("The plan is unavailable", texts=[_no_plan(cost)])
    tables = [
        Table(f"{arm}: speedup, predicted and measured", PLANNED, [_planned(one) for one in found if one.arm == arm],
              frozenset({PLANNED.index("what binds")}))
        for arm in dict.fromkeys(one.arm for one in found)
    ]  # fmt: skip
    return Section(
        heading=_plan_heading(found, cost),
        texts=[OWN if cost.source else "Predicted from the cost of a pass and this Run's own acceptance."],
        tables=tables,
        remarks=[
            *(f"Cost: {source}." for source in dict.fromkeys(one.source for one in found)),
            *_elsewhere(run, cost),
        ],
    )


def _plan_heading(found: Sequence[Prediction], cost: MeasuredCost) -> str:
    """The score, where the prediction could have failed: not from the Run's own baseline, and beside a measurement."""
    if cost.source:
        return "What the baseline's iterations and the acceptance imply"
    errors = [one.error for one in found if one.error is not None]
    if not errors:
        return "What the cost of a pass and the acceptance imply"
    close = sum(abs(error) <= CLOSE for error in errors)
    return f"The plan came within {CLOSE:.0%} of the measurement at {close} of {len(errors)} points"


def _speedup_row(level: Level, stats: Stats, arm: str, baseline: str | None) -> tuple[str, ...]:
    ours, theirs = stats.get((arm, "arm", level.concurrency)), stats.get((arm, "baseline", level.concurrency))
    interval = f"{level.low:.2f}–{level.high:.2f}" if level.low is not None and level.high is not None else NONE
    return (
        str(level.concurrency),
        ratio(level.speedup),
        interval,
        SIGNS[level.verdict] if baseline else NONE,
        number(ours.tokens_per_second if ours else None, 1),
        number(theirs.tokens_per_second if theirs else None, 1),
        number(level.tokens_per_pass),
        percent(level.draft_acceptance_rate),
        str(level.pairs),
    )


def _doubts(one: ArmResult) -> list[str]:
    """What is said of the levels of one arm, the same of several levels once."""
    at: dict[str, list[int]] = {}
    for level in one.levels:
        for text in filter(None, (level.reason if level.withheld else level.advice, *level.notes)):
            at.setdefault(text, []).append(level.concurrency)
    return [f"{one.arm} at {', '.join(map(str, levels))}: {text}." for text, levels in at.items()]


def _failures(run: Run) -> list[str]:
    """The commonest errors of requests."""
    counts: dict[tuple[str, str], int] = {}
    for record in run.requests():
        if record.error is not None:
            counts[record.served_by, record.error] = counts.get((record.served_by, record.error), 0) + 1
    commonest = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MOST_ERRORS]
    return [f"{name}, failed requests: {count} x {error[:200]}" for (name, error), count in commonest]


def _said(level: LevelFactors) -> str:
    return sentence(level.sentence[:1].upper() + level.sentence[1:])


def _three(level: LevelFactors) -> tuple[str, ...]:
    return (str(level.concurrency), ratio(level.speedup), ratio(level.tokens_per_pass),
            ratio(level.passes_per_iteration), ratio(level.seconds_per_iteration))  # fmt: skip


def _two(level: LevelFactors) -> tuple[str, ...]:
    return (str(level.concurrency), ratio(level.speedup), ratio(level.tokens_per_pass), ratio(level.passes_per_second))


def _planned(one: Prediction) -> tuple[str, ...]:
    error = NONE if one.error is None else f"{one.error:+.0%}"
    return (str(one.concurrency), str(one.k), ratio(one.speedup), ratio(one.measured), error, one.limit)


def _elsewhere(run: Run, cost: MeasuredCost) -> list[str]:
    """A cost of another model or another machine predicts, but of something else."""
    said = []
    if cost.model not in {info.model for info in run.info.arms}:
        said.append(f"The cost is of another model, {cost.model}.")
    parts = ("cpu", "cores", "gpus")
    if cost.hardware and any(cost.hardware.get(part) != run.info.hardware.get(part) for part in parts):
        said.append("The cost was measured on another machine than this Run.")
    return said


def _no_plan(cost: MeasuredCost | None) -> str:
    if cost is None:
        return (
            "Nothing says what a pass costs: this Run has no baseline at two levels whose engine counts its "
            "iterations. toolkit verify-cost measures it on the machine, and --cost names what it wrote."
        )
    return (
        f"The cost measured on {cost.name} does not cover these arms: their drafting was not measured, or their tokens "
        "per pass are unavailable."
    )
