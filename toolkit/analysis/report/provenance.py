"""Where the numbers of a Run come from, in full, and the commands that measure them again."""

import shlex
from collections.abc import Sequence
from typing import Any

from toolkit.analysis.report.page import NONE, Section
from toolkit.analysis.run import ArmInfo, Run, RunInfo

Facts = list[tuple[str, str]]


def measured(run: Run) -> list[Section]:
    """What run.json says: the measurement, then each engine."""
    info = run.info
    sections = [Section("What was measured, and where", facts=_measurement(run))]
    for arm in [*info.arms, *([info.baseline] if info.baseline else [])]:
        role = "the baseline" if arm is info.baseline else "an arm"
        words = [shlex.quote(word) for word in arm.argv or ()]
        sections.append(
            Section(f"{arm.name}, {role}, as it ran", facts=_engine(arm), commands=[words] if words else [])
        )
    return sections


def again(run: Run) -> Section:
    """The exact commands, as far as a Run knows them."""
    info = run.info
    remarks = []
    if info.workload.size is not None:
        remarks.append(f"The workload is a file of {info.workload.size} prompts with SHA-256 {info.workload.digest}.")
    if any(arm.base_url for arm in info.arms):
        where = "lies where its profile says" if info.profiles else "goes into --api-key-env or --api-key-file"
        remarks.append(f"A key of a server {where}; it is not written down.")
    commands = [
        info.part_of or sweep_command(run),
        *(["toolkit", verb, str(run.folder)] for verb in ("crossover", "report")),
    ]
    return Section(
        "How to measure it again",
        texts=[f"With toolkit {info.toolkit_version}. Given the same Run directory, it adds what is missing."],
        remarks=remarks,
        commands=[[shlex.quote(word) for word in words] for words in commands],
    )


def sweep_command(run: Run) -> list[str]:
    """The words of the `toolkit sweep` that measures this Run, rebuilt from its run.json."""
    info = run.info
    parts = ["toolkit", "sweep", *_arms(info)]
    file = info.workload.size is not None
    parts += ["--workload", f"{info.workload.name}.jsonl" if file else info.workload.name]
    parts += ["--concurrency", ",".join(map(str, info.levels))]
    if info.budget_seconds:
        parts += ["--budget", f"{info.budget_seconds / 60:.15g}"]  # the digits that survive minutes x 60 / 60
    elif info.rounds is not None:
        parts += ["--rounds", str(info.rounds)]
    counts = set(info.requests.values())
    if len(counts) == 1 and any(count != max(4 * level, 8) for level, count in info.requests.items()):
        parts += ["--requests", str(counts.pop())]
    for flag, name in (("--max-tokens", "max_tokens"), ("--temperature", "temperature")):
        if name in info.sampling:
            parts += [flag, str(info.sampling[name])]
    parts += [word for change in info.changes for word in ("--set", change)]
    parts += ["--ignore-eos"] if info.sampling.get("ignore_eos") else []
    # A seed that was drawn for this Run is no part of its key: the directory names it, and it alone.
    drawn = info.key_parts.get("workload") == info.workload.name
    parts += ["--seed", str(info.workload.seed)] if not file and not drawn else []
    for flag, text in (("--target", info.target), ("--change", info.change)):
        parts += [flag, text] if text else []
    return [*parts, "--run", str(run.folder)]


def _arms(info: RunInfo) -> list[str]:
    first, baseline = info.arms[0], info.baseline
    if first.base_url is not None and not info.profiles:
        parts = ["--base-url", first.base_url, "--model", first.model]
        parts += ["--baseline-url", baseline.base_url] if baseline and baseline.base_url else []
        return [*parts, "--precision", first.precision] if first.precision else parts
    asked = info.profiles or [arm.name for arm in info.arms]
    parts = [part for profile in asked for part in ("--profile", profile)]
    parts += ["--precision", first.precision] if first.base_url is not None and first.precision else []
    if info.baseline_profile is not None:
        return [*parts, "--baseline", info.baseline_profile]
    if baseline is None:
        return parts
    same = len(info.arms) == 1 and baseline.name == f"{first.name}-again"  # A/A: one profile on both sides
    return [*parts, "--baseline", first.name if same else baseline.name]


def _measurement(run: Run) -> Facts:
    info, cells = run.info, run.cells()
    work = info.workload
    prompts = f"a file of {work.size} prompts" if work.size is not None else f"generated, seed {work.seed}"
    reuse = "; prompts were reused, caches may have answered" if work.reuse else ""
    per_cell = ", ".join(f"{count} at {level}" for level, count in sorted(info.requests.items()))
    ours = any(arm.argv is not None for arm in info.arms)
    facts: list[tuple[str, Any]] = [
        ("Begun", info.created),
        ("Last cell", max((cell.finished_at for cell in cells), default=None)),
        ("Cells", f"{len(cells)} finished, {sum(cell.requests for cell in cells)} requests"),
        ("Target", info.target),
        ("Change", info.change),
        ("Workload", f"{work.name}: {prompts}{reuse}"),
        ("Workload digest", work.digest),
        ("Concurrency", ", ".join(map(str, info.levels))),
        ("Requests per cell", per_cell),
        ("Pairs per level", f"as many as fit into {info.budget_seconds:g} s" if info.budget_seconds else info.rounds),
        ("Sampling", _listed(info.sampling)),
        ("Engines in memory", {True: "all at once", False: "in turn", None: None}[info.resident]),
        ("Machine" if ours else "Machine of the load client", _listed(info.hardware)),
        ("Environment", _listed(info.environment) or "nothing set that matters"),
        ("Filled in by default", "; ".join(info.defaults) or "nothing"),
        ("toolkit", info.toolkit_version),
        ("Resume key", info.key),
        ("Run directory", str(run.folder)),
    ]
    return _known(facts)


def _engine(arm: ArmInfo) -> Facts:
    speculation = {True: "yes", False: "no", None: "the server does not tell"}[arm.speculates]
    facts: list[tuple[str, Any]] = [
        ("Engine", f"{arm.engine} {arm.engine_version or '(version unknown)'}"),
        ("Model", arm.model),
        ("Model identity", arm.model_identity),
        ("Precision", arm.precision),
        ("Speculates", speculation),
        *([("Method", arm.method), ("K", arm.num_speculative_tokens)] if arm.speculates else []),
        *([("Draft", arm.draft)] if arm.draft else []),
        ("KV capacity", f"{arm.kv_tokens:,.0f} tokens" if arm.kv_tokens is not None else None),
        ("Scheduling", arm.scheduling),
        *([("Container", arm.container)] if arm.container else []),
        *([("Base URL", arm.base_url)] if arm.base_url else []),
        *arm.facts.items(),
        ("Environment", _listed(arm.env) or "nothing set" if arm.env is not None else None),
    ]
    return _known(facts)


def _known(facts: Sequence[tuple[str, Any]]) -> Facts:
    return [(name, NONE if value in (None, "") else str(value)) for name, value in facts]


def _listed(values: dict[str, Any]) -> str:
    """`name value, name value`; a list of dicts, like the GPUs, in brackets."""
    return ", ".join(f"{name} {_one(value)}" for name, value in values.items())


def _one(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(_one(each) for each in value)
    return f"({_listed(value)})" if isinstance(value, dict) else str(value)
