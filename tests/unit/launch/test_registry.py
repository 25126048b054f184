"""The written-down servers: saved, found again, chosen by what a person calls them, orphans ended."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from toolkit.errors import InputError
from toolkit.launch.process import Tree, own_identity, start_time
from toolkit.launch.registry import ServerEntry, choose, servers, state_folder, stop_orphans

Enter = Callable[..., ServerEntry]


@pytest.fixture
def enter() -> Iterator[Enter]:
    """Starts a real process and writes it down as a server: `enter("lab-ngram", 8001, purpose="sweep")`."""
    processes = []

    def enter(name: str = "lab-ngram", port: int = 8000, **fields: Any) -> ServerEntry:
        process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], start_new_session=True)
        processes.append(process)
        entry = ServerEntry(
            name=name,
            base_url=f"http://127.0.0.1:{port}/v1",
            log=Path("/log"),
            tree=Tree(session=process.pid, seen=[(process.pid, start_time(psutil.Process(process.pid)) or 0)]),
            **{"owner": own_identity(), **fields},
        )
        entry.save()
        return entry

    yield enter
    for process in processes:
        process.kill()
        process.wait()


def end(entry: ServerEntry) -> None:
    entry.tree.stop()


KILLED = (2**22 + 1, 1.0)  # an owner that does not run


class TestServers:
    def test_an_entry_is_read_as_it_was_saved(self, enter: Enter) -> None:
        entry = enter()
        assert servers() == [entry]

    def test_one_that_has_ended_is_not_listed(self, enter: Enter) -> None:
        end(enter())
        assert servers() == []

    def test_the_file_of_one_that_has_ended_is_removed(self, enter: Enter) -> None:
        entry = enter()
        end(entry)
        servers()
        assert not entry.path.exists()

    def test_a_forgotten_one_is_not_listed(self, enter: Enter) -> None:
        enter().forget()
        assert servers() == []

    def test_forgetting_twice_is_no_error(self, enter: Enter) -> None:
        entry = enter()
        entry.forget()
        entry.forget()
        assert not entry.path.exists()

    @pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe", b'{"name": "x"}'])
    def test_a_file_that_is_no_entry_is_passed_over(self, text: bytes, enter: Enter) -> None:
        entry = enter()
        (state_folder() / "0.json").write_bytes(text)
        assert servers() == [entry]

    def test_the_folder_is_its_owners_alone(self) -> None:
        assert state_folder().stat().st_mode & 0o777 == 0o700

    def test_the_folder_is_where_xdg_says(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        assert state_folder() == tmp_path / "state" / "toolkit" / "servers"


class TestChoose:
    def test_the_only_one_needs_no_name(self, enter: Enter) -> None:
        entry = enter()
        assert choose(None) == [entry]

    @pytest.mark.parametrize("call", [lambda e: e.name, lambda e: "8001", lambda e: str(e.tree.session)])
    def test_by_profile_port_or_pid(self, call: Callable[[ServerEntry], str], enter: Enter) -> None:
        enter("lab-ngram", 8000)
        entry = enter("lab-draft", 8001)
        assert choose(call(entry)) == [entry]

    def test_all_of_them(self, enter: Enter) -> None:
        entries = [enter("lab-ngram", 8000), enter("lab-draft", 8001)]
        assert sorted(choose(None, everything=True), key=lambda e: e.base_url) == entries

    def test_nothing_runs(self) -> None:
        with pytest.raises(InputError, match="no server that the toolkit started is running"):
            choose(None)

    def test_several_run_and_none_is_named(self, enter: Enter) -> None:
        enter("lab-ngram", 8000)
        enter("lab-draft", 8001)
        with pytest.raises(InputError, match=r"more than one server runs: .*lab-draft at http://127\.0\.0\.1:8001/v1"):
            choose(None)

    def test_two_of_one_profile_need_a_port(self, enter: Enter) -> None:
        enter("lab-ngram", 8000)
        enter("lab-ngram", 8001)
        with pytest.raises(InputError, match="'lab-ngram' means 2 of the running servers"):
            choose("lab-ngram")

    def test_a_name_that_none_has(self, enter: Enter) -> None:
        enter()
        with pytest.raises(InputError, match="'other' means 0 of the running servers: lab-ngram at"):
            choose("other")


class TestOrphans:
    def test_the_engine_of_a_killed_sweep_is_ended(self, enter: Enter) -> None:
        entry = enter(purpose="sweep", owner=KILLED)
        assert stop_orphans() == [entry]
        assert entry.tree.members() == []

    def test_the_engine_of_a_running_sweep_goes_on(self, enter: Enter) -> None:
        entry = enter(purpose="sweep")
        assert stop_orphans() == []
        assert entry.tree.members() != []

    def test_a_served_engine_is_nobody_elses_to_end(self, enter: Enter) -> None:
        entry = enter(purpose="serve", owner=KILLED)
        assert stop_orphans() == []
        assert entry.tree.members() != []

    def test_its_entry_is_forgotten(self, enter: Enter) -> None:
        entry = enter(purpose="sweep", owner=KILLED)
        stop_orphans()
        assert not entry.path.exists()
