"""`toolkit audit` as a person meets it: exit codes, the JSON, the words, and what comes from outside made harmless."""

import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from talking_server import TalkingServer

from toolkit import cli
from toolkit.analysis.audit.audit import AuditAsk, audit
from toolkit.analysis.audit.judgement import LEVELS
from toolkit.analysis.audit.questions import Sampled

Ran = tuple[int, str, str]
Servers = tuple[TalkingServer, TalkingServer]
NOWHERE = ("--base-url", "http://127.0.0.1:1/v1", "--reference-url", "http://127.0.0.1:2/v1")
QUICK = ("--tokens", "200")


@pytest.fixture
def toolkit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Ran]:
    """Runs the command line in this process, in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("signal.signal", lambda *_: None)  # the handlers of this process stay
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["toolkit", "audit", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


@pytest.fixture
def servers() -> Iterator[Servers]:
    with TalkingServer(accepts=[4, 3]) as arm, TalkingServer(chunk=8) as reference:
        yield arm, reference


def at(servers: Servers) -> tuple[str, ...]:
    return ("--base-url", servers[0].url, "--reference-url", servers[1].url)


class Silent:
    def stage(self, text: str) -> None: ...

    def cells(self, done: int, total: int | None, seconds_left: float | None) -> None: ...


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Finished audits by their verdict."""
    found = {}
    for verdict, slips, tokens in (("lossless", (), 1200), ("lossy", (5,), 1200), ("inconclusive", (), 200)):
        with TalkingServer(accepts=[4, 3], slips=frozenset(slips)) as arm, TalkingServer(chunk=8) as reference:
            run = tmp_path_factory.mktemp(verdict)
            ask = AuditAsk(base_url=arm.url, reference_url=reference.url, how=Sampled(tokens=tokens), run=run)
            found[verdict] = audit(ask, Silent())
    return found


@pytest.fixture
def judged(
    toolkit: Callable[..., Ran], folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ran]:
    """Runs the command line with an audit that has been asked already: `judged(verdict, *arguments)`."""

    def run(verdict: str, *arguments: str) -> Ran:
        monkeypatch.setattr("toolkit.analysis.audit.audit.audit", lambda ask, progress: folders[verdict])
        return toolkit(*NOWHERE, *arguments)

    return run


class TestExitCodes:
    @pytest.mark.parametrize(("verdict", "expected"), [("lossless", 0), ("lossy", 1), ("inconclusive", 0)])
    def test_of_a_verdict(self, judged: Callable[..., Ran], verdict: str, expected: int) -> None:
        code, out, err = judged(verdict)
        assert (code, out.splitlines()[0]) == (expected, f"verdict: {verdict}"), err

    @pytest.mark.parametrize(("verdict", "expected"), [("lossless", 0), ("lossy", 1), ("inconclusive", 1)])
    def test_where_it_must_be_conclusive(self, judged: Callable[..., Ran], verdict: str, expected: int) -> None:
        assert judged(verdict, "--require-conclusive")[0] == expected

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ((), "give --profile (we launch it) or --base-url"),
            ((*NOWHERE, "--profile", "lab-ngram"), "one of them"),
            (NOWHERE[:2], "--base-url needs --reference-url"),
            ((*NOWHERE, "--tokens", "10"), "--tokens 10: from 200 to 200000"),
            ((*NOWHERE, "--tokens", "many"), "Invalid value for '--tokens'"),
            ((*NOWHERE, "--temperature", "0", "--top-k", "8"), "--temperature 0.0: above 0"),
            ((*NOWHERE, "--temperature", "nan", "--top-k", "8"), "--temperature nan: above 0"),
            ((*NOWHERE, "--temperature", "-1", "--top-k", "8"), "--temperature -1.0: above 0"),
            ((*NOWHERE, "--temperature", "0.7"), "--temperature 0.7 needs --top-k"),
            ((*NOWHERE, "--top-k", "17"), "--top-k 17: from 2 to 16"),
            ((*NOWHERE, "--api-key-env", "NOT_SET_HERE"), "NOT_SET_HERE is not set"),
            (("--base-url", "nonsense", "--reference-url", "http://b/v1"), "nonsense: not a URL like"),
            (("--profile", "lab-ngrm"), "Did you mean lab-ngram"),
            (("--profile", "lab-ngram", "--set", "no"), "--set no"),
            ((*NOWHERE, "--unknown"), "No such option"),
        ],
    )
    def test_wrong_input_is_2(self, toolkit: Callable[..., Ran], arguments: tuple[str, ...], said: str) -> None:
        code, out, err = toolkit(*arguments)
        assert (code, out, said in err) == (2, "", True), err

    def test_a_run_directory_that_is_in_use_is_2(self, toolkit: Callable[..., Ran], tmp_path: Path) -> None:
        (tmp_path / "here").mkdir()
        (tmp_path / "here" / "mine").write_text("")
        code, out, err = toolkit(*NOWHERE, "--run", "here")
        assert (code, out, "here: is not empty" in err) == (2, "", True), err

    def test_nothing_listens_is_3(self, toolkit: Callable[..., Ran]) -> None:
        code, out, err = toolkit(*NOWHERE)
        assert (code, out, "cannot be reached" in err) == (3, "", True), err

    def test_a_server_that_fails_is_3(self, toolkit: Callable[..., Ran], servers: Servers) -> None:
        servers[0].fault = lambda number, body: "500 broken"
        code, out, err = toolkit(*at(servers), *QUICK)
        assert (code, out, "toolkit: arm answered HTTP 500: broken" in err) == (3, "", True), err

    def test_a_server_that_wants_a_key_is_2(self, toolkit: Callable[..., Ran], servers: Servers) -> None:
        servers[0].key = "sk-secret"
        code, out, err = toolkit(*at(servers), *QUICK)
        assert (code, out, "pass --api-key-env NAME" in err) == (2, "", True), err


