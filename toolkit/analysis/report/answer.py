"""The answer of a report in one sentence."""

from collections.abc import Sequence

from toolkit.analysis.crossover import Crossover
from toolkit.analysis.run import Run


def answer(measured: Sequence[tuple[Run, Crossover]]) -> str:
    """Where each arm pays, as one sentence; with several Runs it says of each on what."""
    told: list[str] = []
    for (run, result), folder in zip(measured, folders([run for run, _ in measured]), strict=True):
        where = f"in {folder}, " if folder else f"on {run.info.workload.name}, "
        arms = "; ".join(one.answer(result.baseline) for one in result.results)
        if len(measured) > 1:
            arms = (where if told else where[0].upper() + where[1:]) + arms
        told.append(arms)
    return f"{'; '.join(told)}."


def folders(runs: Sequence[Run]) -> list[str]:
    """What tells these Runs apart where their workloads do not: the names of their directories, else their paths.

    One per Run; empty strings where the workloads do.
    """
    if _differ([run.info.workload.name for run in runs]):
        return [""] * len(runs)
    names = [run.folder.resolve().name for run in runs]
    return names if _differ(names) else [str(run.folder) for run in runs]


def _differ(names: Sequence[str]) -> bool:
    return len(set(names)) == len(names)
