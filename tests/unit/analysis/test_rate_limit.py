"""A rate limit is obeyed as long as a request may wait, counted, and never becomes part of what is measured."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stub_server import StubServer

from toolkit.analysis import rate_limit
from toolkit.analysis.audit.asking import Asking, Request
from toolkit.analysis.cell import CellPlan, Job, measure
from toolkit.analysis.client import Answer, Client, Sampling
from toolkit.analysis.crossover import crossover
from toolkit.analysis.endpoint import Endpoint, find_endpoint
from toolkit.analysis.rate_limit import LONGEST_HOLD, SHORTEST_PAUSE, pause_asked, too_long
from toolkit.analysis.records import CellKey, CellRecord, RequestRecord
from toolkit.analysis.run import Run
from toolkit.analysis.workload import Prompt
from toolkit.engines import ENGINES
from toolkit.errors import EngineError

PROMPT = Prompt(({"role": "user", "content": "hi"},), "chat")
PAYS = [(150.0, 100.0), (153.0, 100.0), (148.0, 100.0), (151.0, 100.0), (149.0, 100.0), (152.0, 100.0)]


def endpoint_of(stub: StubServer) -> Endpoint:
    return Endpoint("stub", stub.url, stub.model, ENGINES["openai"])


def ask(stub: StubServer) -> Answer:
    async def once() -> Answer:
        async with Client(endpoint_of(stub), Sampling(max_tokens=16), 5.0) as client:
            return await client.ask(PROMPT)

    return asyncio.run(once())


@pytest.fixture
def limited(stub: StubServer) -> StubServer:
    """It refuses two attempts, each for 0.2 s as we understand a 0, and answers the third."""
    stub.headers = {"Retry-After": "0"}
    stub.fault = lambda number, body: '429 {"error": {"message": "too many tokens"}}' if number <= 2 else None
    return stub


class TestPause:
    @pytest.mark.parametrize("status", [429, 503])
    def test_seconds(self, status: int) -> None:
        assert pause_asked(status, {"Retry-After": " 7 "}) == 7.0

    def test_a_date_is_read_by_the_servers_own_clock(self) -> None:
        headers = {"Retry-After": "Wed, 21 Oct 2015 07:28:30 GMT", "Date": "Wed, 21 Oct 2015 07:28:00 GMT"}
        assert pause_asked(429, headers) == 30.0

    def test_a_date_without_the_servers_clock_is_read_by_ours(self) -> None:
        assert (pause_asked(429, {"Retry-After": "Fri, 31 Dec 2999 23:59:59 GMT"}) or 0) > 1e9

    @pytest.mark.parametrize("text", ["0", "00", "Wed, 21 Oct 2015 07:28:00 GMT"])
    def test_at_once_or_in_the_past_is_the_shortest_pause(self, text: str) -> None:
        assert pause_asked(429, {"Retry-After": text}) == SHORTEST_PAUSE

    @pytest.mark.parametrize("status", [200, 400, 401, 500, 502])
    def test_another_status_is_no_rate_limit(self, status: int) -> None:
        assert pause_asked(status, {"Retry-After": "7"}) is None

    @pytest.mark.parametrize("text", ["", "soon", "-1", "1.5", "1e9", "²", "Wed, 99 Oct 2015 07:28:00 GMT"])
    def test_what_is_no_time_is_none(self, text: str) -> None:
        assert pause_asked(429, {"Retry-After": text}) is None

    @given(st.text())
    def test_no_text_breaks_it(self, text: str) -> None:
        pause = pause_asked(429, {"Retry-After": text, "Date": text})
        assert pause is None or pause >= SHORTEST_PAUSE

    def test_what_a_request_waits_has_an_end(self) -> None:
        assert (too_long(60, LONGEST_HOLD - 60), bool(too_long(60, LONGEST_HOLD - 59))) == ("", True)


class TestRequest:
    def test_it_is_sent_again_and_answered(self, limited: StubServer) -> None:
        answer = ask(limited)
        assert (answer.error, answer.completion_tokens, len(limited.served)) == (None, 16, 3)

    def test_it_counts_its_refusals_and_the_time_held(self, limited: StubServer) -> None:
        answer = ask(limited)
        assert (answer.rate_limited, answer.held_back >= 2 * SHORTEST_PAUSE) == (2, True)

    def test_ttft_counts_from_the_attempt_that_was_answered(self, limited: StubServer) -> None:
        answer = ask(limited)
        assert answer.first is not None
        assert answer.first - answer.sent < SHORTEST_PAUSE

    def test_a_503_with_retry_after_is_obeyed(self, limited: StubServer) -> None:
        limited.fault = lambda number, body: "503 overloaded" if number == 1 else None
        assert (ask(limited).error, len(limited.served)) == (None, 2)

    @pytest.mark.parametrize("status", [429, 503])
    def test_without_retry_after_it_fails_at_once(self, stub: StubServer, status: int) -> None:
        stub.fault = lambda number, body: f"{status} later"
        assert (ask(stub).error, len(stub.served)) == (f"HTTP {status}: later", 1)

    def test_over_the_maximum_it_fails_and_says_so(self, limited: StubServer) -> None:
        limited.headers = {"Retry-After": "3600"}
        assert ask(limited).error == (
            "rate limit: it asks for 3600 s more, and a request waits 120 s at most; it said: HTTP 429: too many tokens"
        )

    def test_a_limit_that_never_ends_fails_after_the_maximum(
        self, limited: StubServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rate_limit, "LONGEST_HOLD", 0.5)
        limited.fault = lambda number, body: "429 no"
        answer = ask(limited)
        assert (answer.error or "").startswith("rate limit: it asks for 0 s more")
        assert (answer.rate_limited, len(limited.served)) == (3, 3)

    def test_an_answer_that_was_never_limited_says_none(self, stub: StubServer) -> None:
        answer = ask(stub)
        assert (answer.rate_limited, answer.held_back) == (0, 0.0)


class TestElsewhere:
    def test_the_list_of_models_waits(self, stub: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
        pages = iter([(429, b"slow"), None])
        listed = stub.models
        monkeypatch.setattr("toolkit.analysis.endpoint.pause_asked", lambda status, _: 0.01 if status == 429 else None)
        stub.models = next(pages)
        monkeypatch.setattr("toolkit.analysis.endpoint.time.sleep", lambda _: setattr(stub, "models", listed))
        assert find_endpoint("arm", stub.url).model == "stub/model"

    def test_a_list_of_models_that_wants_an_hour_is_refused(
        self, stub: StubServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stub.models = (429, b"slow")
        monkeypatch.setattr("toolkit.analysis.endpoint.pause_asked", lambda status, _: 3600.0)
        with pytest.raises(EngineError, match="answered 429, a rate limit: it asks for 3600 s more"):
            find_endpoint("arm", stub.url)

    def test_the_audit_waits(self) -> None:
        answers = iter([429, 200])

        def handle(request: httpx.Request) -> httpx.Response:
            if next(answers) == 429:
                return httpx.Response(429, headers={"Retry-After": "0"})
            choice = {"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}
            return httpx.Response(200, text=f"data: {json.dumps({'choices': [choice]})}\n\n")

        async def once() -> str:
            async with Asking("arm", Endpoint("arm", "http://h/v1", "m", ENGINES["openai"])) as asking:
                asking.client = httpx.AsyncClient(transport=httpx.MockTransport(handle))
                (reply,) = await asking.generate([Request("greedy", 1, 0, PROMPT.messages, 4)])
                return reply.text

        assert asyncio.run(once()) == "x"


def a_cell(stub: StubServer) -> tuple[CellRecord, list[RequestRecord]]:
    key = CellKey(arm="a", side="arm", workload="w", concurrency=2, round=1)
    jobs = [Job(index, PROMPT, 4 if index < 2 else None) for index in range(10)]
    written: list[RequestRecord] = []

    async def once() -> CellRecord:
        async with Client(endpoint_of(stub), Sampling(max_tokens=16), 5.0) as client:
            return await measure(client, CellPlan(key, 1, 0, "a", jobs, None), written.append)

    return asyncio.run(once()), written


class TestRecords:
    def test_a_request_that_was_held_back_is_written_as_such(self, limited: StubServer) -> None:
        _, written = a_cell(limited)
        held = [(one.rate_limited, (one.held_back or 0) >= 2 * SHORTEST_PAUSE) for one in written if one.rate_limited]
        assert sum(times or 0 for times, _ in held) == 2

    def test_so_is_its_cell(self, limited: StubServer) -> None:
        cell, written = a_cell(limited)
        held = [one for one in written if one.rate_limited]
        assert (cell.rate_limited, cell.failed) == (len(held), 0)
        assert cell.held_back == pytest.approx(sum(one.held_back or 0 for one in held), abs=0.01)

    def test_nothing_is_written_where_nothing_was_held_back(self, stub: StubServer) -> None:
        cell, written = a_cell(stub)
        told = [cell.model_dump(exclude_none=True), *(one.model_dump(exclude_none=True) for one in written)]
        assert [one for one in told if "rate_limited" in one or "held_back" in one] == []


class TestVerdict:
    """A cell is 15 s at concurrency 4 in these runs: 0.6 s of waiting are 1 % of it."""

    @pytest.fixture
    def level(self, make_run: Callable[..., Run], tmp_path: Path) -> Callable[..., Any]:
        def of(**cell: Any) -> Any:
            (result,) = crossover(make_run(tmp_path, {("lab-ngram", 4): PAYS}, cell=cell)).results
            return result.levels[0]

        return of

    def test_a_level_that_was_held_back_has_none(self, level: Callable[..., Any]) -> None:
        found = level(rate_limited=3, held_back=0.7)
        assert found.withheld
        assert found.reason == (
            "a rate limit of lab-baseline and lab-ngram held requests back: "
            "the level measures the limit, not the engine"
        )

    def test_a_moment_is_let_pass_and_said(self, level: Callable[..., Any]) -> None:
        found = level(rate_limited=1, held_back=0.5)
        assert (found.verdict, found.notes) == (
            "pays",
            ("a rate limit of lab-baseline and lab-ngram held back 12 requests for 6 s in all",),
        )

    @pytest.mark.parametrize(("share", "said"), [(0.79, 0), (0.81, 1)])
    def test_a_client_that_was_the_limit_is_said(self, level: Callable[..., Any], share: float, said: int) -> None:
        assert len(level(client_cpu=share).notes) == said
