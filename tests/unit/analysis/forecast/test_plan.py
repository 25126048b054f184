"""`toolkit plan`: predictions for a machine nobody measured, and for one that verify-cost did."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from toolkit.analysis.forecast.cost import Curve, Drafting, MeasuredCost, Point
from toolkit.analysis.forecast.plan import Plan, PlanAsk, of_profile, plan
from toolkit.analysis.run import Run
from toolkit.cli import app
from toolkit.errors import InputError

LAB = Path(__file__).parents[3] / "data" / "runs" / "lab-copy-code"
TARGET, DRAFT = "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.2-1B-Instruct"
SPARK = PlanAsk(hardware="spark", target=TARGET, draft=DRAFT)


def curve(fixed: float, per_token: float) -> Curve:
    points = [Point(tokens=t, seconds=fixed + per_token * t, low=0, high=0, repeats=5) for t in (1, 64, 512)]
    return Curve(points=points, context=0)


COST = MeasuredCost(
    created="2026-11-30T00:00:00+00:00", name="lab-baseline", model="lab", hardware={}, overhead=0.0,
    plain=curve(0.05, 0.0006),
    drafting=[
        Drafting(name="d", method="draft_model", draft="s", num_speculative_tokens=2, curve=curve(0.06, 0.0008))
    ],
)  # fmt: skip


@pytest.fixture(scope="module")
def spark() -> Plan:
    return plan(SPARK)


def speedups(found: Plan, concurrency: int) -> list[float]:
    return [point.speedup for point in found.points if point.concurrency == concurrency]


class TestSpark:
    def test_every_concurrency_has_every_k(self, spark: Plan) -> None:
        assert [(p.concurrency, p.k) for p in spark.points] == [(n, k) for n in (1, 4, 16, 64) for k in (1, 2, 4, 8)]

    def test_every_point_names_what_binds(self, spark: Plan) -> None:
        assert all(point.limit for point in spark.points)

    def test_at_one_request_weights_bind_and_at_the_far_corner_compute(self, spark: Plan) -> None:
        assert (spark.points[0].limit, spark.points[-1].limit) == ("memory bandwidth: weights", "compute")

    def test_speculation_pays_less_under_load(self, spark: Plan) -> None:
        longest = [speedups(spark, n)[-1] for n in (1, 4, 16, 64)]
        assert longest == sorted(longest, reverse=True)

    def test_one_request_without_a_draft_stays_below_the_ceiling_of_the_bandwidth(self, spark: Plan) -> None:
        """spark.md: 273 GB/s over 16 GB of weights, 17 tok/s."""
        assert 10 < spark.plain[0][1] < 17

    def test_the_break_even_acceptance_breaks_even(self, spark: Plan) -> None:
        for point in spark.points[::5]:
            assert point.break_even_alpha is not None
            again = plan(
                PlanAsk(
                    hardware="spark", target=TARGET, draft=DRAFT, alpha=point.break_even_alpha,
                    ks=[point.k], levels=[point.concurrency],
                )
            )  # fmt: skip
            assert again.points[0].speedup == pytest.approx(1, abs=1e-6)

    def test_a_draft_that_never_hits_leaves_speculation_off(self) -> None:
        found = plan(PlanAsk(hardware="spark", target=TARGET, draft=DRAFT, alpha=0.0))
        assert found.as_json()["best_k"] == {"1": 0, "4": 0, "16": 0, "64": 0}

    def test_json_says_that_it_is_a_prediction(self, spark: Plan) -> None:
        assert json.loads(json.dumps(spark.as_json(), allow_nan=False))["prediction"] is True

    def test_a_profile_without_speculation_has_nothing_to_plan(self) -> None:
        with pytest.raises(InputError, match="does not speculate"):
            of_profile(PlanAsk(hardware="spark"), "baseline-8b")

    def test_a_level_or_k_named_twice_is_planned_once_and_in_order(self) -> None:
        found = plan(PlanAsk(hardware="spark", target=TARGET, draft=DRAFT, levels=[4, 4], ks=[4, 2, 2]))
        assert [(point.concurrency, point.k) for point in found.points] == [(4, 2), (4, 4)]

    @pytest.mark.parametrize(
        ("more", "said"),
        [({"levels": [256]}, "at most 64 requests"), ({"prompt_tokens": 20_000}, "at most 8192 tokens")],
    )
    def test_what_a_profile_does_not_serve_is_refused(self, more: dict[str, Any], said: str) -> None:
        with pytest.raises(InputError, match=said):
            of_profile(PlanAsk(hardware="spark", **more), "draft-1b")

    def test_a_profile_brings_target_draft_and_memory(self) -> None:
        found = of_profile(PlanAsk(hardware="spark"), "draft-1b")
        assert (found.target, found.draft, found.method, found.memory_fraction) == (TARGET, DRAFT, "draft_model", 0.6)


class TestCalibrated:
    def test_the_one_draft_that_was_measured_is_planned_for(self) -> None:
        found = plan(PlanAsk(calibrate=COST))
        assert (found.method, found.draft) == ("draft_model", "s")

    def test_of_several_drafts_one_must_be_chosen(self) -> None:
        other = COST.drafting[0].model_copy(update={"draft": "t"})
        with pytest.raises(InputError, match=r"draft_model s, draft_model t.*--draft"):
            plan(PlanAsk(calibrate=COST.model_copy(update={"drafting": [*COST.drafting, other]})))

    @pytest.mark.parametrize("other", [{"target": "other/model"}, {"hardware": "spark"}])
    def test_costs_of_another_model_or_machine_are_refused(self, other: dict[str, str]) -> None:
        with pytest.raises(InputError, match="--calibrate holds costs of lab"):
            plan(PlanAsk(calibrate=COST, **other))

    def test_costs_are_those_that_were_measured(self) -> None:
        found = plan(PlanAsk(calibrate=COST, draft="s", alpha=0.7))
        assert (found.c, found.source) == (
            pytest.approx(0.0102 / 2 / 0.0506),
            "verify-cost on lab-baseline, 2026-11-30",
        )

    def test_a_draft_that_was_not_measured_is_refused_with_what_was(self) -> None:
        with pytest.raises(InputError, match="measured: draft_model s"):
            plan(PlanAsk(calibrate=COST, draft="other"))

    def test_a_lookup_is_said_to_draft_where_it_finds_something(self) -> None:
        assert "only where it finds a match" in plan(PlanAsk(calibrate=COST, method="ngram")).notes[0]

    def test_a_lookup_that_nobody_measured_names_no_best_k(self) -> None:
        assert plan(PlanAsk(calibrate=COST, method="ngram")).as_json()["best_k"] is None


class TestAcceptanceOfARun:
    """lab-copy-code: n-gram lookup, K = 4; 1.55 tokens per pass, measured, with answers of up to 48 tokens."""

    ask = PlanAsk(calibrate=COST, method="ngram", acceptance=Run(LAB), answer_tokens=45)

    def test_the_passes_that_found_nothing_count(self) -> None:
        flat = COST.model_copy(update={"plain": curve(1000.0, 0.0)})  # tokens cost nothing: speedup is tokens per pass
        found = plan(replace(self.ask, calibrate=flat, ks=[4], levels=[1]))
        assert found.points[0].speedup == pytest.approx(1.55, rel=0.05)

    def test_the_acceptance_that_breaks_even_is_of_the_same_passes(self) -> None:
        """At the acceptance that was measured it costs where that is below the break-even, and pays where above."""
        found = plan(replace(self.ask, levels=[1, 64]))
        assert found.names_best
        for point in found.points:
            even = point.break_even_alpha
            assert (point.speedup >= 1) == (even is not None and even < 0.8), point

    def test_a_k_beyond_the_measured_positions_is_left_out(self) -> None:
        assert {point.k for point in plan(self.ask).points} == {1, 2, 4}

    def test_nothing_but_such_ks_is_refused(self) -> None:
        with pytest.raises(InputError, match="up to position 4"):
            plan(replace(self.ask, ks=[8]))

    def test_a_method_that_the_run_did_not_measure_is_refused(self) -> None:
        with pytest.raises(InputError, match="measured no draft_model s: its arms are ngram"):
            plan(replace(self.ask, method="draft_model", draft="s"))

    def test_an_alpha_beside_it_is_refused(self) -> None:
        with pytest.raises(InputError, match="--alpha and --acceptance"):
            plan(replace(self.ask, alpha=0.5))


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (PlanAsk(), "--hardware"),
        (PlanAsk(hardware="spark"), "--target"),
        (PlanAsk(hardware="sprak", target=TARGET), "spark"),
        (PlanAsk(hardware="spark", target="no/such"), "config.json"),
        (PlanAsk(hardware="spark", target=TARGET, ks=[0]), "--k"),
        (PlanAsk(hardware="spark", target=TARGET, levels=[]), "--concurrency"),
        (PlanAsk(hardware="spark", target=TARGET, alpha=1.5), "--alpha"),
        (PlanAsk(hardware="spark", target=TARGET, answer_tokens=0), "--answer-tokens"),
        (PlanAsk(hardware="spark", target=TARGET, method="eagle3"), "--draft"),
        (PlanAsk(hardware="spark", target=TARGET, method="bogus", draft=DRAFT), "--method bogus: one of draft_model"),
        (PlanAsk(hardware="spark", target=TARGET, method="ngram", draft=DRAFT), "takes no --draft"),
        (PlanAsk(hardware="rtx-4090", target=TARGET, memory_fraction=0.5), "do not fit"),
    ],
)
def test_what_cannot_be_planned_is_said(ask: PlanAsk, said: str) -> None:
    with pytest.raises(InputError, match=said):
        plan(ask)


def run(arguments: Sequence[str]) -> str:
    done = CliRunner().invoke(app, ["plan", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


class TestCommand:
    arguments = ("--hardware", "spark", "--target", TARGET, "--draft", DRAFT)

    def test_the_line_of_the_readme_prints_a_grid_with_what_binds(self) -> None:
        assert "memory bandwidth: weights" in run(self.arguments)

    def test_json_is_all_there_is_on_stdout(self) -> None:
        assert json.loads(run([*self.arguments, "--json"]))["schema"] == 1
