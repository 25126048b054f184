"""From what a person asks of a sweep to a measured Run directory: validate, find what can be resumed, go."""

import math
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from toolkit import __version__
from toolkit.analysis.arms import Arm, Live, can_stay_resident, describe, key_part
from toolkit.analysis.client import Sampling
from toolkit.analysis.endpoint import find_endpoint, is_address
from toolkit.analysis.run import ArmInfo, Recorder, Run, RunInfo, WorkloadInfo, find_unfinished, resume_key
from toolkit.analysis.sweep import Plan, Progress, is_finished, run_sweep
from toolkit.analysis.workload import load_workload
from toolkit.engines import engine
from toolkit.errors import EngineError, InputError
from toolkit.launch.hardware import environment, hardware
from toolkit.launch.profile import load_profile
from toolkit.launch.registry import stop_orphans

DEFAULT_WORKLOAD = "copy-code"
DEFAULT_ROUNDS = 6
ANSWERS_SOON = 30.0  # seconds in which a server says which models it has
MOST_AT_ONCE, MOST = 4096, 1_000_000
DEFAULT_TIMEOUT = 300.0  # seconds without a byte
BUDGET_ROUNDS = 12  # the most pairs per level when a budget allocates them


@dataclass(frozen=True, slots=True)
class Ask:
    """What a person asks. None and empty: not said, a default is filled in and noted in run.json."""

    profiles: Sequence[str] = ()
    baseline: str | None = None
    base_url: str | None = None
    baseline_url: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    workload: str | None = None
    concurrency: str | None = None
    rounds: int | None = None
    requests: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    ignore_eos: bool = False
    seed: int | None = None
    budget: float | None = None
    timeout: float | None = None
    target: str | None = None
    precision: str | None = None
    change: str | None = None
    changes: Sequence[str] = ()
    run: Path | None = None
    runs: Path = field(default_factory=lambda: Path("runs"))


def sweep(ask: Ask, progress: Progress) -> Path:
    """Measure, or go on measuring, what is asked; returns the Run directory.

    Raises InputError before anything starts when the ask cannot be met, EngineError when an engine fails.
    """
    for orphan in stop_orphans():  # before anything asks how much memory is free
        progress.stage(f"ended {orphan.name} (session {orphan.tree.session}), left by a sweep that was killed")
    for flag, text in (("--target", ask.target), ("--change", ask.change), ("--precision", ask.precision)):
        if text is not None and not text.isprintable():
            raise InputError(f"{flag}: the text has characters that cannot be written down.")
    arms, baseline = _arms(ask)
    defaults: list[str] = []
    levels = _levels(ask, defaults)
    seed = _seed(ask)
    plan = _plan(ask, arms, baseline, levels, seed, defaults)
    info = _info(ask, plan, seed, defaults, progress)
    folder = ask.run or find_unfinished(ask.runs, info.key, is_finished(plan)) or _new_folder(ask, arms)
    if _holds_run(folder):
        plan, info = _as_begun(ask, plan, info, Run(folder).info)
    with Recorder(folder, info) as recorder:
        done = len(Run(folder).cells())
        if done:
            progress.stage(f"{folder}: {done} finished cells stand, going on from there")
        live = Live([*arms, *([baseline] if baseline else [])], plan.resident)
        live.on_up = lambda: recorder.save_info(_with_what_was_seen(recorder.info, live))
        with live:
            try:
                run_sweep(plan, recorder, live, progress)
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


def _seed(ask: Ask) -> int:
    """A server that goes on running must not see the prompts of an earlier run again; an engine of ours is new."""
    if ask.seed is not None:
        return ask.seed
    return secrets.randbelow(2**31) if ask.base_url is not None else 0


