"""The main job on the real vLLM: a sweep that is killed and resumed, and finds both ends of the crossover.

One sweep of lab-ngram against lab-baseline at concurrency 1 and 64 serves all tests here: a quarter of an hour, twice
that on a CPU that only emulates bfloat16.
"""

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import BOOT, Toolkit, session_members, wait_for

from toolkit.analysis.generators import author_name
from toolkit.analysis.levels import cross_check, level_stats
from toolkit.analysis.run import Run
from toolkit.analysis.vocabulary import fill

pytestmark = [pytest.mark.engine, pytest.mark.timeout(5000)]

ROUNDS = 5
# Any single token that stood before is looked up, and eight are drafted: cheap while the machine idles, a waste at 64.
COMMAND = (
    *("sweep", "--profile", "lab-ngram", "--baseline", "lab-baseline", "--workload", "lists.jsonl"),
    *("--concurrency", "1,64", "--rounds", str(ROUNDS), "--max-tokens", "20", "--change", "n-gram K=8, lookup 1-5"),
    *("--set", "speculation.num_speculative_tokens=8", "--set", "speculation.lookup_min=1"),
)
PROMPTS = 5000  # more than the sweep asks for, so that none is served twice


def lists() -> Iterator[str]:
    """Prompts like those of copy-list, but shorter: some machines take long over a prompt."""
    rng = random.Random(0)
    for number in range(PROMPTS):
        items = "; ".join(["{trait} {noun} {100-9999}"] * 3)
        text = f"{{author}} counted: {items}. Repeat this list exactly as it is."
        yield json.dumps({"prompt": fill(rng, text, author=author_name("lists", 0, number)), "category": "repeat"})


@pytest.fixture(scope="module")
def swept(toolkit: Toolkit) -> dict[str, Any]:
    """Killed with SIGKILL in the middle of its third cell or later, then repeated to its end."""
    (toolkit.folder / "lists.jsonl").write_text("\n".join(lists()))
    first = toolkit.start(*COMMAND)

    def in_the_middle_of_a_cell() -> bool:
        assert first.poll() is None, (toolkit.folder / "err").read_text()
        folders = list((toolkit.folder / "runs").glob("*"))
        if not folders or not (folders[0] / "requests.jsonl").exists():
            return False
        cells = (folders[0] / "cells.jsonl").read_text().count("\n")
        lines = (folders[0] / "requests.jsonl").read_text().splitlines()
        attempts = {json.dumps(json.loads(line)["cell"], sort_keys=True) for line in lines}
        return cells >= 2 and len(attempts) > cells

    wait_for(in_the_middle_of_a_cell, 2 * BOOT, "cell in its middle")
    sessions = [entry["tree"]["session"] for entry in toolkit.entries()]
    os.kill(first.pid, signal.SIGKILL)
    first.wait(30)
    left_behind = [len(session_members(session)) for session in sessions]
    folder = next((toolkit.folder / "runs").glob("*"))
    interrupted = Run(folder)
    done = toolkit.run(*COMMAND, "--json", timeout=4200)
    return {
        "folder": folder,
        "sessions": sessions,
        "left_behind": left_behind,
        "finished_before": [str(cell.cell) for cell in interrupted.cells()],
        "done": done,
    }


@pytest.fixture(scope="module")
def levels(swept: dict[str, Any]) -> dict[int, dict[str, Any]]:
    found = json.loads(swept["done"].stdout)["results"][0]["levels"]
    return {level["concurrency"]: level for level in found}


def test_the_same_command_completes_after_a_kill(swept: dict[str, Any]) -> None:
    assert swept["done"].returncode == 0, swept["done"].stderr


def test_it_resumes_in_the_same_run_directory(toolkit: Toolkit, swept: dict[str, Any]) -> None:
    assert list((toolkit.folder / "runs").glob("*")) == [swept["folder"]]


def test_the_engines_of_the_killed_sweep_are_ended(toolkit: Toolkit, swept: dict[str, Any]) -> None:
    assert all(swept["left_behind"])
    assert [session_members(session) for session in swept["sessions"]] == [[], []]


def test_no_engine_is_left_after_the_sweep(toolkit: Toolkit, swept: dict[str, Any]) -> None:
    assert toolkit.entries() == []


def test_every_cell_is_there_once(swept: dict[str, Any]) -> None:
    lines = (swept["folder"] / "cells.jsonl").read_text().splitlines()
    counted = Counter(json.dumps(json.loads(line)["cell"], sort_keys=True) for line in lines)
    assert (len(counted), set(counted.values())) == (2 * 2 * ROUNDS, {1})


