"""Commands that read what was measured. They need no engine."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolkit.cli.options import AsJson, RunFolder, print_json
from toolkit.errors import InputError
from toolkit.terminal import crossover_table, err, out, say, sentences

if TYPE_CHECKING:
    from toolkit.analysis.crossover import Crossover

app = typer.Typer()
scoreboard_app = typer.Typer(no_args_is_help=True, help="Keep the result.")
app.add_typer(scoreboard_app, name="scoreboard")
Board = Annotated[Path, typer.Option("--file", help="The scoreboard's Markdown file; its data lies beside it.")]


@app.command()
def crossover(
    run: RunFolder,
    as_json: AsJson = False,
    plot: Annotated[Path | None, typer.Option(help="Where the plot goes; RUN/crossover.png when absent.")] = None,
) -> None:
    """Where does it stop paying? Per concurrency the speedup with its interval and a verdict; and a plot."""
    from toolkit.analysis.plots import plot_crossover

    path = plot or run / "crossover.png"
    plot_crossover(print_crossover(run, as_json), path)
    say(f"plot: {path}", err)


@scoreboard_app.command("add")
def scoreboard_add(
    run: RunFolder,
    change: Annotated[str | None, typer.Option(help="What was changed; the sweep's own --change when absent.")] = None,
    board: Board = Path("SCOREBOARD.md"),
) -> None:
    """Append a Run's rows. Adding the same run twice changes nothing."""
    from toolkit.analysis.run import Run
    from toolkit.analysis.scoreboard import add

    added = add(Run(run), change, board)
    say(f"{board}: {added} rows added")


@scoreboard_app.command("export")
def scoreboard_export(
    form: Annotated[str, typer.Option("--format", help="md, csv or json.")] = "md",
    board: Board = Path("SCOREBOARD.md"),
) -> None:
    """The whole scoreboard on stdout."""
    from toolkit.analysis.scoreboard import export

    if form not in ("md", "csv", "json"):
        raise InputError(f"--format {form}: md, csv or json.")
    sys.stdout.write(export(board, form))  # type: ignore[arg-type]


def print_crossover(folder: Path, as_json: bool) -> "Crossover":
    """Analyse a Run directory and print what it says."""
    from toolkit.analysis.crossover import crossover as analyse
    from toolkit.analysis.levels import cross_check, level_stats
    from toolkit.analysis.run import Run

    run = Run(folder)
    result = analyse(run)
    if as_json:
        print_json(result.as_json())
        return result
    stats = level_stats(run)
    for table in crossover_table(result, stats):
        out.print(table)
    for line in [*sentences(run, result, stats), *cross_check(run)]:
        say(line)
    return result
