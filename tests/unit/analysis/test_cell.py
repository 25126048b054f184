"""One cell against a real server: warm-up, the window, the recount from the records, and every way to end early."""

import asyncio
import math
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stub_server import StubServer

from toolkit.analysis.cell import SHORT_WARMUP, CellPlan, Job, measure, tokens_inside, warmup_lengths
from toolkit.analysis.client import Answer, Client, Sampling
from toolkit.analysis.endpoint import Endpoint
from toolkit.analysis.records import CellKey, CellRecord, RequestRecord
from toolkit.analysis.workload import load_workload
from toolkit.engines import ENGINES
from toolkit.errors import EngineError, InputError

WORKLOAD = load_workload("chat")
TOKENS = 8


def plan_of(concurrency: int, requests: int, speculates: bool | None = False, first_time: bool = False) -> CellPlan:
    lengths = warmup_lengths(concurrency, TOKENS, first_time)
    jobs = [Job(index, WORKLOAD.prompt(index), length) for index, length in enumerate(lengths)]
    jobs += [Job(index, WORKLOAD.prompt(index)) for index in range(len(lengths), len(lengths) + requests)]
    key = CellKey(arm="a", side="arm", workload="chat", concurrency=concurrency, round=1)
    return CellPlan(key, 1, 7, "a", jobs, speculates)


def run_cell(
    stub: StubServer,
    plan: CellPlan,
    write: Callable[[RequestRecord], None] = lambda record: None,
    guard: Callable[[], None] = lambda: None,
    stall: float = 5.0,
) -> CellRecord:
    async def once() -> CellRecord:
        endpoint = Endpoint("a", stub.url, stub.model, ENGINES["vllm"])
        async with Client(endpoint, Sampling(max_tokens=TOKENS), stall) as client:
            return await measure(client, plan, write, guard)

    return asyncio.run(once())


def measured_cell(stub: StubServer, plan: CellPlan) -> tuple[CellRecord, list[RequestRecord]]:
    records: list[RequestRecord] = []
    return run_cell(stub, plan, records.append), records


def recount(records: Sequence[RequestRecord], window: tuple[float, float]) -> int:
    """Tokens of measured requests that arrived inside, from what is on disk."""
    arrivals = [(r.sent + at, tokens) for r in records if not r.warmup and not r.error for at, tokens in r.chunks]
    return sum(tokens or 0 for at, tokens in arrivals if window[0] < at <= window[1])


def time_short_of(records: Sequence[RequestRecord], window: tuple[float, float], concurrency: int) -> float:
    """Seconds of the window in which fewer than `concurrency` requests were out."""
    spans = [(r.sent, r.sent + r.ended) for r in records]
    edges = sorted({*window, *(at for span in spans for at in span if window[0] < at < window[1])})
    short = 0.0
    for start, end in pairwise(edges):
        middle = (start + end) / 2
        if sum(sent <= middle <= ended for sent, ended in spans) < concurrency:
            short += end - start
    return short


class TestWarmup:
    @given(st.integers(1, 128), st.integers(1, 4096))
    def test_the_last_n_rise_to_the_full_length(self, concurrency: int, max_tokens: int) -> None:
        lengths = warmup_lengths(concurrency, max_tokens, first_time=False)
        assert (len(lengths), lengths, lengths[-1]) == (concurrency, sorted(lengths), max_tokens)

    @given(st.integers(1, 128), st.integers(1, 4096), st.booleans())
    def test_none_is_empty_or_longer_than_a_measured_request(
        self, concurrency: int, max_tokens: int, first_time: bool
    ) -> None:
        assert all(1 <= length <= max_tokens for length in warmup_lengths(concurrency, max_tokens, first_time))

    @given(st.integers(1, 64), st.integers(64, 512))
    def test_the_last_n_are_spread_evenly(self, concurrency: int, max_tokens: int) -> None:
        lengths = [0, *warmup_lengths(concurrency, max_tokens, first_time=False)]
        steps = {b - a for a, b in pairwise(lengths)}
        assert steps <= {math.floor(max_tokens / concurrency), math.ceil(max_tokens / concurrency)}

    def test_a_new_batch_size_gets_three_times_as_many(self) -> None:
        # Case 24.
        assert warmup_lengths(4, 100, first_time=True) == [SHORT_WARMUP] * 8 + [25, 50, 75, 100]

    def test_a_job_with_a_length_of_its_own_is_a_warm_up(self) -> None:
        assert [Job(0, WORKLOAD.prompt(0), length).warmup for length in (1, None)] == [True, False]


