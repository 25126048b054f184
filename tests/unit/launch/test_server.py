"""Start, wait until it really answers, stop all of it: `launch` against a real process that plays the engine."""

import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from toolkit.engines import ENGINES
from toolkit.engines.contract import Command, Profile
from toolkit.engines.vllm import VLLM
from toolkit.errors import EngineError, InputError
from toolkit.launch import server as server_module
from toolkit.launch.process import port_holder
from toolkit.launch.registry import servers, state_folder
from toolkit.launch.server import Server, begin, closing_all, free_port, is_garbage, known_cause, launch

SCRIPT = Path(__file__).with_name("fake_engine.py")
GATED = "huggingface_hub.errors.GatedRepoError: 403 Client Error."
BOOT_LOG = f"""\x1b[32mINFO\x1b[0m 11-29 20:01:02 [config.py:9] a line of no meaning
(EngineCore pid=7) ERROR 11-29 20:01:03 [core.py:55] {GATED}
(APIServer pid=6) INFO 11-29 20:01:04 [launcher.py:3] shutting down"""


class FakeEngine(VLLM):
    """vLLM's adapter, whose command is our script."""

    name = "fake"

    def __init__(self, *behaviour: str) -> None:
        self.behaviour = behaviour

    def command(self, profile: Profile, resolve: Callable[[str], str]) -> Command:
        argv = (sys.executable, str(SCRIPT), "--port", str(profile.server.port), *self.behaviour)
        return Command(argv, {}, profile.container)


Behave = Callable[..., Profile]


@pytest.fixture
def behave(monkeypatch: pytest.MonkeyPatch) -> Iterator[Behave]:
    """`behave("--text", "")` is a profile whose engine does so. Whatever a test leaves running is ended."""

    monkeypatch.setattr(server_module, "POLL", 0.05)

    def behave(*behaviour: str, **fields: Any) -> Profile:
        monkeypatch.setitem(ENGINES, "fake", FakeEngine(*behaviour))
        values = {"name": "fake-arm", "engine": "fake", "target": {"model": "org/model"}}
        return Profile.model_validate({**values, "server": {"port": free_port()}, **fields})

    yield behave
    for entry in servers():
        entry.tree.stop()


def log_text() -> str:
    (log,) = state_folder().glob("*.log")
    return log.read_text()


def refusal(profile: Profile, boot_timeout: float = 30) -> str:
    with pytest.raises(EngineError) as caught:
        launch(profile, boot_timeout=boot_timeout)
    return str(caught.value)


class TestReady:
    def test_after_health_and_after_text(self, behave: Behave) -> None:
        with launch(behave("--unhealthy", "1"), boot_timeout=30):
            asked = re.findall(r"(?:GET|POST) .*", log_text())
        assert asked == ["GET /health 503", "GET /health 200", "POST /v1/completions 200"]

    def test_its_address_is_the_profiles(self, behave: Behave) -> None:
        profile = behave()
        with launch(profile, boot_timeout=30) as server:
            assert server.base_url == f"http://127.0.0.1:{profile.server.port}/v1"

    def test_its_workers_are_written_down(self, behave: Behave) -> None:
        with launch(behave("--worker"), boot_timeout=30) as server:
            worker = int(re.findall(r"worker (\d+)", log_text())[0])
            (entry,) = servers()
            assert {pid for pid, _ in entry.tree.seen} == {server.process.pid, worker}

    def test_leaving_the_context_ends_it_with_its_workers(self, behave: Behave) -> None:
        with launch(behave("--worker"), boot_timeout=30):
            worker = int(re.findall(r"worker (\d+)", log_text())[0])
        assert not psutil.pid_exists(worker) or psutil.Process(worker).status() == psutil.STATUS_ZOMBIE

    def test_leaving_the_context_forgets_it(self, behave: Behave) -> None:
        with launch(behave(), boot_timeout=30):
            assert len(servers()) == 1
        assert list(state_folder().glob("*.json")) == []

    def test_what_it_waits_for_is_told(self, behave: Behave) -> None:
        said: list[str] = []
        with launch(behave("--unhealthy", "1"), said.append, boot_timeout=30):
            assert said[-1] == "first generation"


class TestRefused:
    def test_garbage_while_healthy(self, behave: Behave) -> None:
        assert "healthy but answers '!!!!!!!!': the build computes garbage" in refusal(behave("--text", "!!!!!!!!"))

    def test_no_text_while_healthy(self, behave: Behave) -> None:
        assert "healthy but answers ''" in refusal(behave("--text", ""))

    def test_a_first_generation_that_fails(self, behave: Behave) -> None:
        assert "healthy but its first generation failed: Server error '500" in refusal(behave("--status", "500"))

    def test_never_healthy(self, behave: Behave) -> None:
        said = refusal(behave("--unhealthy", "1000000", "--says", "loading weights"), boot_timeout=0.6)
        assert said.startswith("fake-arm was not healthy after 1 s.\n")

    @pytest.mark.parametrize(
        "behaviour",
        [
            ["--text", "!!!!!!!!"],
            ["--unhealthy", "1000000"],
            ["--dies", "1"],
        ],
    )
    def test_nothing_is_left_running(self, behaviour: list[str], behave: Behave) -> None:
        refusal(behave("--worker", *behaviour), boot_timeout=0.6)
        worker = int(re.findall(r"worker (\d+)", log_text())[0])
        assert not psutil.pid_exists(worker) or psutil.Process(worker).status() == psutil.STATUS_ZOMBIE

    def test_nothing_is_left_written_down(self, behave: Behave) -> None:
        refusal(behave("--text", ""))
        assert list(state_folder().glob("*.json")) == []

    def test_an_interrupt_while_booting_leaves_nothing_running(self, behave: Behave) -> None:
        def interrupt(_: str) -> None:
            raise KeyboardInterrupt

        profile = behave("--unhealthy", "1000000")
        with pytest.raises(KeyboardInterrupt):
            launch(profile, interrupt)
        assert port_holder(profile.server.port) is None