class TestKey:
    def test_it_is_sent_and_kept_out_of_everything(
        self, toolkit: Callable[..., Ran], servers: Servers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """Though the server repeats it in its refusal."""
        monkeypatch.setenv("MY_KEY", "sk-secret")
        for server in servers:
            server.key = "sk-secret"
            server.fault = lambda number, body: "400 {key} takes no schema" if "response_format" in body else None
        code, out, err = toolkit(*at(servers), *QUICK, "--api-key-env", "MY_KEY", "--run", "here")
        assert (code, "Bearer *** takes no schema" in out) == (0, True), err
        kept = "".join(path.read_text() for path in (tmp_path / "here").iterdir())
        assert "sk-secret" not in out + err + kept


class TestJson:
    def read(self, out: str) -> dict[str, Any]:
        def refuse(constant: str) -> float:
            raise AssertionError(f"{constant} is no JSON")

        found: dict[str, Any] = json.loads(out, parse_constant=refuse)
        return found

    @pytest.mark.parametrize("verdict", ["lossless", "lossy", "inconclusive"])
    def test_its_shape(self, judged: Callable[..., Ran], verdict: str) -> None:
        found = self.read(judged(verdict, "--json")[1])
        assert list(found) == ["verdict", *LEVELS, "smallest_total_variation_caught"]
        assert found["verdict"] == verdict
        for name in LEVELS:
            assert list(found[name]) == ["verdict", "tests", "reason"]
            for test in found[name]["tests"]:
                assert list(test)[:4] == ["name", "statistic", "p", "n"]
                assert set(test) <= {"name", "statistic", "p", "n", "note"}

    def test_numbers_are_finite_numbers(self, judged: Callable[..., Ran]) -> None:
        found = self.read(judged("lossy", "--json")[1])
        tests = [test for name in LEVELS for test in found[name]["tests"]]
        assert len(tests) > 15
        for test in tests:
            assert isinstance(test["n"], int)
            assert math.isfinite(test["statistic"])
            assert test["p"] is None or 0 <= test["p"] <= 1

    def test_the_exit_code_is_the_same(self, judged: Callable[..., Ran]) -> None:
        assert judged("lossy", "--json")[0] == 1

    def test_the_run_directory_is_told_beside_it(self, judged: Callable[..., Ran], folders: dict[str, Path]) -> None:
        assert f"Run directory: {folders['lossy']}" in judged("lossy", "--json")[2]

    def test_a_power_where_there_is_one(self, judged: Callable[..., Ran]) -> None:
        powers = [
            self.read(judged(verdict, "--json")[1])["smallest_total_variation_caught"]
            for verdict in ("lossless", "inconclusive")
        ]
        assert powers == [pytest.approx(0.11, abs=0.02), None]


class TestWords:
    def test_levels_checks_and_power(self, judged: Callable[..., Ran], folders: dict[str, Path]) -> None:
        _, out, _ = judged("lossless")
        for name in LEVELS:
            assert f"\n  {name}: " in out
        assert "uniform, by probability: KS" in out
        assert "would have been seen in 9 of 10 audits" in out
        assert f"Run directory: {folders['lossless']}" in out

    def test_a_lossy_verdict_prints_three_examples(self, judged: Callable[..., Ran]) -> None:
        assert judged("lossy")[1].count("came ' w705'") == 3

    def test_a_lossless_verdict_prints_none(self, judged: Callable[..., Ran]) -> None:
        assert " came " not in judged("lossless")[1]

    def test_words_from_outside_stay_words(self, toolkit: Callable[..., Ran], servers: Servers) -> None:
        """A refusal with an escape sequence, markup and line breaks in it."""
        servers[0].fault = lambda number, body: (
            "400 \x1b[2J[red]no[/red]\x07\n[link=x]schema" if "response_format" in body else None
        )
        _, out, err = toolkit(*at(servers), *QUICK)
        assert "\x1b" not in out + err
        assert "HTTP 400: [red]no[/red] [link=x]schema" in out

    def test_what_is_waited_for_is_said_on_stderr(self, toolkit: Callable[..., Ran], servers: Servers) -> None:
        _, _, err = toolkit(*at(servers), *QUICK)
        for stage in ("arm: greedy, 1 at once", "arm: 200 tokens at temperature 1", "reference: scoring what"):
            assert stage in err
