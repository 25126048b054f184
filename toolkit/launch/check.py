"""Would the engine accept a profile? Its own validators on the profile's argv, without GPU, weights or network."""

import os
from collections.abc import Sequence
from pathlib import Path

from toolkit.engines import engine
from toolkit.engines.contract import HostedAt, may_be_key
from toolkit.errors import InputError
from toolkit.launch.models import config_folder
from toolkit.launch.profile import load_profile
from toolkit.launch.server import known_cause


def check_profile(name: str, changes: Sequence[str] = (), engine_name: str | None = None) -> list[str]:
    """Problems in words, each with what to do where that is known; empty when the engine would accept it.

    `engine_name` asks another engine than the profile's.

    Raises InputError for a profile that is itself malformed, EngineError when the engine is not installed here.
    """
    profile = load_profile(name, changes, engine_name)
    adapter = engine(profile.engine)
    try:
        found = adapter.check(profile, config_folder)
    except InputError as error:
        return [str(error)]
    return [" ".join(filter(None, [one, known_cause(one, adapter.known_failures)])) for one in found]


def remarks(name: str, changes: Sequence[str] = (), engine_name: str | None = None) -> list[str]:
    """What a check cannot know of a service at an endpoint, since it asks nobody, and whether its key is here."""
    profile = load_profile(name, changes, engine_name)
    if profile.endpoint is None:
        needs = "engine openai needs `endpoint:`, the url of a service that runs, to be measured by its profile"
        return [needs] if profile.engine == "openai" else []
    said = [f"nothing was sent: only a sweep shows whether {profile.endpoint.url} serves {profile.served_model}"]
    return [*said, *_key(profile.endpoint)]


def _key(at: HostedAt) -> list[str]:
    if at.key_env is not None and not os.environ.get(at.key_env, "").strip():
        return [f"the environment variable {at.key_env}, which holds the key, is not set here"]
    if at.key_file is not None:
        try:
            there = Path(at.key_file).expanduser().is_file()
        except (RuntimeError, OSError, ValueError):
            there = False
        name = "the file of endpoint.key_file" if may_be_key(at.key_file) else f"the file {at.key_file}"
        return [] if there else [f"{name}, which holds the key, is not here"]
    return []
