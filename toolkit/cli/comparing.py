"""The command that compares Runs, and its tables. It needs no engine."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from toolkit.analysis.escape import one_line
from toolkit.cli.options import Allow, AsJson, allowed, print_json
from toolkit.cli.tables import plain_table
from toolkit.terminal import NONE, err, say, show

if TYPE_CHECKING:
    from toolkit.analysis.compare.comparison import Comparison, Difference, LevelComparison
    from toolkit.analysis.compare.interval import Estimate

app = typer.Typer()
SHORT = {"acceptance_length": "length", "tokens_per_pass": "tok/pass", "draft_acceptance_rate": "accepted"}
MOST_POSITIONS = 8  # in a terminal; all are in the JSON
MOST_IN_FULL = 3  # contenders of which every pair is shown


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories; every arm is a contender.")],
    concurrency: Annotated[int | None, typer.Option(help="One level; every common one when absent.")] = None,
    arm: Annotated[list[str] | None, typer.Option(help="Only this arm of these Runs; repeatable.")] = None,
    allow: Allow = None,
    as_json: AsJson = False,
    plot: Annotated[Path | None, typer.Option(help="Where the plot goes; compare.png in the first RUN.")] = None,
) -> None:
    """Which engine or draft is accepted more? The same prompts, one definition of each number, paired differences."""
    from toolkit.analysis.compare.comparison import compare as analyse
    from toolkit.analysis.compare.output import as_json as to_json
    from toolkit.analysis.plots.comparison import plot_comparison
    from toolkit.analysis.run import Run

    found = analyse([Run(folder) for folder in runs], concurrency, allowed(allow), arm or ())
    if as_json:
        print_json(to_json(found))
    else:
        show(answer(found))
    path = plot or runs[0] / "compare.png"
    plot_comparison(found, path)
    say(f"plot: {path}", err)


def answer(found: "Comparison") -> Iterator[Table | str]:
    """All that `toolkit compare` prints; what casts doubt on the numbers comes before any of them."""
    from toolkit.analysis.compare.output import INTERVAL, UNPAIRED, after, before, formulas

    yield from (f"{text}." for text in before(found))
    label = f" ({', '.join(found.allowed)} allowed to differ)" if found.labels else ""
    for level in found.levels:
        yield ""
        yield contender_table(found, level, label)
        if any(row.positions for row in level.rows):
            yield position_table(level)
        shown = difference_table(found, level, label)
        yield shown
        if shown.row_count < sum(one.position is None for one in level.differences):
            yield "  Pairs of one method or one engine; all pairs are in the report and in --json."
        yield from (f"  {text}" for text in after(found, level))
    yield ""
    yield from (f"{text}." for text in formulas())
    yield f"{UNPAIRED if any(not level.paired for level in found.levels) else INTERVAL}; one in 20 misses by chance."
    if found.left_out:
        yield f"Left out, they do not speculate: {', '.join(found.left_out)}."


def contender_table(found: "Comparison", level: "LevelComparison", label: str) -> Table:
    """Who, how deep, and the three ratios, each with half of its interval."""
    prompts = f"{level.prompts} prompts in common" if level.paired else "prompts that differ"
    table = plain_table(
        f"at concurrency {level.concurrency}, {prompts}{label}",
        *("contender", "engine", "K", *SHORT.values()),
    )
    for row in level.rows:
        info = next(one.info for one in found.contenders if one.name == row.name)
        k = found.depths[row.name].k
        table.add_row(
            escape(one_line(row.name)),
            escape(one_line(f"{info.engine} {(info.engine_version or '').partition('-')[0]}")),
            str(k) if k is not None else NONE,
            _number(row.estimates.get("acceptance_length")),
            _number(row.estimates.get("tokens_per_pass")),
            _share(row.estimates.get("draft_acceptance_rate")),
        )
    return table


def position_table(level: "LevelComparison") -> Table:
    """Unconditional acceptance by position, and given those before in brackets."""
    last = min(max(len(row.positions) for row in level.rows), MOST_POSITIONS)
    table = plain_table("kept at position, of all drafts (given those before)", "", *map(str, range(1, last + 1)))
    for row in level.rows:
        cells = []
        for one in row.positions[:last]:
            given = f"{one.given.value:.0%}" if one.given else NONE
            cells.append(f"{one.unconditional.value:.0%} ({given})" if one.unconditional else NONE)
        table.add_row(escape(one_line(row.name)), *cells, *([NONE] * (last - len(cells))))
    return table


def difference_table(found: "Comparison", level: "LevelComparison", label: str) -> Table:
    """The difference of every pair in each ratio, in words too; of many, of the pairs of one method or one engine."""
    info = {one.name: one.info for one in found.contenders}
    how = "paired differences" if level.paired else "differences, not paired"
    table = plain_table(f"{how}{label}", "the first less the second", "in", "difference", "the first has")
    pair = ("", "")
    for one in level.differences:
        ours, theirs = info[one.one], info[one.other]
        near = ours.method == theirs.method or ours.engine == theirs.engine
        if one.position is None and (near or len(info) <= MOST_IN_FULL):
            names = f"{one.one} - {one.other}" if pair != (one.one, one.other) else ""
            pair = (one.one, one.other)
            table.add_row(escape(one_line(names)), SHORT[one.quantity], _signed(one), one.word)
    return table


def _signed(one: "Difference") -> str:
    found = one.estimate
    if found is None:
        return NONE
    points = one.quantity == "draft_acceptance_rate"
    scale, digits = (100.0, 1) if points else (1.0, 2)
    return f"{scale * found.value:+.{digits}f}{_half(found, scale, digits)}{' points' if points else ''}"


def _half(found: "Estimate", scale: float = 1.0, digits: int = 2) -> str:
    """Half of the interval, which is symmetric."""
    return "" if found.high is None else f" ± {scale * (found.high - found.value):.{digits}f}"


def _number(found: "Estimate | None") -> str:
    return NONE if found is None else f"{found.value:.2f}{_half(found)}"


def _share(found: "Estimate | None") -> str:
    return NONE if found is None else f"{found.value:.1%}{_half(found, 100.0, 1)}"
