"""The profile that a tuning writes: the parent, its schedule, and the evidence."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from toolkit import __version__
from toolkit.analysis.escape import one_line
from toolkit.analysis.tuning.result import Tuning, interval, not_proven
from toolkit.analysis.tuning.schedule import as_lists, k_at
from toolkit.engines.contract import Profile
from toolkit.errors import InputError
from toolkit.launch.profile import load_profile, shipped_profiles

_MARK = "# Written by toolkit tune; the text below has the digest "


def refuse_foreign(out: Path, profile: str) -> None:
    """Raises InputError for a place where a profile may not be written: no profile of ours as we left it."""
    if out.suffix not in (".yaml", ".yml"):
        raise InputError(f"--out {out}: a profile is a file named *.yaml.")
    if out.stem == profile or (Path(profile).is_file() and out.resolve() == Path(profile).resolve()):
        raise InputError(f"--out {out}: that is the profile's own name; choose another.")
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: there is no folder {out.parent}.")
    try:
        there = out.read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--out {out}: cannot be read: {error}.") from None
    head, _, body = there.partition("\n")
    if head != _MARK + _digest(body):
        raise InputError(
            f"--out {out}: was written, or changed, by somebody else; choose another name or move it away."
        )


def write_profile(out: Path, tuning: Tuning, folder: Path, tuned: Profile) -> Path:
    """Write the profile to `out`, which then loads as `tuned`, the one that was measured.

    Raises InputError when the disk refuses, or when what it extends is another profile there.
    """
    body = profile_text(out, tuning, folder)
    draft = out.with_name(f"{out.stem}.{os.getpid()}{out.suffix}")  # beside it, since `extends` looks there
    try:
        draft.write_text(f"{_MARK}{_digest(body)}\n{body}", encoding="utf-8")
        if _engine_part(load_profile(str(draft))) != _engine_part(tuned):
            raise InputError(f"--out {out}: there it extends another {tuning.info.source}: choose another folder.")
        draft.replace(out)
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written: {error.strerror}.") from None
    finally:
        draft.unlink(missing_ok=True)
    return out


def _engine_part(profile: Profile) -> Profile:
    """`profile` without what no engine sees."""
    return profile.model_copy(update={"name": "", "description": "", "sources": []})


def profile_text(out: Path, tuning: Tuning, folder: Path) -> str:
    """The YAML of the tuned profile: it extends the parent with what --set changed, and the schedule."""
    assert tuning.schedule is not None
    info, last, seen = tuning.info, tuning.validations[-1], tuning.provenance
    source = info.source
    if source not in shipped_profiles():
        source = os.path.relpath(Path(source).resolve(), out.parent.resolve())
    asked, parent = load_profile(info.source, info.changes), load_profile(info.source)
    changed = _changed(asked.model_dump(mode="json"), parent.model_dump(mode="json"))
    speculation = {
        **changed.pop("speculation", {}),
        "num_speculative_tokens": max(k for *_, k in tuning.schedule),
        "schedule": as_lists(tuning.schedule),
    }
    after = ", ".join(
        f"{interval(level)} at {level.concurrency} (K = {k_at(last.schedule, level.concurrency)}, {level.verdict})"
        for level in last.levels
    )
    sources = [
        f"Schedule by toolkit tune {__version__} on {seen['date']}: {seen['machine']}; {seen['engine']}; workload "
        f"{seen['workload']}; {info.rounds} pairs a level; run {folder.name}.",
        f"Speedup over no speculation, measured after the choice: {after}.",
        *tuning.failed,
        *not_proven([one for one in tuning.proofs if one.arm == last.arm]),
    ]
    if tuning.beyond is not None:
        sources.append(tuning.beyond)
    if tuning.parent is not None:
        versus = ", ".join(f"{interval(level)} at {level.concurrency}" for level in tuning.parent)
        sources.append(f"Throughput over {info.profile} as written: {versus}.")
    values = {
        "description": one_line(f"{info.profile} with a schedule of K by load that was measured here."),
        "extends": source,
        **changed,
        "speculation": speculation,
    }
    evidence = {"sources": [one_line(line) for line in sources]}
    return _yaml(values, None) + _yaml(evidence, False)


def _yaml(values: Mapping[str, Any], flow: bool | None) -> str:
    return str(yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=110, default_flow_style=flow))


def _changed(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """What of `now` differs from `before`, mappings key by key; a key that is gone is null."""
    found: dict[str, Any] = {}
    for key in (*now, *(key for key in before if key not in now)):
        value, was = now.get(key), before.get(key)
        if isinstance(value, Mapping) and isinstance(was, Mapping):
            if below := _changed(value, was):
                found[key] = below
        elif value != was:
            found[key] = value
    return found


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:16]
