"""Acceptance by position, category and context: summed counts; counters where responses are silent."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.analysis.acceptance import (
    AcceptanceGroup,
    Position,
    by_category,
    by_context,
    by_position,
    from_histograms,
    positions,
)
from toolkit.analysis.records import CellRecord, CounterReading, RequestRecord
from toolkit.analysis.run import Run
from toolkit.engines.vllm import VLLM
from toolkit.theory import expected_tokens, expected_tokens_by_position

MakeRun = Callable[..., Run]
DATA = Path(__file__).parents[2] / "data"
ARM = "lab-ngram"
K = 5

step = st.integers(1, 8).flatmap(lambda drafted: st.tuples(st.just(drafted), st.integers(0, drafted)))
full_step = st.tuples(st.just(K), st.integers(0, K))


@pytest.fixture
def run(make_run: MakeRun, tmp_path: Path) -> Run:
    """One pair at concurrency 4: 16 requests each, whose acceptance is known in sums only."""
    return make_run(tmp_path / "run", {(ARM, 4): [(150.0, 100.0)]})


@pytest.fixture(scope="module")
def real() -> Run:
    return Run(DATA / "runs" / "lab-copy-code")


def with_requests(run: Run, *changes: dict[str, Any]) -> Run:
    """The arm's requests become one per change, each a first request of the arm with these fields replaced."""
    pattern = next(record for record in run.requests() if record.cell.side == "arm")
    others = [record for record in run.requests() if record.cell.side == "baseline"]
    return rewritten(run, [*(pattern.model_copy(update=change) for change in changes), *others])


def rewritten(run: Run, records: Sequence[RequestRecord]) -> Run:
    (run.folder / "requests.jsonl").write_text("".join(r.model_dump_json(by_alias=True) + "\n" for r in records))
    return Run(run.folder)


def with_counters(run: Run, *readings: CounterReading) -> Run:
    return with_cells(run, [cell.model_copy(update={"counters": list(readings)}) for cell in run.cells()])


def with_cells(run: Run, cells: Sequence[CellRecord]) -> Run:
    (run.folder / "cells.jsonl").write_text("".join(c.model_dump_json(by_alias=True) + "\n" for c in cells))
    return Run(run.folder)


def per_step(drafted: list[int], accepted: list[int], **fields: Any) -> dict[str, Any]:
    sums = {"steps": len(drafted), "drafted": sum(drafted), "accepted": sum(accepted)}
    return {**sums, "per_step_drafted": drafted, "per_step_accepted": accepted, **fields}


def sums_only(**fields: Any) -> dict[str, Any]:
    return {"steps": 2, "drafted": 8, "accepted": 4, **fields}


def reading(drafts: float | None, *accepted: float) -> CounterReading:
    return CounterReading(at=0.0, drafts=drafts, accepted_per_position=list(accepted))


def counts(found: Sequence[Position]) -> list[tuple[int | None, int, int]]:
    return [(position.reached, position.drafts, position.accepted) for position in found]


class TestPositions:
    def test_reached_is_drafted_with_all_before_it_kept(self) -> None:
        found = positions([(3, 3), (3, 1), (1, 1), (2, 0)])
        # At 2: the one-token draft was kept but did not reach it. At 3: one step only.
        assert counts(found) == [(4, 4, 3), (2, 4, 1), (1, 4, 1)]

    def test_given_is_over_the_reached_and_unconditional_over_all_drafts(self) -> None:
        second = positions([(3, 3), (3, 1), (1, 1), (2, 0)])[1]
        assert (second.position, second.given, second.unconditional) == (2, 1 / 2, 1 / 4)

    def test_a_position_never_reached_has_no_given_acceptance(self) -> None:
        second = positions([(2, 0)])[1]
        assert (second.given, second.unconditional) == (None, 0.0)

    def test_a_step_without_a_draft_is_none_of_them(self) -> None:
        assert counts(positions([(0, 0), (1, 1)])) == [(1, 1, 1)]

    def test_no_steps_have_no_positions(self) -> None:
        assert positions([]) == []

    @given(st.lists(full_step, min_size=1))
    def test_where_every_step_drafts_k_unconditional_is_the_product_of_the_given(
        self, steps: list[tuple[int, int]]
    ) -> None:
        found = positions(steps)
        for i, position in enumerate(found, start=1):
            shares = [one.given for one in found[:i]]
            # A position that was never reached has no share; one before it was then never kept.
            product = math.prod(share for share in shares if share is not None)
            assert position.unconditional == pytest.approx(product)

    @given(st.lists(full_step, min_size=1))
    def test_where_every_step_drafts_k_the_tokens_per_step_are_the_acceptance_length(
        self, steps: list[tuple[int, int]]
    ) -> None:
        shares = [position.given or 0.0 for position in positions(steps)]
        length = 1 + sum(accepted for _, accepted in steps) / len(steps)
        assert expected_tokens_by_position(shares) == pytest.approx(length)

    @given(st.lists(step))
    def test_unconditional_does_not_rise_with_the_position(self, steps: list[tuple[int, int]]) -> None:
        shares = [position.unconditional or 0.0 for position in positions(steps)]
        assert shares == sorted(shares, reverse=True)

    @given(st.lists(step))
    def test_each_kept_token_has_one_position(self, steps: list[tuple[int, int]]) -> None:
        assert sum(position.accepted for position in positions(steps)) == sum(accepted for _, accepted in steps)

    @given(st.lists(step))
    def test_no_more_are_kept_than_reached(self, steps: list[tuple[int, int]]) -> None:
        assert all(p.reached is not None and p.accepted <= p.reached <= p.drafts for p in positions(steps))


