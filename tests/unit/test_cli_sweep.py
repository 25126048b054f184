"""`toolkit sweep` as a person meets it: exit codes, what is on which stream, and that a kill costs at most a cell."""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stub_server import StubServer

from toolkit import cli
from toolkit.analysis.run import Run

CHANGE = "spec decoding: Llama 3.2 1B draft, K=4, greedy"
Ran = tuple[int, str, str]


@pytest.fixture
def toolkit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Ran]:
    """Runs the command line in this process, in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("signal.signal", lambda *_: None)  # the handlers of this process stay
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["toolkit", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


SMALL = ("--workload", "chat", "--concurrency", "1", "--n", "4", "--max-tokens", "4")
NOWHERE = ("--base-url", "http://127.0.0.1:1/v1")


@pytest.mark.parametrize(
    "url", ["http://u:sk-VERYSECRET@127.0.0.1:1/v1", "http://127.0.0.1:1/v1?key=sk-VERYSECRET"], ids=["user", "query"]
)
@pytest.mark.parametrize("flag", ["--base-url", "--baseline-url"])
def test_a_key_in_a_url_is_refused_and_shown_nowhere(toolkit: Callable[..., Ran], flag: str, url: str) -> None:
    with StubServer() as server:
        first = () if flag == "--base-url" else ("--base-url", server.url)
        code, out, err = toolkit("sweep", *first, flag, url, *SMALL)
    assert code == 2
    assert "must hold no user, password or query" in err
    assert "VERYSECRET" not in out + err


class TestExitCodes:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ((), "nothing to measure"),
            ((*NOWHERE, "--profile", "lab-ngram"), "not both"),
            ((*NOWHERE, "--baseline", "lab-baseline"), "--baseline goes with --profile"),
            ((*NOWHERE, "--concurrency", "1,x"), "--concurrency 1,x: whole numbers"),
            ((*NOWHERE, "--concurrency", "0"), "--concurrency 0: "),
            ((*NOWHERE, "--workload", "nonsense"), "no workload named 'nonsense'"),
            ((*NOWHERE, "--rounds", "many"), "Invalid value for '--rounds'"),
            ((*NOWHERE, "--unknown"), "No such option"),
            (("--base-url", "nonsense"), "nonsense: not a URL like"),
            ((*NOWHERE, "--api-key-env", "NOT_SET_HERE"), "NOT_SET_HERE is not set"),
        ],
    )
    def test_wrong_input_is_2(self, toolkit: Callable[..., Ran], arguments: tuple[str, ...], said: str) -> None:
        code, out, err = toolkit("sweep", *arguments)
        assert (code, out, said in err) == (2, "", True), err

    def test_a_malformed_prompt_is_2_with_its_file_and_line(self, toolkit: Callable[..., Ran], tmp_path: Path) -> None:
        (tmp_path / "mine.jsonl").write_text('"one"\n{bad\n')
        code, _, err = toolkit("sweep", *NOWHERE, "--prompts", "mine.jsonl")
        assert (code, "toolkit: mine.jsonl:2: this line is not JSON" in err) == (2, True), err

    def test_a_run_of_another_measurement_is_2(self, toolkit: Callable[..., Ran], stub: StubServer) -> None:
        toolkit("sweep", "--base-url", stub.url, *SMALL, "--run", "here")
        code, _, err = toolkit("sweep", "--base-url", stub.url, *SMALL, "--run", "here", "--max-tokens", "5")
        assert (code, "here holds another measurement: sampling differ" in err) == (2, True), err

    def test_nothing_listens_is_3(self, toolkit: Callable[..., Ran]) -> None:
        code, out, err = toolkit("sweep", *NOWHERE, *SMALL)
        assert (code, out, "cannot be reached" in err) == (3, "", True), err

    def test_a_server_that_answers_500_to_everything_is_3(self, toolkit: Callable[..., Ran], stub: StubServer) -> None:
        stub.fault = lambda number, body: "500 broken"
        code, out, err = toolkit("sweep", "--base-url", stub.url, *SMALL)
        assert (code, out, "every request failed so far: HTTP 500: broken" in err) == (3, "", True), err

    def test_done_is_0(self, toolkit: Callable[..., Ran], stub: StubServer) -> None:
        code, _, err = toolkit("sweep", "--base-url", stub.url, *SMALL)
        assert code == 0, err


class TestLesson:
    """The lesson's line as it stands, with fewer requests."""

    @pytest.fixture
    def line(self, stub: StubServer, tmp_path: Path) -> list[str]:
        stub.model, stub.accepts = "M", [2, 1]
        (tmp_path / "prompts").mkdir()
        (tmp_path / "prompts" / "short.jsonl").write_text("".join(f'"prompt {number}"\n' for number in range(5)))
        what = ["--target", "spark-spec", "--base-url", stub.url, "--model", "M", "--precision", "bf16"]
        load = ["--prompts", "prompts/short.jsonl", "--concurrency", "1,4", "--n", "8", "--max-tokens", "16"]
        return ["sweep", *what, *load, "--ignore-eos", "--change", CHANGE]

    def test_it_measures_and_prints_a_table(self, toolkit: Callable[..., Ran], line: list[str]) -> None:
        code, out, err = toolkit(*line)
        assert (code, "tok/pass" in out, "Run directory: runs/" in out) == (0, True, True), err

    def test_it_says_that_prompts_are_reused(self, toolkit: Callable[..., Ran], line: list[str]) -> None:
        _, out, _ = toolkit(*line)
        assert out.count("prompts were reused, caches may have answered") == 1

    def test_it_says_that_a_speedup_needs_a_baseline(self, toolkit: Callable[..., Ran], line: list[str]) -> None:
        _, out, _ = toolkit(*line)
        assert "speedup is unavailable, no baseline was measured" in out

    def test_what_it_says_of_the_run_is_kept(
        self, toolkit: Callable[..., Ran], line: list[str], tmp_path: Path
    ) -> None:
        toolkit(*line)
        (folder,) = (tmp_path / "runs").iterdir()
        info = Run(folder).info
        assert (info.target, info.change, info.arms[0].precision) == ("spark-spec", CHANGE, "bf16")

    def test_ignore_eos_reaches_the_server(
        self, toolkit: Callable[..., Ran], line: list[str], stub: StubServer
    ) -> None:
        toolkit(*line)
        assert {body.get("ignore_eos") for body in stub.bodies} == {True}

    def test_json_is_all_that_is_on_stdout(self, toolkit: Callable[..., Ran], line: list[str]) -> None:
        _, out, _ = toolkit(*line, "--json")
        found: dict[str, Any] = json.loads(out)
        assert [level["concurrency"] for level in found["results"][0]["levels"]] == [1, 4]

    def test_json_holds_the_acceptance(self, toolkit: Callable[..., Ran], line: list[str]) -> None:
        # 16 tokens: 1, then 3 2 3 2 3 2: 9 kept of 6 x 4 drafted, in 7 passes.
        _, out, _ = toolkit(*line, "--json")
        level = json.loads(out)["results"][0]["levels"][0]
        assert (level["draft_acceptance_rate"], level["tokens_per_pass"]) == (9 / 24, 16 / 7)


