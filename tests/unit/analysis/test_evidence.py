"""The run that the README shows, measured on a real engine by `make evidence`, read again from the committed files."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from toolkit.analysis.crossover import Crossover, crossover
from toolkit.analysis.levels import cross_check
from toolkit.analysis.run import Run

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def evidence() -> ModuleType:
    spec = importlib.util.spec_from_file_location("evidence", ROOT / "benchmarks" / "evidence.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def run() -> Run:
    return Run(ROOT / "tests" / "data" / "runs" / "lab-copy-code")


@pytest.fixture(scope="module")
def result(run: Run) -> Crossover:
    return crossover(run)


@pytest.mark.parametrize("name", ["table", "tune", "plan"])
def test_the_readme_shows_what_the_committed_runs_say(evidence: ModuleType, name: str) -> None:
    start, end = evidence.marks(name)
    shown = (ROOT / "README.md").read_text().partition(start)[2].partition(end)[0]
    assert shown == evidence.BLOCKS[name]()


def test_every_level_has_six_pairs(result: Crossover) -> None:
    assert {level.concurrency: level.pairs for level in result.results[0].levels} == {1: 6, 4: 6, 16: 6, 64: 6}


def test_speculation_paid_at_1_and_did_not_at_64(result: Crossover) -> None:
    verdicts = {level.concurrency: level.verdict for level in result.results[0].levels}
    assert verdicts[1] == "pays"
    assert verdicts[64] != "pays"


def test_no_request_failed(run: Run) -> None:
    assert sum(cell.failed for cell in run.cells()) == 0


def test_responses_and_counters_agreed(run: Run) -> None:
    assert cross_check(run) == []


def test_it_says_on_which_machine_and_with_which_engine(run: Run) -> None:
    assert run.info.hardware["cpu"]
    assert {arm.engine_version for arm in run.info.arms} == {"0.32.0"}


def test_it_holds_no_path_of_the_machine_that_measured_it() -> None:
    text = (ROOT / "tests" / "data" / "runs" / "lab-copy-code" / "run.json").read_text()
    assert str(Path.home()) not in text
    assert str(ROOT) not in text