class TestFromHistograms:
    @given(st.lists(full_step, max_size=30), st.integers(0, 3))
    def test_where_every_step_drafts_k_it_is_what_the_steps_say(self, steps: list[tuple[int, int]], cut: int) -> None:
        """However the steps are spread over requests, trailing zeros absent."""
        parts = [steps[cut::2], steps[:cut], steps[cut + 1 :: 2]] if steps else []
        histograms = [histogram([kept for _, kept in part]) for part in parts]
        assert from_histograms(histograms, K * len(steps), K) == positions(steps)

    @given(st.lists(step, max_size=30), st.sampled_from([None, 8]))
    def test_else_the_unconditional_alone(self, steps: list[tuple[int, int]], k: int | None) -> None:
        """A step may have drafted less than k: who could have kept a position is not known."""
        drafted = sum(asked for asked, _ in steps)
        found = from_histograms([histogram([kept for _, kept in steps])], drafted, k)
        if drafted != 8 * len(steps) or k is None:
            expected = [(None, one.drafts, one.accepted) for one in positions(steps) if one.accepted]
            assert counts(found) == expected

    def test_an_unknown_number_of_drafted_tokens_leaves_the_given_unavailable(self) -> None:
        assert [one.given for one in from_histograms([[1, 2]], None, 1)] == [None]

    def test_it_is_used_where_steps_are_not_told(self, run: Run) -> None:
        told = sums_only(accepted_histogram=[1, 0, 3], steps=4, drafted=12, accepted=6)
        assert counts(by_position(with_requests(run, told, told), ARM)) == [(None, 8, 6), (None, 8, 6)]


def histogram(kept: Sequence[int]) -> list[int]:
    """Steps by the number of tokens that they kept."""
    return [kept.count(i) for i in range(max(kept, default=-1) + 1)]


