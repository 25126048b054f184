"""`toolkit layer-skip` as a person meets it: a draft directory, refusals on stderr, the table of a search."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from toolkit.analysis.layers.curve import Kept, LayerSearch, point
from toolkit.cli.layers import search_lines
from toolkit.proposers.layer_set import read

Done = subprocess.CompletedProcess[str]


def make(*arguments: str) -> Done:
    command = [sys.executable, "-m", "toolkit", "layer-skip", "make", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


class TestMake:
    def test_it_writes_a_draft_directory_and_says_so_in_json(self, tmp_path: Path) -> None:
        done = make("--target", "lab", "--skip", "9-18", "-o", str(tmp_path / "draft"), "--json")
        told = json.loads(done.stdout)
        assert list(told) == ["draft", "target", "layers", "num_hidden_layers", "c"]
        assert tuple(told["layers"]) == read(tmp_path / "draft").layers == (*range(9), *range(19, 30))
        assert told["c"] == pytest.approx(0.74, abs=0.005)

    def test_a_refusal_is_one_message_and_exit_code_2(self, tmp_path: Path) -> None:
        done = make("--target", "lab", "--exit", "30", "-o", str(tmp_path / "draft"))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "toolkit: nothing is skipped: a draft of all 30 layers is the target itself.\n"


def found(kept: float, c: float) -> LayerSearch:
    counts = (np.random.default_rng(0).random(16 * 32) < kept).astype(np.int64)
    drafts = Kept(counts, np.repeat(np.arange(16), 32), np.full(16 * 32, 99))
    points = [point(range(size), c, lambda k: 1 + k * c, drafts, drafts, 8) for size in (29, 28)]
    words = ("meta-llama/Llama-3.1-8B-Instruct", "chat", 30)
    return LayerSearch(*words, tuple(points), "by bytes", "float32", (16, 16), (512, 512), 400, 300.0, 500.0)


def shown(search: LayerSearch) -> str:
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    for part in search_lines(search):
        console.print(part, markup=False, soft_wrap=isinstance(part, str))
    return console.export_text()


class TestSearch:
    def test_a_row_of_the_curve_is_one_line_of_a_terminal(self) -> None:
        rows = [line for line in shown(found(0.9, 0.95)).splitlines() if line.strip().startswith(("29", "28"))]
        assert len(rows) == 2
        assert all(line.rstrip().endswith("]") for line in rows)

    def test_that_nothing_pays_is_said_plainly(self) -> None:
        assert "No set pays here: the best, 29 of 30 layers with K = 1, predicts 0.9" in shown(found(0.8, 0.95))

    def test_what_the_cost_was_taken_from_is_said(self) -> None:
        assert "by bytes" in shown(found(0.9, 0.3))

    def test_acceptance_at_each_position_is_said(self) -> None:
        assert "given those before:" in shown(found(0.9, 0.3))
