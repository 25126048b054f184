"""Is one configuration of our prompt lookup on the upper envelope of {no speculation, n-gram with K = 2, 4, 8}?

usage: envelope.py measure FOLDER [WORKLOAD ...]    measure, or go on; copy-code and chat if absent
       envelope.py report FOLDER [PICTURE.png]      print the paired ratios ours / rival, draw tokens per second

The arms take turns on the same fresh prompts, all engines in memory, the scheduler alike in all (a CPU has no async
scheduling). A pair is two cells of one round; the interval is Student's t over log ratios, as everywhere here. A rival
is passed when the lower 95 % limit of ours / rival is at least 0.97; with fewer than five pairs nothing is.
"""

import math
import subprocess
import sys
from pathlib import Path

from matplotlib.ticker import FixedLocator, ScalarFormatter

from toolkit.analysis.pairs import ENOUGH_PAIRS, mean_and_half
from toolkit.analysis.plots.style import drawing, plain_axes, save, sheet
from toolkit.analysis.run import Run

OURS, RIVALS = "lab-lookup", ("lab-baseline", "ngram-k2", "ngram-k4", "ngram-k8")
AS_GOOD = 0.97
WORKLOADS, LEVELS = ("copy-code", "chat"), "1,4,16,64"
KS = (2, 4, 8)


def measure(folder: Path, workloads: list[str]) -> None:
    """One sweep a workload; a run that is there already goes on."""
    folder.mkdir(parents=True, exist_ok=True)
    for k in KS:
        (folder / f"ngram-k{k}.yaml").write_text(
            f"description: n-gram lookup, K = {k}.\nextends: lab-ngram\nspeculation:\n  num_speculative_tokens: {k}\n"
        )
    rivals = [str(folder / f"{name}.yaml") if name.startswith("ngram") else name for name in RIVALS]
    for workload in workloads:
        arms = [part for name in (OURS, *rivals) for part in ("--profile", name)]
        asked = ("--workload", workload, "--max-tokens", "32", "--rounds", "5", "--run", str(folder / workload))
        levels = ("--concurrency", LEVELS, "--set", "limits.kv_cache_gib=1")
        subprocess.run([sys.executable, "-m", "toolkit", "sweep", *arms, *asked, *levels], check=True)


def rates(run: Run) -> dict[tuple[str, int], dict[int, float]]:
    """Tokens per second of each (arm, concurrency), by round."""
    found: dict[tuple[str, int], dict[int, float]] = {}
    for cell in run.cells():
        if cell.tokens_per_second:
            found.setdefault((cell.cell.arm, cell.cell.concurrency), {})[cell.cell.round] = cell.tokens_per_second
    return found


def verdict(logs: list[float]) -> tuple[str, float, float, float]:
    """(word, ratio, low, high) of the log ratios ours / rival."""
    mean, half = mean_and_half(logs)
    low, high = math.exp(mean - half), math.exp(mean + half)
    if len(logs) < ENOUGH_PAIRS:
        return f"inconclusive, {len(logs)} pairs", math.exp(mean), low, high
    return "passed" if low >= AS_GOOD else "missed" if high < AS_GOOD else "inconclusive", math.exp(mean), low, high


def comparisons(folder: Path) -> dict[tuple[str, int], dict[str, tuple[str, float, float, float]]]:
    """The verdict over each rival that was measured beside ours, by workload and level."""
    found: dict[tuple[str, int], dict[str, tuple[str, float, float, float]]] = {}
    for workload, measured in runs_in(folder).items():
        for level in sorted({level for _, level in measured}):
            mine = measured.get((OURS, level), {})
            for rival in RIVALS:
                theirs = measured.get((rival, level), {})
                logs = [math.log(mine[number] / theirs[number]) for number in sorted(mine.keys() & theirs.keys())]
                if logs:
                    found.setdefault((workload, level), {})[rival] = verdict(logs)
    return found


