"""Process trees, with real processes: ended whole, only that tree, and by a process that did not start it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from toolkit.launch.process import Tree, exit_code, is_running, own_identity, port_holder, start, start_time

# Writes "name pid" lines into the file argv[1]; the names that argv[2:] asks for are started.
FAMILY = """
import ctypes, os, signal, sys, time

def note(name):
    with open(sys.argv[1], "a") as file:
        file.write(f"{name} {os.getpid()}\\n")

def born(name, then=lambda: None, before=lambda: None):
    if os.fork() == 0:
        before()
        note(name)
        then()
        time.sleep(60)
        os._exit(0)

def orphan():
    if os.fork() == 0:
        born("orphan")
        os._exit(0)
    os.wait()

def rename():
    ctypes.CDLL(None).prctl(15, b"VLLM::EngineCor", 0, 0, 0)
    os.execve(sys.executable, ["VLLM::EngineCore", "-S", "-c", "import time; time.sleep(60)"], {})

make = {
    "child": lambda: born("child", then=lambda: born("grandchild")),
    "orphan": orphan,
    "stubborn": lambda: born("stubborn", before=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN)),
    "renamed": lambda: born("renamed", then=rename),
    "crash": lambda: sys.exit(3),
}
for name in sys.argv[2:]:
    make[name]()
note("leader")
time.sleep(60)
"""
STARTER = """
import sys, time
from pathlib import Path
from toolkit.launch.process import start
process, tree = start(sys.argv[3:], {}, Path(sys.argv[1]))
Path(sys.argv[2]).write_text(tree.model_dump_json())
time.sleep(60)
"""

Pids = dict[str, int]


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


class Family:
    """The argv of a family, and the pids that its members note."""

    def __init__(self, folder: Path) -> None:
        self.script, self.file, self.log = folder / "family.py", folder / "pids", folder / "log"
        self.script.write_text(FAMILY)
        self.file.touch()

    def argv(self, *names: str) -> list[str]:
        return [sys.executable, str(self.script), str(self.file), *names]

    def pids(self, *names: str) -> Pids:
        """Waits until all of `names` are there."""

        def noted() -> Pids:
            return {name: int(pid) for name, pid in map(str.split, self.file.read_text().splitlines())}

        wait_for(lambda: set(names) <= set(noted()))
        return noted()


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    family = Family(tmp_path)
    yield family
    for pid in family.pids().values():
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours in a session of its own."""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", "import time; time.sleep(60)"], start_new_session=True
    ) as process:
        yield process
        process.kill()


class TestStop:
    def test_it_ends_children_grandchildren_orphans_and_the_renamed(self, family: Family) -> None:
        process, tree = start(family.argv("child", "orphan", "renamed"), {}, family.log)
        pids = family.pids("leader", "child", "grandchild", "orphan", "renamed")
        tree.stop(grace=10)
        process.wait()
        assert [name for name, pid in pids.items() if alive(pid)] == []

    def test_it_tells_how_many_it_ended(self, family: Family) -> None:
        process, tree = start(family.argv("child"), {}, family.log)
        family.pids("leader", "child", "grandchild")
        assert tree.stop() == 3
        process.wait()

    def test_one_that_ignores_sigterm_is_killed_after_the_grace(self, family: Family) -> None:
        process, tree = start(family.argv("stubborn"), {}, family.log)
        pids = family.pids("leader", "stubborn")
        tree.stop(grace=0.3)
        process.wait()
        assert not alive(pids["stubborn"])

    def test_it_leaves_a_bystander_alone(self, family: Family, bystander: subprocess.Popen[bytes]) -> None:
        process, tree = start(family.argv(), {}, family.log)
        family.pids("leader")
        tree.stop()
        process.wait()
        assert alive(bystander.pid)

    def test_a_tree_that_has_ended_is_stopped_at_once(self, family: Family) -> None:
        process, tree = start(family.argv(), {}, family.log)
        tree.stop()
        process.wait()
        assert tree.stop() == 0

    def test_another_process_stops_it_when_its_starter_was_killed(self, family: Family, tmp_path: Path) -> None:
        saved = tmp_path / "tree.json"
        argv = [sys.executable, "-c", STARTER, str(family.log), str(saved), *family.argv("child", "orphan")]
        with subprocess.Popen(argv, start_new_session=True) as starter:
            pids = family.pids("leader", "child", "grandchild", "orphan")
            wait_for(lambda: saved.is_file() and saved.read_text().endswith("}"))
            starter.kill()
        Tree.model_validate_json(saved.read_text()).stop()
        assert [name for name, pid in pids.items() if alive(pid)] == []

    def test_members_are_found_by_those_seen_when_the_leader_is_gone(self, family: Family) -> None:
        process, tree = start(family.argv("child"), {}, family.log)
        pids = family.pids("leader", "child", "grandchild")
        tree = tree.refreshed()
        process.kill()
        process.wait()
        assert {member.pid for member in tree.members()} == {pids["child"], pids["grandchild"]}
        tree.stop()
        assert not alive(pids["grandchild"])

    def test_members_are_found_when_the_leader_died_before_they_were_seen(self, family: Family) -> None:
        process, tree = start(family.argv("child", "crash"), {}, family.log)
        pids = family.pids("child", "grandchild")
        wait_for(lambda: exit_code(process) is not None)
        tree.stop()
        process.wait()
        assert [name for name, pid in pids.items() if alive(pid)] == []

    def test_a_session_number_that_was_given_to_others_is_not_touched(self, bystander: subprocess.Popen[bytes]) -> None:
        created = start_time(psutil.Process(bystander.pid)) or 0
        earlier = Tree(session=bystander.pid, seen=[(bystander.pid, created - 100)])
        assert earlier.stop() == 0
        assert alive(bystander.pid)

    def test_a_session_that_never_was_has_no_members(self) -> None:
        assert Tree(session=2**22 + 1, seen=[(2**22 + 1, 1.0)]).members() == []


