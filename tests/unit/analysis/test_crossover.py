"""The verdict, what a level needs for one, the bracket of the crossover, and the stable JSON."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.analysis.crossover import ArmResult, Level, Verdict, crossover, verdict_of
from toolkit.analysis.pairs import mean_and_half
from toolkit.analysis.run import Run
from toolkit.errors import InputError

MakeRun = Callable[..., Run]
MEASURED = Path(__file__).parents[2] / "data" / "runs" / "lab-copy-code"
PAYS = [(150.0, 100.0), (153.0, 100.0), (148.0, 100.0), (151.0, 100.0), (149.0, 100.0), (152.0, 100.0)]
COSTS = [(base, arm) for arm, base in PAYS]
OPEN = [(90.0, 100.0), (110.0, 100.0)] * 3

FACTORS = ["tokens_per_pass", "draft_acceptance_rate"]
FIRST = {
    "crossover": ["schema", "baseline", "results"],
    "result": ["arm", "workload", "levels", "pays_up_to", "costs_from"],
    "level": ["concurrency", "speedup", "low", "high", "verdict", "reason", "pairs", *FACTORS],
}
VERDICTS: dict[str, Verdict] = {"+": "pays", "-": "costs", "?": "inconclusive"}


def verdicts(signs: str) -> ArmResult:
    """An arm whose levels 1, 2, 4, ... have these verdicts."""
    levels = [Level(2**i, 1.0, 0.9, 1.1, VERDICTS[sign], "", 6, None, None) for i, sign in enumerate(signs)]
    return ArmResult("arm", "chat", levels)


def level_of(run: Run) -> Level:
    (result,) = crossover(run).results
    (level,) = result.levels
    return level


@pytest.fixture
def level(make_run: MakeRun, tmp_path: Path) -> Callable[..., Level]:
    """The one level of a run with one arm at concurrency 4."""
    return lambda rounds=PAYS, **options: level_of(make_run(tmp_path, {("lab-ngram", 4): rounds}, **options))


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
        mean, half = mean_and_half([math.log(arm / base) for arm, base in PAYS])
        expected = (math.exp(mean), math.exp(mean - half), math.exp(mean + half))
        assert (found.speedup, found.low, found.high) == pytest.approx(expected)

    def test_an_arm_against_itself_is_named_apart(self, make_run: MakeRun, tmp_path: Path) -> None:
        run = make_run(tmp_path, {("lab-baseline", 4): OPEN}, baseline="lab-baseline-again")
        found = crossover(run)
        assert (found.baseline, found.results[0].arm, level_of(run).verdict) == (
            "lab-baseline-again",
            "lab-baseline",
            "inconclusive",
        )


class TestPairsNeeded:
    def test_an_inconclusive_level_says_how_many(self, level: Callable[..., Level]) -> None:
        # A spread of 0.1 * sqrt(6 / 5) = 0.110, below 0.141 with 70 % confidence: 26 pairs have t power 0.9 there.
        found = level([(100 * math.exp(0.1 * sign), 100.0) for sign in (1, -1, 1, -1, 1, -1)])
        assert (found.verdict, found.pairs_needed) == ("inconclusive", 26)

    @pytest.mark.parametrize("rounds", [PAYS, COSTS])
    def test_a_level_with_a_verdict_needs_none(self, level: Callable[..., Level], rounds: Any) -> None:
        assert level(rounds).pairs_needed is None

    def test_neither_does_one_that_can_have_none(self, level: Callable[..., Level]) -> None:
        assert level(OPEN, failed={("lab-ngram", 4): 8}).pairs_needed is None

    def test_it_is_never_fewer_than_a_verdict_takes(self, level: Callable[..., Level]) -> None:
        assert level([(100.1, 100.0), (99.9, 100.0)] * 3).pairs_needed == 5

    def test_it_ends_at_a_thousand(self, level: Callable[..., Level]) -> None:
        assert level([(1000.0, 100.0), (10.0, 100.0)] * 3).pairs_needed == 1000


class TestReached:
    @pytest.mark.parametrize(("peak", "reached"), [(3.0, False), (4.0, True), (None, None)])
    def test_whether_the_asked_concurrency_ever_ran(
        self, level: Callable[..., Level], peak: float | None, reached: bool | None
    ) -> None:
        found = level(cell={"running_peak": peak})
        assert (found.running, found.reached) == (peak, reached)


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

    @pytest.mark.parametrize(
        ("signs", "sentence"),
        [
            ("++--", "pays up to concurrency 2 and costs from 4; the crossover lies between"),
            ("+??-", "pays up to concurrency 1 and costs from 8; the crossover lies between"),
            ("+?+-", "pays up to concurrency 4 and costs from 8; the crossover lies between (inconclusive at 2)"),
            ("+-?-", "pays up to concurrency 1 and costs from 2; the crossover lies between (inconclusive at 4)"),
            ("?+??", "pays up to concurrency 2 and was not seen to cost (inconclusive at 1)"),
            ("++++", "pays up to concurrency 8 and was not seen to cost"),
            ("?--?", "costs from concurrency 2 on and was not seen to pay (inconclusive at 8)"),
            ("----", "costs from concurrency 1 on and was not seen to pay"),
            ("????", "is inconclusive at every concurrency measured"),
            ("-++-", "is not monotone: it costs at 1, pays at 2 and 4 and costs at 8"),
            ("+-+", "is not monotone: it pays at 1, costs at 2 and pays at 4"),
            ("-?+", "is not monotone: it costs at 1 and pays at 4"),
        ],
    )
    def test_its_sentence(self, signs: str, sentence: str) -> None:
        assert verdicts(signs).bracket_sentence == sentence

    @given(st.text("+-?", min_size=1, max_size=7))
    def test_not_monotone_is_a_level_that_costs_below_one_that_pays(self, signs: str) -> None:
        conclusive = signs.replace("?", "")
        result = verdicts(signs)
        assert result.monotone is ("-+" not in conclusive)
        assert ("not monotone" in result.bracket_sentence) is ("-+" in conclusive)

    @given(st.text("+-?", min_size=1, max_size=7))
    def test_it_names_only_levels_that_were_measured(self, signs: str) -> None:
        result = verdicts(signs)
        numbers = {int(word) for word in re.findall(r"\d+", result.bracket_sentence)}
        assert numbers <= {level.concurrency for level in result.levels}

    @pytest.mark.parametrize(
        ("signs", "words"),
        [
            ("++--", "pays up to 2, costs from 4"),
            ("+??", "pays up to 1"),
            ("--", "costs from 1"),
            ("??", "inconclusive at every concurrency"),
            ("-+", "not monotone"),
        ],
    )
    def test_in_a_few_words(self, signs: str, words: str) -> None:
        assert verdicts(signs).bracket == words

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
        level = result["levels"][0]
        assert (list(found), sorted(result), sorted(level)) == (
            ["schema", "baseline", "caveats", "results"],
            sorted([*FIRST["result"], "synthetic", "monotone", "answer", "acceptance"]),
            sorted([*FIRST["level"], "acceptance_length", "running", "reached", "pairs_needed", "factors"]),
        )

    def test_the_keys_of_the_first_version_are_all_there(self, found: dict[str, Any]) -> None:
        result = found["results"][0]
        assert set(FIRST["crossover"]) <= set(found)
        assert set(FIRST["result"]) <= set(result)
        assert set(FIRST["level"]) <= set(result["levels"][0])

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
        (found,) = crossover(Run(tmp_path)).as_json()["results"]
        assert (found["levels"], found["pays_up_to"], found["costs_from"], found["monotone"]) == ([], None, None, True)

    def test_the_answer_is_a_sentence(self, found: dict[str, Any]) -> None:
        assert found["results"][0]["answer"] == "a pays up to concurrency 1 and was not seen to cost"

    def test_without_a_baseline_the_answer_is_not_inconclusive(self, make_run: MakeRun, tmp_path: Path) -> None:
        run = make_run(tmp_path, {("a", 4): PAYS}, baseline=None)
        assert crossover(run).as_json()["results"][0]["answer"] == (
            "a: speedup is unavailable, no baseline was measured"
        )

    def test_without_a_finished_cell_the_answer_says_so(self, make_run: MakeRun, tmp_path: Path) -> None:
        make_run(tmp_path, {("a", 4): PAYS})
        (tmp_path / "cells.jsonl").unlink()
        assert crossover(Run(tmp_path)).as_json()["results"][0]["answer"] == "a: no cell is finished"

    @pytest.mark.parametrize(
        "counts",
        ['"steps":6,"drafted":24,"accepted":0', '"steps":0,"drafted":0,"accepted":0'],
        ids=["nothing kept", "nothing drafted"],
    )
    def test_the_answer_says_first_that_a_draft_does_nothing(
        self, make_run: MakeRun, tmp_path: Path, counts: str
    ) -> None:
        run = make_run(tmp_path, {("a", 4): COSTS})
        path = tmp_path / "requests.jsonl"
        path.write_text(path.read_text().replace('"steps":6,"drafted":24,"accepted":12', counts))
        answer = crossover(Run(run.folder)).as_json()["results"][0]["answer"]
        assert answer.startswith("a, whose draft does nothing here, costs from concurrency 4")

    def test_the_factors_are_of_the_level(self, found: dict[str, Any]) -> None:
        factors = found["results"][0]["levels"][0]["factors"]
        assert (factors["concurrency"], factors["tokens_per_pass"], factors["seconds_per_iteration"]) == (1, 2.5, None)
        assert factors["tokens_per_pass"] * factors["passes_per_second"] == pytest.approx(factors["speedup"])
        assert "vllm:iteration_tokens_total" in factors["reason"]

    def test_acceptance_is_told_by_category_and_by_length_of_the_prompt(self, found: dict[str, Any]) -> None:
        acceptance = found["results"][0]["acceptance"]
        assert [group["name"] for group in acceptance["by_category"]] == ["code"]
        assert [group["name"] for group in acceptance["by_context"]] == ["65-128 tokens"]
        assert acceptance["by_category"][0]["acceptance_length"] == 3.0

    def test_acceptance_is_told_by_position_where_the_engine_tells_it(self) -> None:
        found = crossover(Run(MEASURED)).as_json()["results"][0]["acceptance"]["by_position"]
        assert [row["position"] for row in found] == [1, 2, 3, 4]
        assert all(row["given"] >= row["unconditional"] > 0 for row in found)

    def test_a_real_run_is_json_without_nan(self) -> None:
        text = json.dumps(crossover(Run(MEASURED)).as_json(), allow_nan=False)
        assert json.loads(text)["schema"] == 1

    @pytest.mark.parametrize("side", ["arm", "baseline_arm"])
    def test_synthetic_acceptance_is_labelled(self, make_run: MakeRun, tmp_path: Path, side: str) -> None:
        lots = {"argv": ["--speculative-config", '{"rejection_sample_method": "synthetic"}']}
        found = crossover(make_run(tmp_path, {("a", 1): PAYS}, **{side: lots})).as_json()
        (result,) = found["results"]
        assert result["synthetic"] is True
        assert result["answer"].startswith("a (synthetic acceptance: for sizing only) pays")
        assert "synthetic acceptance: for sizing only" in found["caveats"][0]

    def test_a_draft_that_does_nothing_stands_before_the_results(self, make_run: MakeRun, tmp_path: Path) -> None:
        run = make_run(tmp_path, {("a", 4): PAYS})
        text = (tmp_path / "requests.jsonl").read_text().replace('"accepted":12', '"accepted":0')
        (tmp_path / "requests.jsonl").write_text(text)
        text = json.dumps(crossover(Run(run.folder)).as_json())
        assert 0 < text.index("this draft does nothing here") < text.index('"speedup"')


def test_a_run_whose_requests_are_not_all_there_is_refused(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(tmp_path, {("a", 1): PAYS}, on_disk=3)
    with pytest.raises(InputError, match=r"not whole: it holds 3 requests of .* which counted 4"):
        crossover(run)
