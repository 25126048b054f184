"""The speedup, its interval, every reason for having no verdict, and the stable JSON."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from toolkit.analysis.crossover import Crossover, Level, crossover, paired_speedup, verdict_of
from toolkit.analysis.run import Run, WorkloadInfo
from toolkit.errors import InputError

MakeRun = Callable[..., Run]
PAYS = [(150.0, 100.0), (153.0, 100.0), (148.0, 100.0), (151.0, 100.0), (149.0, 100.0), (152.0, 100.0)]
COSTS = [(base, arm) for arm, base in PAYS]
OPEN = [(90.0, 100.0), (110.0, 100.0)] * 3

FACTORS = ["tokens_per_pass", "draft_acceptance_rate"]

rates = st.floats(0.1, 1e5)
pairs = st.lists(st.tuples(rates, rates), min_size=2, max_size=12)


def split(both: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [arm for arm, _ in both], [base for _, base in both]


def level_of(run: Run) -> Level:
    (result,) = crossover(run).results
    (level,) = result.levels
    return level


@pytest.fixture
def level(make_run: MakeRun, tmp_path: Path) -> Callable[..., Level]:
    """The one level of a run with one arm at concurrency 4."""
    return lambda rounds=PAYS, **options: level_of(make_run(tmp_path, {("lab-ngram", 4): rounds}, **options))


class TestPairedSpeedup:
    @pytest.mark.filterwarnings("ignore:Precision loss")
    @given(pairs)
    def test_it_is_the_t_interval_of_scipy_on_the_log_ratios(self, both: list[tuple[float, float]]) -> None:
        arm, base = split(both)
        logs = [math.log(a) - math.log(b) for a, b in both]
        interval = stats.ttest_1samp(logs, 0.0).confidence_interval(0.95)
        assert paired_speedup(arm, base) == pytest.approx(
            (math.exp(math.fsum(logs) / len(logs)), math.exp(interval.low), math.exp(interval.high)), rel=1e-6
        )

    @given(pairs)
    def test_swapping_the_sides_inverts_it(self, both: list[tuple[float, float]]) -> None:
        arm, base = split(both)
        speedup, low, high = paired_speedup(arm, base)
        assert paired_speedup(base, arm) == pytest.approx((1 / speedup, 1 / high, 1 / low), rel=1e-6)

    @given(pairs, st.floats(0.01, 100))
    def test_what_slows_both_sides_cancels(self, both: list[tuple[float, float]], factor: float) -> None:
        arm, base = split(both)
        scaled = paired_speedup([factor * a for a in arm], [factor * b for b in base])
        assert scaled == pytest.approx(paired_speedup(arm, base), rel=1e-6)

    @given(pairs, st.data())
    def test_what_slows_one_pair_alike_cancels(self, both: list[tuple[float, float]], data: st.DataObject) -> None:
        factors = data.draw(st.lists(st.floats(0.01, 100), min_size=len(both), max_size=len(both)))
        arm, base = split([(a * f, b * f) for (a, b), f in zip(both, factors, strict=True)])
        assert paired_speedup(arm, base) == pytest.approx(paired_speedup(*split(both)), rel=1e-6)

    @given(pairs, st.randoms(use_true_random=False))
    def test_the_order_of_pairs_does_not_matter(self, both: list[tuple[float, float]], random: Any) -> None:
        shuffled = random.sample(both, len(both))
        assert paired_speedup(*split(shuffled)) == pytest.approx(paired_speedup(*split(both)), rel=1e-6)

    @given(pairs)
    def test_the_interval_holds_the_speedup(self, both: list[tuple[float, float]]) -> None:
        speedup, low, high = paired_speedup(*split(both))
        assert low <= speedup * (1 + 1e-12) <= high * (1 + 2e-12)

    def test_two_pairs_by_hand(self) -> None:
        # Log ratios ln 2 and ln 8: mean ln 4, standard error ln 2, t(0.975, 1) = 12.706.
        assert paired_speedup([2.0, 8.0], [1.0, 1.0]) == pytest.approx((4.0, 4 / 2**12.7062, 4 * 2**12.7062), rel=1e-4)

    def test_a_null_is_called_falsely_in_one_case_of_twenty(self) -> None:
        # 400 levels without an effect, 6 pairs each, lognormal noise and a common slowdown per pair.
        random = np.random.default_rng(20260102)
        false = 0
        for _ in range(400):
            common = random.lognormal(0, 0.3, 6)
            arm, base = (100 * common * random.lognormal(0, 0.05, 6) for _ in range(2))
            _, low, high = paired_speedup(list(arm), list(base))
            false += verdict_of(low, high) != "inconclusive"
        assert 0.02 <= false / 400 <= 0.09

    def test_a_true_speedup_lies_within_in_nineteen_cases_of_twenty(self) -> None:
        random = np.random.default_rng(7)
        inside = 0
        for _ in range(400):
            noise = random.lognormal(0, 0.08, (2, 6))
            _, low, high = paired_speedup(list(130 * noise[0]), list(100 * noise[1]))
            inside += low <= 1.3 <= high
        assert 0.91 <= inside / 400 <= 0.98


class TestVerdict:
    @pytest.mark.parametrize(
        ("low", "high", "verdict"),
        [
            (1.01, 1.2, "pays"),
            (0.8, 0.99, "costs"),
            (0.9, 1.1, "inconclusive"),
            (1.0, 1.2, "inconclusive"),
            (0.8, 1.0, "inconclusive"),
            (1.0, 1.0, "inconclusive"),
        ],
    )
    def test_where_the_interval_lies(self, low: float, high: float, verdict: str) -> None:
        assert verdict_of(low, high) == verdict

    @pytest.mark.parametrize(
        ("rounds", "verdict", "where"),
        [(PAYS, "pays", "lies above 1"), (COSTS, "costs", "lies below 1"), (OPEN, "inconclusive", "contains 1")],
    )
    def test_a_level_says_why(self, level: Callable[..., Level], rounds: Any, verdict: str, where: str) -> None:
        found = level(rounds)
        assert (found.verdict, found.reason) == (verdict, f"the 95 % interval {where}")

    def test_the_speedup_is_of_the_cells_rates(self, level: Callable[..., Level]) -> None:
        found = level()
        assert (found.speedup, found.low, found.high) == pytest.approx(paired_speedup(*split(PAYS)))

    def test_an_arm_against_itself_is_named_apart(self, make_run: MakeRun, tmp_path: Path) -> None:
        run = make_run(tmp_path, {("lab-baseline", 4): OPEN}, baseline="lab-baseline-again")
        found = crossover(run)
        assert (found.baseline, found.results[0].arm, level_of(run).verdict) == (
            "lab-baseline-again",
            "lab-baseline",
            "inconclusive",
        )


class TestNoVerdict:
    """PAYS would pay in every one of these, so that only what is planted can be the reason."""

    def test_fewer_than_five_pairs(self, level: Callable[..., Level]) -> None:
        found = level(PAYS[:4])
        assert (found.verdict, found.reason, found.pairs) == ("inconclusive", "4 pairs measured, 5 are needed", 4)

    def test_five_pairs_are_enough(self, level: Callable[..., Level]) -> None:
        assert level(PAYS[:5]).verdict == "pays"

    def test_one_pair_has_a_speedup_without_an_interval(self, level: Callable[..., Level]) -> None:
        found = level(PAYS[:1])
        assert (found.speedup, found.low, found.high, found.reason) == (
            1.5,
            None,
            None,
            "1 pair measured, 5 are needed",
        )

    def test_more_than_one_per_cent_failed(self, level: Callable[..., Level]) -> None:
        found = level(failed={("lab-ngram", 4): 1})
        assert (found.verdict, found.reason) == ("inconclusive", "6.2% of the requests failed")

    def test_one_per_cent_failed_is_let_pass(self, make_run: MakeRun, tmp_path: Path) -> None:
        run = make_run(tmp_path, {("lab-ngram", 25): PAYS}, failed={("lab-ngram", 25): 1})
        assert level_of(run).verdict == "pays"

    def test_fewer_than_four_requests_a_slot(self, level: Callable[..., Level]) -> None:
        found = level(requests={4: 15})
        assert (found.verdict, found.reason) == ("inconclusive", "15 requests a cell are too few: 4 x 4 are needed")

    @pytest.mark.parametrize("side", ["arm", "baseline_arm"])
    def test_a_kv_cache_that_is_too_small_for_the_level(self, level: Callable[..., Level], side: str) -> None:
        # Case 23: each request holds 100 + 20 tokens.
        name = {"arm": "lab-ngram", "baseline_arm": "lab-baseline"}[side]
        found = level(**{side: {"kv_tokens": 300.0}})
        assert (found.verdict, found.reason) == ("inconclusive", f"the KV cache of {name} holds about 2 of 4 requests")

    def test_a_kv_cache_that_just_holds_the_level(self, level: Callable[..., Level]) -> None:
        assert level(arm={"kv_tokens": 480.0}).verdict == "pays"

    @pytest.mark.parametrize("pair", [(None, 100.0), (150.0, None), (None, None)])
    def test_a_missing_window(self, level: Callable[..., Level], pair: tuple[float | None, float | None]) -> None:
        found = level([*PAYS, pair])
        assert (found.verdict, found.pairs) == ("inconclusive", 6)
        assert found.reason == "1 pair had no window in which all 4 requests ran"

    def test_no_window_anywhere_has_no_speedup(self, level: Callable[..., Level]) -> None:
        found = level([(None, None)] * 6)
        assert (found.speedup, found.verdict, found.pairs) == (None, "inconclusive", 0)

    def test_a_rate_of_zero_makes_no_pair(self, level: Callable[..., Level]) -> None:
        assert level([*PAYS, (0.0, 100.0)]).pairs == 6

    def test_no_baseline(self, level: Callable[..., Level]) -> None:
        found = level(baseline=None)
        assert (found.speedup, found.verdict, found.reason) == (None, "inconclusive", "no baseline was measured")

    def test_half_a_pair_is_no_pair(self, make_run: MakeRun, tmp_path: Path) -> None:
        run = make_run(tmp_path, {("lab-ngram", 4): PAYS})
        lines = (tmp_path / "cells.jsonl").read_text().splitlines(keepends=True)
        (tmp_path / "cells.jsonl").write_text("".join(lines[:-1]))
        assert level_of(Run(run.folder)).pairs == 5


class TestNotes:
    def notes(self, found: Level) -> list[str]:
        return list(found.notes)

    @pytest.mark.parametrize(("reuse", "said"), [(True, 1), (False, 0)])
    def test_reused_prompts_are_said(self, make_run: MakeRun, tmp_path: Path, reuse: bool, said: int) -> None:
        run = make_run(tmp_path, {("lab-ngram", 4): PAYS})
        path = tmp_path / "run.json"
        of = WorkloadInfo(name="copy-code", digest="d", seed=0, size=5, reuse=reuse)
        path.write_text(run.info.model_copy(update={"workload": of}).model_dump_json(by_alias=True))
        assert self.notes(level_of(Run(tmp_path))) == ["prompts were reused, caches may have answered"] * said

    def test_a_client_at_its_limit_is_said(self, level: Callable[..., Level]) -> None:
        assert self.notes(level(cell={"client_cpu": 0.95})) == ["the load client itself was near its limit"]

    @pytest.mark.parametrize(("peak", "withheld"), [(3.0, True), (4.0, False), (None, False)])
    def test_a_level_that_never_ran_has_no_verdict(
        self, level: Callable[..., Level], peak: float | None, withheld: bool
    ) -> None:
        # Case 23: "concurrency 8" with 4 running.
        found = level(cell={"running_peak": peak})
        assert (found.withheld, "never ran more than 3 of 4" in found.reason) == (withheld, withheld)

    def test_the_json_says_notes_after_the_reason(self, level: Callable[..., Level]) -> None:
        found = level(cell={"client_cpu": 0.95})
        assert found.as_json()["reason"] == f"{found.reason}; the load client itself was near its limit"

    def test_a_baseline_that_speculates_is_said(self, level: Callable[..., Level]) -> None:
        assert self.notes(level(baseline_arm={"speculates": True})) == ["the baseline lab-baseline speculates too"]

    def test_another_scheduler_in_the_baseline_is_said(self, level: Callable[..., Level]) -> None:
        found = level(arm={"scheduling": "synchronous"}, baseline_arm={"scheduling": "asynchronous"})
        assert len(found.notes) == 1
        assert "schedules synchronously, lab-baseline asynchronously" in found.notes[0]

    def test_sides_that_were_minutes_apart_are_said(self, level: Callable[..., Level]) -> None:
        assert len(self.notes(level(resident=False))) == 1

    def test_different_prompts_on_the_two_sides_are_said(self, make_run: MakeRun, tmp_path: Path) -> None:
        make_run(tmp_path, {("lab-ngram", 4): PAYS})
        text = (tmp_path / "cells.jsonl").read_text()
        (tmp_path / "cells.jsonl").write_text(text.replace('"prompts_digest":"p"', '"prompts_digest":"q"', 1))
        assert self.notes(level_of(Run(tmp_path))) == ["a resumed pair had different prompts on its two sides"]


class TestBracket:
    def bracket(self, make_run: MakeRun, folder: Path, **rounds: Any) -> tuple[int | None, int | None]:
        run = make_run(folder, {("lab-ngram", int(level[1:])): pairs for level, pairs in rounds.items()})
        (result,) = crossover(run).results
        return result.pays_up_to, result.costs_from

    def test_pays_then_costs(self, make_run: MakeRun, tmp_path: Path) -> None:
        assert self.bracket(make_run, tmp_path, n1=PAYS, n4=PAYS, n16=OPEN, n64=COSTS) == (4, 64)

    def test_never_costs(self, make_run: MakeRun, tmp_path: Path) -> None:
        assert self.bracket(make_run, tmp_path, n1=PAYS, n4=OPEN) == (1, None)

    def test_never_pays(self, make_run: MakeRun, tmp_path: Path) -> None:
        assert self.bracket(make_run, tmp_path, n1=OPEN, n4=COSTS) == (None, 4)

    def test_levels_stand_in_rising_order(self, make_run: MakeRun, tmp_path: Path) -> None:
        run = make_run(tmp_path, {("a", level): PAYS for level in (64, 1, 16)})
        assert [level.concurrency for level in crossover(run).results[0].levels] == [1, 16, 64]

    def test_a_level_that_was_not_reached_is_absent(self, make_run: MakeRun, tmp_path: Path) -> None:
        run = make_run(tmp_path, {("a", 4): PAYS}, levels=[4, 16])
        assert [level.concurrency for level in crossover(run).results[0].levels] == [4]


class TestJson:
    @pytest.fixture
    def found(self, make_run: MakeRun, tmp_path: Path) -> dict[str, Any]:
        answer: dict[str, Any] = crossover(make_run(tmp_path, {("a", 1): PAYS, ("b", 4): COSTS})).as_json()
        return answer

    def test_its_keys(self, found: dict[str, Any]) -> None:
        result = found["results"][0]
        assert (list(found), list(result), list(result["levels"][0])) == (
            ["schema", "baseline", "results"],
            ["arm", "workload", "levels", "pays_up_to", "costs_from"],
            ["concurrency", "speedup", "low", "high", "verdict", "reason", "pairs", *FACTORS],
        )

    def test_its_values(self, found: dict[str, Any]) -> None:
        one, other = found["results"]
        assert (found["schema"], found["baseline"], one["arm"], one["pays_up_to"], one["costs_from"]) == (
            (1, "lab-baseline", "a", 1, None)
        )
        assert (other["pays_up_to"], other["costs_from"], other["levels"][0]["tokens_per_pass"]) == (None, 4, 2.5)

    def test_acceptance_is_of_the_arm(self, found: dict[str, Any]) -> None:
        assert found["results"][0]["levels"][0]["draft_acceptance_rate"] == 0.5

    def test_what_is_unavailable_is_null(self, make_run: MakeRun, tmp_path: Path) -> None:
        run = make_run(tmp_path, {("a", 4): [(None, None)]}, baseline=None, on_disk=0, cell={"requests": 0})
        found = json.loads(json.dumps(crossover(run).as_json(), allow_nan=False))
        level = found["results"][0]["levels"][0]
        unavailable = ["speedup", "low", "high", *FACTORS]
        assert (found["baseline"], [level[key] for key in unavailable]) == (None, [None] * 5)

    def test_a_run_without_a_finished_cell_has_no_levels(self, make_run: MakeRun, tmp_path: Path) -> None:
        make_run(tmp_path, {("a", 4): PAYS})
        (tmp_path / "cells.jsonl").unlink()
        found: Crossover = crossover(Run(tmp_path))
        assert found.as_json()["results"] == [
            {"arm": "a", "workload": "copy-code", "levels": [], "pays_up_to": None, "costs_from": None}
        ]


def test_a_run_whose_requests_are_not_all_there_is_refused(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(tmp_path, {("a", 1): PAYS}, on_disk=3)
    with pytest.raises(InputError, match=r"not whole: it holds 3 requests of .* which counted 4"):
        crossover(run)