class TestFromResponses:
    def test_steps_of_all_requests_are_summed(self, run: Run) -> None:
        told = with_requests(run, per_step([2, 2], [2, 0]), per_step([2], [1]))
        assert counts(by_position(told, ARM)) == [(3, 3, 2), (2, 3, 1)]

    def test_a_request_that_never_drafted_has_said_all(self, run: Run) -> None:
        """vLLM leaves the lists out of such an answer."""
        silent = {"steps": 0, "drafted": 0, "accepted": 0, "per_step_drafted": None, "per_step_accepted": None}
        assert counts(by_position(with_requests(run, per_step([1], [1]), silent), ARM)) == [(1, 1, 1)]

    @pytest.mark.parametrize("other", [{"error": "broken"}, {"warmup": True}, {"attempt": 2}])
    def test_a_failed_a_warm_up_and_an_interrupted_request_are_left_out(self, run: Run, other: dict[str, Any]) -> None:
        told = with_requests(run, per_step([1], [1]), per_step([1], [0], **other))
        assert counts(by_position(told, ARM)) == [(1, 1, 1)]

    def test_a_failed_request_need_not_tell(self, run: Run) -> None:
        told = with_requests(run, per_step([1], [1]), {"error": "broken", "steps": None})
        assert counts(by_position(told, ARM)) == [(1, 1, 1)]

    def test_the_baseline_is_left_out(self, make_run: MakeRun, tmp_path: Path) -> None:
        run = make_run(tmp_path, {(ARM, 4): [(150.0, 100.0)]})
        both = rewritten(run, [record.model_copy(update=per_step([1], [1])) for record in run.requests()])
        assert counts(by_position(both, ARM)) == [(16, 16, 16)]

    def test_another_arm_is_left_out(self, make_run: MakeRun, tmp_path: Path) -> None:
        run = make_run(tmp_path, {(ARM, 4): [(150.0, 100.0)], ("b", 4): [(1.0, 1.0)]})
        both = rewritten(run, [record.model_copy(update=per_step([1], [1])) for record in run.requests()])
        assert counts(by_position(both, "b")) == [(16, 16, 16)]

    def test_one_level_alone(self, make_run: MakeRun, tmp_path: Path) -> None:
        run = make_run(tmp_path, {(ARM, 1): [(150.0, 100.0)], (ARM, 4): [(150.0, 100.0)]})
        both = rewritten(run, [record.model_copy(update=per_step([1], [1])) for record in run.requests()])
        assert counts(by_position(both, ARM, concurrency=1)) == [(4, 4, 4)]

    def test_an_unknown_arm_has_none(self, run: Run) -> None:
        assert by_position(run, "no-such-arm") == []

    def test_a_run_in_which_nothing_was_drafted_has_none(self, run: Run) -> None:
        assert by_position(with_requests(run, {"steps": 0, "drafted": 0, "accepted": 0}), ARM) == []


class TestFromCounters:
    """The responses of `run` tell sums only, so what is known by position is on /metrics."""

    def test_two_engines_on_one_page_are_summed(self, run: Run) -> None:
        """Case 1, speculators#1095: 8 of 10 and 18 of 20 at the first position."""
        page = VLLM().counters((DATA / "vllm" / "metrics.txt").read_text(encoding="utf-8"))
        end = reading(page.drafts, *page.accepted_per_position)
        first = by_position(with_counters(run, reading(0, *[0.0] * 11), end), ARM)[0]
        assert first.unconditional == 26 / 30

    def test_the_delta_and_not_the_total(self, run: Run) -> None:
        """Case 2, a Spark serving repository's issue 92."""
        counted = with_counters(run, reading(20000, 16131, 12000), reading(20030, 16157, 12010))
        assert counts(by_position(counted, ARM)) == [(None, 30, 26), (None, 30, 10)]

    def test_the_delta_is_from_the_first_to_the_last_reading(self, run: Run) -> None:
        counted = with_counters(run, reading(0, 0), reading(5, 5), reading(7, 6), reading(10, 6))
        assert counts(by_position(counted, ARM)) == [(None, 10, 6)]

    def test_given_is_unavailable(self, run: Run) -> None:
        (first,) = by_position(with_counters(run, reading(0, 0), reading(10, 6)), ARM)
        assert (first.given, first.unconditional) == (None, 0.6)

    def test_one_level_alone(self, make_run: MakeRun, tmp_path: Path) -> None:
        readings = [reading(0, 0), reading(10, 6)]
        run = make_run(tmp_path, {(ARM, n): [(150.0, 100.0)] * 2 for n in (1, 4)}, cell={"counters": readings})
        assert counts(by_position(run, ARM, concurrency=4)) == [(None, 20, 12)]

    @pytest.mark.parametrize(
        "other",
        [
            sums_only(),
            {**sums_only(), "per_step_drafted": [4, 4]},
            {**sums_only(), "per_step_drafted": [4, 4], "per_step_accepted": [4]},
            {**sums_only(), "per_step_drafted": [4, 3], "per_step_accepted": [0, 4]},
        ],
        ids=["sums only", "drafted only", "lists of two lengths", "more kept than drafted"],
    )
    def test_one_request_without_its_steps_turns_to_them(self, run: Run, other: dict[str, Any]) -> None:
        told = with_requests(run, per_step([1], [1]), other)
        assert counts(by_position(with_counters(told, reading(0, 0), reading(10, 6)), ARM)) == [(None, 10, 6)]

    @pytest.mark.parametrize(
        "readings",
        [
            [],
            [reading(10, 6)],
            [reading(None), reading(10, 6)],
            [reading(None), reading(None)],
            [reading(0), reading(10, 6)],
            [reading(0, 0), reading(10, 6, 3)],
            [reading(0), reading(10)],
            [reading(100, 50), reading(10, 6)],
            [reading(0, 50), reading(10, 6)],
            [reading(5, 3), reading(5, 3)],
        ],
        ids=[
            *["none", "one", "no start", "no drafts", "no positions at the start", "a position more at the end"],
            *["no positions", "fell", "one fell", "nothing drafted"],
        ],
    )
    def test_counters_that_tell_nothing_leave_it_unavailable(self, run: Run, readings: list[CounterReading]) -> None:
        assert by_position(with_counters(run, *readings), ARM) == []

    @pytest.mark.parametrize(
        "odd",
        [[], [reading(10, 6)], [reading(0, 0, 0), reading(10, 6, 3)]],
        ids=["no reading", "one reading", "another draft length"],
    )
    def test_one_cell_unlike_the_others_leaves_it_unavailable(self, run: Run, odd: list[CounterReading]) -> None:
        counted = with_counters(run, reading(0, 0), reading(10, 6))
        first = counted.cells()[0]
        cells = [first, first.model_copy(update={"counters": odd, "cell": first.cell.model_copy(update={"round": 2})})]
        assert by_position(with_cells(counted, cells), ARM) == []

    def test_the_cells_of_another_arm_are_left_out(self, make_run: MakeRun, tmp_path: Path) -> None:
        run = make_run(tmp_path, {(ARM, 4): [(150.0, 100.0)], ("b", 4): [(150.0, 100.0)]})
        cells = [
            cell.model_copy(update={"counters": [reading(0, 0), reading(10, 6 if cell.cell.arm == ARM else 3)]})
            for cell in run.cells()
        ]
        assert counts(by_position(with_cells(run, cells), "b")) == [(None, 10, 3)]


