"""Planted drafted counts: what proves a K, what contradicts it, and what only says how often."""

from typing import Any

import pytest

from toolkit.analysis.records import CellKey, CellRecord, CounterReading, RequestRecord
from toolkit.analysis.run import ArmInfo
from toolkit.analysis.tuning.draft_counts import Proof, proof

STATIC = [(1, 64, 4)]
FALLING = [(1, 8, 4), (9, 64, 0)]
THREE = [(1, 4, 8), (5, 16, 4), (17, 64, 0)]


def key(level: int) -> CellKey:
    return CellKey(arm="a", side="arm", workload="w", concurrency=level, round=1)


def request(level: int, per_step: list[int] | None, passes: int = 20) -> RequestRecord:
    return RequestRecord(
        cell=key(level),
        attempt=1,
        served_by="a",
        warmup=False,
        category="c",
        prompt=0,
        prompt_hash="h",
        sent=0.0,
        ended=1.0,
        completion_tokens=20,
        per_step_drafted=per_step,
        passes=(passes, passes),
    )


def cell(level: int, drafts: float | None = None, drafted: float = 0.0, readings: int = 4) -> CellRecord:
    """A cell inside whose window `drafts` steps drafted `drafted` tokens, of 1000 passes, and many outside."""
    moments = ((0.0, 0.0), (500.0, 2000.0), (500.0, 2000.0), (900.0, 3600.0))
    counters = [
        CounterReading(
            at=float(at),
            drafts=None if drafts is None else before + (drafts if at >= 2 else 0),
            drafted=None if drafts is None else before_drafted + (drafted if at >= 2 else 0),
            accepted=0.0,
            generation_tokens=1000.0 * at,
        )
        for at, (before, before_drafted) in enumerate(moments)
    ]
    return CellRecord(
        cell=key(level),
        attempt=1,
        served_by="a",
        order=0,
        finished_at="t",
        seconds=1.0,
        requests=4,
        failed=0,
        window=(1.0, 2.0),
        window_tokens=1000.0,
        counters=counters[:readings],
        client_cpu=0.1,
        prompts_digest="p",
    )


def seen(
    level: int, schedule: list[tuple[int, int, int]], per_step: list[int] | None, method: str = "ngram", **of: Any
) -> Proof:
    arm = ArmInfo(name="a", engine="vllm", model="m", method=method)
    return proof(arm, level, schedule, [cell(level, **of)], [request(level, per_step)])


class TestDrafting:
    def test_steps_of_exactly_k_prove_it(self) -> None:
        found = seen(4, STATIC, [4, 4, 3, 4])
        assert (found.verdict, found.k) == ("proven", 4)
        assert found.sentence == "75.0% of 4 drafted steps carried 4 tokens, none more"

    def test_a_step_above_k_contradicts_it(self) -> None:
        found = seen(4, STATIC, [4, 5])
        assert (found.verdict, found.sentence) == ("contradicted", "a step drafted 5 tokens, where K is at most 4")

    def test_a_lookup_that_never_found_k_tokens_proves_nothing(self) -> None:
        assert seen(4, STATIC, [2, 3]).verdict == "unproven"

    def test_a_draft_model_that_drafts_less_contradicts_it(self) -> None:
        assert seen(4, STATIC, [2, 2, 2, 4], method="draft_model").verdict == "contradicted"

    def test_no_draft_at_all_proves_nothing(self) -> None:
        assert seen(4, STATIC, []).verdict == "unproven"

    def test_the_last_requests_may_draft_by_their_smaller_batch(self) -> None:
        found = seen(12, THREE, [4] * 9 + [8])
        assert (found.verdict, found.sentence[-10:]) == ("proven", "10.0% more")

    def test_more_than_the_last_requests_can_account_for_contradicts_it(self) -> None:
        assert seen(12, THREE, [4] + [8] * 9).verdict == "contradicted"

    @pytest.mark.parametrize(("level", "verdict"), [(5, "shares"), (6, "shares"), (7, "proven")])
    def test_beside_a_threshold_there_are_shares(self, level: int, verdict: str) -> None:
        assert seen(level, THREE, [4, 8]).verdict == verdict


class TestNotDrafting:
    def test_no_draft_in_the_window_proves_it(self) -> None:
        found = seen(32, FALLING, [4] * 5, drafts=0.0)
        assert (found.verdict, found.sentence) == ("proven", "no step carried a draft while all requests ran")

    def test_drafting_on_contradicts_it(self) -> None:
        found = seen(32, FALLING, None, drafts=800.0)
        assert (found.verdict, found.sentence[:36]) == ("contradicted", "80.0% of the passes carried a draft ")

    def test_some_drafts_are_a_share(self) -> None:
        assert seen(32, FALLING, None, drafts=20.0).verdict == "shares"

    def test_beside_the_threshold_drafts_are_a_share(self) -> None:
        found = seen(9, FALLING, None, drafts=800.0)
        assert (found.verdict, "falls to the range below" in found.sentence) == ("shares", True)

    def test_without_counters_the_requests_tell(self) -> None:
        assert seen(32, FALLING, []).verdict == "proven"

    def test_without_counters_requests_that_draft_on_contradict_it(self) -> None:
        assert seen(32, FALLING, [4] * 15).verdict == "contradicted"


class TestCounters:
    def test_more_drafted_than_k_on_average_contradicts_it(self) -> None:
        assert seen(4, STATIC, None, drafts=100.0, drafted=500.0).verdict == "contradicted"

    def test_an_average_is_a_share(self) -> None:
        found = seen(4, STATIC, None, drafts=100.0, drafted=390.0)
        assert (found.verdict, found.sentence[:44]) == ("shares", "a drafted step carried 3.90 tokens on averag")

    @pytest.mark.parametrize("readings", [0, 2, 3])
    def test_a_cell_that_was_not_read_at_its_windows_edges_tells_nothing(self, readings: int) -> None:
        found = seen(4, STATIC, None, drafts=100.0, drafted=500.0, readings=readings)
        assert (found.verdict, "neither the responses nor /metrics" in found.sentence) == ("unproven", True)

    def test_an_engine_that_does_not_count_tells_nothing(self) -> None:
        assert seen(32, FALLING, None).verdict == "unproven"
