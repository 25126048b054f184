"""`toolkit beta` as a person meets it: tables, JSON, exit codes, and refusals on stderr."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from toolkit.cli import app

Done = subprocess.CompletedProcess[str]
TOY = ("--target", "toy", "--prompts", "chat", "--n", "6", "--tokens", "40")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["beta", *arguments], env={"COLUMNS": "80"})


def toolkit(*arguments: str) -> Done:
    command = [sys.executable, "-m", "toolkit", "beta", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def stopped() -> Done:
    return toolkit(*TOY, "--draft", "unigram", "--c", "0.3", "--json")


@pytest.fixture(scope="module")
def shown() -> str:
    return run(*TOY, "--draft", "bigram", "--c", "0.1").stdout


class TestJson:
    def test_it_is_all_that_stands_on_stdout(self, stopped: Done) -> None:
        assert list(json.loads(stopped.stdout)) == [
            *("schema", "prediction", "source", "target", "draft", "sampling", "k", "c", "texts"),
            *("predicted", "observed", "everywhere", "stepping", "loop", "break_even", "verdict", "sentence", "notes"),
        ]

    def test_stop_is_a_fault_found(self, stopped: Done) -> None:
        assert (stopped.returncode, json.loads(stopped.stdout)["verdict"]) == (1, "stop")

    def test_progress_stands_on_stderr(self, stopped: Done) -> None:
        assert "6 of 6 prompts answered" in stopped.stderr

    def test_every_estimate_has_its_interval_and_n(self, stopped: Done) -> None:
        found = json.loads(stopped.stdout)
        estimates = [found["predicted"], found["observed"], found["stepping"]["acceptance"]]
        assert all(list(one) == ["value", "low", "high", "n"] for one in estimates)


class TestTables:
    @pytest.mark.parametrize("said", ["sum of min(p, q), all places", "the rule run there", "rounds: trust this"])
    def test_each_average_is_named(self, shown: str, said: str) -> None:
        assert said in shown

    def test_the_expected_speedup_is_said(self, shown: str) -> None:
        assert "Expect 1." in shown

    def test_no_table_is_wider_than_a_terminal(self, shown: str) -> None:
        tables = [line for line in shown.splitlines() if "]" in line and not line[:1].isupper()]
        assert max(map(len, tables)) <= 80

    def test_what_pays_is_done(self) -> None:
        assert run(*TOY, "--draft", "bigram", "--c", "0.1").exit_code == 0


class TestRefusals:
    def test_a_row_that_does_not_sum_to_1_is_named(self, tmp_path: Path) -> None:
        for name, last in (("p", 0.5), ("q", 0.4)):
            (tmp_path / f"{name}.jsonl").write_text(f'{{"probs": [0.5, 0.5]}}\n{{"probs": [0.5, {last}]}}\n')
        done = toolkit("--target", str(tmp_path / "p.jsonl"), "--draft", str(tmp_path / "q.jsonl"))
        assert (done.returncode, done.stdout) == (2, "")
        assert f"{tmp_path}/q.jsonl: row 2 sums to 0.9, not to 1" in done.stderr

    def test_a_name_from_outside_cannot_move_the_cursor(self, tmp_path: Path) -> None:
        path = tmp_path / "\x1b[2Jp.jsonl"
        path.write_text('{"probs": [0.5, 0.5]}\n' * 20)
        shown = run("--target", str(path), "--draft", str(path)).stdout
        assert "p.jsonl" in shown
        assert "\x1b" not in shown
