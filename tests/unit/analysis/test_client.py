"""One request: what is stamped and counted, and that every fault is one line in `Answer.error`, never an exception."""

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stub_server import StubServer

from toolkit.analysis.client import Answer, Client, Sampling
from toolkit.analysis.endpoint import Endpoint
from toolkit.analysis.workload import Prompt
from toolkit.engines import ENGINES
from toolkit.engines.contract import SpecCounts

KEY = "sk-very-secret-0123456789"
PROMPT = Prompt(({"role": "user", "content": "hi"},), "chat")


def endpoint_of(stub: StubServer, engine: str = "vllm", key: str | None = None) -> Endpoint:
    return Endpoint("stub", stub.url, stub.model, ENGINES[engine], key=key)


def ask(stub: StubServer, engine: str = "vllm", key: str | None = None, stall: float = 5.0, **options: Any) -> Answer:
    async def once() -> Answer:
        async with Client(endpoint_of(stub, engine, key), Sampling(max_tokens=16), stall) as client:
            return await client.ask(PROMPT, **options)

    return asyncio.run(once())


def fails_with(stub: StubServer, fault: str, **options: Any) -> str:
    stub.fault = lambda number, body: fault
    error = ask(stub, **options).error
    assert error is not None
    return error


FAULTS = [
    ('400 {"error": {"message": "max_tokens is too large"}}', "HTTP 400: max_tokens is too large"),
    ('400 {"message": "flat"}', "HTTP 400: flat"),
    ('401 {"error": "who are you"}', "HTTP 401: who are you"),
    ("429 slow\ndown", "HTTP 429: slow down"),
    ("500 <html>\n<body>Internal\x1b[31m error</body>", "HTTP 500: <html> <body>Internal?[31m error</body>"),
    ('500 {"error": {"message": "half \\ud800"}}', "HTTP 500: half ?"),
    ("500 " + "[" * 1500, "HTTP 500: [[["),
    ("redirect", "HTTP 307"),
    ("html", "not an event stream: <html><body>It works!"),
    ("non-json", "not JSON in the stream: {not json"),
    ("event [1, 2]", "not an object in the stream: [1, 2]"),
    ("event " + "[" * 100_000, "not JSON in the stream: [[["),
    ('event {"choices": ["x"]}', "not a chat completion chunk"),
    ('event {"choices": {"a": 1}}', "not a chat completion chunk"),
    ('event {"choices": [{"delta": "x"}]}', "not a chat completion chunk"),
    ('event {"choices": [], "metrics": [1]}', "not a chat completion chunk"),
    ('event {"error": {"message": "the engine died"}}', "the server sent an error: the engine died"),
    ("error event", "the server sent an error: the engine died"),
    ("cut", "connection: "),
    ("cut without framing", "the stream broke in the middle of an event: data: "),
    ("no finish", "the stream ended without a finish reason"),
    ("no usage", "the stream carried no usage"),
    ("no text", "16 tokens by usage, but no text arrived"),
    ("drop", "connection: "),
    ("bad http", "connection: "),
]