def _arms(ask: Ask) -> tuple[list[Arm], Arm | None]:
    if ask.profiles and ask.base_url is not None:
        raise InputError("give --profile (we launch it) or --base-url (it already runs), not both.")
    if ask.profiles:
        if ask.baseline_url is not None:
            raise InputError("--baseline-url goes with --base-url; with --profile use --baseline PROFILE.")
        for flag, value in (("--model", ask.model), ("--api-key-env", ask.api_key_env)):
            if value is not None:
                raise InputError(f"{flag} goes with --base-url; a profile says it itself.")
        arms = [_profile_arm(name, ask.changes) for name in ask.profiles]
        baseline = _baseline_arm(ask.baseline, ask.changes) if ask.baseline else None
        names = [arm.name for arm in arms] + ([baseline.name] if baseline else [])
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice and not (len(arms) == 1 and baseline and arms[0].name == baseline.name):
            raise InputError(f"the profile {twice[0]} is named twice.")
        if twice and baseline:  # A/A: the same profile on both sides, told apart by name
            baseline = Arm(f"{baseline.name}-again", profile=baseline.profile)
        return arms, baseline
    if ask.base_url is None:
        raise InputError("nothing to measure: give --profile NAME [--baseline NAME], or --base-url URL.")
    if ask.baseline:
        raise InputError("--baseline goes with --profile; with --base-url use --baseline-url URL.")
    if ask.changes:
        raise InputError("--set changes a profile; a server at --base-url runs as it was started.")
    names = [_url_name(url) for url in (ask.base_url, ask.baseline_url or "")]
    if names[0] == names[1]:  # two servers behind one address
        names = [ask.base_url, ask.baseline_url or ""]
    arm = Arm(names[0], url=ask.base_url, model=ask.model, key_env=ask.api_key_env)
    if ask.baseline_url is None:
        return [arm], None
    if ask.baseline_url.rstrip("/") == ask.base_url.rstrip("/"):
        raise InputError("--baseline-url is the same server as --base-url: prompts would be served twice.")
    return [arm], Arm(names[1], url=ask.baseline_url, model=ask.model, key_env=ask.api_key_env)


def _profile_arm(name: str, changes: Sequence[str]) -> Arm:
    profile = load_profile(name, changes)
    key_variable = engine(profile.engine).key_variable
    has_key = key_variable is not None and bool(os.environ.get(key_variable))
    return Arm(profile.name, profile=profile, key_env=key_variable if has_key else None)


def _baseline_arm(name: str, changes: Sequence[str]) -> Arm:
    """The baseline with the same changes; those of the speculation mean nothing to a profile without it."""
    if load_profile(name).speculation is None:
        changes = [change for change in changes if not change.strip().startswith("speculation.")]
    return _profile_arm(name, changes)


def _url_name(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2] or url if is_address(url) else url


def _levels(ask: Ask, defaults: list[str]) -> list[int]:
    text = ask.concurrency
    if text is None:
        defaults.append("concurrency 1,4,16,64")
        text = "1,4,16,64"
    try:
        levels = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--concurrency {text}: whole numbers with commas between them, like 1,4,16,64.") from None
    if any(not 1 <= level <= MOST_AT_ONCE for level in levels) or len(set(levels)) != len(levels):
        raise InputError(f"--concurrency {text}: each level once, from 1 to {MOST_AT_ONCE}.")
    return levels