def runs_in(folder: Path) -> dict[str, dict[tuple[str, int], dict[int, float]]]:
    """The rates in the Runs of `folder`, by workload; a workload's levels may be spread over several Runs."""
    found: dict[str, dict[tuple[str, int], dict[int, float]]] = {}
    for path in sorted(folder.iterdir(), reverse=True):
        if (path / "run.json").exists():
            run = Run(path)
            found.setdefault(run.info.workload.name, {}).update(rates(run))
    return dict(sorted(found.items(), reverse=True))


def markdown(folder: Path) -> str:
    """The table of the README."""
    lines = ["| | no speculation | n-gram, K = 2 | K = 4 | K = 8 |", "|---|---|---|---|---|"]
    for (workload, level), by_rival in comparisons(folder).items():
        cells = []
        for rival in RIVALS:
            word, ratio, low, high = by_rival[rival]
            cells.append(f"{ratio:.2f}x [{low:.2f}, {high:.2f}]" + ("" if word == "passed" else f" {word}"))
        lines.append(f"| `{workload}`, {level} at once | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def report(folder: Path, picture: Path | None) -> None:
    """Print every comparison; draw the rates."""
    print(f"ours / rival, tokens per second, 95 % interval; passed where it begins at {AS_GOOD} or above")
    for (workload, level), by_rival in comparisons(folder).items():
        for rival, (word, ratio, low, high) in by_rival.items():
            print(f"  {workload:<10} {level:>3}  {rival:<13} {ratio:5.2f} [{low:.2f}, {high:.2f}]  {word}")
    if picture is not None:
        draw(runs_in(folder), picture)


def draw(runs: dict[str, dict[tuple[str, int], dict[int, float]]], picture: Path) -> None:
    """Tokens per second over no speculation, all arms, all levels, a panel for each workload."""
    names = {OURS: "prompt lookup (ours)", "lab-baseline": "no speculation"}
    colours = {
        OURS: "#b5179e",
        "lab-baseline": "#555555",
        "ngram-k2": "#8ecae6",
        "ngram-k4": "#219ebc",
        "ngram-k8": "#023047",
    }
    with drawing():
        figure = sheet(8.0, 3.6)
        panels = figure.subplots(1, len(runs), sharey=True, squeeze=False)[0]
        for axes, (workload, found) in zip(panels, runs.items(), strict=True):
            plain_axes(axes)
            levels = sorted({level for _, level in found})
            for arm in (*RIVALS, OURS):
                points = []
                for level in levels:
                    mine, base = found.get((arm, level), {}), found.get(("lab-baseline", level), {})
                    logs = [math.log(mine[number] / base[number]) for number in sorted(mine.keys() & base.keys())]
                    if logs:
                        points.append((level, math.exp(sum(logs) / len(logs))))
                axes.plot(
                    [level for level, _ in points],
                    [ratio for _, ratio in points],
                    marker="o",
                    lw=2.4 if arm == OURS else 1.4,
                    color=colours[arm],
                    label=names.get(arm, f"n-gram, K = {arm[-1]}"),
                )
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_locator(FixedLocator(levels))
            axes.xaxis.set_major_formatter(ScalarFormatter())
            axes.set_title(workload, loc="left", fontsize=11)
            axes.set_xlabel("requests at once")
        panels[0].set_ylabel("tokens/s over no speculation")
        lines, labels = panels[0].get_legend_handles_labels()
        figure.legend(lines, labels, loc="lower center", ncols=len(labels), frameon=False, fontsize=8)
        figure.tight_layout(rect=(0.0, 0.07, 1.0, 1.0))
        save(figure, picture)


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in ("measure", "report"):
        sys.exit(__doc__)
    if sys.argv[1] == "measure":
        measure(Path(sys.argv[2]).absolute(), sys.argv[3:] or list(WORKLOADS))
    else:
        report(Path(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
