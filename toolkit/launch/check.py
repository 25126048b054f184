"""Would the engine accept a profile? Its own validators on the profile's argv, without GPU, weights or network."""

from collections.abc import Sequence

from toolkit.engines import engine
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
