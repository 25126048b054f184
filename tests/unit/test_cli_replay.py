"""`toolkit replay` as a person meets it: ours on a small trace, tables, JSON, and refusals on stderr."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

Done = subprocess.CompletedProcess[str]
DATA = Path(__file__).parents[1] / "data"
SMALL = DATA / "traces" / "small.jsonl"


def toolkit(*arguments: str) -> Done:
    command = [sys.executable, "-m", "toolkit", "replay", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def done() -> Done:
    return toolkit("--trace", str(SMALL), "--json", "--proposer", "prompt-lookup")


@pytest.fixture(scope="module")
def rows(done: Done) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["kind"], row["proposer"]): row for row in json.loads(done.stdout)}


@pytest.fixture(scope="module")
def shown() -> str:
    arguments = ("--trace", str(SMALL), "--proposer", "prompt-lookup", "--proposer", "oracle")
    return toolkit(*arguments, "--cost", str(DATA / "runs" / "lab-cost")).stdout


class TestJson:
    def test_it_is_all_that_stands_on_stdout(self, done: Done) -> None:
        assert list(json.loads(done.stdout)[0])[:6] == [
            *("proposer", "kind", "tokens_per_pass", "draft_acceptance_rate", "us_per_step", "build_ns_per_token")
        ]

    def test_ours_guesses_right_more_often_than_not(self, rows: dict[tuple[str, str], dict[str, Any]]) -> None:
        assert rows["agent-json", "prompt-lookup"]["draft_acceptance_rate"] > 0.5

    def test_what_ours_takes_is_measured(self, rows: dict[tuple[str, str], dict[str, Any]]) -> None:
        row = rows["agent-json", "prompt-lookup"]
        assert min(row["us_per_step"], row["build_ns_per_token"], row["bytes_per_token"]) > 0


class TestTables:
    def test_the_distance_from_the_limit_is_said(self, shown: str) -> None:
        assert "Of its tok/pass ours reaches" in " ".join(shown.split())

    def test_a_cost_brings_tokens_per_second(self, shown: str) -> None:
        assert [line.split()[-1] for line in shown.splitlines() if "tok/pass  " in line] == ["tok/s"] * 3

    def test_no_table_is_wider_than_a_terminal(self, shown: str) -> None:
        rows = [line.rstrip() for line in shown.splitlines() if "tok/pass  " in line or "prompt-lookup  " in line]
        assert max(map(len, rows)) <= 80


class TestRefusals:
    def test_a_bad_line_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.jsonl"
        path.write_text('{"prompt": [1], "output": [2]}\n{"prompt": [1], "output": []}\n')
        done = toolkit("--trace", str(path))
        assert (done.returncode, done.stdout) == (2, "")
        assert f"{path}:2: `output` is a list of at least one token id" in done.stderr

    def test_a_name_from_the_trace_cannot_move_the_cursor(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.jsonl"
        path.write_text(json.dumps({"kind": "\x1b[2Jmine", "prompt": [1], "output": [2, 3]}))
        shown = toolkit("--trace", str(path), "--proposer", "oracle").stdout
        assert "mine" in shown
        assert "\x1b" not in shown
