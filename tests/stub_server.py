"""An OpenAI server with chosen truths and chosen faults: raw sockets in a thread, so that every byte can be placed.

It answers /v1/models, /version, /metrics and streamed /v1/chat/completions. Attributes may be changed while it runs.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Segments = Callable[[list[bytes]], list[bytes]]
Fault = Callable[[int, dict[str, Any]], str | None]


@dataclass
class StubServer:
    """The truths. `fault(number, body)` names what goes wrong with the request of that number, None is nothing."""

    model: str = "stub/model"
    owned_by: str = "vllm"
    models: Any = None  # what /v1/models answers instead: (status, bytes)
    key: str | None = None  # the key it asks for
    tokens: int = 16  # per answer, unless max_tokens is lower
    chunk: int = 1  # tokens per chunk without speculation
    accepts: list[int] | None = None  # drafts kept per step, in turn; None does not speculate
    drafts: int = 4  # K
    token_ids: bool = True
    per_request: bool = True  # metrics.speculative_decoding in the usage chunk
    metrics: bool = True
    metrics_delay: float = 0.0
    kv_tokens: int = 100_000
    first_delay: float = 0.0
    gap: float = 0.0
    field_of: Callable[[int], str] = lambda index: "content"  # where the text of chunk `index` goes
    line_end: bytes = b"\n"
    segments: Segments = lambda events: events  # how the events are cut into TCP segments
    fault: Fault = lambda number, body: None
    counter_error: int = 0  # accepted tokens that /metrics counts too much per request
    served: list[str] = field(default_factory=list)  # the last message of every request, as it came
    bodies: list[dict[str, Any]] = field(default_factory=list)
    running: int = 0
    running_peak: int = 0
    counts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_COUNTERS, 0.0))
    arrived: threading.Event = field(default_factory=threading.Event)
    paths: list[str] = field(default_factory=list)
    block: int | None = 64  # tokens of a block of the prefix cache; None shows no such counter
    cached: set[tuple[int, ...]] = field(default_factory=set)
    cached_tokens: int = 0
    completions: list[tuple[int, int]] = field(default_factory=list)  # new tokens, max_tokens of each
    prefixes: tuple[str, ...] = ("",)  # of the paths it answers under
    headers: dict[str, str] = field(default_factory=dict)  # further ones of a fault that is a status
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> "StubServer":
        ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._main.cancel)
        self._thread.join(10)

    def _run(self, ready: threading.Event) -> None:
        async def main() -> None:
            server = await asyncio.start_server(self._connection, "127.0.0.1", self.port)
            self.port = server.sockets[0].getsockname()[1]
            self._main = asyncio.current_task()
            ready.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                server.close()

        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(main())

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            await self._answer(first.split()[1], headers, body, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer(self, path: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> None:
        self.paths.append(path)
        path = next((path.removeprefix(prefix) for prefix in self.prefixes if path.startswith(f"{prefix}/")), path)
        if self.key is not None and headers.get("authorization") != f"Bearer {self.key}":
            writer.write(_page(401, json.dumps({"error": "no key"}).encode()))
        elif path == "/v1/models":
            listed = [{"id": self.model, "owned_by": self.owned_by, "root": self.model, "max_model_len": 4096}]
            writer.write(_page(*(self.models or (200, json.dumps({"data": listed}).encode()))))
        elif path == "/version":
            writer.write(_page(200, b'{"version": "0.32.0"}'))
        elif path == "/metrics" and self.metrics:
            await asyncio.sleep(self.metrics_delay)
            writer.write(_page(200, "".join(self._exposition()).encode()))
        elif path == "/v1/completions":
            asked = json.loads(body)
            await asyncio.sleep(0.001 * asked["max_tokens"])
            writer.write(_page(200, json.dumps(self._complete(asked)).encode()))
        elif path == "/v1/chat/completions":
            await self._chat(json.loads(body), headers, writer)
        else:
            writer.write(_page(404, b"no such page"))
        await writer.drain()

    def _complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """A prompt of token ids: its whole blocks are cached, all but the last token at most are found again."""
        prompt, hits = body["prompt"], 0
        for end in range(self.block or len(prompt), len(prompt), self.block or len(prompt)):
            hits = end if tuple(prompt[:end]) in self.cached else hits
            self.cached.add(tuple(prompt[:end]))
        self.cached_tokens += hits
        self.completions.append((len(prompt) - hits, body["max_tokens"]))
        return {"choices": [{"text": "x"}], "usage": {"completion_tokens": body["max_tokens"]}}

    async def _chat(self, body: dict[str, Any], headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        self.served.append(body["messages"][-1]["content"])
        self.bodies.append(body)
        self.arrived.set()
        self.running += 1
        self.running_peak = max(self.running_peak, self.running)
        try:
            await self._stream(body, headers, self.fault(len(self.served), body), writer)
        finally:
            self.running -= 1

    async def _stream(
        self, body: dict[str, Any], headers: dict[str, str], fault: str | None, writer: asyncio.StreamWriter
    ) -> None:
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "drop":
            return
        if fault == "bad http":
            writer.write(b"HTTP/1.1 200 OK\r\nBad\x00Header: \x01\r\n\r\n")
            return
        if fault == "redirect":
            writer.write(b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /v1/models\r\nContent-Length: 0\r\n\r\n")
            return
        if fault and fault.split()[0].isdigit():
            status, _, text = fault.partition(" ")
            text = text.replace("{key}", headers.get("authorization", ""))
            writer.write(_page(int(status), text.encode(), self.headers))
            return
        await asyncio.sleep(self.first_delay)
        chunked = fault != "cut without framing"
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n"
            + (b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"\r\n")
        )
        events = [self._line(event, fault) for event in self._events(body, fault)]
        for index, segment in enumerate(self.segments(events)):
            if index and self.gap:
                await asyncio.sleep(self.gap)
            if fault == "hang mid-stream" and index == 2:
                await asyncio.sleep(3600)
            if fault and fault.startswith("cut") and index == 2:
                segment = segment[: len(segment) // 2]
            writer.write(b"%x\r\n%s\r\n" % (len(segment), segment) if chunked else segment)
            await writer.drain()
            if fault and fault.startswith("cut") and index == 2:
                return
        if chunked:
            writer.write(b"0\r\n\r\n")

    def _line(self, event: Any, fault: str | None) -> bytes:
        if isinstance(event, bytes):
            return event
        data = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
        return b"data: " + data.encode() + self.line_end * 2

    def _events(self, body: dict[str, Any], fault: str | None) -> Iterator[Any]:
        """The events of one answer; the counters move with them."""
        total = min(self.tokens, body["max_tokens"])
        sizes, kept = self._steps(total)
        self._count(body, sizes, kept)
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": self.model}
        if fault == "html":
            yield b"<html><body>It works!</body></html>\n"
            return
        yield {**head, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
        for index, size in enumerate(sizes):
            if fault == "non-json" and index == 1:
                yield "{not json"
            if fault == "error event" and index == 1:
                yield {"error": {"message": "the engine died", "code": 500}}
            if fault and fault.startswith("event ") and index == 1:
                yield fault.removeprefix("event ")
            text = "" if fault == "no text" else "é" * size
            choice: dict[str, Any] = {"index": 0, "delta": {self.field_of(index): text}}
            if self.token_ids:
                choice["token_ids"] = list(range(size))
            if index == len(sizes) - 1 and fault != "no finish":
                choice["finish_reason"] = "length"
            yield {**head, "choices": [choice]}
        if fault != "no usage":
            last: dict[str, Any] = {**head, "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": total}}
            if self.accepts is not None and self.per_request:
                last["metrics"] = {"speculative_decoding": self._spec(kept)}
            yield last
        yield "[DONE]"

    def _steps(self, total: int) -> tuple[list[int], list[int]]:
        """(tokens per chunk, drafts kept per step). The last step's tokens are trimmed, what it kept is not."""
        if self.accepts is None:
            return [min(self.chunk, total - start) for start in range(0, total, self.chunk)], []
        sizes, kept = [1], []
        while sum(sizes) < total:
            kept.append(self.accepts[len(kept) % len(self.accepts)])
            sizes.append(min(kept[-1] + 1, total - sum(sizes)))
        return sizes, kept

    def _spec(self, kept: list[int]) -> dict[str, Any]:
        return {
            "num_spec_steps": len(kept),
            "num_draft_tokens": self.drafts * len(kept),
            "num_accepted_draft_tokens": sum(kept),
            "num_spec_tokens": self.drafts,
            "per_step_drafted": [self.drafts] * len(kept),
            "per_step_accepted": kept,
        }

    def _count(self, body: dict[str, Any], sizes: list[int], kept: list[int]) -> None:
        self.counts["vllm:iteration_tokens_total_count"] += len(sizes)
        self.counts["vllm:generation_tokens_total"] += sum(sizes)
        self.counts["vllm:spec_decode_num_drafts_total"] += len(kept)
        self.counts["vllm:spec_decode_num_draft_tokens_total"] += self.drafts * len(kept)
        self.counts["vllm:spec_decode_num_accepted_tokens_total"] += sum(kept) + self.counter_error

    def _exposition(self) -> Iterator[str]:
        labels = f'{{engine="0",model_name="{self.model}"}}'
        for name, value in self.counts.items():
            if self.accepts is not None or "spec_decode" not in name:
                yield f"{name}{labels} {value}\n"
        if self.block is not None:
            yield f"vllm:prefix_cache_hits_total{labels} {self.cached_tokens}\n"
        yield f"vllm:num_requests_running{labels} {self.running}\n"
        yield f'vllm:cache_config_info{{kv_cache_size_tokens="{self.kv_tokens}"}} 1.0\n'


_COUNTERS = (
    "vllm:iteration_tokens_total_count",
    "vllm:generation_tokens_total",
    "vllm:num_preemptions_total",
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
)


def _page(status: int, body: bytes, headers: dict[str, str] | None = None) -> bytes:
    further = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items()).encode()
    head = b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n%s\r\n" % (status, len(body), further)
    return head + body
