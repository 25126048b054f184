"""`toolkit lab` as a person meets it, on the toy pair: tables, JSON, refusals, and a server in a process of its own."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from toolkit.cli import app
from toolkit.errors import InputError
from toolkit.lab.faults import FAULTS
from toolkit.lab.serve import LabServer
from toolkit.lab.toy import ToyTokenizer, toy_target
from toolkit.launch.profile import load_profile
from toolkit.launch.server import free_port, launch

COMMAND = [sys.executable, "-m", "toolkit", "lab", "serve", "--target", "toy"]
TOY_PROFILE = """\
engine: lab-reference
device: cpu
target:
  model: toy
speculation:
  method: ngram
  num_speculative_tokens: 3
"""


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs `toolkit lab` with arguments; gives what it printed."""

    def run(*arguments: str) -> str:
        app(["lab", *arguments], standalone_mode=False)
        return capsys.readouterr().out

    return run


class TestVerifyCost:
    def test_json_has_stable_keys(self, said: Any) -> None:
        found = json.loads(said("verify-cost", "--target", "toy", "--context", "20", "--repeats", "1", "--json"))
        assert list(found) == ["target", "context", "passes", "draft_step", "c"]

    def test_the_table_has_a_row_for_each_size(self, said: Any) -> None:
        rows = [row.split() for row in said("verify-cost", "--target", "toy", "--repeats", "1").splitlines()]
        assert [row[0] for row in rows if row and row[0].isdigit()] == ["1", "2", "4", "8", "16", "32", "64"]

    def test_without_a_drafter_nothing_is_said_of_one(self, said: Any) -> None:
        assert "draft" not in said("verify-cost", "--target", "toy", "--drafter", "none", "--repeats", "1")


class TestSweepK:
    ARGUMENTS = ("sweep-k", "--target", "toy", "--n", "1", "--max-tokens", "8", "--k", "1,3")

    def test_json_has_stable_keys(self, said: Any) -> None:
        found = json.loads(said(*self.ARGUMENTS, "--json"))
        assert (list(found), [one["k"] for one in found["lengths"]]) == (
            ["target", "prompts", "tokens", "seconds", "c", "lengths"],
            [1, 3],
        )

    def test_greedy_answers_are_compared(self, said: Any) -> None:
        assert said(*self.ARGUMENTS).count("1 of 1") == 2

    def test_sampled_answers_are_not(self, said: Any) -> None:
        assert "1 of 1" not in said(*self.ARGUMENTS, "--temperature", "1")


class TestDistribution:
    def test_json_has_a_row_for_each_experiment(self, said: Any) -> None:
        found = json.loads(said("distribution", "--target", "toy", "--draws", "50", "--json"))
        assert [one["vocabulary"] for one in found] == [6, 6, 97]

    def test_the_table_says_what_theory_expects(self, said: Any) -> None:
        assert "3.9356 by theory" in said("distribution", "--target", "toy", "--draws", "50")


class TestBreak:
    @pytest.fixture(autouse=True)
    def _quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from toolkit.lab import break_report
        from toolkit.lab.break_report import Caught

        def report(name: str, seed: int) -> list[Caught]:
            if name not in FAULTS:
                raise InputError(f"There is no fault {name!r}")
            return [Caught("greedy", 7 if FAULTS[name].lossy else None), Caught("distribution", None)]

        monkeypatch.setattr(break_report, "break_report", report)

    def test_all_of_them_are_planted(self, said: Any) -> None:
        assert [one["fault"] for one in json.loads(said("break", "--json"))] == list(FAULTS)

    def test_one_of_them_is(self, said: Any) -> None:
        (found,) = json.loads(said("break", "no-rollback", "--json"))
        assert (found["lossy"], found["caught_after"]) == (True, {"greedy": 7, "distribution": None})

    def test_the_table_says_what_each_does(self, said: Any) -> None:
        shown = said("break")
        assert [name for name, fault in FAULTS.items() if f"{name}: {fault.what}" not in shown] == []

    def test_a_check_that_sees_nothing_never_catches(self, said: Any) -> None:
        rows = [line.split() for line in said("break", "other-family").splitlines()]
        assert ["other-family", "the", "target's", "never", "never"] in rows

    def test_an_unknown_one_is_refused(self, said: Any) -> None:
        with pytest.raises(InputError, match="no fault 'x'"):
            said("break", "x")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--target", "toy", "--k", "0"], "--k 0: at least 1"),
        (["serve", "--target", "toy", "--fault", "x"], "no fault 'x'"),
        (["serve", "--target", "toy", "--port", "0", "--fault", "no-rollback"], "nothing drafts here"),
        (["serve", "--target", "toy", "--port", "0", "--lookup", "2"], "--lookup 2: two numbers"),
        (["serve", "--target", "toy", "--port", "0", "--drafter", "eagle"], "--drafter eagle: of target toy it is"),
        (["verify-cost", "--target", "toy", "--layers", "a"], "--layers a: whole numbers"),
        (["sweep-k", "--target", "toy", "--drafter", "none"], "choose a --drafter"),
        (["sweep-k", "--target", "toy", "--workload", "chatt"], "Did you mean chat"),
        (["distribution", "--target", "toy", "--temperature", "-1"], "--temperature -1.0"),
    ],
)
def test_a_wrong_input_is_refused(said: Any, arguments: list[str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        said(*arguments)
    assert message in str(caught.value)


class TestServe:
    @pytest.fixture(scope="class")
    @staticmethod
    def ended() -> tuple[dict[str, Any], int, str]:
        """A server that was asked once and then ended: its answer, its exit code, what it said after `ready`."""
        process = subprocess.Popen(
            [*COMMAND, "--drafter", "bigram", "--port", "0", "--served-name", "me"], stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        base_url = process.stderr.readline().split()[-1]
        body = {"model": "me", "prompt": "The large", "max_tokens": 9, "temperature": 0}
        answer = httpx.post(f"{base_url}/completions", json=body, trust_env=False).json()
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=20)
        return answer, process.returncode, rest

    def test_it_answers(self, ended: tuple[dict[str, Any], int, str]) -> None:
        answer, _, _ = ended
        assert (answer["model"], answer["usage"]["completion_tokens"]) == ("me", 9)

    def test_it_ends_without_a_word(self, ended: tuple[dict[str, Any], int, str]) -> None:
        _, code, rest = ended
        assert (code, rest) == (130, "")

    def test_a_taken_port_is_refused(self) -> None:
        with LabServer(toy_target(), ToyTokenizer()) as other:
            port = other.base_url.split(":")[2].partition("/")[0]
            done = subprocess.run([*COMMAND, "--port", port], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"toolkit: cannot listen on 127.0.0.1, port {port}: Address already in use.")


def test_a_profile_of_the_toy_is_launched_like_any_engine(tmp_path: Path) -> None:
    path = tmp_path / "toy-lookup.yaml"
    path.write_text(TOY_PROFILE)
    with launch(load_profile(str(path), [f"server.port={free_port()}"])) as server:
        body = {"prompt": "The large", "max_tokens": 9}
        answer = httpx.post(f"{server.base_url}/completions", json=body, trust_env=False).json()
    assert answer["metrics"]["speculative_decoding"]["num_spec_tokens"] == 3
