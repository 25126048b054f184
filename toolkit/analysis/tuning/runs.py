"""A tuning read from its folder: `explore`, `validate` (at most twice) and `parent` are Run directories."""

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from toolkit.analysis.crossover import crossover
from toolkit.analysis.levels import level_stats
from toolkit.analysis.pairs import pairs_of
from toolkit.analysis.run import Run
from toolkit.analysis.tuning.draft_counts import proofs
from toolkit.analysis.tuning.result import TRIES, Explored, TuneInfo, Tuning, Validation
from toolkit.analysis.tuning.schedule import Schedule, best_k, collapsed, dominated
from toolkit.errors import InputError

LOOK_AFTER = 2  # rounds before the first look at what is dominated


def tuning_of(folder: Path) -> Tuning:
    """The tuning in `folder`; no engine is needed. Raises InputError when there is none."""
    info = read_info(folder)
    explore = _run(folder / "explore")
    if explore is None:
        return Tuning(info, [], {}, [], None, [], False, {})
    gone = dropped(explore, info.rounds)
    explored, choices = _explored(explore, gone, info)
    runs = [run for n in range(1, TRIES + 1) if (run := _run(validation_folder(folder, n))) and _whole(run, info)]
    parent = _run(folder / "parent")
    found = proofs(explore, {arm.name: [[1, info.most, arm.num_speculative_tokens or 0]] for arm in explore.info.arms})
    for run in runs[-1:]:
        found += proofs(run, {run.info.arms[0].name: schedule_in(run)})
    return Tuning(
        info=info,
        explored=explored,
        choices=choices,
        validations=[_validation(run) for run in runs],
        parent=crossover(parent).results[0].levels if parent and _whole(parent, info) else None,
        proofs=found,
        explored_all=_whole(explore, info, gone),
        provenance=_provenance(explore),
    )


def validation_folder(folder: Path, number: int) -> Path:
    """Where the `number`-th validation lies, from 1."""
    return folder / ("validate" if number == 1 else f"validate-{number}")


def read_info(folder: Path) -> TuneInfo:
    """`tune.json` of a folder. Raises InputError."""
    path = folder / "tune.json"
    try:
        return TuneInfo.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{folder}: holds no tuning, there is no tune.json.") from None
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        raise InputError(f"{path}: not a tune.json of this version: {str(error).splitlines()[0]}.") from None


def log_ratios(run: Run, rounds: int) -> dict[tuple[int, str], list[float]]:
    """Log speedup of each pair of the first `rounds`, by (concurrency, arm); pairs without a window are left out."""
    return {
        (level, arm.name): logs
        for arm in run.info.arms
        for level, pairs in pairs_of(run, arm.name).items()
        if (logs := [p.log_ratio for p in pairs if p.arm.cell.round <= rounds and p.log_ratio is not None])
    }


def dropped(run: Run, rounds: int) -> dict[tuple[str, int], int]:
    """(arm, concurrency) that are clearly dominated, and after how many rounds they were first seen to be.

    Each look sees the rounds before it alone, so that a tuning that goes on after a kill drops the same.
    """
    names = {arm.num_speculative_tokens or 0: arm.name for arm in run.info.arms}
    gone: dict[tuple[str, int], int] = {}
    for after in range(LOOK_AFTER, rounds + 1):
        seen = log_ratios(run, after)
        for level in run.info.levels:
            ratios = {k: seen[level, name] for k, name in names.items() if (level, name) in seen}
            for k in dominated(ratios):
                gone.setdefault((names[k], level), after)
    return gone


def schedule_in(run: Run) -> Schedule:
    """The schedule of a Run's arm, as it was launched."""
    return [(first, last, k) for first, last, k in json.loads(run.info.arms[0].facts["schedule"])]


def _explored(run: Run, gone: Mapping[tuple[str, int], int], info: TuneInfo) -> tuple[list[Explored], dict[int, int]]:
    names = {arm.name: arm.num_speculative_tokens or 0 for arm in run.info.arms}
    found = [
        Explored(names[result.arm], level, gone.get((result.arm, level.concurrency)))
        for result in crossover(run).results
        for level in result.levels
    ]
    seen = log_ratios(run, info.rounds)
    choices = {}
    for n in sorted(info.levels):
        pays = {one.k for one in found if one.level.concurrency == n and one.level.verdict == "pays"}
        choices[n] = best_k({k: seen[n, name] for name, k in names.items() if (n, name) in seen}, pays)
    return found, choices


def _validation(run: Run) -> Validation:
    levels = crossover(run).results[0].levels
    stats = {(one.side, one.concurrency): one.tokens_per_second for one in level_stats(run)}
    rates: dict[str, dict[int, float]] = {
        side: {n: rate for (s, n), rate in stats.items() if s == side and rate is not None}
        for side in ("arm", "baseline")
    }
    return Validation(run.info.arms[0].name, schedule_in(run), levels, collapsed(rates["arm"], rates["baseline"]))


def _run(folder: Path) -> Run | None:
    return Run(folder) if (folder / "run.json").exists() else None


def _whole(run: Run, info: TuneInfo, gone: Mapping[tuple[str, int], int] | None = None) -> bool:
    """Whether every pair of every round is there, up to where it was dropped."""
    there = {(c.cell.arm, c.cell.concurrency, c.cell.round, c.cell.side) for c in run.cells()}
    return all(
        (arm.name, level, number, side) in there
        for arm in run.info.arms
        for level in run.info.levels
        for number in range(1, min(info.rounds, (gone or {}).get((arm.name, level), info.rounds)) + 1)
        for side in ("arm", "baseline")
    )


def _provenance(run: Run) -> dict[str, str]:
    info, machine = run.info, run.info.hardware
    gpus = ", ".join(gpu.get("name", "") for gpu in machine.get("gpus", []))
    arm = info.arms[0]
    return {
        "date": info.created[:10],
        "machine": gpus or f"{machine.get('cpu', 'unknown CPU')}, {machine.get('cores', '?')} cores",
        "engine": f"{arm.engine} {arm.engine_version or ''}".strip(),
        "workload": info.workload.name,
    }
