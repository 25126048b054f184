"""The answer of a report in one sentence."""

from collections.abc import Sequence

from toolkit.analysis.caveats import DOES_NOTHING
from toolkit.analysis.crossover import ArmResult, Crossover
from toolkit.analysis.run import Run


def answer(measured: Sequence[tuple[Run, Crossover]]) -> str:
    """Where each arm pays, as one sentence; with several Runs it says of each on what."""
    told = []
    told_apart = by_workload([run for run, _ in measured])
    for run, result in measured:
        where = f"on {run.info.workload.name}, " if told_apart else f"in {run.folder.resolve().name}, "
        clauses = "; ".join(clause(one, result.baseline) for one in result.results if one.levels)
        told.append(where + clauses if len(measured) > 1 else clauses)
    sized = any(one.synthetic for _, result in measured for one in result.results)
    return f"{'For sizing only: ' if sized else ''}{'; '.join(told)}."


def by_workload(runs: Sequence[Run]) -> bool:
    """Whether their workloads tell these Runs apart; else their directories must."""
    return len({run.info.workload.name for run in runs}) == len(runs)


def clause(result: ArmResult, baseline: str | None) -> str:
    """What one arm's levels say, without a full stop. A draft that does nothing is said before any verdict."""
    lengths = [level.acceptance_length for level in result.levels if level.acceptance_length is not None]
    idle = ", whose draft does nothing here," if lengths and max(lengths) < DOES_NOTHING else ""
    if baseline is None:
        return f"whether {result.arm}{idle} pays is unknown, for no baseline was measured"
    return f"{result.arm}{idle} {result.bracket_sentence}"
