"""A hosted service on the command line: its profile is swept, kept and never launched, and its key is nowhere."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from stub_server import StubServer

from toolkit import cli
from toolkit.analysis.report.provenance import sweep_command
from toolkit.analysis.run import Run

KEY = "fw_3ZabcdefGHIJ0123456789"
Ran = tuple[int, str, str]
SMALL = ("--workload", "chat", "--concurrency", "1", "--n", "4", "--max-tokens", "4", "--run", "here")


@pytest.fixture
def toolkit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Ran]:
    """Runs the command line in this process, in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("signal.signal", lambda *_: None)  # the handlers of this process stay

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["toolkit", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


@pytest.fixture
def service(stub: StubServer, tmp_path: Path) -> StubServer:
    """It knows its key, lists other models than it serves, and has no /metrics; beside it lie a profile and the key."""
    stub.owned_by, stub.key, stub.metrics, stub.token_ids, stub.gap = "someone", KEY, False, False, 0.001
    (tmp_path / "key").write_text(f"{KEY}\n")
    (tmp_path / "key").chmod(0o600)
    profile = {
        "description": "Mine.",
        "engine": "openai",
        "target": {"model": "org/served"},
        "endpoint": {"url": stub.url, "key_file": str(tmp_path / "key")},
    }
    (tmp_path / "hosted.yaml").write_text(yaml.safe_dump(profile))
    return stub


def holders_of_the_key(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


class TestSweep:
    def test_a_profile_is_measured_and_kept(self, toolkit: Callable[..., Ran], service: StubServer) -> None:
        code, out, err = toolkit("sweep", "--profile", "./hosted.yaml", *SMALL)
        assert (code, "acceptance and tokens per pass are unavailable" in out) == (0, True), err
        assert toolkit("scoreboard", "add", "here")[0] == 0
        (row,) = map(json.loads, Path("SCOREBOARD.jsonl").read_text().splitlines())
        kept = {name: row[name] for name in ("arm", "engine", "target", "draft_acceptance_rate")}
        assert kept == {"arm": "hosted", "engine": "openai", "target": "org/served", "draft_acceptance_rate": None}

    def test_it_asks_for_the_model_by_the_profiles_name(self, toolkit: Callable[..., Ran], service: StubServer) -> None:
        toolkit("sweep", "--profile", "./hosted.yaml", *SMALL)
        assert {body["model"] for body in service.bodies} == {"org/served"}

    def test_no_two_runs_send_the_same_prompts(self, toolkit: Callable[..., Ran], service: StubServer) -> None:
        for folder in ("one", "two"):
            toolkit("sweep", "--profile", "./hosted.yaml", *SMALL[:-1], folder)
        assert len(set(service.served)) == len(service.served)

    def test_the_command_that_measures_it_again_names_the_profile(
        self, toolkit: Callable[..., Ran], service: StubServer
    ) -> None:
        toolkit("sweep", "--profile", "./hosted.yaml", "--precision", "fp8", *SMALL)
        words = sweep_command(Run(Path("here")))
        assert words[:6] == ["toolkit", "sweep", "--profile", "./hosted.yaml", "--precision", "fp8"]

    def test_it_resumes(self, toolkit: Callable[..., Ran], service: StubServer) -> None:
        toolkit("sweep", "--profile", "./hosted.yaml", *SMALL)
        asked = len(service.bodies)
        assert toolkit("sweep", "--profile", "./hosted.yaml", *SMALL)[0] == 0
        assert len(service.bodies) == asked

    def test_the_same_service_on_both_sides_is_refused(self, toolkit: Callable[..., Ran], service: StubServer) -> None:
        code, _, err = toolkit("sweep", "--profile", "./hosted.yaml", "--baseline", "./hosted.yaml", *SMALL)
        assert (code, "is the same service: prompts would be served twice" in err) == (2, True), err

    def test_a_key_file_goes_with_a_url_too(self, toolkit: Callable[..., Ran], service: StubServer) -> None:
        at = ("--base-url", service.url, "--model", "org/served")
        code, _, err = toolkit("sweep", *at, "--api-key-file", "key", *SMALL)
        assert (code, service.served != []) == (0, True), err

    def test_a_rate_limit_is_in_the_table_and_in_the_row(
        self, toolkit: Callable[..., Ran], service: StubServer
    ) -> None:
        service.headers = {"Retry-After": "0"}
        service.fault = lambda number, body: "429 slow down" if number == 6 else None
        code, out, _ = toolkit("sweep", "--profile", "./hosted.yaml", *SMALL)
        assert (code, "a rate limit of hosted held back 1 request" in out) == (0, True), out
        toolkit("scoreboard", "add", "here")
        assert "the level measures the limit, not the engine" in Path("SCOREBOARD.jsonl").read_text()


class TestKey:
    def test_it_is_in_no_file_and_on_no_stream(
        self, toolkit: Callable[..., Ran], service: StubServer, tmp_path: Path
    ) -> None:
        service.fault = lambda number, body: "400 your key is {key}" if number == 5 else None
        ran = [
            toolkit("sweep", "--profile", "./hosted.yaml", *SMALL),
            toolkit("scoreboard", "add", "here"),
            toolkit("report", "here"),
            toolkit("crossover", "here", "--json"),
            toolkit("profiles", "show", "./hosted.yaml"),
        ]
        assert [code for code, _, _ in ran] == [0] * 5
        assert [out + err for _, out, err in ran if KEY in out + err] == []
        assert holders_of_the_key(tmp_path) == ["key"]

    @pytest.mark.parametrize(
        "command",
        [("sweep", "--base-url"), ("verify-cost", "--base-url"), ("audit", "--reference-url", "u", "--base-url")],
    )
    def test_both_places_at_once_are_refused(
        self, toolkit: Callable[..., Ran], service: StubServer, command: tuple[str, ...]
    ) -> None:
        code, _, err = toolkit(*command, service.url, "--api-key-file", "key", "--api-key-env", "MY_KEY")
        assert (code, "--api-key-env and --api-key-file: give one of them." in err) == (2, True), err

    @pytest.mark.parametrize("command", ["sweep", "verify-cost", "audit"])
    def test_a_profile_says_itself_where_its_key_is(self, toolkit: Callable[..., Ran], command: str) -> None:
        code, _, err = toolkit(command, "--profile", "lab-ngram", "--api-key-file", "key")
        assert (code, "--api-key-file goes with --base-url" in err) == (2, True), err

    def test_a_key_that_the_service_does_not_take(
        self, toolkit: Callable[..., Ran], service: StubServer, tmp_path: Path
    ) -> None:
        (tmp_path / "key").write_text("sk-of-someone-else")
        code, _, err = toolkit("sweep", "--profile", "./hosted.yaml", *SMALL)
        assert (code, "it does not take the key that was sent" in err, "sk-of" in err) == (2, True, False), err


class TestNotLaunched:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("launch",), "there is nothing to launch; use `toolkit sweep --profile hosted`"),
            (("launch", "--dry-run"), "there is nothing to launch"),
            (("verify-cost",), "a service at an endpoint is not launched here"),
            (("audit",), "does not speculate"),
            (("tune",), "does not speculate"),
        ],
    )
    def test_what_launches_refuses_it(
        self, toolkit: Callable[..., Ran], service: StubServer, arguments: tuple[str, ...], said: str
    ) -> None:
        code, _, err = toolkit(*arguments, "--profile", "./hosted.yaml")
        assert (code, said in err) == (2, True), err

    def test_a_check_says_what_it_cannot_know(self, toolkit: Callable[..., Ran], service: StubServer) -> None:
        code, out, _ = toolkit("profiles", "check", "./hosted.yaml", "--json")
        (found,) = json.loads(out)
        assert (code, found["ok"], len(found["remarks"]), service.paths) == (0, True, 1, [])