def _plan(
    ask: Ask, arms: Sequence[Arm], baseline: Arm | None, levels: Sequence[int], seed: int, defaults: list[str]
) -> Plan:
    def filled(value: Any, default: Any, what: str) -> Any:
        if value is None:
            defaults.append(f"{what} {default}")
        return default if value is None else value

    for flag, number in (("--rounds", ask.rounds), ("--requests", ask.requests), ("--max-tokens", ask.max_tokens)):
        if number is not None and not 1 <= number <= MOST:
            raise InputError(f"{flag} {number}: from 1 to {MOST}.")
    if ask.temperature is not None and not 0 <= ask.temperature < math.inf:
        raise InputError(f"--temperature {ask.temperature}: 0 or more, and a number.")
    for flag, amount in (("--budget", ask.budget), ("--timeout", ask.timeout)):
        if amount is not None and not 0 < amount < math.inf:
            raise InputError(f"{flag} {amount}: above 0, and a number.")
    rounds = BUDGET_ROUNDS if ask.budget and ask.rounds is None else ask.rounds
    for arm in [*arms, *([baseline] if baseline else [])]:
        most = arm.profile.limits.max_num_seqs if arm.profile else None
        if most is not None and most < max(levels):
            raise InputError(
                f"--concurrency {max(levels)}: {arm.name} runs at most {most} requests at once; "
                "leave the level out, or raise it with --set limits.max_num_seqs=N."
            )
    if ask.seed is None:
        defaults.append(f"seed {seed}")
    requests = {level: ask.requests or max(4 * level, 8) for level in levels}
    if ask.requests is None:
        defaults.append("requests 4 x concurrency, at least 8")
    return Plan(
        arms=arms,
        baseline=baseline,
        workload=load_workload(filled(ask.workload, DEFAULT_WORKLOAD, "workload"), seed),
        levels=levels,
        requests=requests,
        sampling=Sampling(
            max_tokens=filled(ask.max_tokens, 128, "max_tokens"),
            temperature=filled(ask.temperature, 0.0, "temperature"),
            ignore_eos=ask.ignore_eos,
        ),
        rounds=filled(rounds, DEFAULT_ROUNDS if baseline else 1, "rounds"),
        budget=ask.budget,
        stall=filled(ask.timeout, DEFAULT_TIMEOUT, "timeout"),
        resident=can_stay_resident([*arms, *([baseline] if baseline else [])]),
    )


def _info(ask: Ask, plan: Plan, seed: int, defaults: list[str], progress: Progress) -> RunInfo:
    def info_of(arm: Arm) -> ArmInfo:
        endpoint = None
        if arm.url is not None:
            progress.stage(f"asking {arm.url}")
            endpoint = find_endpoint(arm.name, arm.url, arm.model, arm.key_env, min(plan.stall, ANSWERS_SOON))
        found = describe(arm, endpoint)
        return found.model_copy(update={"precision": ask.precision}) if ask.precision else found

    arms = [info_of(arm) for arm in plan.arms]
    baseline = info_of(plan.baseline) if plan.baseline else None
    sampling = {
        "max_tokens": plan.sampling.max_tokens,
        "temperature": plan.sampling.temperature,
        "ignore_eos": plan.sampling.ignore_eos,
    }
    chosen_for_this_run = ask.seed is None and ask.base_url is not None and plan.workload.size is None
    machine = hardware()
    parts = {
        "arms": [key_part(arm, info) for arm, info in zip(plan.arms, arms, strict=True)],
        "baseline": key_part(plan.baseline, baseline) if plan.baseline and baseline else None,
        "workload": plan.workload.name if chosen_for_this_run else plan.workload.digest,
        "levels": list(plan.levels),
        "requests": {str(level): count for level, count in plan.requests.items()},
        "sampling": sampling,
        "budget": plan.budget,
        "hardware": {name: machine.get(name) for name in ("cpu", "cores", "gpus")} if ask.profiles else None,
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
        ),
        levels=list(plan.levels),
        requests=dict(plan.requests),
        rounds=None if plan.budget else plan.rounds,
        budget_seconds=plan.budget,
        sampling=sampling,
        resident=plan.resident,
        hardware=machine,
        environment=environment(),
        defaults=defaults,
        key_parts=parts,
        key=resume_key(parts),
    )


def _inherited() -> dict[str, str]:
    """The environment that an engine of ours inherits, without the places where libraries lie."""
    return {name: value for name, value in environment().items() if name != "LD_PRELOAD"}


def _with_what_was_seen(info: RunInfo, live: Live) -> RunInfo:
    def seen(arm: ArmInfo) -> ArmInfo:
        counters = live.counters.get(arm.name)
        found: dict[str, Any] = {}
        if counters is not None:
            found = {"kv_tokens": counters.kv_tokens}
            if arm.speculates is None and counters.iterations is not None:
                found["speculates"] = counters.drafts is not None
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


def _new_folder(ask: Ask, arms: Sequence[Arm]) -> Path:
    name = arms[0].name.replace(":", "-").replace("/", "-")
    return ask.runs / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
