"""The one definition of each number: sums before ratios, the window's delta before the total, None before 0."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.analysis.levels import LevelStats, baseline_stats, cross_check, level_stats, tokens_per_pass, tpot
from toolkit.analysis.records import CellKey, CellRecord, CounterReading, RequestRecord, Side
from toolkit.analysis.run import Run

MakeRun = Callable[..., Run]
ONE_ROUND = {("lab-ngram", 4): [(150.0, 100.0)]}


def request(side: Side = "arm", arm: str = "lab-ngram", **fields: Any) -> RequestRecord:
    needed = {"attempt": 1, "served_by": arm if side == "arm" else "lab-baseline", "warmup": False, "category": "c"}
    times = {"prompt": 0, "prompt_hash": "h", "sent": 0.0, "ended": 1.0, "completion_tokens": 20, "prompt_tokens": 100}
    return RequestRecord(**{**needed, **times, "cell": key(side, arm), **fields})


def key(side: Side = "arm", arm: str = "lab-ngram") -> CellKey:
    return CellKey(arm=arm, side=side, workload="copy-code", concurrency=4, round=1)


def with_requests(run: Run, *records: RequestRecord) -> Run:
    lines = [record.model_dump_json(by_alias=True, exclude_none=True) + "\n" for record in records]
    (run.folder / "requests.jsonl").write_text("".join(lines))
    return Run(run.folder)


def with_counters(run: Run, *readings: CounterReading, side: Side = "arm") -> Run:
    cells = [
        cell.model_copy(update={"counters": list(readings)}) if cell.cell.side == side else cell for cell in run.cells()
    ]
    (run.folder / "cells.jsonl").write_text("".join(c.model_dump_json(by_alias=True) + "\n" for c in cells))
    return Run(run.folder)


def reading(drafts: float | None, drafted: float | None, accepted: float | None) -> CounterReading:
    return CounterReading(at=0.0, drafts=drafts, drafted=drafted, accepted=accepted)


def arm_stats(run: Run) -> LevelStats:
    return next(stats for stats in level_stats(run) if stats.side == "arm")


@pytest.fixture
def run(make_run: MakeRun, tmp_path: Path) -> Run:
    return make_run(tmp_path / "run", ONE_ROUND)


class TestTpot:
    def test_time_after_the_first_chunk_over_tokens_after_it(self) -> None:
        # Case 8: 20 tokens in chunks of 4, 8, 8; 2 s between the first and the last, in which 16 tokens came.
        assert tpot(request(chunks=[(0.5, 4), (1.5, 8), (2.5, 8)])) == 2.0 / 16

    def test_chunks_of_unknown_size_leave_it_unavailable(self) -> None:
        assert tpot(request(chunks=[(0.5, None), (2.4, None)])) is None

    @given(
        st.lists(st.integers(1, 16), min_size=2, max_size=20),
        st.floats(0.001, 0.1),
        st.floats(0, 5),
    )
    def test_a_steady_stream_has_its_pace_whatever_the_chunks(
        self, sizes: list[int], pace: float, start: float
    ) -> None:
        chunks, arrived = [], start
        for index, size in enumerate(sizes):
            arrived += size * pace if index else 0.0
            chunks.append((arrived, size))
        assert tpot(request(chunks=chunks, completion_tokens=sum(sizes))) == pytest.approx(pace)

    @pytest.mark.parametrize(
        "fields",
        [
            {"chunks": []},
            {"chunks": [(0.5, 20)]},
            {"chunks": [(0.5, 4), (1.5, 8)], "completion_tokens": None},
            {"chunks": [(0.5, 20), (1.5, 0)]},
        ],
    )
    def test_unavailable_without_a_second_token(self, fields: dict[str, Any]) -> None:
        assert tpot(request(**fields)) is None


class TestTokensPerPass:
    def test_summed_tokens_over_summed_passes(self) -> None:
        records = [request(passes=(20, 20)), request(passes=(5, 5))]
        assert tokens_per_pass(records) == (1.6, 1.6)  # the mean of the ratios would be 2.5

    def test_bounds_where_the_passes_are_bounds(self) -> None:
        low, high = tokens_per_pass([request(passes=(8, 10)), request(passes=(8, 10))]) or (0.0, 0.0)
        assert (low, high) == (2.0, 2.5)

    @given(
        st.lists(st.tuples(st.integers(1, 500), st.integers(1, 500), st.integers(0, 16), st.floats(0, 1)), min_size=1)
    )
    def test_the_truth_lies_within_the_bounds(self, rows: list[tuple[int, int, int, float]]) -> None:
        records = [request(completion_tokens=tokens, passes=(low, low + more)) for tokens, low, more, _ in rows]
        truth = sum(r[0] for r in rows) / sum(low + share * more for _, low, more, share in rows)
        low, high = tokens_per_pass(records) or (0.0, 0.0)
        assert low <= truth * (1 + 1e-9) <= high * (1 + 2e-9)

    @pytest.mark.parametrize("fields", [{"passes": None}, {"passes": (8, 8), "completion_tokens": None}])
    def test_one_unknown_request_makes_it_unavailable(self, fields: dict[str, Any]) -> None:
        assert tokens_per_pass([request(passes=(8, 8)), request(**fields)]) is None

    def test_nothing_gives_nothing(self) -> None:
        assert tokens_per_pass([]) is None

    def test_wide_bounds_are_not_shown_as_a_number(self, run: Run) -> None:
        assert arm_stats(with_requests(run, request(passes=(8, 10)))).tokens_per_pass is None

    def test_narrow_bounds_are_shown_by_their_middle(self, run: Run) -> None:
        stats = arm_stats(with_requests(run, request(completion_tokens=1000, passes=(500, 505))))
        assert stats.tokens_per_pass == pytest.approx((1000 / 505 + 2) / 2)

    def test_a_failed_request_takes_no_part(self, run: Run) -> None:
        records = [request(passes=(10, 10)), request(passes=None, error="broken")]
        assert arm_stats(with_requests(run, *records)).tokens_per_pass == 2.0

    def test_without_speculation_it_is_one(self, run: Run) -> None:
        assert next(stats for stats in level_stats(run) if stats.side == "baseline").tokens_per_pass == 1.0


class TestAcceptance:
    def test_the_rate_is_of_summed_counts(self, run: Run) -> None:
        records = [request(steps=1, drafted=4, accepted=4), request(steps=9, drafted=36, accepted=0)]
        stats = arm_stats(with_requests(run, *records))
        assert stats.draft_acceptance_rate == 0.1  # the mean of the ratios would be 0.5

    def test_the_length_is_of_summed_counts_and_holds_the_bonus(self, run: Run) -> None:
        records = [request(steps=1, drafted=4, accepted=4), request(steps=9, drafted=36, accepted=0)]
        assert arm_stats(with_requests(run, *records)).acceptance_length == 1.4

    def test_a_rate_of_nothing_drafted_is_unavailable(self, run: Run) -> None:
        stats = arm_stats(with_requests(run, request(steps=0, drafted=0, accepted=0)))
        assert (stats.draft_acceptance_rate, stats.acceptance_length, stats.per_request) == (None, None, True)

    def test_a_rate_of_nothing_accepted_is_zero(self, run: Run) -> None:
        stats = arm_stats(with_requests(run, request(steps=2, drafted=8, accepted=0)))
        assert (stats.draft_acceptance_rate, stats.acceptance_length) == (0.0, 1.0)

    def test_unreported_is_unavailable_and_not_zero(self, run: Run) -> None:
        # Case 3.
        stats = arm_stats(with_requests(run, request()))
        assert (stats.drafted, stats.accepted, stats.steps, stats.draft_acceptance_rate) == (None, None, None, None)

    def test_one_request_without_counts_turns_to_the_counters(self, run: Run) -> None:
        records = [request(steps=1, drafted=4, accepted=4), request()]
        counted = with_counters(with_requests(run, *records), reading(0, 0, 0), reading(10, 40, 20))
        stats = arm_stats(counted)
        assert (stats.draft_acceptance_rate, stats.per_request) == (0.5, False)

    def test_the_counters_give_the_delta_and_not_the_total(self, run: Run) -> None:
        # Case 2.
        counted = with_counters(with_requests(run, request()), reading(100, 400, 390), reading(110, 440, 400))
        stats = arm_stats(counted)
        assert (stats.steps, stats.drafted, stats.accepted) == (10.0, 40.0, 10.0)

    def test_the_delta_is_from_the_first_to_the_last_reading(self, run: Run) -> None:
        readings = [reading(0, 0, 0), reading(1, 4, 4), reading(2, 8, 8), reading(10, 40, 10)]
        assert arm_stats(with_counters(with_requests(run, request()), *readings)).accepted == 10.0

    @pytest.mark.parametrize(
        "readings",
        [
            [],
            [reading(0, 0, 0)],
            [reading(None, None, None), reading(10, 40, 20)],
            [reading(0, 0, 0), reading(10, 40, None)],
            [reading(100, 400, 200), reading(10, 40, 20)],
        ],
        ids=["none", "one", "no start", "no end", "the engine was started anew"],
    )
    def test_counters_that_give_no_delta_are_unavailable(self, run: Run, readings: list[CounterReading]) -> None:
        assert arm_stats(with_counters(with_requests(run, request()), *readings)).accepted is None


class TestCrossCheck:
    """Each request of the arm: 6 steps, 24 drafted, 12 accepted; sixteen are on disk."""

    def test_silent_when_equal(self, run: Run) -> None:
        assert cross_check(with_counters(run, reading(5, 5, 5), reading(101, 389, 197))) == []

    def test_a_disagreement_is_reported_with_both_numbers(self, run: Run) -> None:
        # Case 20.
        (said,) = cross_check(with_counters(run, reading(0, 0, 0), reading(96, 384, 48)))
        assert "lab-ngram: its responses report 192 accepted draft tokens, its counters 48." in said

    def test_responses_that_say_nothing_was_kept_are_reported(self, run: Run) -> None:
        # Case 20: the engine's log says 4.00, the client's counts say 0.
        silent = with_requests(run, request(steps=6, drafted=24, accepted=0))
        assert len(cross_check(with_counters(silent, reading(0, 0, 0), reading(6, 24, 18)))) == 1

    @pytest.mark.parametrize(("counted", "sentences"), [(2376, 0), (2424, 0), (2370, 1), (2430, 1)])
    def test_one_per_cent_is_let_pass(self, run: Run, counted: int, sentences: int) -> None:
        many = with_requests(run, *[request(steps=1, drafted=24, accepted=24)] * 100)
        assert len(cross_check(with_counters(many, reading(0, 0, 0), reading(100, 2400, counted)))) == sentences

    def test_the_warm_up_counts_on_both_sides(self, run: Run) -> None:
        records = [request(steps=6, drafted=24, accepted=12, warmup=warmup) for warmup in (True, False)]
        assert cross_check(with_counters(with_requests(run, *records), reading(0, 0, 0), reading(12, 48, 24))) == []

    def test_silent_without_counters(self, run: Run) -> None:
        assert cross_check(run) == []

    @pytest.mark.parametrize(("iterations", "sentences"), [(100, 0), (98.1, 0), (97.9, 1), (25, 1)])
    def test_tokens_that_came_in_too_few_iterations_are_reported(
        self, run: Run, iterations: float, sentences: int
    ) -> None:
        # Case 20: 20 requests of 20 tokens at concurrency 4, nothing kept: 400 passes take 100 iterations.
        records = with_requests(run, *[request(steps=19, drafted=57, accepted=0)] * 20)
        at = [CounterReading(at=float(i), iterations=7 + i * iterations) for i in (0, 1)]
        assert len(cross_check(with_counters(records, *at))) == sentences

    def test_accepted_drafts_explain_them(self, run: Run) -> None:
        records = with_requests(run, *[request(steps=5, drafted=15, accepted=15)] * 20)
        at = [CounterReading(at=float(i), iterations=i * 25) for i in (0, 1)]
        assert cross_check(with_counters(records, *at)) == []

    def test_more_iterations_than_ours_are_another_clients(self, run: Run) -> None:
        records = with_requests(run, *[request(steps=19, drafted=57, accepted=0)] * 20)
        at = [CounterReading(at=float(i), iterations=i * 900) for i in (0, 1)]
        assert cross_check(with_counters(records, *at)) == []

    def test_silent_where_a_request_told_nothing(self, run: Run) -> None:
        records = [request(steps=6, drafted=24, accepted=12), request(error="broken")]
        assert cross_check(with_counters(with_requests(run, *records), reading(0, 0, 0), reading(12, 48, 24))) == []


class TestSums:
    def test_a_rate_is_the_mean_over_cells_that_have_one(self, make_run: MakeRun, tmp_path: Path) -> None:
        run = make_run(tmp_path, {("lab-ngram", 4): [(150.0, 100.0), (None, 110.0), (170.0, 120.0)]}, on_disk=2)
        assert [stats.tokens_per_second for stats in level_stats(run)] == [160.0, 110.0]

    def test_no_window_is_no_rate(self, make_run: MakeRun, tmp_path: Path) -> None:
        assert arm_stats(make_run(tmp_path, {("lab-ngram", 4): [(None, 1.0)]}, on_disk=2)).tokens_per_second is None

    def test_failed_requests_are_a_share_of_all(self, make_run: MakeRun, tmp_path: Path) -> None:
        run = make_run(tmp_path, ONE_ROUND, failed={("lab-ngram", 4): 2})
        assert arm_stats(run).failed_share == 2 / 16

    def test_percentiles_are_in_milliseconds(self, run: Run) -> None:
        records = [request(ttft=value / 100) for value in range(1, 102)]
        stats = arm_stats(with_requests(run, *records))
        assert stats.ttft_ms is not None
        assert (stats.ttft_ms.p50, stats.ttft_ms.p95) == (510.0, 960.0)

    def test_percentiles_of_nothing_are_unavailable(self, run: Run) -> None:
        stats = arm_stats(with_requests(run, request()))
        assert (stats.ttft_ms, stats.tpot_ms) == (None, None)

    def test_a_request_holds_its_prompt_and_its_answer(self, run: Run) -> None:
        records = [request(prompt_tokens=100, completion_tokens=20), request(prompt_tokens=40, completion_tokens=20)]
        assert arm_stats(with_requests(run, *records)).mean_tokens_held == 90.0

    def test_the_baseline_is_summed_over_the_arms_it_served(self, make_run: MakeRun, tmp_path: Path) -> None:
        run = make_run(tmp_path, {("a", 4): [(150.0, 100.0)], ("b", 4): [(150.0, 120.0)]}, on_disk=2)
        (stats,) = baseline_stats(run)
        assert (stats.cells, stats.requests, stats.tokens_per_second) == (2, 32, 110.0)

    def test_a_level_without_a_finished_cell_is_absent(self, run: Run) -> None:
        (run.folder / "cells.jsonl").write_text("")
        assert level_stats(Run(run.folder)) == []

    def test_an_unfinished_cell_beside_a_finished_one_is_absent(self, run: Run) -> None:
        cells: list[CellRecord] = run.cells()
        (run.folder / "cells.jsonl").write_text(cells[0].model_dump_json(by_alias=True) + "\n")
        assert [stats.side for stats in level_stats(Run(run.folder))] == ["arm"]
