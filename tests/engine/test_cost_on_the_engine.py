"""What a step costs on the real vLLM: the probe reaches single new tokens, and a plan is made of what it finds."""

import json
from pathlib import Path
from typing import Any

import pytest
from harness import Toolkit

from toolkit.analysis.forecast.cost import MeasuredCost, read_cost
from toolkit.analysis.forecast.verify_cost import TOKENS

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def measured(toolkit: Toolkit) -> Path:
    folder = toolkit.folder / "cost"
    done = toolkit.run("verify-cost", "--profile", "lab-ngram", "--repeats", "3", "--run", str(folder), timeout=1500)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def cost(measured: Path) -> MeasuredCost:
    return read_cost(measured)


def test_every_point_was_passed_over_as_often_as_asked(cost: MeasuredCost) -> None:
    """The engine's own cache counter said each time how many tokens were new."""
    curves = [cost.plain, cost.drafting[0].curve]
    assert [[(p.tokens, p.repeats) for p in curve.points] for curve in curves] == [[(t, 3) for t in TOKENS]] * 2


def test_a_long_pass_costs_a_multiple_of_a_short_one(cost: MeasuredCost) -> None:
    assert cost.plain.seconds(512, 0) > 3 * cost.plain.seconds(1, 0)


def test_a_lookup_costs_a_small_part_of_a_step(cost: MeasuredCost) -> None:
    [(_, c)] = cost.shares()
    assert c < 0.3


def test_a_plan_is_made_of_it(toolkit: Toolkit, measured: Path) -> None:
    done = toolkit.run("plan", "--calibrate", str(measured), "--alpha", "0.8", "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    ratios = {(point["concurrency"], point["k"]): point["speedup"] for point in found["points"]}
    assert ratios[1, 4] > ratios[64, 4]
