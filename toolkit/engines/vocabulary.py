"""Whether a draft model speaks the target's tokens, from the two config.json alone: no engine, no weights."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from toolkit.engines.contract import Profile


def vocabularies_apart(profile: Profile, configs: Callable[[str], str]) -> str:
    """What is wrong with the vocabularies of target and draft model; empty where they agree or are unknown.

    `configs` turns a model's name into a folder that holds its config.json. A head has the target's vocabulary or a
    part of it by design, and an engine may translate between two vocabularies where its options ask for that.
    """
    speculation = profile.speculation
    if speculation is None or speculation.method != "draft_model" or speculation.options.get("use_heterogeneous_vocab"):
        return ""
    assert speculation.draft is not None
    target, draft = (_size(configs(name)) for name in (profile.target.model, speculation.draft))
    if target is None or draft is None or target == draft:
        return ""
    return (
        f"target.model {profile.target.model} has a vocabulary of {target} tokens, its draft {speculation.draft} one "
        f"of {draft}: a draft model needs the same vocabulary size."
    )


def _size(folder: str) -> int | None:
    """`vocab_size` of a config.json, or of its text model."""
    with suppress(OSError, ValueError, AttributeError):
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        size = config.get("vocab_size", config.get("text_config", {}).get("vocab_size"))
        return size if isinstance(size, int) else None
    return None