class TestTokensInside:
    def answer(self, chunks: list[tuple[float, int | None]], tokens: int = 12, error: str | None = None) -> Answer:
        return Answer(sent=0.0, chunks=chunks, completion_tokens=tokens, error=error)

    def test_the_edges_are_open_on_the_left_and_closed_on_the_right(self) -> None:
        assert tokens_inside(self.answer([(1.0, 1), (1.5, 2), (2.0, 4), (2.1, 8)]), 1.0, 2.0) == 6.0

    def test_unknown_sizes_share_the_tokens_by_usage(self) -> None:
        assert tokens_inside(self.answer([(0.5, None), (1.5, None), (1.6, None)]), 1.0, 2.0) == 8.0

    def test_one_unknown_size_makes_all_share(self) -> None:
        assert tokens_inside(self.answer([(0.5, 1), (1.5, None), (1.6, 1)]), 1.0, 2.0) == 8.0

    @pytest.mark.parametrize(("chunks", "error"), [([(1.5, 3)], "broken"), ([], None)])
    def test_a_failed_or_silent_request_counts_nothing(
        self, chunks: list[tuple[float, int | None]], error: str | None
    ) -> None:
        assert tokens_inside(self.answer(chunks, error=error), 1.0, 2.0) == 0.0

    @given(
        st.lists(st.tuples(st.floats(0, 10), st.integers(0, 20)), min_size=1, max_size=20),
        st.lists(st.floats(-1, 11), min_size=2, max_size=6).map(sorted),
    )
    def test_adjacent_windows_share_the_tokens_without_rest(
        self, chunks: list[tuple[float, int | None]], edges: list[float]
    ) -> None:
        answer = self.answer(chunks)
        parts = sum(tokens_inside(answer, a, b) for a, b in pairwise(edges))
        assert parts == tokens_inside(answer, edges[0], edges[-1])


class TestWindow:
    @pytest.fixture
    def timed(self, stub: StubServer) -> StubServer:
        stub.first_delay, stub.gap = 0.02, 0.005
        return stub

    @pytest.mark.parametrize("concurrency", [1, 3])
    def test_tokens_inside_agree_with_a_recount_from_the_records(self, timed: StubServer, concurrency: int) -> None:
        record, requests = measured_cell(timed, plan_of(concurrency, 4 * concurrency))
        assert record.window is not None
        # A record rounds to 0.1 ms: a chunk at an edge may fall on its other side.
        assert record.window_tokens == pytest.approx(recount(requests, record.window), abs=2)

    def test_all_n_run_throughout(self, timed: StubServer) -> None:
        record, requests = measured_cell(timed, plan_of(3, 12))
        assert record.window is not None
        # Between two requests of a worker lies a moment: a millisecond each at most, of some 0.2 s.
        assert time_short_of(requests, record.window, 3) < 0.1 * (record.window[1] - record.window[0])

    def test_it_opens_at_the_last_workers_first_token(self, timed: StubServer) -> None:
        record, requests = measured_cell(timed, plan_of(3, 12))
        assert record.window is not None
        firsts = sorted(r.sent + r.ttft for r in requests if not r.warmup and r.ttft is not None)
        assert record.window[0] == pytest.approx(firsts[2], abs=0.02)

    def test_it_closes_when_a_worker_finds_the_queue_empty(self, timed: StubServer) -> None:
        record, requests = measured_cell(timed, plan_of(3, 12))
        assert record.window is not None
        last_sent = max(r.sent for r in requests)
        first_idle = min(r.sent + r.ended for r in requests if r.sent + r.ended > last_sent)
        assert record.window[1] == pytest.approx(first_idle, abs=0.02)

    def test_the_server_never_saw_more_than_n(self, timed: StubServer) -> None:
        measured_cell(timed, plan_of(3, 12))
        assert timed.running_peak == 3

    def test_fewer_requests_than_slots_have_no_window(self, timed: StubServer) -> None:
        record, _ = measured_cell(timed, plan_of(4, 2))
        assert (record.window, record.window_tokens, record.tokens_per_second) == (None, None, None)

    def test_a_request_that_failed_before_its_first_token_does_not_open_it(self, timed: StubServer) -> None:
        # Of two workers, one meets failures alone: at no time do two requests run.
        timed.fault = lambda number, body: None if number <= 3 else "500 broken"
        record, _ = measured_cell(timed, plan_of(2, 8))
        assert record.window is None

    def test_a_rate_is_that_of_the_server(self, timed: StubServer) -> None:
        """Two slots are never empty, so the rate is two answers' tokens over what an answer took."""
        record, requests = measured_cell(timed, plan_of(2, 16))
        took = sum(request.ended for request in requests if not request.warmup) / 16
        assert record.tokens_per_second == pytest.approx(2 * TOKENS / took, rel=0.3)


