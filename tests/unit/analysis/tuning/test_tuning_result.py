"""What a validation is worth: which levels count for it, and which against it."""

from typing import Any

import pytest

from toolkit.analysis.crossover import Level, Verdict
from toolkit.analysis.tuning.draft_counts import Proof
from toolkit.analysis.tuning.result import TuneInfo, Tuning, Validation, not_proven
from toolkit.analysis.tuning.schedule import Schedule

FALLING: Schedule = [(1, 8, 4), (9, 64, 0)]


def level(n: int, verdict: Verdict, withheld: bool = False) -> Level:
    return Level(n, 1.0, 0.9, 1.1, verdict, "r", 5, None, None, withheld=withheld)


def tried(*levels: Level, schedule: Schedule = FALLING, collapses: tuple[int, ...] = ()) -> Validation:
    return Validation("p-tuned", schedule, list(levels), list(collapses))


def tuning_with(*validations: Validation, choices: dict[int, int] | None = None, **of: Any) -> Tuning:
    info = TuneInfo(
        profile="p",
        source="p",
        changes=[],
        ks=[4],
        levels=[1, 8, 16],
        rounds=5,
        most=64,
        workload="w",
        requests=None,
        max_tokens=None,
    )
    fields: dict[str, Any] = {"parent": None, "proofs": [], "explored_all": True, "provenance": {}, **of}
    return Tuning(info, [], choices or {1: 4, 8: 4, 16: 0}, list(validations), **fields)


HELD = tried(level(1, "pays"), level(8, "pays"), level(16, "inconclusive"))
FAILED = tried(level(1, "pays"), level(8, "pays"), level(16, "costs"))


class TestValidation:
    def test_a_gain_where_it_does_not_speculate_is_none(self) -> None:
        noise = tried(level(1, "inconclusive"), level(8, "inconclusive"), level(16, "pays"))
        assert (noise.pays, tuning_with(noise).outcome) == (False, "not kept")

    def test_a_gain_where_it_speculates_is_one(self) -> None:
        assert HELD.pays

    def test_a_collapse_without_a_verdict_is_faulty(self) -> None:
        validation = tried(level(1, "pays"), level(9, "inconclusive", withheld=True), level(16, "pays"), collapses=(9,))
        assert validation.faulty == [9]

    def test_a_level_without_a_verdict_is_faulty_where_it_speculates_alone(self) -> None:
        validation = tried(level(1, "inconclusive", withheld=True), level(16, "inconclusive", withheld=True))
        assert validation.faulty == [1]


class TestTries:
    def test_a_try_that_did_not_hold_is_named(self) -> None:
        tuning = tuning_with(FAILED, HELD)
        assert tuning.outcome == "kept"
        assert tuning.failed == [
            "A try before it, K = 4 for 1-8 requests, none for 9-64, did not hold: at 16 it costs: 1.00 [0.90, 1.10]."
        ]
        assert "it pays and costs at no level; a try before it did not hold." in tuning.lines()[0]

    def test_one_try_that_held_names_none(self) -> None:
        assert (tuning_with(HELD).failed, "a try before" in tuning_with(HELD).reason) == ([], False)


class TestBeyond:
    def test_above_the_highest_level_it_is_off(self) -> None:
        tuning = tuning_with(choices={1: 4, 8: 4, 16: 2})
        assert tuning.schedule == [(1, 8, 4), (9, 16, 2), (17, 64, 0)]
        assert "Above 16 no K was measured: off." in tuning.lines()

    def test_a_schedule_that_was_measured_carrying_its_k_is_read_as_it_was(self) -> None:
        carried = tried(level(1, "pays"), level(16, "pays"), schedule=[(1, 64, 4)])
        assert tuning_with(carried).schedule == [(1, 64, 4)]
        assert "Above 16 no K was measured: K = 4 is carried on." in tuning_with(carried).lines()

    def test_a_schedule_that_ends_at_the_highest_level_says_nothing(self) -> None:
        assert tuning_with(tried(level(1, "pays"), schedule=[(1, 16, 4)])).beyond is None


class TestNotProven:
    @pytest.mark.parametrize("verdict", ["unproven", "shares"])
    def test_a_k_that_is_not_proven_is_named(self, verdict: Any) -> None:
        proofs = [Proof("p-tuned", n, 4, verdict, "s") for n in (1, 8)]
        said = "Not proven by the drafted counts: K = 4 of p-tuned at 1, 8."
        assert not_proven(proofs) == [said]
        assert said in tuning_with(HELD, proofs=proofs).lines()

    @pytest.mark.parametrize(("k", "verdict"), [(4, "proven"), (0, "unproven"), (0, "shares")])
    def test_what_is_proven_and_no_speculation_are_not(self, k: int, verdict: Any) -> None:
        assert not_proven([Proof("p-tuned", 1, k, verdict, "s")]) == []
