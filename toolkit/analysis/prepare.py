"""From an ask to a measured Run directory: find what can be resumed, say what is measured, go."""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from toolkit import __version__
from toolkit.analysis.arms import Arm, Live, counters_now, describe, key_part
from toolkit.analysis.ask import DEFAULT_WORKLOAD, Ask, plan_of, seed_of
from toolkit.analysis.endpoint import check_address, find_endpoint
from toolkit.analysis.further_fields import refuse_fields
from toolkit.analysis.run import ArmInfo, Recorder, Run, RunInfo, WorkloadInfo, find_unfinished, resume_key
from toolkit.analysis.sweep import Plan, Progress, is_finished, run_sweep
from toolkit.analysis.workload import load_workload
from toolkit.errors import EngineError, InputError
from toolkit.launch.hardware import environment, hardware
from toolkit.launch.registry import stop_orphans
from toolkit.launch.server import command

ANSWERS_SOON = 30.0  # seconds in which a server says which models it has
Drop = Callable[[Run, int], frozenset[tuple[str, int]]]


def sweep(ask: Ask, progress: Progress, drop: Drop | None = None) -> Path:
    """Measure, or go on measuring, what is asked; returns the Run directory.

    `drop(run, rounds)` names the (arm, concurrency) that need no pairs after the first `rounds` of them. It is asked
    before every round and must look at the cells of those rounds alone: a sweep that goes on after a kill then decides
    as it did.

    Raises InputError before anything starts when the ask cannot be met, EngineError when an engine fails.
    """
    for orphan in stop_orphans():  # before anything asks how much memory is free
        progress.stage(f"ended {orphan.name} (session {orphan.tree.session}), left by a sweep that was killed")
    defaults: list[str] = []
    seed = seed_of(ask)
    plan = plan_of(ask, seed, defaults)
    info = _info(ask, plan, seed, defaults, progress)
    folder = ask.run or find_unfinished(ask.runs, info.key, is_finished(plan)) or _new_folder(ask, plan)
    if _holds_run(folder):
        plan, info = _as_begun(ask, plan, info, Run(folder).info)
    with Recorder(folder, info) as recorder:
        done = len(Run(folder).cells())
        if done:
            progress.stage(f"{folder}: {done} finished cells stand, going on from there")
        live = Live([*plan.arms, *([plan.baseline] if plan.baseline else [])], plan.resident)
        live.on_up = lambda: recorder.save_info(_with_what_was_seen(recorder.info, live))
        with live:
            try:
                for number in range(1, plan.rounds + 1) if drop else [plan.rounds]:
                    skip = drop(Run(folder), number - 1) if drop else frozenset()
                    run_sweep(replace(plan, skip=skip), recorder, live, progress, number)
            except EngineError as error:
                raise EngineError(f"{error}\nFinished cells stand; the same command goes on from there.") from None
    return folder


def _holds_run(folder: Path) -> bool:
    """Raises InputError for a place that cannot be a Run directory, or that holds something else."""
    try:
        if (folder / "run.json").exists():
            return True
        if folder.exists() and not folder.is_dir():
            raise InputError(f"--run {folder}: is a file; a run is a directory.")
        if folder == Path():
            raise InputError("--run: name a directory of its own for the run, like runs/mine.")
    except OSError as error:
        raise InputError(f"--run {str(folder)[:80]}: cannot be used: {error.strerror}.") from None
    return False


def _as_begun(ask: Ask, plan: Plan, info: RunInfo, begun: RunInfo) -> tuple[Plan, RunInfo]:
    """Go on as a run began: with its prompts, its engines resident or not, and its labels unless there are new ones."""
    if ask.seed is None and begun.workload.name == plan.workload.name:
        plan = replace(plan, workload=load_workload(ask.workload or DEFAULT_WORKLOAD, begun.workload.seed))
        info.workload.seed, info.workload.digest = begun.workload.seed, plan.workload.digest
    if begun.resident is not None:
        plan = replace(plan, resident=begun.resident)
    kept = {name: getattr(begun, name) for name in ("target", "change") if getattr(info, name) is None}
    return plan, info.model_copy(update={**kept, "resident": plan.resident})


