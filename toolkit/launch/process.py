"""A process tree that can be ended whole, and only that tree, even by a process that did not start it.

The engine is started as the leader of its own session. Workers rename themselves and lose their environment and, when
their parent dies, their parent; the session id stays. The kernel gives no session id away while a member lives, so a
session is ours as long as one of the processes that we wrote down (pid and start time) is still in it.
"""

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen

import psutil
from pydantic import BaseModel, ConfigDict, Field

Identity = tuple[int, float]
RELEASE = 90.0
"""Seconds that a killed process may take to give back its memory: seen over 10 for 4 GiB on a busy machine."""


@cache
def boot_id() -> str:
    """What tells this boot of the machine from others; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


class Tree(BaseModel):
    """A session of this boot and the processes once seen in it, as (pid, seconds from boot to start)."""

    model_config = ConfigDict(frozen=True)

    session: int
    seen: list[Identity]
    boot: str = Field(default_factory=boot_id)

    def members(self) -> list[psutil.Process]:
        """The living processes of this tree; empty when it has ended."""
        inside = [process for process in psutil.process_iter() if _session(process.pid) == self.session]
        known = dict(self.seen) if self.boot == boot_id() else {}
        if any(_same(process, known.get(process.pid)) for process in inside):
            return [process for process in inside if _alive(process)]
        return []

    def refreshed(self) -> "Tree":
        """The same tree with every process that is in it now written down as well."""
        now = [(process.pid, created) for process in self.members() if (created := start_time(process)) is not None]
        return self.model_copy(update={"seen": sorted({*self.seen, *now})})

    def stop(self, grace: float = 20.0) -> int:
        """End every process: SIGTERM, then SIGKILL after `grace` seconds. Returns how many were ended.

        Raises TimeoutError when a process outlives SIGKILL by `RELEASE` seconds (it hangs in the kernel).
        """
        tree, begun = self.refreshed(), time.monotonic()
        ended = len(tree.members())
        for process in tree.members():
            _send(process, signal.SIGTERM)
        while members := tree.members():
            waited = time.monotonic() - begun
            if waited > grace + RELEASE:
                raise TimeoutError(f"process {members[0].pid} does not end, even killed")
            if waited > grace:
                for process in members:
                    _send(process, signal.SIGKILL)
            time.sleep(0.1)
            tree = tree.refreshed()
        return ended


def start(argv: Sequence[str], env: dict[str, str], log: Path) -> tuple[Popen[bytes], Tree]:
    """Start `argv` in a session of its own, output into `log`, no standard input. Raises OSError."""
    with log.open("ab") as output:
        process = Popen(
            argv, env={**os.environ, **env}, stdin=DEVNULL, stdout=output, stderr=STDOUT, start_new_session=True
        )
    return process, Tree(session=process.pid, seen=[(process.pid, start_time(psutil.Process(process.pid)) or 0.0)])


def exit_code(process: Popen[bytes]) -> int | None:
    """How `process`, our child, ended (negative: the signal); None while it runs.

    It stays a zombie, so that a leader which dies before its workers were written down still shows its session as ours.
    """
    if process.returncode is not None:
        return process.returncode
    try:
        ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return process.poll()
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def is_running(identity: Identity) -> bool:
    """Whether the process (pid, start time) still runs."""
    try:
        return _same(psutil.Process(identity[0]), identity[1]) and _alive(psutil.Process(identity[0]))
    except psutil.NoSuchProcess:
        return False


def own_identity() -> Identity:
    """This process as (pid, start time)."""
    return os.getpid(), start_time(psutil.Process()) or 0.0


def port_holder(port: int) -> str | None:
    """Who listens on the TCP `port` of this machine, as 'name (pid N)'; None when nobody does."""
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
            if connection.pid is None:
                return "a process of another user"
            try:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
            except psutil.NoSuchProcess:
                return f"pid {connection.pid}"
    return None


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def start_time(process: psutil.Process) -> float | None:
    """Start time: seconds from boot, which no step of the clock moves; where that is not told, since the epoch."""
    try:
        after_name = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
        return int(after_name.split()[19]) / os.sysconf("SC_CLK_TCK")  # field 22 of proc(5)
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    except (OSError, LookupError, ValueError):
        return None
    try:
        return process.create_time()
    except psutil.Error:
        return None


def _same(process: psutil.Process, created: float | None) -> bool:
    now = start_time(process)
    return created is not None and now is not None and abs(now - created) < 0.05


def _alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.Error):
        process.send_signal(number)