@pytest.fixture
def death(behave: Behave) -> list[str]:
    """The lines of what is said when the engine dies while booting with BOOT_LOG."""
    return refusal(behave("--dies", "7", "--says", BOOT_LOG)).splitlines()


class TestDeath:
    def test_the_message_has_the_code_the_meaningful_line_the_advice_and_the_log(self, death: list[str]) -> None:
        (log,) = state_folder().glob("*.log")
        assert death == [
            "the engine of fake-arm ended with exit code 7.",
            f"  {GATED}",
            "The model is gated: accept its licence on its hub page, then set HF_TOKEN in the environment.",
            f"Log: {log}",
        ]

    def test_without_an_error_line_the_last_lines_are_shown(self, behave: Behave) -> None:
        said = refusal(behave("--dies", "1", "--says", "first\nsecond")).splitlines()
        assert said[1:3] == ["  first", "  second"]

    def test_an_unknown_cause_gets_no_advice(self, behave: Behave) -> None:
        said = refusal(behave("--dies", "1", "--says", "ValueError: odd")).splitlines()
        assert [line for line in said if not line.startswith("Log:")][1:] == ["  ValueError: odd"]

    def test_of_a_served_engine_is_seen_by_check(self, behave: Behave) -> None:
        with launch(behave(), boot_timeout=30) as server:
            server.process.kill()
            server.process.wait()
            with pytest.raises(EngineError, match="ended by signal 9"):
                server.check()

    def test_check_is_silent_while_it_lives(self, behave: Behave) -> None:
        with launch(behave(), boot_timeout=30) as server:
            server.check()

    @pytest.mark.parametrize(("text", "advice"), [("... 401 and Killed", "There is not enough memory"), ("fine", None)])
    def test_the_cause_is_looked_for_in_the_log(self, text: str, advice: str | None) -> None:
        found = known_cause(text, VLLM().known_failures)
        assert (found or "").startswith(advice or "\0") if advice else found is None


class TestBegin:
    def test_a_taken_port_is_refused_naming_who_holds_it(self, behave: Behave) -> None:
        with socket.create_server(("127.0.0.1", 0)) as holder:
            port = holder.getsockname()[1]
            with pytest.raises(InputError, match=rf"port {port} is taken by .*\(pid {os.getpid()}\)"):
                launch(behave(server={"port": port}))

    def test_a_container_without_a_runtime_is_refused_saying_what_to_do(
        self, behave: Behave, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(InputError, match=r"--set container=null"):
            begin(behave(container={"image": "some/image:1"}))

    def test_a_command_that_cannot_start_is_an_engine_error(
        self, behave: Behave, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        profile = behave()
        monkeypatch.setattr(sys, "executable", "/no/such/python")
        with pytest.raises(EngineError, match="/no/such/python cannot be started: No such file or directory"):
            begin(profile)

    def test_it_is_written_down_before_it_answers(self, behave: Behave) -> None:
        with begin(behave(), purpose="sweep") as server:
            assert servers() == [server.entry]

    def test_it_is_reached_over_loopback_when_it_listens_everywhere(self, behave: Behave) -> None:
        port = free_port()
        with begin(behave(server={"host": "0.0.0.0", "port": port})) as server:
            assert server.base_url == f"http://127.0.0.1:{port}/v1"


class TestClosing:
    def test_twice_is_no_error(self, behave: Behave) -> None:
        server = begin(behave())
        server.close()
        server.close()
        assert servers() == []

    def test_all_are_closed_though_one_cannot_be(self, behave: Behave, monkeypatch: pytest.MonkeyPatch) -> None:
        first, second = begin(behave()), begin(behave())
        close = Server.close

        def failing(server: Server) -> None:
            close(server)
            if server is first:
                raise TimeoutError("it hangs")

        monkeypatch.setattr(Server, "close", failing)
        with pytest.raises(TimeoutError, match="it hangs"), closing_all([first, second]):
            pass
        assert servers() == []


class TestSmall:
    @pytest.mark.parametrize("text", ["", "  \n", "!!!!!!!!", "0000", "! ! ! !"])
    def test_garbage(self, text: str) -> None:
        assert is_garbage(text)

    @pytest.mark.parametrize("text", [" Paris.", "a", "...", "42"])
    def test_text(self, text: str) -> None:
        assert not is_garbage(text)

    def test_a_free_port_can_be_listened_on(self) -> None:
        with socket.create_server(("127.0.0.1", free_port())) as server:
            assert server.fileno() >= 0
