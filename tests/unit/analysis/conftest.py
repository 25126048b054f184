"""Run directories with made-up rates, for every test of what reads one."""

from collections.abc import Callable

import pytest
from made_run import write_run

from toolkit.analysis.run import Run


@pytest.fixture(scope="session")
def make_run() -> Callable[..., Run]:
    """Writes a Run directory and reads it: `make_run(folder, {("lab-ngram", 4): [(150, 100), ...]})`.

    `rates` are tokens/s of arm and baseline per round; None is a cell without a window. Options: see `write_run`.
    """
    return write_run