async def _serve_first_request_only(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that was held up: it keeps a connection open, and closes it unread when the next request comes."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
    await reader.readexactly(int(length))
    events = [
        b'data: {"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]}\n\n',
        b'data: {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}\n\n',
    ]
    body = b"".join(events)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    await reader.read(1)
    writer.close()


class TestConnections:
    def test_no_request_is_lost_to_a_connection_that_the_server_gave_up(self) -> None:
        async def two_requests() -> list[str | None]:
            server = await asyncio.start_server(_serve_first_request_only, "127.0.0.1", 0)
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            async with server, Client(Endpoint("held up", url, "m", ENGINES["openai"]), Sampling()) as client:
                return [(await client.ask(PROMPT)).error for _ in range(2)]

        assert asyncio.run(two_requests()) == [None, None]


class TestFaults:
    @pytest.mark.parametrize(("fault", "said"), FAULTS, ids=[fault[:30] for fault, _ in FAULTS])
    def test_a_fault_is_named_in_one_line(self, stub: StubServer, fault: str, said: str) -> None:
        error = fails_with(stub, fault)
        assert (error.startswith(said), error.isprintable(), len(error) < 400) == (True, True, True), error

    @pytest.mark.parametrize("fault", ["hang", "hang mid-stream"])
    def test_a_hang_ends_after_the_stall(self, stub: StubServer, fault: str) -> None:
        stub.fault = lambda number, body: fault
        answer = ask(stub, stall=0.3)
        assert (answer.error, 0.25 < answer.ended - answer.sent < 1.5) == ("no byte for 0.3 s", True)

    def test_a_slow_stream_is_no_hang(self, stub: StubServer) -> None:
        stub.gap = 0.03
        assert ask(stub, stall=0.3).error is None

    def test_nothing_listens(self, stub: StubServer) -> None:
        gone = StubServer(port=1)
        assert (ask(gone).error or "").startswith("connection: Cannot connect to host 127.0.0.1:1")

    def test_an_endless_line_of_bad_bytes_is_named(self, stub: StubServer) -> None:
        stub.segments = lambda events: [b"\xff" * 5000 + b"\n"]
        assert (ask(stub).error or "").startswith("not an event stream: �")

    def test_usage_that_is_no_number_is_no_usage(self, stub: StubServer) -> None:
        stub.segments = lambda events: [
            b'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}\n\n',
            b'data: {"usage": {"prompt_tokens": "7", "completion_tokens": "16"}}\n\n',
            b"data: [DONE]\n\n",
        ]
        assert (ask(stub).error or "").startswith("the stream carried no usage")

    def test_an_event_whose_error_is_null_is_no_error(self, stub: StubServer) -> None:
        stub.fault = lambda number, body: 'event {"error": null, "choices": []}'
        assert ask(stub).error is None

    def test_a_failed_request_still_ends_the_wait_for_its_first_token(self, stub: StubServer) -> None:
        async def once() -> bool:
            started = asyncio.Event()
            async with Client(endpoint_of(stub), Sampling(), 1.0) as client:
                await client.ask(PROMPT, started=started)
            return started.is_set()

        stub.fault = lambda number, body: "drop"
        assert asyncio.run(once())


class TestKey:
    @pytest.mark.parametrize("before", [0, 1, 285, 290, 299])
    def test_a_key_that_the_server_echoes_is_masked(self, stub: StubServer, before: int) -> None:
        error = fails_with(stub, f"401 {'x' * before}{{key}}", key=KEY)
        assert not any(KEY[:length] in error for length in range(3, len(KEY))), error

    def test_a_key_in_an_error_event_is_masked(self, stub: StubServer) -> None:
        error = fails_with(stub, f'event {{"error": {{"message": "bad key {KEY}"}}}}', key=KEY)
        assert error == "the server sent an error: bad key ***"

    def test_the_key_is_sent(self, stub: StubServer) -> None:
        stub.key = KEY
        assert ask(stub, key=KEY).error is None


class TestRequest:
    def test_the_body_holds_what_was_asked(self, stub: StubServer) -> None:
        ask(stub)
        assert stub.bodies == [
            {
                "model": "stub/model",
                "messages": [{"role": "user", "content": "hi"}],
                "max_tokens": 16,
                "temperature": 0.0,
                "stream": True,
                "stream_options": {"include_usage": True},
                "return_token_ids": True,
            }
        ]

    def test_a_warm_up_has_its_own_length(self, stub: StubServer) -> None:
        assert ask(stub, max_tokens=3).completion_tokens == 3

    def test_ignore_eos_is_sent_only_when_asked_for(self) -> None:
        assert [Sampling(ignore_eos=flag).fields().get("ignore_eos") for flag in (True, False)] == [True, None]

    def test_a_proxy_in_the_environment_is_not_used(self, stub: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        assert ask(stub).error is None


def comparable(answer: Answer) -> tuple[Any, ...]:
    sizes = [size for _, size in answer.chunks]
    return sizes, answer.completion_tokens, answer.prompt_tokens, answer.finish_reason, answer.counts, answer.error


def cuts(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % len(data) for place in places} - {0}), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@pytest.fixture(scope="module")
def shared() -> Iterator[StubServer]:
    with StubServer(accepts=[2, 0, 4], tokens=12) as server:
        yield server


def bytewise(event: bytes) -> list[bytes]:
    return [event[i : i + 1] for i in range(len(event))]


class TestBytes:
    """However the bytes of a stream are cut, the answer is the same; é is two bytes."""

    @settings(max_examples=25, deadline=None)
    @given(st.lists(st.integers(0, 5000), max_size=12), st.sampled_from([b"\n", b"\r\n"]))
    def test_any_cut_gives_the_same_answer(self, shared: StubServer, places: list[int], line_end: bytes) -> None:
        shared.gap, shared.line_end, shared.segments = 0.0, b"\n", lambda events: events
        expected = comparable(ask(shared))
        shared.gap, shared.line_end = 0.001, line_end
        shared.segments = lambda events: cuts(b"".join(events), places)
        assert comparable(ask(shared)) == expected

    @pytest.mark.parametrize(
        "segments",
        [
            lambda events: [b"".join(events)],
            lambda events: [byte for event in events[1:3] for byte in bytewise(event)] + events[3:],
            lambda events: cuts(b"".join(events), [b"".join(events).index("é".encode()) + 1]),
            lambda events: cuts(b"".join(events), [b"".join(events).index(b"data:", 10) + 3]),
            lambda events: [b": a comment\n\nevent: message\nid: 7\nretry: 5\n", *events],
            lambda events: [event.replace(b"data: ", b"data:") for event in events],
            lambda events: [*events[:-1], b"data: [DONE]"],
            lambda events: events[:-1],
        ],
        ids=[
            "one segment",
            "a byte each",
            "inside a letter",
            "inside data:",
            "other fields",
            "no space",
            "DONE without a line end",
            "no DONE",
        ],
    )
    def test_a_right_stream_is_read(self, stub: StubServer, segments: Callable[[list[bytes]], list[bytes]]) -> None:
        stub.segments, stub.gap = segments, 0.001
        answer = ask(stub)
        assert (answer.error, answer.completion_tokens, len(answer.chunks)) == (None, 16, 16)


class TestTimes:
    @pytest.mark.parametrize("name", ["content", "reasoning", "reasoning_content", "tool_calls"])
    @pytest.mark.parametrize("engine", ["vllm", "openai"])
    def test_ttft_is_the_first_token_of_any_kind(self, stub: StubServer, name: str, engine: str) -> None:
        # Case 9. The role chunk comes 0.3 s earlier and is no token; the content follows 0.3 s later.
        stub.field_of = lambda index: name if index == 0 else "content"
        stub.tokens, stub.gap, stub.token_ids = 2, 0.3, engine == "vllm"
        answer = ask(stub, engine)
        assert answer.first is not None
        assert answer.first - answer.sent == pytest.approx(0.3, abs=0.25)

    def test_a_token_without_text_counts_when_the_engine_shows_it(self, stub: StubServer) -> None:
        stub.segments = lambda events: [
            b'data: {"choices": [{"delta": {"content": ""}, "token_ids": [195]}]}\n\n',
            *events,
        ]
        answer = ask(stub)
        assert (answer.first, len(answer.chunks)) == (answer.chunks[0][0], 17)

    def test_every_time_lies_between_sent_and_ended(self, stub: StubServer) -> None:
        stub.gap = 0.005
        answer = ask(stub)
        times = [answer.sent, *(at for at, _ in answer.chunks), answer.ended]
        assert times == sorted(times)


class TestTokens:
    @pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
    @pytest.mark.parametrize("engine", ["vllm", "openai"])
    def test_tokens_are_by_usage_whatever_the_chunk(self, stub: StubServer, size: int, engine: str) -> None:
        # Case 7.
        stub.chunk, stub.token_ids = size, engine == "vllm"
        answer = ask(stub, engine)
        assert (answer.completion_tokens, len(answer.chunks)) == (16, 16 // size)

    @pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
    def test_chunk_sizes_are_recorded(self, stub: StubServer, size: int) -> None:
        stub.chunk = size
        assert [tokens for _, tokens in ask(stub).chunks] == [size] * (16 // size)

    def test_a_size_that_is_not_told_is_unknown(self, stub: StubServer) -> None:
        stub.chunk, stub.token_ids = 4, False
        assert [tokens for _, tokens in ask(stub, "openai").chunks] == [None] * 4

    def test_the_counts_of_the_request_are_taken(self, stub: StubServer) -> None:
        stub.accepts, stub.tokens = [3, 1], 6
        assert ask(stub).counts == SpecCounts(2, 8, 4, 4, [4, 4], [3, 1])


class TestPasses:
    """Completion 6 = the prefill's token and two steps that kept 3 and 1, the last one trimmed by one."""

    def passes(self, stub: StubServer, speculates: bool | None) -> tuple[int, int] | None:
        answer = ask(stub)
        assert answer.error is None
        return answer.passes(endpoint_of(stub), speculates)

    def test_exact_where_the_chunks_show_the_steps(self, stub: StubServer) -> None:
        stub.accepts, stub.tokens = [3, 1], 6
        assert self.passes(stub, True) == (3, 3)

    def test_bounds_are_those_of_the_engine(self, stub: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[Any] = []
        monkeypatch.setattr(type(ENGINES["vllm"]), "passes", lambda self, *given: asked.append(given) or (2, 3))
        stub.accepts, stub.tokens = [3, 1], 6
        bounds = self.passes(stub, True)
        assert (bounds, asked) == ((2, 3), [(6, [1, 4, 1], SpecCounts(2, 8, 4, 4, [4, 4], [3, 1]))])

    def test_every_token_is_a_pass_without_speculation(self, stub: StubServer) -> None:
        assert self.passes(stub, False) == (16, 16)

    @pytest.mark.parametrize("speculates", [True, None])
    def test_unavailable_where_nothing_is_told(self, stub: StubServer, speculates: bool | None) -> None:
        assert self.passes(stub, speculates) is None

    def test_unavailable_without_usage(self, stub: StubServer) -> None:
        assert Answer(sent=0.0).passes(endpoint_of(stub), False) is None


class TestMetrics:
    def read(self, stub: StubServer) -> Any:
        async def once() -> Any:
            async with Client(endpoint_of(stub), Sampling(), 5.0) as client:
                return await client.metrics()

        return asyncio.run(once())

    def test_the_counters_are_translated(self, stub: StubServer) -> None:
        ask(stub)
        counters = self.read(stub)
        assert (counters.iterations, counters.generation_tokens, counters.drafts) == (16.0, 16.0, None)

    def test_no_page_is_none(self, stub: StubServer) -> None:
        stub.metrics = False
        assert self.read(stub) is None

    @pytest.mark.parametrize("page", ["<html>", "vllm:iteration_tokens_total_count x", "\x00"])
    def test_a_page_in_no_known_format_is_none(
        self, stub: StubServer, page: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stub, "_exposition", lambda: iter([page]))
        assert self.read(stub) is None

    def test_nothing_listens(self) -> None:
        assert self.read(StubServer(port=1)) is None


def test_the_key_is_nowhere_in_a_repr(stub: StubServer) -> None:
    endpoint = endpoint_of(stub, key=KEY)
    assert KEY not in f"{endpoint!r} {endpoint} {Client(endpoint, Sampling())!r}"


def test_a_body_is_json_of_the_prompt_whatever_its_text(stub: StubServer) -> None:
    content = "\u2028 \x00 é \U0001f600" + os.linesep
    prompt = Prompt(({"role": "user", "content": content},), "chat")

    async def once() -> Answer:
        async with Client(endpoint_of(stub), Sampling(), 5.0) as client:
            return await client.ask(prompt)

    asyncio.run(once())
    assert json.dumps(stub.served) == json.dumps([content])
