"""`toolkit replay` with vLLM's own n-gram proposer, its own code: it counts as a naive scan of the same trace does."""

import json
from pathlib import Path
from typing import Any

import pytest
from harness import Toolkit

pytestmark = pytest.mark.engine
SMALL = Path(__file__).parents[1] / "data" / "traces" / "small.jsonl"


@pytest.fixture(scope="module")
def rows(toolkit: Toolkit) -> dict[tuple[str, str], dict[str, Any]]:
    done = toolkit.run("replay", "--trace", str(SMALL), "--json")
    return {(row["kind"], row["proposer"]): row for row in json.loads(done.stdout)}


def test_vllms_ngram_counts_as_a_naive_scan_does(rows: dict[tuple[str, str], dict[str, Any]]) -> None:
    kinds = ("code-edit", "extract", "agent-json")
    found = [[rows[kind, "vllm-ngram"][key] for key in ("passes", "drafted", "accepted")] for kind in kinds]
    assert found == [[117, 1784, 1377], [100, 688, 94], [435, 1678, 798]]


def test_ours_needs_fewer_passes_where_answers_resemble(rows: dict[tuple[str, str], dict[str, Any]]) -> None:
    assert rows["agent-json", "prompt-lookup"]["passes"] < rows["agent-json", "vllm-ngram"]["passes"]
