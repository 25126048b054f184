"""The command line's launching verbs as a person meets them: a real process, its stdout, stderr and exit code."""

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from toolkit.cli import app
from toolkit.errors import EngineError, InputError
from toolkit.launch.profile import shipped_profiles

Done = subprocess.CompletedProcess[str]


def toolkit(*arguments: str) -> Done:
    return subprocess.run([sys.executable, "-m", "toolkit", *arguments], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def answer() -> Done:
    return toolkit("launch", "--profile", "draft-1b", "--dry-run", "--json")


class TestDryRun:
    def test_json_is_all_that_stands_on_stdout(self, answer: Done) -> None:
        assert list(json.loads(answer.stdout)) == ["argv", "env", "container"]

    def test_nothing_stands_on_stderr(self, answer: Done) -> None:
        assert answer.stderr == ""

    def test_it_is_done(self, answer: Done) -> None:
        assert answer.returncode == 0

    def test_argv_is_a_list_of_words(self, answer: Done) -> None:
        assert json.loads(answer.stdout)["argv"][:3] == ["python3", "-m", "vllm.entrypoints.openai.api_server"]

    def test_the_container_is_told(self, answer: Done) -> None:
        assert json.loads(answer.stdout)["container"]["image"] == "vllm/vllm-openai:v0.32.0"

    def test_plain_it_is_a_line_for_a_shell(self, capsys: pytest.CaptureFixture[str]) -> None:
        app(
            ["launch", "-p", "ngram-8b", "--dry-run", "--set", "container=null", "--port", "8123"],
            standalone_mode=False,
        )
        words = shlex.split(capsys.readouterr().out)
        assert words[:2] == ["env", "VLLM_NO_USAGE_STATS=1"]
        assert words[words.index("--port") + 1] == "8123"

    def test_plain_it_names_the_container(self, capsys: pytest.CaptureFixture[str]) -> None:
        app(["launch", "-p", "ngram-8b", "--dry-run"], standalone_mode=False)
        assert capsys.readouterr().out.startswith("docker run --rm --name toolkit-ngram-8b-8000 ")

    def test_for_another_engine_it_names_that_ones_image(self, capsys: pytest.CaptureFixture[str]) -> None:
        app(["launch", "-p", "draft-1b", "--engine", "sglang", "--dry-run"], standalone_mode=False)
        words = shlex.split(capsys.readouterr().out)
        assert words[words.index("--entrypoint") + 2 :][:3] == [
            "lmsysorg/sglang:latest-cu130",
            "-m",
            "sglang.launch_server",
        ]

    def test_what_the_profile_leaves_open_is_said_on_stderr(self, capsys: pytest.CaptureFixture[str]) -> None:
        change = "limits.max_num_seqs=null"
        app(["launch", "-p", "draft-1b", "--engine", "sglang", "--set", change, "--dry-run"], standalone_mode=False)
        said = capsys.readouterr()
        assert "--max-running-requests 48" in said.out
        assert "this is used: limits.max_num_seqs 48, in both arms" in said.err


def test_a_check_by_an_engine_that_is_not_there_is_one_refusal() -> None:
    with pytest.raises(InputError, match=r"unknown engine 'sglan'\. Did you mean 'sglang'"):
        app(["profiles", "check", "--engine", "sglan"], standalone_mode=False)


class TestCheckOfAll:
    """Without names: each shipped profile gets a line, whatever becomes of it."""

    @pytest.fixture
    def verdicts(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
        def check(name: str, changes: Sequence[str], engine: str | None) -> list[str]:
            if name == "fireworks":
                raise InputError("an endpoint cannot be launched")
            if name == "lab-ngram":
                raise EngineError("the engine is not installed")
            return []

        monkeypatch.setattr("toolkit.launch.check.check_profile", check)
        code = app(["profiles", "check", "--engine", "sglang", "--json"], standalone_mode=False)
        said = capsys.readouterr()
        return {"code": code, "err": said.err, **{one["profile"]: one for one in json.loads(said.out)}}

    def test_one_that_the_engine_takes(self, verdicts: dict[str, Any]) -> None:
        assert verdicts["draft-1b"] == {"profile": "draft-1b", "ok": True, "problems": []}

    def test_one_that_is_not_for_it(self, verdicts: dict[str, Any]) -> None:
        assert (verdicts["fireworks"]["ok"], verdicts["code"]) == (False, 1)

    def test_one_whose_engine_is_not_here_is_neither_good_nor_bad(self, verdicts: dict[str, Any]) -> None:
        assert verdicts["lab-ngram"]["ok"] is None
        assert "not checked: the engine is not installed" in verdicts["err"]


class TestInput:
    def test_an_unknown_profile_is_refused_naming_the_nearest(self) -> None:
        done = toolkit("launch", "--profile", "draft-1", "--dry-run")
        assert (done.returncode, done.stdout) == (2, "")
        assert "Did you mean draft-1b?" in done.stderr

    def test_a_malformed_profile_is_refused_with_file_and_line(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.yaml"
        path.write_text("engine: vllm\ntarget:\n  modell: a/b\n")
        done = toolkit("launch", "--profile", str(path), "--dry-run")
        assert (done.returncode, done.stdout) == (2, "")
        assert f"{path}:3: unknown key 'target.modell': did you mean 'model'?" in done.stderr

    def test_stopping_nothing_is_refused(self) -> None:
        done = toolkit("stop")
        assert (done.returncode, done.stderr) == (2, "toolkit: no server that the toolkit started is running.\n")


class TestProfiles:
    def test_list_as_json_names_all_of_them(self, capsys: pytest.CaptureFixture[str]) -> None:
        app(["profiles", "list", "--json"], standalone_mode=False)
        assert [one["name"] for one in json.loads(capsys.readouterr().out)] == list(shipped_profiles())

    def test_show_resolves_extends_and_changes(self, capsys: pytest.CaptureFixture[str]) -> None:
        app(["profiles", "show", "draft-1b", "--set", "limits.max_num_seqs=7"], standalone_mode=False)
        shown = yaml.safe_load(capsys.readouterr().out)
        assert (shown["target"]["model"], shown["limits"]["max_num_seqs"]) == ("meta-llama/Llama-3.1-8B-Instruct", 7)
