"""From a profile to a schedule that was measured twice: explore K x concurrency, choose, measure the choice again."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from toolkit.analysis.ask import DEFAULT_ROUNDS, DEFAULT_WORKLOAD, MOST, Ask, arm_of, levels_of
from toolkit.analysis.crossover import REQUESTS_PER_SLOT
from toolkit.analysis.pairs import ENOUGH_PAIRS
from toolkit.analysis.prepare import sweep
from toolkit.analysis.run import Run
from toolkit.analysis.sweep import Progress
from toolkit.analysis.tuning.profile import refuse_foreign, write_profile
from toolkit.analysis.tuning.result import TRIES, TuneInfo, Tuning
from toolkit.analysis.tuning.runs import dropped, read_info, tuning_of, validation_folder
from toolkit.analysis.tuning.schedule import Schedule, as_lists, levels_to_judge
from toolkit.analysis.workload import in_language, load_workload
from toolkit.engines import engine
from toolkit.engines.contract import Profile
from toolkit.errors import InputError
from toolkit.launch.profile import load_profile

DEFAULT_KS = "0,1,2,4,8"
MOST_K = 64


@dataclass(frozen=True, slots=True)
class TuneAsk:
    """What a person asks of `toolkit tune`. None: not said, a default is filled in."""

    profile: str
    ks: str | None = None
    concurrency: str | None = None
    workload: str | None = None
    rounds: int | None = None
    max_tokens: int | None = None
    requests: int | None = None
    changes: Sequence[str] = ()
    run: Path | None = None
    runs: Path = field(default_factory=lambda: Path("runs"))
    out: Path | None = None


def tune(ask: TuneAsk, progress: Progress) -> Tuning:
    """Measure, or go on measuring, and write the profile if its schedule holds.

    Raises InputError before anything starts when the profile cannot be tuned or the ask not be met, EngineError when
    an engine fails. Killed and repeated, it goes on where it was.
    """
    profile = load_profile(ask.profile, ask.changes)
    info = info_of(ask, profile)
    out = ask.out or Path(f"{profile.name}-tuned.yaml")
    refuse_foreign(out, ask.profile)
    folder = (
        ask.run
        or _unfinished(ask.runs, info, profile)
        or ask.runs / f"{time.strftime('%Y%m%d-%H%M%S')}-{profile.name}-tune"
    )
    _begin(folder, info)
    measure = _Measure(ask, info, folder, progress)
    plain = _copy(profile, "k0", None)
    measure("explore", [_static(profile, k) for k in info.ks], plain, info.levels, 0, _telling(progress))
    tuning = tuning_of(folder)
    for number in range(1, TRIES + 1):
        if tuning.outcome != "unfinished" or tuning.schedule is None:
            break
        judged = levels_to_judge(tuning.schedule, info.levels)
        name = validation_folder(folder, number).name
        progress.stage(f"{name}: the schedule {as_lists(tuning.schedule)} against no speculation")
        measure(name, [scheduled(profile, tuning.schedule)], plain, judged, number)
        tuning = tuning_of(folder)
    if tuning.outcome == "kept" and tuning.schedule is not None:
        tuned = scheduled(profile, tuning.schedule)
        if _parent_due(tuning, profile):
            measure("parent", [tuned], profile, info.levels, TRIES + 1)
            tuning = tuning_of(folder)
        tuning = replace(tuning, path=write_profile(out, tuning, folder, tuned))
    return tuning


def info_of(ask: TuneAsk, profile: Profile) -> TuneInfo:
    """What will be measured. Raises InputError for what cannot be tuned, or would end without a verdict."""
    if profile.speculation is None:
        raise InputError(
            f"profile {profile.name} does not speculate, so there is no schedule to tune: name the profile whose "
            "draft you want to use."
        )
    refusal = engine(profile.engine).schedule_refusal(profile)
    if refusal is not None:
        raise InputError(f"profile {profile.name} cannot follow a schedule: {refusal}.")
    levels, ks, limit = sorted(levels_of(ask.concurrency, [])), _ks(ask.ks), profile.limits.max_num_seqs
    if len(levels) < 2:
        raise InputError(f"--concurrency {ask.concurrency}: a schedule needs two levels or more, like 1,4,16,64.")
    if limit is not None and levels[-1] > limit:
        raise InputError(
            f"--concurrency {levels[-1]}: {profile.name} runs at most {limit} requests at once; leave the level out, "
            "or raise it with --set limits.max_num_seqs=N."
        )
    rounds = DEFAULT_ROUNDS if ask.rounds is None else ask.rounds
    if rounds < ENOUGH_PAIRS:
        raise InputError(f"--rounds {rounds}: a verdict needs {ENOUGH_PAIRS} pairs, so {ENOUGH_PAIRS} rounds or more.")
    highest = levels[-1] + (levels[-1] != limit)  # a schedule may end at the highest level, and is judged beside it
    if ask.requests is not None and ask.requests < REQUESTS_PER_SLOT * highest:
        raise InputError(
            f"--requests {ask.requests}: a verdict at {highest} needs {REQUESTS_PER_SLOT * highest} in a cell."
        )
    if ask.max_tokens is not None and not 1 <= ask.max_tokens <= MOST:
        raise InputError(f"--max-tokens {ask.max_tokens}: from 1 to {MOST}.")
    in_language(load_workload(ask.workload or DEFAULT_WORKLOAD), "a schedule")
    return TuneInfo(
        profile=profile.name,
        source=ask.profile,
        changes=list(ask.changes),
        ks=ks,
        levels=levels,
        rounds=rounds,
        most=limit or highest,
        workload=ask.workload or DEFAULT_WORKLOAD,
        requests=ask.requests,
        max_tokens=ask.max_tokens,
    )


def scheduled(profile: Profile, schedule: Schedule) -> Profile:
    """`profile` under `schedule`, K being the largest in it."""
    assert profile.speculation is not None
    changed = {"num_speculative_tokens": max(k for *_, k in schedule), "schedule": list(schedule)}
    return _copy(profile, "tuned", profile.speculation.model_copy(update=changed))


def _static(profile: Profile, k: int) -> Profile:
    assert profile.speculation is not None
    changed = {"num_speculative_tokens": k, "schedule": None}
    return _copy(profile, f"k{k}", profile.speculation.model_copy(update=changed))


def _copy(profile: Profile, suffix: str, speculation: object) -> Profile:
    return profile.model_copy(update={"name": f"{profile.name}-{suffix}", "speculation": speculation})


def _ks(text: str | None) -> list[int]:
    """The draft lengths above 0, ascending; 0 needs no arm, since its speedup over itself is 1."""
    text = DEFAULT_KS if text is None else text
    try:
        ks = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--k {text}: whole numbers with commas between them, like {DEFAULT_KS}.") from None
    if any(not 0 <= k <= MOST_K for k in ks) or len(set(ks)) != len(ks):
        raise InputError(f"--k {text}: each draft length once, from 0 to {MOST_K}.")
    if not any(ks):
        raise InputError(f"--k {text}: name a draft length above 0, else there is nothing to compare.")
    return sorted(k for k in ks if k)


@dataclass(frozen=True, slots=True)
class _Measure:
    """Measures one Run directory of the tuning. Each has prompts of its own: none is chosen and judged on."""

    ask: TuneAsk
    info: TuneInfo
    folder: Path
    progress: Progress

    def __call__(
        self,
        name: str,
        profiles: Sequence[Profile],
        against: Profile,
        levels: Sequence[int],
        seed: int,
        drop: Callable[[Run, int], frozenset[tuple[str, int]]] | None = None,
    ) -> None:
        sweep(
            Ask(
                arms=[arm_of(profile) for profile in profiles],
                opponent=arm_of(against),
                workload=self.ask.workload,
                concurrency=",".join(map(str, levels)),
                rounds=self.info.rounds,
                requests=self.ask.requests,
                max_tokens=self.ask.max_tokens,
                seed=seed,
                run=self.folder / name,
                part_of=_command(self.ask, self.info, self.folder),
            ),
            self.progress,
            drop,
        )


def _command(ask: TuneAsk, info: TuneInfo, folder: Path) -> list[str]:
    """The command line that measures this again."""
    words = ["toolkit", "tune", "--profile", ask.profile, "--k", ",".join(map(str, [0, *info.ks]))]
    words += ["--concurrency", ",".join(map(str, info.levels)), "--workload", info.workload]
    words += ["--rounds", str(info.rounds)]
    for flag, value in (("--requests", info.requests), ("--max-tokens", info.max_tokens)):
        words += [flag, str(value)] if value is not None else []
    return [*words, *(word for change in info.changes for word in ("--set", change)), "--run", str(folder)]


def _telling(progress: Progress) -> Callable[[Run, int], frozenset[tuple[str, int]]]:
    """What is dropped before a round; what is new is told."""
    told: set[tuple[str, int]] = set()

    def drop(run: Run, rounds: int) -> frozenset[tuple[str, int]]:
        gone = frozenset(dropped(run, rounds))
        for arm, level in sorted(gone - told):
            progress.stage(f"{arm} at {level} is clearly dominated: not measured further")
        told.update(gone)
        return gone

    return drop


def _begin(folder: Path, info: TuneInfo) -> None:
    """Write tune.json, or go on with the one that is there. Raises InputError when it holds another tuning."""
    path = folder / "tune.json"
    if path.exists():
        there, same = read_info(folder), {"rounds": info.rounds}
        if there.model_copy(update=same) != info:
            raise InputError(f"{folder} holds another tuning: choose another --run, or repeat its command.")
    elif (folder / "run.json").exists() or folder.is_file():
        raise InputError(f"--run {folder}: is not the folder of a tuning; choose another.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(info.model_dump_json(indent=1, by_alias=True) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror}.") from None


def _parent_due(tuning: Tuning, profile: Profile) -> bool:
    """Whether a kept schedule has yet to meet `profile` as written; one that is the profile's own need not."""
    if tuning.outcome != "kept" or tuning.schedule is None or tuning.parent is not None:
        return False
    return scheduled(profile, tuning.schedule).speculation != profile.speculation


def _unfinished(root: Path, info: TuneInfo, profile: Profile) -> Path | None:
    """The newest tuning under `root` that was asked for the same and has not come to its end."""
    for path in sorted(root.glob("*-tune/tune.json"), reverse=True):
        try:
            if read_info(path.parent) != info:
                continue
            tuning = tuning_of(path.parent)
            if tuning.outcome == "unfinished" or _parent_due(tuning, profile):
                return path.parent
        except InputError:
            continue
    return None
