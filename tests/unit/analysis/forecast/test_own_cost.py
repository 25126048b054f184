"""The cost curve that a Run's own baseline gives, and what it predicts of a real run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.analysis.forecast.own_cost import own_cost
from toolkit.analysis.forecast.predict import predictions
from toolkit.analysis.records import CounterReading
from toolkit.analysis.run import Run

LAB = Path(__file__).parents[3] / "data" / "runs" / "lab-copy-code"
FIVE = [(200.0, 100.0)] * 5


def counted(iterations: float) -> dict[str, list[CounterReading]]:
    """Readings at a cell's four moments; its window of ten seconds holds so many iterations."""
    at = ((0.0, 0.0), (1.0, 10.0), (11.0, 10.0 + iterations), (12.0, 20.0 + iterations))
    return {"counters": [CounterReading(at=moment, iterations=count) for moment, count in at]}


class TestPlanted:
    """Answers of 20 tokens after prompts of 100: six tokens in flight for each of the answer. See `make_run`."""

    def test_a_level_is_a_point_of_seconds_over_the_tokens_in_flight(
        self, make_run: Callable[..., Run], tmp_path: Path
    ) -> None:
        """100 tokens/s in 100 and 200 tokens/s in 100 iterations of 0.1 s: 10 and 20 passes in each."""
        rates = {("a", 4): FIVE, ("a", 16): [(300.0, 200.0)] * 5}
        cost = own_cost(make_run(tmp_path, rates, cell=counted(100)))
        assert cost is not None
        assert [p.tokens for p in cost.plain.points] == [60, 120]
        assert [p.seconds for p in cost.plain.points] == pytest.approx([0.1, 0.1])

    def test_one_level_is_no_curve(self, make_run: Callable[..., Run], tmp_path: Path) -> None:
        assert own_cost(make_run(tmp_path, {("a", 4): FIVE}, cell=counted(100))) is None

    def test_without_a_counter_of_iterations_there_is_no_curve(
        self, make_run: Callable[..., Run], tmp_path: Path
    ) -> None:
        assert own_cost(make_run(tmp_path, {("a", 4): FIVE, ("a", 16): FIVE})) is None

    def test_a_baseline_that_speculates_is_no_plain_curve(self, make_run: Callable[..., Run], tmp_path: Path) -> None:
        rates = {("a", 4): FIVE, ("a", 16): [(300.0, 200.0)] * 5}
        run = make_run(tmp_path, rates, cell=counted(100), baseline_arm={"speculates": True})
        assert own_cost(run) is None

    def test_without_a_baseline_there_is_no_curve(self, make_run: Callable[..., Run], tmp_path: Path) -> None:
        rates = {("a", 4): [(200.0, None)] * 5}
        assert own_cost(make_run(tmp_path, rates, baseline=None)) is None


def test_the_baselines_iterations_predict_the_arm_of_a_real_run_within_a_tenth() -> None:
    """Measured on a Xeon with AMX: the arm's own time is no part of the prediction, only what it drafted and kept."""
    run = Run(LAB)
    found = predictions(run, own_cost(run))
    assert {p.concurrency: abs(p.error or 1) < 0.1 for p in found} == {1: True, 4: True, 16: True, 64: True}
