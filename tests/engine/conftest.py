import signal
from collections.abc import Iterator

import pytest
from harness import Toolkit, session_members


@pytest.fixture(scope="session")
def toolkit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toolkit]:
    tool = Toolkit(tmp_path_factory.mktemp("engine"))
    yield tool
    tool.run("stop", "--all")
    for entry in tool.entries():  # whatever a failed test left behind
        for process in session_members(entry["tree"]["session"]):
            process.send_signal(signal.SIGKILL)
