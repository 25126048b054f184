"""The README's comparison of our lookup with its rivals, read again from the committed runs."""

import importlib.util
import math
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
START, END = "<!-- envelope: kept equal to the committed runs by a test -->\n", "<!-- /envelope -->"


@pytest.fixture(scope="module")
def envelope() -> ModuleType:
    spec = importlib.util.spec_from_file_location("envelope", ROOT / "benchmarks" / "envelope.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_shows_what_the_committed_runs_say(envelope: ModuleType) -> None:
    shown = (ROOT / "README.md").read_text().partition(START)[2].partition(END)[0]
    assert shown == envelope.markdown(ROOT / "tests" / "data" / "runs" / "lab-envelope")


@pytest.mark.parametrize(
    ("ratios", "word"),
    [
        ([0.98] * 5, "passed"),
        ([0.95] * 5, "missed"),
        ([0.9, 1.1, 0.9, 1.1, 1.0], "inconclusive"),
        ([1.5] * 4, "inconclusive, 4 pairs"),
    ],
)
def test_a_rival_is_passed_only_by_enough_pairs_at_the_limit(
    envelope: ModuleType, ratios: list[float], word: str
) -> None:
    assert envelope.verdict([math.log(ratio) for ratio in ratios])[0] == word
