"""The sweep command that a Run names parses back to what was asked."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from toolkit.analysis.report.provenance import again, sweep_command
from toolkit.analysis.run import Run, WorkloadInfo

MakeRun = Callable[..., Run]
PAIRS = [(150.0, 100.0)] * 6
LAB = Run(Path(__file__).parents[3] / "data" / "runs" / "lab-copy-code")


@pytest.fixture
def command(make_run: MakeRun, tmp_path: Path) -> Callable[..., list[str]]:
    def made(rates: Any = None, **options: Any) -> list[str]:
        return sweep_command(make_run(tmp_path / "run", rates or {("a", 1): PAIRS, ("a", 4): PAIRS}, **options))

    return made


def value(words: list[str], flag: str) -> str | None:
    return words[words.index(flag) + 1] if flag in words else None


def test_profiles_and_baseline(command: Callable[..., list[str]]) -> None:
    words = command({("a", 1): PAIRS, ("b", 1): PAIRS})
    assert words[:8] == ["toolkit", "sweep", "--profile", "a", "--profile", "b", "--baseline", "lab-baseline"]


def test_the_same_profile_on_both_sides(command: Callable[..., list[str]]) -> None:
    assert value(command(baseline="a-again"), "--baseline") == "a"


def test_running_servers(command: Callable[..., list[str]]) -> None:
    here = {"argv": None, "base_url": "http://one:8000/v1"}
    words = command(arm=here, baseline_arm={**here, "base_url": "http://two:8000/v1"})
    assert (value(words, "--base-url"), value(words, "--baseline-url")) == ("http://one:8000/v1", "http://two:8000/v1")
    assert "--profile" not in words


def test_profiles_are_named_as_they_were_asked_for(command: Callable[..., list[str]]) -> None:
    words = command(profiles=["drafts/mine.yaml"], baseline_profile="./base.yaml")
    assert words[2:6] == ["--profile", "drafts/mine.yaml", "--baseline", "./base.yaml"]


def test_a_seed_that_was_drawn_for_the_run_is_left_to_its_directory(command: Callable[..., list[str]]) -> None:
    # With it the resume key would hold the digest of the workload instead of its name.
    assert "--seed" not in command(key_parts={"workload": "copy-code"})


def test_levels_rounds_sampling_and_seed(command: Callable[..., list[str]]) -> None:
    words = command(
        sampling={"max_tokens": 48, "temperature": 0.0, "ignore_eos": True}, key_parts={"workload": "d" * 64}
    )
    flags = ("--concurrency", "--rounds", "--max-tokens", "--temperature", "--seed")
    assert [value(words, flag) for flag in flags] == ["1,4", "6", "48", "0.0", "0"]
    assert "--ignore-eos" in words


def test_a_budget_stands_for_the_rounds(command: Callable[..., list[str]]) -> None:
    words = command(budget_seconds=480.0, rounds=None)
    assert (value(words, "--budget"), value(words, "--rounds")) == ("8", None)


@given(st.integers(1, 10**9), st.integers(0, 6))
@example(12345678, 0)
@example(16666667, 6)
def test_a_budget_is_told_to_its_last_digit(number: int, decimals: int) -> None:
    minutes = number / 10**decimals  # as somebody types it
    info = LAB.info.model_copy(update={"budget_seconds": minutes * 60})
    assert float(value(sweep_command(SimpleNamespace(info=info, folder=Path("run"))), "--budget") or 0) == minutes  # type: ignore[arg-type]


@pytest.mark.parametrize(("requests", "said"), [({1: 8, 4: 16}, None), ({1: 32, 4: 32}, "32")], ids=["default", "own"])
def test_requests_are_said_when_they_are_not_the_default(
    command: Callable[..., list[str]], requests: dict[int, int], said: str | None
) -> None:
    assert value(command(requests=requests), "--requests") == said


def test_what_set_changed_is_in_the_command(command: Callable[..., list[str]]) -> None:
    assert value(command(changes=["limits.kv_cache_gib=1"]), "--set") == "limits.kv_cache_gib=1"


def test_a_part_of_a_tuning_is_measured_again_by_the_tuning(make_run: MakeRun, tmp_path: Path) -> None:
    words = ["toolkit", "tune", "--profile", "a"]
    run = make_run(tmp_path / "run", {("a-k4", 1): PAIRS}, part_of=words)
    assert again(run).commands[0] == words


def test_a_workload_of_a_file(make_run: MakeRun, tmp_path: Path) -> None:
    work = WorkloadInfo(name="w", digest="d" * 64, seed=0, size=20)
    run = make_run(tmp_path / "run", {("a", 1): PAIRS})
    run.info.workload = work
    assert value(sweep_command(run), "--workload") == "w.jsonl"
    assert any("d" * 64 in remark for remark in again(run).remarks)


def test_words_are_quoted_for_a_shell(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {("a", 1): PAIRS}, change="K=4; rm -rf /")
    assert "'K=4; rm -rf /'" in again(run).commands[0]
