"""The one sentence at the top of a report."""

from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.analysis.crossover import ArmResult, Crossover, Level, Verdict
from toolkit.analysis.report.answer import answer
from toolkit.analysis.run import Run

MakeRun = Callable[..., Run]


def result(arm: str, synthetic: bool = False, idle: bool = False, **verdicts: Verdict) -> ArmResult:
    """An arm with levels like `n1="pays"`."""
    levels = [Level(int(n[1:]), 1.0, 0.9, 1.1, verdict, "", 6, None, None) for n, verdict in verdicts.items()]
    return ArmResult(arm, "chat", levels, synthetic, idle=idle)


@pytest.fixture
def run(make_run: MakeRun, tmp_path: Path) -> Run:
    return make_run(tmp_path / "run", {}, workload="chat")


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        ({"n1": "pays", "n4": "costs"}, "a pays up to concurrency 1 and costs from 4; the crossover lies between."),
        ({"n1": "pays"}, "a pays up to concurrency 1 and was not seen to cost."),
        ({"n1": "costs"}, "a costs from concurrency 1 on and was not seen to pay."),
        ({"n1": "inconclusive"}, "a is inconclusive at every concurrency measured."),
        ({"n1": "costs", "n4": "pays"}, "a is not monotone: it costs at 1 and pays at 4."),
    ],
    ids=["crossover", "pays", "costs", "inconclusive", "not monotone"],
)
def test_it_is_one_sentence(run: Run, verdicts: dict[str, Verdict], said: str) -> None:
    assert answer([(run, Crossover("base", [result("a", **verdicts)]))]) == said


def test_without_a_baseline_it_is_unavailable(run: Run) -> None:
    said = answer([(run, Crossover(None, [result("a", n1="inconclusive")]))])
    assert said == "a: speedup is unavailable, no baseline was measured."


def test_several_arms_have_a_clause_each(run: Run) -> None:
    said = answer([(run, Crossover("base", [result("a", n1="pays"), result("b", n1="costs")]))])
    assert said == (
        "a pays up to concurrency 1 and was not seen to cost; b costs from concurrency 1 on and was not seen to pay."
    )


def test_several_runs_say_on_what(run: Run, make_run: MakeRun, tmp_path: Path) -> None:
    one, other = Crossover("base", [result("a", n1="pays")]), make_run(tmp_path / "other", {}, workload="extract")
    said = answer([(run, one), (other, one)])
    assert said.startswith("On chat, a pays")
    assert "; on extract, a pays" in said


def test_runs_on_the_same_workload_go_by_their_directories(run: Run, make_run: MakeRun, tmp_path: Path) -> None:
    one, other = Crossover("base", [result("a", n1="pays")]), make_run(tmp_path / "other", {}, workload="chat")
    said = answer([(run, one), (other, one)])
    assert said.startswith("In run, a pays")
    assert "; in other, a pays" in said


def test_directories_of_one_name_go_by_their_paths(make_run: MakeRun, tmp_path: Path) -> None:
    one, runs = Crossover("base", [result("a", n1="pays")]), [make_run(tmp_path / name / "lab", {}) for name in "xy"]
    said = answer([(run, one) for run in runs])
    assert said.startswith(f"In {tmp_path}/x/lab, a pays")
    assert f"; in {tmp_path}/y/lab, a pays" in said


def test_a_draft_that_does_nothing_is_said_before_the_verdict(run: Run) -> None:
    said = answer([(run, Crossover("base", [result("a", idle=True, n1="costs")]))])
    assert said == "a, whose draft does nothing here, costs from concurrency 1 on and was not seen to pay."


def test_synthetic_acceptance_is_said_before_the_verdict(run: Run) -> None:
    said = answer([(run, Crossover("base", [result("a", synthetic=True, n1="pays")]))])
    assert said.startswith("a (synthetic acceptance: for sizing only) pays")


def test_an_arm_without_finished_cells_is_said_to_have_none(run: Run) -> None:
    said = answer([(run, Crossover("base", [result("a", n1="pays"), result("b")]))])
    assert said.endswith("; b: no cell is finished.")