class TestStart:
    def test_it_leads_a_session_of_its_own(self, tmp_path: Path) -> None:
        process, tree = start([sys.executable, "-S", "-c", "import time; time.sleep(60)"], {}, tmp_path / "log")
        session = os.getsid(process.pid)
        process.kill()
        process.wait()
        assert session == tree.session == process.pid

    def test_output_of_both_kinds_goes_into_the_log(self, tmp_path: Path) -> None:
        code = "import sys; print('said', flush=True); print('complained', file=sys.stderr)"
        process, _ = start([sys.executable, "-S", "-c", code], {}, tmp_path / "log")
        process.wait()
        assert (tmp_path / "log").read_text() == "said\ncomplained\n"

    def test_the_environment_is_ours_and_what_is_added(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OURS", "1")
        code = "import os; print(os.environ['OURS'], os.environ['ADDED'])"
        process, _ = start([sys.executable, "-S", "-c", code], {"ADDED": "2"}, tmp_path / "log")
        process.wait()
        assert (tmp_path / "log").read_text() == "1 2\n"

    def test_a_command_that_is_not_there_is_an_os_error(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            start(["/no/such/command"], {}, tmp_path / "log")

    def test_refreshed_keeps_those_seen_and_adds_the_new(self, family: Family) -> None:
        process, tree = start(family.argv("child"), {}, family.log)
        pids = family.pids("leader", "child", "grandchild")
        seen = tree.refreshed().seen
        tree.stop()
        process.wait()
        assert {pid for pid, _ in seen} == set(pids.values())

    def test_a_tree_survives_the_disk(self) -> None:
        tree = Tree(session=7, seen=[(7, 1764446913.25), (9, 1764446914.5)])
        assert Tree.model_validate(json.loads(tree.model_dump_json())) == tree


class TestExitCode:
    @pytest.mark.parametrize(("code", "expected"), [("exit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)])
    def test_of_a_process_that_ended(self, code: str, expected: int) -> None:
        with subprocess.Popen([sys.executable, "-S", "-c", f"import sys; exit = sys.exit; {code}"]) as process:
            wait_for(lambda: exit_code(process) is not None)
            assert exit_code(process) == expected

    def test_is_none_while_it_runs(self, bystander: subprocess.Popen[bytes]) -> None:
        assert exit_code(bystander) is None

    def test_is_still_told_after_it_was_waited_for(self) -> None:
        process = subprocess.Popen([sys.executable, "-S", "-c", "raise SystemExit(4)"])
        process.wait()
        assert exit_code(process) == 4


class TestIsRunning:
    def test_this_process_runs(self) -> None:
        assert is_running(own_identity())

    def test_a_pid_with_another_start_time_does_not(self) -> None:
        pid, created = own_identity()
        assert not is_running((pid, created - 100))

    def test_a_zombie_does_not(self) -> None:
        process = subprocess.Popen([sys.executable, "-S", "-c", ""])
        identity = (process.pid, start_time(psutil.Process(process.pid)))
        wait_for(lambda: exit_code(process) is not None)
        running = is_running(identity)
        process.wait()
        assert not running

    def test_a_pid_that_nobody_has_does_not(self) -> None:
        assert not is_running((2**22 + 1, 1.0))


class TestPortHolder:
    def test_it_names_the_process_that_listens(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            assert (port_holder(server.getsockname()[1]) or "").endswith(f"(pid {os.getpid()})")

    def test_nobody_holds_a_port_that_was_let_go(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        assert port_holder(port) is None
