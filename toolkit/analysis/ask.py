"""What a person asks of a sweep, and the plan that it makes: every refusal comes before anything starts."""

import math
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from toolkit.analysis.arms import Arm, can_stay_resident
from toolkit.analysis.client import Sampling
from toolkit.analysis.endpoint import is_address
from toolkit.analysis.further_fields import read_fields, refuse_fields
from toolkit.analysis.sweep import Plan
from toolkit.analysis.workload import load_workload
from toolkit.engines import engine
from toolkit.engines.contract import Profile
from toolkit.errors import InputError
from toolkit.launch.profile import load_profile

DEFAULT_WORKLOAD = "copy-code"
DEFAULT_ROUNDS = 6
DEFAULT_TIMEOUT = 300.0  # seconds without a byte
BUDGET_ROUNDS = 12  # the most pairs per level when a budget allocates them
MOST_AT_ONCE, MOST = 4096, 1_000_000


@dataclass(frozen=True, slots=True)
class Ask:
    """What a person asks. None and empty: not said, a default is filled in and noted in run.json.

    `arms` against `opponent` are profiles that stand in no file, instead of `profiles` against `baseline`.
    """

    arms: Sequence[Arm] = ()
    opponent: Arm | None = None
    profiles: Sequence[str] = ()
    baseline: str | None = None
    base_url: str | None = None
    baseline_url: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    api_key_file: str | None = None
    workload: str | None = None
    concurrency: str | None = None
    rounds: int | None = None
    requests: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    ignore_eos: bool = False
    fields: Sequence[str] = ()
    seed: int | None = None
    budget: float | None = None
    timeout: float | None = None
    target: str | None = None
    precision: str | None = None
    change: str | None = None
    changes: Sequence[str] = ()
    part_of: Sequence[str] = ()
    run: Path | None = None
    runs: Path = field(default_factory=lambda: Path("runs"))


def _refuse_temperature(profile: Profile, temperature: float) -> None:
    """Raises InputError for a speculating arm that would draw nothing, beside a baseline that draws."""
    if temperature and profile.device in engine(profile.engine).greedy_on:
        raise InputError(
            f"--temperature {temperature:g}: {profile.name} speculates, and on a {profile.device} {profile.engine} "
            "then answers greedily whatever the temperature, without a word. Compare at --temperature 0."
        )


def plan_of(ask: Ask, seed: int, defaults: list[str]) -> Plan:
    """The plan that `ask` makes; what is filled in is added to `defaults`. Raises InputError."""
    for flag, text in (("--target", ask.target), ("--change", ask.change), ("--precision", ask.precision)):
        if text is not None and not text.isprintable():
            raise InputError(f"{flag}: the text has characters that cannot be written down.")
    arms, baseline = arms_of(ask)
    return _plan(ask, arms, baseline, levels_of(ask.concurrency, defaults), seed, defaults)


def seed_of(ask: Ask) -> int:
    """A server that goes on running must not see the prompts of an earlier run again; an engine of ours is new."""
    if ask.seed is not None:
        return ask.seed
    arms, baseline = arms_of(ask)
    return secrets.randbelow(2**31) if any(arm.outlives_us for arm in [*arms, *filter(None, [baseline])]) else 0


def arms_of(ask: Ask) -> tuple[list[Arm], Arm | None]:
    """The arms and the baseline. Raises InputError."""
    if ask.arms:
        return list(ask.arms), ask.opponent
    if ask.profiles and ask.base_url is not None:
        raise InputError("give --profile (we launch it) or --base-url (it already runs), not both.")
    if ask.profiles:
        if ask.baseline_url is not None:
            raise InputError("--baseline-url goes with --base-url; with --profile use --baseline PROFILE.")
        refuse_beside_profile(ask.model, ask.api_key_env, ask.api_key_file)
        arms = [_profile_arm(name, ask.changes) for name in ask.profiles]
        baseline = _baseline_arm(ask.baseline, ask.changes) if ask.baseline else None
        names = [arm.name for arm in arms] + ([baseline.name] if baseline else [])
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice and not (len(arms) == 1 and baseline and arms[0].name == baseline.name):
            raise InputError(f"the profile {twice[0]} is named twice.")
        if twice and baseline:  # A/A: the same profile on both sides, told apart by name
            if baseline.profile is None:
                raise InputError(f"--baseline {ask.baseline} is the same service: prompts would be served twice.")
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
    arm, baseline = (
        Arm(name, url=url, model=ask.model, key_env=ask.api_key_env, key_file=ask.api_key_file)
        for name, url in zip(names, (ask.base_url, ask.baseline_url), strict=True)
    )
    if ask.baseline_url is None:
        return [arm], None
    if ask.baseline_url.rstrip("/") == ask.base_url.rstrip("/"):
        raise InputError("--baseline-url is the same server as --base-url: prompts would be served twice.")
    return [arm], baseline


def refuse_beside_profile(model: str | None, key_env: str | None, key_file: str | None) -> None:
    """Raises InputError for what belongs to a running server."""
    for flag, value in (("--model", model), ("--api-key-env", key_env), ("--api-key-file", key_file)):
        if value is not None:
            raise InputError(f"{flag} goes with --base-url; a profile says it itself.")


def _profile_arm(name: str, changes: Sequence[str]) -> Arm:
    return arm_of(load_profile(name, changes))


def arm_of(profile: Profile) -> Arm:
    """The arm that serves `profile`, its engine asking for the key that our environment holds.

    Of a profile with an endpoint: the service that runs there.
    """
    if profile.endpoint is not None:
        at = profile.endpoint
        return Arm(profile.name, url=at.url, model=profile.served_model, key_env=at.key_env, key_file=at.key_file)
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


def levels_of(text: str | None, defaults: list[str]) -> list[int]:
    """The levels of --concurrency; 1,4,16,64 when it was not given. Raises InputError."""
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
    further = read_fields(ask.fields)
    for arm in [*arms, *([baseline] if baseline else [])]:
        if arm.profile and arm.profile.speculation:
            refuse_fields(arm.name, engine(arm.profile.engine), further)
            _refuse_temperature(arm.profile, ask.temperature or 0.0)
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
            further=further,
        ),
        rounds=filled(rounds, DEFAULT_ROUNDS if baseline else 1, "rounds"),
        budget=ask.budget,
        stall=filled(ask.timeout, DEFAULT_TIMEOUT, "timeout"),
        resident=can_stay_resident([*arms, *([baseline] if baseline else [])]),
    )
