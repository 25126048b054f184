"""No unit test reads or writes what belongs to the user: state, caches, models."""

from pathlib import Path

import pytest
from hypothesis import settings

# No deadline: the machine is shared. Fewer examples than by default: all unit tests together take under a minute.
settings.register_profile("unit", max_examples=25, deadline=None)
settings.load_profile("unit")


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "HF_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / "home" / variable.lower()))
    for variable in ("HF_HUB_CACHE", "TOOLKIT_LAB_MODEL"):
        monkeypatch.delenv(variable, raising=False)
