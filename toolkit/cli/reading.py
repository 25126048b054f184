"""Commands that read what was measured. They need no engine."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolkit.cli.options import Allow, AsJson, RunFolder, allowed, print_json, whole_numbers
from toolkit.cli.tables import cost_table, plan_sentences, plan_tables
from toolkit.errors import InputError
from toolkit.terminal import answer, err, out, say, show

if TYPE_CHECKING:
    from toolkit.analysis.crossover import Crossover
    from toolkit.analysis.forecast.cost import MeasuredCost

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
    say(f"{board}: {added} rows added{'' if added else ', they are there already'}")


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


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories.")],
    output: Annotated[Path | None, typer.Option("--out", help="The page; report.html in the first RUN.")] = None,
    cost: Annotated[Path | None, typer.Option(help="A verify-cost run, for the plan beside the measurement.")] = None,
    allow: Allow = None,
) -> None:
    """One page to show: the answer, the plots, why, the latencies, the plan beside it, and where it all comes from."""
    from toolkit.analysis.forecast.cost import read_cost
    from toolkit.analysis.report import report as write
    from toolkit.analysis.run import Run

    path = output or runs[0] / "report.html"
    write([Run(folder) for folder in runs], path, read_cost(cost) if cost else None, allowed(allow))
    say(str(path))


@app.command()
def plan(
    hardware: Annotated[str | None, typer.Option(help="A machine: spark, h100-sxm, ... or a YAML file.")] = None,
    target: Annotated[str | None, typer.Option(help="The model to serve.")] = None,
    draft: Annotated[str | None, typer.Option(help="The draft model or head.")] = None,
    method: Annotated[str | None, typer.Option(help="draft_model with a --draft, else ngram, when absent.")] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", "-p", help="Target, draft and memory of a profile.")
    ] = None,
    calibrate: Annotated[Path | None, typer.Option(help="A verify-cost run: costs as measured there.")] = None,
    acceptance: Annotated[Path | None, typer.Option(help="A Run directory: acceptance as measured there.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Acceptance per draft token; 0.7 is assumed.")] = None,
    k: Annotated[str, typer.Option("--k", help="Draft lengths.")] = "1,2,4,8",
    concurrency: Annotated[str, typer.Option(help="Requests in flight.")] = "1,4,16,64",
    prompt_tokens: Annotated[int, typer.Option(help="Of a typical request.")] = 512,
    answer_tokens: Annotated[int, typer.Option(help="Of a typical request.")] = 256,
    as_json: AsJson = False,
) -> None:
    """What should I expect before I try? Speedup for K x concurrency, what binds, and the break-even acceptance."""
    from toolkit.analysis.forecast.cost import read_cost
    from toolkit.analysis.forecast.plan import PlanAsk, of_profile
    from toolkit.analysis.forecast.plan import plan as predict
    from toolkit.analysis.run import Run

    ask = PlanAsk(
        hardware=hardware,
        target=target,
        draft=draft,
        method=method,
        calibrate=read_cost(calibrate) if calibrate else None,
        acceptance=Run(acceptance) if acceptance else None,
        alpha=alpha,
        ks=whole_numbers("--k", k),
        levels=whole_numbers("--concurrency", concurrency),
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
    )
    found = predict(of_profile(ask, profile) if profile else ask)
    if as_json:
        print_json(found.as_json())
        return
    for table in plan_tables(found):
        out.print(table)
    show(plan_sentences(found))


def print_crossover(folder: Path, as_json: bool) -> "Crossover":
    """Analyse a Run directory and print what it says."""
    from toolkit.analysis.crossover import crossover as analyse
    from toolkit.analysis.levels import level_stats
    from toolkit.analysis.run import Run

    run = Run(folder)
    if not run.cells():
        raise InputError(f"{folder}: no cell of this run is finished. Repeat its command to go on with it.")
    result = analyse(run)
    if as_json:
        print_json(result.as_json())
    else:
        show(answer(run, result, level_stats(run)))
    return result


def print_cost(cost: "MeasuredCost", as_json: bool) -> None:
    """The curves that verify-cost measured, milliseconds a pass, and c."""
    if as_json:
        print_json({**cost.model_dump(mode="json", by_alias=True), "c": {one.name: c for one, c in cost.shares()}})
        return
    out.print(cost_table(cost))
    show(
        f"{drafting.name}: a draft step costs {c:.2f} of a target step (c), K = {drafting.num_speculative_tokens}."
        for drafting, c in cost.shares()
    )