def _info(ask: Ask, plan: Plan, seed: int, defaults: list[str], progress: Progress) -> RunInfo:
    def info_of(arm: Arm) -> ArmInfo:
        endpoint = None
        if arm.url is not None:
            check_address(arm.url)
            progress.stage(f"asking {arm.url}")
            soon = min(plan.stall, ANSWERS_SOON)
            endpoint = find_endpoint(arm.name, arm.url, arm.model, arm.key_env, soon, arm.key_file)
            if plan.sampling.further and (there := counters_now(endpoint)) and there.drafts is not None:
                refuse_fields(arm.name, endpoint.engine, plan.sampling.further)
        found = describe(arm, endpoint)
        return found.model_copy(update={"precision": ask.precision}) if ask.precision else found

    arms = [info_of(arm) for arm in plan.arms]
    baseline = info_of(plan.baseline) if plan.baseline else None
    sampling = {
        "max_tokens": plan.sampling.max_tokens,
        "temperature": plan.sampling.temperature,
        "ignore_eos": plan.sampling.ignore_eos,
        **({"fields": dict(plan.sampling.further)} if plan.sampling.further else {}),
    }
    chosen_for_this_run = ask.seed is None and any(arm.outlives_us for arm in plan.arms) and plan.workload.size is None
    launched = any(arm.profile for arm in plan.arms)
    machine = hardware()
    parts = {
        "arms": [key_part(arm, info) for arm, info in zip(plan.arms, arms, strict=True)],
        "baseline": key_part(plan.baseline, baseline) if plan.baseline and baseline else None,
        "workload": plan.workload.name if chosen_for_this_run else plan.workload.digest,
        "levels": list(plan.levels),
        "requests": {str(level): count for level, count in plan.requests.items()},
        "sampling": sampling,
        "budget": plan.budget,
        "hardware": {name: machine.get(name) for name in ("cpu", "cores", "gpus")} if launched else None,
        "environment": _inherited() if any(arm.argv and arm.container is None for arm in arms) else None,
    }
    return RunInfo(
        toolkit_version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        target=ask.target,
        change=ask.change,
        arms=arms,
        baseline=baseline,
        workload=WorkloadInfo(
            name=plan.workload.name,
            digest=plan.workload.digest,
            seed=seed,
            size=plan.workload.size,
            reuse=plan.workload.size is not None and plan.workload.size < plan.prompts_needed(),
            random=plan.workload.random,
        ),
        levels=list(plan.levels),
        requests=dict(plan.requests),
        rounds=None if plan.budget else plan.rounds,
        budget_seconds=plan.budget,
        sampling=sampling,
        profiles=list(ask.profiles),
        baseline_profile=ask.baseline,
        changes=list(ask.changes),
        part_of=list(ask.part_of),
        resident=plan.resident,
        hardware=machine,
        environment=environment(),
        defaults=[*defaults, *_filled_in([*plan.arms, *([plan.baseline] if plan.baseline else [])])],
        key_parts=parts,
        key=resume_key(parts),
    )


def _filled_in(arms: list[Arm]) -> list[str]:
    """What the profiles left open and their engines' adapters chose."""
    said = {arm.name: command(arm.profile, dry=True).filled_in for arm in arms if arm.profile is not None}
    return [f"{name}: {one}" for name, filled in said.items() for one in filled]


def _inherited() -> dict[str, str]:
    """The environment that an engine of ours inherits, without the places where libraries lie."""
    return {name: value for name, value in environment().items() if name != "LD_PRELOAD"}


def _with_what_was_seen(info: RunInfo, live: Live) -> RunInfo:
    def seen(arm: ArmInfo) -> ArmInfo:
        counters = live.counters.get(arm.name)
        found: dict[str, Any] = {}
        if counters is not None:
            found = {"kv_tokens": counters.kv_tokens}
            if arm.speculates is None:
                found["speculates"] = counters.speculates
        if arm.engine_version is None and arm.name in live.versions:
            found["engine_version"] = live.versions[arm.name]
        if arm.name in live.images:
            found["facts"] = {**arm.facts, "image_digest": live.images[arm.name]}
        return arm.model_copy(update=found)

    return info.model_copy(
        update={
            "arms": [seen(arm) for arm in info.arms],
            "baseline": seen(info.baseline) if info.baseline else None,
        }
    )


def _new_folder(ask: Ask, plan: Plan) -> Path:
    name = plan.arms[0].name.replace(":", "-").replace("/", "-")
    return ask.runs / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
