"""Every reason for doubt: before any speedup, for having no verdict, and beside the numbers of a level."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolkit.analysis.caveats import caveats
from toolkit.analysis.crossover import Level, crossover
from toolkit.analysis.levels import LevelStats, level_stats
from toolkit.analysis.run import ArmInfo, Run, WorkloadInfo

MakeRun = Callable[..., Run]
PAYS = [(150.0, 100.0), (153.0, 100.0), (148.0, 100.0), (151.0, 100.0), (149.0, 100.0), (152.0, 100.0)]


def level_of(run: Run) -> Level:
    (result,) = crossover(run).results
    (level,) = result.levels
    return level


@pytest.fixture
def level(make_run: MakeRun, tmp_path: Path) -> Callable[..., Level]:
    """The one level of a run with one arm at concurrency 4."""
    return lambda rounds=PAYS, **options: level_of(make_run(tmp_path, {("lab-ngram", 4): rounds}, **options))


def stats(arm: str, level: int, rate: float | None, drafted: float | None = 1000.0, length: float = 2.0) -> LevelStats:
    """A level of an arm that keeps `rate` of its draft tokens."""
    accepted = None if rate is None or drafted is None else rate * drafted
    steps = None if accepted is None else accepted / (length - 1) if length > 1 else drafted
    return LevelStats(
        arm=arm, side="arm", workload="w", concurrency=level, cells=6, requests=96, failed=0, tokens_per_second=1.0,
        ttft_ms=None, tpot_ms=None, tokens_per_pass=None, drafted=drafted, accepted=accepted, steps=steps,
        mean_tokens_held=None, per_request=True,
    )  # fmt: skip


class TestCaveats:
    @pytest.fixture
    def run(self, make_run: MakeRun, tmp_path: Path) -> Run:
        return make_run(tmp_path, {("a", 4): PAYS, ("b", 4): PAYS}, on_disk=0, cell={"requests": 0})

    def changed(self, run: Run, **arms: dict[str, Any]) -> Run:
        infos = [arm.model_copy(update=arms.get(arm.name, {})) for arm in run.info.arms]
        (run.folder / "run.json").write_text(run.info.model_copy(update={"arms": infos}).model_dump_json(by_alias=True))
        return Run(run.folder)

    def test_none_where_all_is_well(self, run: Run) -> None:
        assert caveats(run, [stats("a", 1, 0.7), stats("b", 1, 0.6)]) == []

    def test_a_draft_that_does_nothing(self, run: Run) -> None:
        # SpecForge#310: acceptance length 1.04.
        found = caveats(run, [stats("a", 1, 0.04, length=1.04), stats("a", 4, 0.02, length=1.02)])
        assert found == ["a: this draft does nothing here, its acceptance length is 1.04 at best"]

    def test_one_that_does_something_at_one_level_is_none(self, run: Run) -> None:
        assert caveats(run, [stats("a", 1, 0.5, length=1.1), stats("a", 4, 0.4, length=1.05)]) == []

    def test_a_draft_that_never_drafts_does_nothing(self, run: Run) -> None:
        assert caveats(run, [stats("a", 1, 0.0, drafted=0.0)]) == [
            "a: this draft does nothing here, not one token was drafted"
        ]

    def test_one_whose_counts_are_unknown_is_not_said_to_do_nothing(self, run: Run) -> None:
        assert caveats(run, [stats("a", 1, None, drafted=None)]) == []

    def test_a_baseline_as_arm_drafts_nothing_and_that_is_right(self, run: Run) -> None:
        assert caveats(self.changed(run, a={"speculates": False}), [stats("a", 1, 0.0, drafted=0.0)]) == []

    def test_an_arm_far_below_its_twin_has_collapsed(self, run: Run) -> None:
        # vllm#37150: 1.2 % where the twin keeps 70 %.
        found = caveats(
            self.changed(run, a={"scheduling": "asynchronous"}, b={"scheduling": "synchronous"}),
            [stats("a", 4, 0.012), stats("b", 4, 0.7)],
        )
        assert found == [
            "a at 4 (asynchronous) keeps 1.2% of its draft tokens where b at 4 (synchronous) keeps 70.0%: acceptance "
            "collapsed, which is a fault more often than a property of the draft"
        ]

    def test_so_has_a_level_far_below_another_of_its_arm(self, run: Run) -> None:
        (found,) = caveats(run, [stats("a", 1, 0.7), stats("a", 64, 0.012)])
        assert found.startswith("a at 64 keeps 1.2% of its draft tokens where a at 1 keeps 70.0%")

    def test_another_method_is_no_twin(self, run: Run) -> None:
        assert caveats(self.changed(run, b={"method": "eagle3"}), [stats("a", 4, 0.012), stats("b", 4, 0.7)]) == []

    @pytest.mark.parametrize(("drafted", "said"), [(14.0, 0), (15.0, 1)])
    def test_a_few_drafts_prove_nothing(self, run: Run, drafted: float, said: int) -> None:
        assert len(caveats(run, [stats("a", 1, 0.7), stats("a", 64, 0.012, drafted=drafted)])) == said

    def test_a_third_of_the_twin_is_no_collapse(self, run: Run) -> None:
        assert caveats(run, [stats("a", 1, 0.7), stats("a", 64, 0.2)]) == []

    @pytest.mark.parametrize("side", ["arm", "baseline_arm"])
    def test_synthetic_acceptance_of_either_side(self, make_run: MakeRun, tmp_path: Path, side: str) -> None:
        run = make_run(tmp_path, {("a", 4): PAYS}, **{side: {"argv": ["--spec-synth-rates", "0.7"]}})
        name = {"arm": "a", "baseline_arm": "lab-baseline"}[side]
        expected = f"{name}: synthetic acceptance: for sizing only, its drafts were accepted by lot"
        assert caveats(run, level_stats(run)) == [expected]

    def test_what_matters_most_comes_first(self, make_run: MakeRun, tmp_path: Path) -> None:
        of = WorkloadInfo(name="w", digest="d", seed=0, size=5, reuse=True)
        run = make_run(tmp_path, {("a", 4): PAYS}, workload="w", arm={"argv": ["--spec-synth-rates", "0"]})
        path = tmp_path / "run.json"
        path.write_text(run.info.model_copy(update={"workload": of}).model_dump_json(by_alias=True))
        found = caveats(Run(tmp_path), [stats("a", 4, 0.01, length=1.01)])
        assert ["nothing" in found[0], "synthetic" in found[1], "reused" in found[2]] == [True] * 3


class TestSynthetic:
    @pytest.mark.parametrize(
        "argv",
        [
            ["--speculative-config", '{"method": "eagle3", "rejection_sample_method": "synthetic"}'],
            ["--speculative-config", '{"rejection_sample_method":"synthetic"}'],
            ["--speculative-config.rejection_sample_method", "synthetic"],
            ["--speculative-config.rejection-sample-method=synthetic"],
            ["--spec-synth-rates", "0.7,0.5"],
        ],
    )
    def test_by_argument(self, argv: list[str]) -> None:
        assert ArmInfo(name="a", engine="vllm", model="m", argv=argv).synthetic

    @pytest.mark.parametrize("name", ["SGLANG_SIMULATE_ACC_LEN", "SGLANG_SIMULATE_ACC_METHOD", "SIMULATE_ACC_LEN"])
    def test_by_variable(self, name: str) -> None:
        assert ArmInfo(name="a", engine="sglang", model="m", env={name: "3"}).synthetic

    @pytest.mark.parametrize(
        "argv", [None, [], ["--speculative-config", '{"rejection_sample_method": "strict"}'], ["--model", "synthetic"]]
    )
    def test_real_acceptance_is_not(self, argv: list[str] | None) -> None:
        assert not ArmInfo(name="a", engine="vllm", model="m", argv=argv, env={"SGLANG_LOG": "1"}).synthetic


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