class TestRecords:
    def test_every_request_is_written_once(self, stub: StubServer) -> None:
        plan = plan_of(3, 12, first_time=True)
        _, requests = measured_cell(stub, plan)
        assert sorted(r.prompt for r in requests) == [job.index for job in plan.jobs]

    def test_the_warm_up_is_told_apart(self, stub: StubServer) -> None:
        _, requests = measured_cell(stub, plan_of(2, 8, first_time=True))
        assert sorted(r.prompt for r in requests if r.warmup) == list(range(6))

    def test_every_prompt_is_sent_once(self, stub: StubServer) -> None:
        plan = plan_of(2, 8)
        measured_cell(stub, plan)
        assert sorted(stub.served) == sorted(job.prompt.messages[0]["content"] for job in plan.jobs)

    def test_a_failed_request_is_written_with_its_error(self, stub: StubServer) -> None:
        stub.fault = lambda number, body: "500 broken" if number == 5 else None
        record, requests = measured_cell(stub, plan_of(2, 8))
        assert ([r.error for r in requests if r.error], record.failed) == (["HTTP 500: broken"], 1)

    def test_a_failed_request_has_no_passes(self, stub: StubServer) -> None:
        stub.fault = lambda number, body: "no finish" if number == 5 else None
        _, requests = measured_cell(stub, plan_of(2, 8))
        assert [r.passes for r in requests if r.error] == [None]

    def test_a_failed_warm_up_is_not_counted_as_a_failed_request(self, stub: StubServer) -> None:
        stub.fault = lambda number, body: "500 broken" if number == 1 else None
        record, _ = measured_cell(stub, plan_of(2, 8))
        assert (record.requests, record.failed) == (8, 0)

    def test_the_engines_counts_reach_the_record(self, stub: StubServer) -> None:
        stub.accepts = [3, 0]
        _, requests = measured_cell(stub, plan_of(1, 4, speculates=True))
        last = requests[-1]  # 8 tokens: 1, then steps of 4, 1, and 4 of which 2 are shown
        assert (last.steps, last.drafted, last.accepted, last.passes) == (3, 12, 6, (4, 4))

    def test_the_counters_are_read_at_the_four_edges(self, stub: StubServer) -> None:
        stub.first_delay = 0.02
        record, _ = measured_cell(stub, plan_of(2, 8))
        read = [reading.generation_tokens for reading in record.counters]
        total = sum([*warmup_lengths(2, TOKENS, False), *[TOKENS] * 8])
        assert (len(read), read, read[-1] - read[0]) == (4, sorted(read), total)

    def test_without_a_metrics_page_there_are_no_readings(self, stub: StubServer) -> None:
        stub.metrics = False
        record, _ = measured_cell(stub, plan_of(1, 4))
        assert (record.counters, record.running_peak) == ([], None)

    def test_the_running_count_is_the_highest_seen(self, stub: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("toolkit.analysis.cell.POLL", 0.01)
        stub.first_delay = 0.05
        record, _ = measured_cell(stub, plan_of(3, 6))
        assert record.running_peak == 3.0

    def test_the_digest_is_of_the_measured_prompts(self, stub: StubServer) -> None:
        one = run_cell(stub, plan_of(1, 4)).prompts_digest
        assert (
            run_cell(stub, plan_of(1, 4)).prompts_digest == one,
            run_cell(stub, plan_of(1, 5)).prompts_digest == one,
        ) == (
            True,
            False,
        )

    def test_its_place_in_the_run_is_kept(self, stub: StubServer) -> None:
        record = run_cell(stub, plan_of(1, 4))
        assert (record.order, record.attempt, record.served_by, record.requests) == (7, 1, "a", 4)


class DiedError(Exception):
    pass


class TestEnds:
    @pytest.mark.parametrize("concurrency", [1, 4])
    def test_all_failing_is_an_engine_error_with_the_reason(self, stub: StubServer, concurrency: int) -> None:
        stub.fault = lambda number, body: "500 broken"
        with pytest.raises(EngineError, match="every request failed so far: HTTP 500: broken"):
            run_cell(stub, plan_of(concurrency, 4 * concurrency))

    def test_all_failing_ends_before_all_are_sent(self, stub: StubServer) -> None:
        stub.fault = lambda number, body: "500 broken"
        with pytest.raises(EngineError):
            run_cell(stub, plan_of(2, 100))
        assert len(stub.served) < 10

    def test_all_measured_failing_is_an_engine_error(self, stub: StubServer) -> None:
        stub.fault = lambda number, body: "500 broken" if number > 2 else None
        with pytest.raises(EngineError, match="every request of the cell chat/2/1/a/arm failed: HTTP 500: broken"):
            run_cell(stub, plan_of(2, 8))

    def test_what_failed_before_an_engine_error_is_written(self, stub: StubServer) -> None:
        stub.fault = lambda number, body: "500 broken"
        records: list[RequestRecord] = []
        with pytest.raises(EngineError):
            run_cell(stub, plan_of(1, 4), records.append)
        assert {r.error for r in records} == {"HTTP 500: broken"}

    def test_the_guard_is_asked_after_a_failure_only(self, stub: StubServer) -> None:
        asked: list[int] = []
        stub.fault = lambda number, body: "500 broken" if number in (4, 6) else None
        run_cell(stub, plan_of(1, 8), guard=lambda: asked.append(1))
        assert len(asked) == 2

    @pytest.mark.parametrize("error", [DiedError("gone"), InputError("disk"), KeyboardInterrupt()])
    def test_what_the_guard_raises_ends_the_cell_at_once(self, stub: StubServer, error: BaseException) -> None:
        # The others hang; without the guard the cell would wait for the stall of 300 s.
        def guard() -> None:
            raise error

        stub.fault = lambda number, body: "drop" if number == 6 else "hang" if number > 3 else None
        begun = time.monotonic()
        with pytest.raises(type(error)):
            run_cell(stub, plan_of(3, 12), guard=guard, stall=300.0)
        assert time.monotonic() - begun < 2

    def test_what_writing_raises_ends_the_cell_at_once(self, stub: StubServer) -> None:
        def write(record: RequestRecord) -> None:
            raise InputError("no space is left")

        stub.fault = lambda number, body: "hang" if number > 1 else None
        begun = time.monotonic()
        with pytest.raises(InputError, match="no space is left"):
            run_cell(stub, plan_of(3, 12), write, stall=300.0)
        assert time.monotonic() - begun < 2

    @pytest.mark.parametrize("ending", ["finished", "guard"])
    def test_no_task_is_left(self, stub: StubServer, ending: str) -> None:
        stub.first_delay, stub.metrics_delay = 0.01, 0.15  # a reading is on its way when the cell ends

        def guard() -> None:
            raise DiedError

        async def once() -> int:
            endpoint = Endpoint("a", stub.url, stub.model, ENGINES["vllm"])
            async with Client(endpoint, Sampling(max_tokens=TOKENS), 300.0) as client:
                with suppress(DiedError):
                    await measure(client, plan_of(3, 12), lambda record: None, guard)
                return len(asyncio.all_tasks()) - 1

        if ending == "guard":
            stub.fault = lambda number, body: "drop" if number == 9 else "hang" if number > 9 else None
        assert asyncio.run(once()) == 0

    def test_a_metrics_page_that_hangs_does_not_hold_up_the_cell(
        self, stub: StubServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("toolkit.analysis.client.METRICS_TIMEOUT", 0.05)
        stub.metrics_delay = 3600
        assert run_cell(stub, plan_of(1, 4), stall=300.0).requests == 4


INTERRUPTED = """
    import asyncio, sys
    from toolkit.analysis.cell import CellPlan, Job, measure
    from toolkit.analysis.client import Client, Sampling
    from toolkit.analysis.endpoint import Endpoint
    from toolkit.analysis.records import CellKey
    from toolkit.analysis.workload import load_workload
    from toolkit.engines import ENGINES

    workload = load_workload("chat")
    jobs = [Job(index, workload.prompt(index)) for index in range(1000)]
    key = CellKey(arm="a", side="arm", workload="chat", concurrency=3, round=1)
    out = open(sys.argv[2], "a")

    def write(record):
        out.write(record.model_dump_json(by_alias=True) + "\\n")
        out.flush()

    async def once():
        async with Client(Endpoint("a", sys.argv[1], "m", ENGINES["vllm"]), Sampling(max_tokens=8)) as client:
            await measure(client, CellPlan(key, 1, 0, "a", jobs, False), write)

    try:
        asyncio.run(once())
    except KeyboardInterrupt:
        sys.exit(130)
"""


def test_ctrl_c_leaves_the_written_records_whole(stub: StubServer, tmp_path: Path) -> None:
    stub.gap = 0.002
    path = tmp_path / "requests.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(INTERRUPTED), stub.url, str(path)], stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 20
    while len(stub.served) < 12 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=10)
    text = path.read_text() if path.exists() else ""
    records = [RequestRecord.model_validate_json(line) for line in text.splitlines()]
    assert (process.returncode, complaint, {r.error for r in records}) == (130, b"", {None})