def test_finished_cells_stand_in_their_order(swept: dict[str, Any]) -> None:
    now = [str(cell.cell) for cell in Run(swept["folder"]).cells()]
    assert now[: len(swept["finished_before"])] == swept["finished_before"]


def test_no_cell_is_counted_half(swept: dict[str, Any]) -> None:
    run = Run(swept["folder"])
    counted = Counter(str(record.cell) for record in run.requests())
    assert counted == {str(cell.cell): run.info.requests[cell.cell.concurrency] for cell in run.cells()}


def test_no_request_failed(swept: dict[str, Any]) -> None:
    assert [record.error for record in Run(swept["folder"]).requests() if record.error] == []


def test_speculation_pays_at_concurrency_1(levels: dict[int, dict[str, Any]]) -> None:
    assert levels[1]["verdict"] == "pays", levels[1]


def test_speculation_does_not_pay_at_concurrency_64(levels: dict[int, dict[str, Any]]) -> None:
    assert levels[64]["verdict"] != "pays", levels[64]


def test_the_interval_at_64_lies_below_the_interval_at_1(levels: dict[int, dict[str, Any]]) -> None:
    assert levels[64]["high"] < levels[1]["low"]


def test_no_prompt_was_served_twice(swept: dict[str, Any]) -> None:
    assert Run(swept["folder"]).info.workload.reuse is False


def test_both_sides_of_a_pair_had_the_same_prompts(swept: dict[str, Any]) -> None:
    digests: dict[tuple[int, int], set[str]] = {}
    for cell in Run(swept["folder"]).cells():
        digests.setdefault((cell.cell.concurrency, cell.cell.round), set()).add(cell.prompts_digest)
    assert {len(found) for found in digests.values()} == {1}


def test_responses_and_counters_agree_on_accepted_drafts(swept: dict[str, Any]) -> None:
    assert cross_check(Run(swept["folder"])) == []


def test_tokens_per_pass_are_exact_for_nearly_all_requests(swept: dict[str, Any]) -> None:
    passes = [record.passes for record in Run(swept["folder"]).requests() if record.cell.side == "arm"]
    assert sum(found is not None and found[0] == found[1] for found in passes) >= 0.95 * len(passes)


def test_tokens_per_pass_agree_with_the_engines_iterations_at_concurrency_1(swept: dict[str, Any]) -> None:
    """At 1 an iteration of the engine is a pass of the one request, and nothing else runs."""
    run = Run(swept["folder"])
    cells = [cell for cell in run.cells() if cell.cell.concurrency == 1 and cell.cell.side == "arm"]
    iterations = sum((c.counters[-1].iterations or 0) - (c.counters[0].iterations or 0) for c in cells)
    passes = sum(
        sum(record.passes or (0, 0)) / 2
        for record in run.requests(warmup=True)
        if record.cell.concurrency == 1 and record.cell.side == "arm"
    )
    # The engine also counts an iteration that only finishes a request.
    assert passes <= iterations <= 1.1 * passes


def test_the_baseline_takes_one_pass_per_token(swept: dict[str, Any]) -> None:
    found = {s.tokens_per_pass for s in level_stats(Run(swept["folder"])) if s.side == "baseline"}
    assert found == {1.0}


def test_its_rows_enter_the_scoreboard_once(toolkit: Toolkit, swept: dict[str, Any]) -> None:
    first = toolkit.run("scoreboard", "add", str(swept["folder"]), "--change", "n-gram K=8")
    board = (toolkit.folder / "SCOREBOARD.md").read_bytes()
    toolkit.run("scoreboard", "add", str(swept["folder"]), "--change", "n-gram K=8")
    rows = json.loads(toolkit.run("scoreboard", "export", "--format", "json").stdout)["rows"]
    assert (first.returncode, len(rows)) == (0, 4)
    assert (toolkit.folder / "SCOREBOARD.md").read_bytes() == board


def test_the_analysis_needs_the_run_directory_alone(toolkit: Toolkit, swept: dict[str, Any], tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("run.json", "cells.jsonl", "requests.jsonl"):
        (moved / name).write_bytes((swept["folder"] / name).read_bytes())
    again = toolkit.run("crossover", str(moved), "--json")
    assert json.loads(again.stdout) == json.loads(swept["done"].stdout)
    assert (moved / "crossover.png").stat().st_size > 10_000