class TestGroups:
    def test_counts_are_summed_before_the_ratios(self, run: Run) -> None:
        told = with_requests(
            run,
            {"category": "copy", "steps": 1, "drafted": 4, "accepted": 4, "passes": (16, 16)},
            {"category": "copy", "steps": 9, "drafted": 36, "accepted": 6, "passes": (14, 14)},
        )
        (group,) = by_category(told, ARM)
        assert asdict(group) == {
            "name": "copy",
            "requests": 2,
            "steps": 10,
            "drafted": 40,
            "accepted": 10,
            "tokens_per_pass": 40 / 30,
        }
        assert (group.draft_acceptance_rate, group.acceptance_length) == (0.25, 2.0)

    def test_a_group_that_never_drafted_has_no_ratios(self) -> None:
        group = AcceptanceGroup("chat", 3, 0, 0, 0, 1.0)
        assert (group.draft_acceptance_rate, group.acceptance_length) == (None, None)

    def test_categories_are_in_the_order_of_their_names(self, run: Run) -> None:
        told = with_requests(run, *[sums_only(category=name) for name in ("math", "chat", "code", "chat")])
        assert [(group.name, group.requests) for group in by_category(told, ARM)] == [
            ("chat", 2),
            ("code", 1),
            ("math", 1),
        ]

    def test_contexts_rise_and_the_unknown_is_last(self, run: Run) -> None:
        lengths = [None, 5000, 256, 257, 512]
        told = with_requests(run, *[sums_only(prompt_tokens=length) for length in lengths])
        assert [(group.name, group.requests) for group in by_context(told, ARM)] == [
            ("129-256 tokens", 1),
            ("257-512 tokens", 2),
            ("4097-8192 tokens", 1),
            ("unknown", 1),
        ]

    def test_a_power_of_two_closes_its_bin(self, run: Run) -> None:
        powers = [2**n for n in range(2, 20)]
        told = with_requests(run, *[sums_only(prompt_tokens=n + more) for n in powers for more in (0, 1)])
        counted = {group.name: group.requests for group in by_context(told, ARM)}
        inner = {f"{n + 1}-{2 * n} tokens": 2 for n in powers[:-1]}
        assert counted == {"3-4 tokens": 1, **inner, f"{powers[-1] + 1}-{2 * powers[-1]} tokens": 1}

    @pytest.mark.parametrize("length", [0, -1])
    def test_a_prompt_of_no_tokens_is_of_unknown_length(self, run: Run, length: int) -> None:
        assert [g.name for g in by_context(with_requests(run, sums_only(prompt_tokens=length)), ARM)] == ["unknown"]

    @pytest.mark.parametrize("other", [{"error": "broken", "steps": None}, {"warmup": True}, {"attempt": 2}])
    def test_a_failed_a_warm_up_and_an_interrupted_request_are_left_out(self, run: Run, other: dict[str, Any]) -> None:
        told = with_requests(run, sums_only(), {**sums_only(), **other})
        assert [group.requests for group in by_category(told, ARM)] == [1]

    @pytest.mark.parametrize("field", ["steps", "drafted", "accepted"])
    def test_a_request_without_counts_leaves_all_groups_unavailable(self, run: Run, field: str) -> None:
        told = with_requests(run, sums_only(category="chat"), {**sums_only(category="code"), field: None})
        assert by_category(told, ARM) == []

    @pytest.mark.parametrize(
        ("passes", "tokens_per_pass"),
        [((1000, 1000), 2.0), ((985, 1000), (2000 / 985 + 2) / 2), ((975, 1000), None), (None, None)],
        ids=["exact", "1.5 % wide", "2.5 % wide", "unknown"],
    )
    def test_tokens_per_pass_is_shown_when_its_bounds_are_near(
        self, run: Run, passes: tuple[int, int] | None, tokens_per_pass: float | None
    ) -> None:
        told = with_requests(run, sums_only(passes=passes, completion_tokens=2000))
        assert [group.tokens_per_pass for group in by_category(told, ARM)] == [tokens_per_pass]


