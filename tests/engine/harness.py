"""Real engines, started through the command line as a person does. Minutes, not seconds: run with `make test`."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

BOOT = 600  # seconds: a boot takes 40 on a quiet machine, and this one may not be quiet


@dataclass
class Toolkit:
    """The `toolkit` command with a state folder of its own."""

    folder: Path

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "XDG_STATE_HOME": str(self.folder / "state")}

    def run(self, *arguments: str, timeout: float = BOOT) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "toolkit", *arguments],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """In a session of its own, output into files, so that a kill -9 hits it alone."""
        with (self.folder / "out").open("w") as out, (self.folder / "err").open("w") as err:
            return subprocess.Popen(
                [sys.executable, "-m", "toolkit", *arguments],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                text=True,
                start_new_session=True,
            )

    def entries(self) -> list[dict[str, Any]]:
        """What the toolkit wrote down of the servers it started."""
        return [json.loads(path.read_text()) for path in (self.folder / "state/toolkit/servers").glob("*.json")]


def wait_for(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """The first true value of `condition`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"no {what} within {seconds:.0f} s"
        time.sleep(0.5)
    return value


def session_members(session: int) -> list[psutil.Process]:
    """The living processes of a session, found without the code under test."""
    members = []
    for process in psutil.process_iter(["status"]):
        try:
            if os.getsid(process.pid) == session and process.info["status"] != psutil.STATUS_ZOMBIE:
                members.append(process)
        except OSError:
            continue
    return members