@pytest.fixture
def servers() -> Iterator[tuple[StubServer, StubServer]]:
    with StubServer(accepts=[3, 1]) as arm, StubServer() as base:
        yield arm, base


class TestKilled:
    def start(self, servers: tuple[StubServer, StubServer], folder: Path) -> "subprocess.Popen[bytes]":
        urls = ["--base-url", servers[0].url, "--baseline-url", servers[1].url]
        load = ["--workload", "chat", "--concurrency", "1,2", "--rounds", "2", "--n", "8", "--max-tokens", "8"]
        return subprocess.Popen(
            [sys.executable, "-m", "toolkit", "sweep", *urls, *load],
            cwd=folder,
            env={"PYTHONPATH": str(Path(cli.__file__).parents[1]), "XDG_STATE_HOME": str(folder / "state")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    # Of the arm's requests: the first of all, before any record of its cell is written; one in the third cell's middle.
    @pytest.mark.parametrize("at", [1, 40])
    def test_kill_9_and_the_same_command_finish_without_a_trace(
        self, servers: tuple[StubServer, StubServer], tmp_path: Path, at: int
    ) -> None:
        servers[0].fault = lambda number, body: "hang" if number >= at else None
        killed = self.start(servers, tmp_path)
        deadline = time.monotonic() + 30
        while len(servers[0].served) < at and killed.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        killed.kill()
        killed.communicate()
        servers[0].fault = lambda number, body: None
        again = self.start(servers, tmp_path)
        _, err = again.communicate(timeout=60)
        assert (killed.returncode, again.returncode) == (-9, 0), err
        (folder,) = (tmp_path / "runs").iterdir()  # found again without --run
        run = Run(folder)
        assert len((folder / "cells.jsonl").read_text().splitlines()) == len(run.cells()) == 8
        assert set(Counter(str(record.cell) for record in run.requests()).values()) == {8}
        assert sorted({cell.attempt for cell in run.cells()}) == [1, 2]
        assert [max(Counter(server.served).values()) for server in servers] == [1, 1]

    def test_ctrl_c_says_how_to_go_on(self, servers: tuple[StubServer, StubServer], tmp_path: Path) -> None:
        servers[0].fault = lambda number, body: "hang" if number >= 5 else None
        stopped = self.start(servers, tmp_path)
        deadline = time.monotonic() + 30
        while len(servers[0].served) < 5 and stopped.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        stopped.send_signal(2)
        out, err = stopped.communicate(timeout=20)
        said = b"stopped; finished cells stand, the same command goes on from there."
        assert (stopped.returncode, out, said in err.splitlines(), b"Traceback" in err) == (130, b"", True, False), err