class TestRealRun:
    """tests/data/runs/lab-copy-code; the values were counted from its requests.jsonl by a script of its own."""

    def test_all_levels_by_position(self, real: Run) -> None:
        assert counts(by_position(real, ARM)) == [
            (15555, 15555, 11544),
            (11536, 15555, 9853),
            (9816, 15555, 8316),
            (8286, 15555, 7283),
        ]

    @pytest.mark.parametrize(
        ("concurrency", "expected"),
        [
            (1, [(341, 341, 259), (259, 341, 219), (219, 341, 196), (194, 341, 173)]),
            (4, [(754, 754, 552), (552, 754, 470), (466, 754, 394), (394, 754, 356)]),
            (16, [(2930, 2930, 2200), (2198, 2930, 1910), (1901, 2930, 1644), (1638, 2930, 1443)]),
            (64, [(11530, 11530, 8533), (8527, 11530, 7254), (7230, 11530, 6082), (6060, 11530, 5311)]),
        ],
    )
    def test_one_level_by_position(self, real: Run, concurrency: int, expected: list[tuple[int, int, int]]) -> None:
        assert counts(by_position(real, ARM, concurrency)) == expected

    def test_its_counters_hold_the_warm_up_too(self, real: Run, tmp_path: Path) -> None:
        for name in ("run.json", "cells.jsonl"):
            (tmp_path / name).write_bytes((real.folder / name).read_bytes())
        silent = rewritten(Run(tmp_path), [])
        assert counts(by_position(silent, ARM)) == [
            (None, 17461, 13080),
            (None, 17461, 11234),
            (None, 17461, 9430),
            (None, 17461, 8288),
        ]

    def test_by_category(self, real: Run) -> None:
        assert by_category(real, ARM) == [
            AcceptanceGroup("explain", 434, 1951, 7750, 2728, 20832 / 18381),
            AcceptanceGroup("rename", 645, 6409, 25588, 17580, 30951 / 14220),
            AcceptanceGroup("repeat", 985, 7195, 28677, 16688, 47280 / 31442),
        ]

    def test_by_context(self, real: Run) -> None:
        assert by_context(real, ARM) == [AcceptanceGroup("129-256 tokens", 2064, 15555, 62015, 36996, 99063 / 64043)]

    def test_its_positions_give_its_acceptance_length(self, real: Run) -> None:
        """One draft in a hundred is shorter than 4."""
        shares = [position.given or 0.0 for position in by_position(real, ARM)]
        assert expected_tokens_by_position(shares) == pytest.approx(1 + 36996 / 15555, rel=0.01)

    def test_its_first_position_alone_would_give_a_tenth_too_little(self, real: Run) -> None:
        alpha = by_position(real, ARM)[0].given or 0.0
        assert expected_tokens(alpha, 4) < 0.9 * (1 + 36996 / 15555)
