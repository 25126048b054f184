"""`toolkit demo`: the whole path once, on the real vLLM with a small real model, on any CPU."""

from collections.abc import Iterator
from pathlib import Path

from toolkit.analysis.ask import Ask
from toolkit.analysis.crossover import crossover
from toolkit.analysis.plots import plot_crossover
from toolkit.analysis.run import Run
from toolkit.analysis.scoreboard import add

BOARD = Path("SCOREBOARD.md")


def ask_of(minutes: float, run: Path | None) -> Ask:
    """No speculation against n-gram lookup, one copying workload, pairs allocated until the budget ends."""
    return Ask(
        profiles=["lab-ngram"],
        baseline="lab-baseline",
        workload="copy-list",
        concurrency="1,4,16,64",
        max_tokens=32,
        budget=minutes * 60,
        change="n-gram K=4",
        run=run,
    )


def show_results(folder: Path) -> Iterator[str]:
    """Write the plot and the scoreboard rows; one line on each."""
    run = Run(folder)
    plot_crossover(crossover(run), folder / "crossover.png")
    yield f"plot:          {folder / 'crossover.png'}"
    yield f"scoreboard:    {BOARD}, {add(run, None, BOARD)} rows added"
    yield f"Run directory: {folder}"
