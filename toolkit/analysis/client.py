"""The load client: streamed chat requests, stamped when their bytes arrive, each told as one `Answer`.

aiohttp rather than the openai package: its per-chunk models would cost more than the engine does here, and a load
client that is the bottleneck measures itself.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from toolkit.analysis.endpoint import Endpoint
from toolkit.analysis.workload import Prompt
from toolkit.engines.contract import Counters, SpecCounts

LONGEST_ERROR = 300  # characters of what a server said
TEXTLESS = 4  # tokens: an end mark, or the first part of a character, has no text of its own
METRICS_TIMEOUT = 10.0  # seconds: a page that hangs must not hold up a cell


@dataclass(frozen=True, slots=True)
class Sampling:
    """What every request asks for."""

    max_tokens: int = 128
    temperature: float = 0.0
    ignore_eos: bool = False

    def fields(self) -> dict[str, Any]:
        """The request's body fields; `ignore_eos` (an extension of vLLM and SGLang) only when asked for."""
        body: dict[str, Any] = {"max_tokens": self.max_tokens, "temperature": self.temperature}
        return {**body, "ignore_eos": True} if self.ignore_eos else body


@dataclass(slots=True)
class Answer:
    """One request as it went. Times are perf_counter seconds."""

    sent: float
    ended: float = 0.0
    first: float | None = None
    chunks: list[tuple[float, int | None]] = field(default_factory=list)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    counts: SpecCounts | None = None
    error: str | None = None
    text_seen: bool = False
    prompt_ids: list[int] | None = None
    answer_ids: list[int] = field(default_factory=list)
    """Of the chunks that told their ids: whole only where there are as many as completion tokens."""

    def passes(self, endpoint: Endpoint, speculates: bool | None) -> tuple[int, int] | None:
        """Bounds of the target passes. Without speculation every token is one pass; None when neither is known."""
        if self.completion_tokens is None:
            return None
        if self.counts is not None:
            sizes = [size for _, size in self.chunks if size is not None]
            return endpoint.engine.passes(self.completion_tokens, sizes, self.counts)
        return (self.completion_tokens, self.completion_tokens) if speculates is False else None


class BadStreamError(Exception):
    """The answer cannot be used; the message says why."""


class Client:
    """Streams requests to one endpoint. Use as an async context; `stall` is the longest wait for a byte, seconds."""

    def __init__(self, endpoint: Endpoint, sampling: Sampling, stall: float = 300.0) -> None:
        self.endpoint = endpoint
        self.stall = stall
        self._fixed = {
            "model": endpoint.model,
            **sampling.fields(),
            "stream": True,
            "stream_options": {"include_usage": True},
            **endpoint.engine.request_fields(),
        }
        self._url = f"{endpoint.base_url}/chat/completions"

    async def __aenter__(self) -> "Client":
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=self.stall)
        # A pooled connection that a server closes as the next request comes loses that request, and a server that was
        # held up closes many at once. Without TLS a new one costs next to nothing.
        plain = self._url.startswith("http:")
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=plain),
            timeout=timeout,
            headers=self.endpoint.headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def ask(self, prompt: Prompt, max_tokens: int | None = None, started: asyncio.Event | None = None) -> Answer:
        """Send one prompt and read its stream to the end. Never raises for what the server does: see `Answer.error`.

        `started` is set at the first token, or at the end when there was none.
        """
        body = {**self._fixed, "messages": list(prompt.messages)}
        if max_tokens is not None:
            body["max_tokens"] = max_tokens
        answer = Answer(sent=time.perf_counter())
        try:
            async with self._session.post(self._url, json=body, allow_redirects=False) as response:
                if response.status != 200:
                    text = (await response.content.read(2000)).decode("utf-8", errors="replace")
                    raise BadStreamError(f"HTTP {response.status}: {_message(text)}")
                await self._read(response, answer, started)
            _judge(answer)
        except BadStreamError as error:
            answer.error = str(error)
        except TimeoutError:
            answer.error = f"no byte for {self.stall:g} s"
        except aiohttp.ClientError as error:
            answer.error = f"connection: {_printable(str(error)) or type(error).__name__}"
        answer.ended = time.perf_counter()
        if started is not None:
            started.set()
        if answer.error is not None:
            answer.error = self._safe(answer.error)
        return answer

    async def metrics(self) -> Counters | None:
        """The server's counters now; None when it shows none that we can read."""
        try:
            timeout = aiohttp.ClientTimeout(total=METRICS_TIMEOUT)
            async with self._session.get(self.endpoint.metrics_url, timeout=timeout) as response:
                return self.endpoint.counters(await response.text()) if response.status == 200 else None
        except (TimeoutError, aiohttp.ClientError, UnicodeDecodeError):
            return None

    def _safe(self, error: str) -> str:
        """`error` without the key, then cut: a cut first could leave half a key."""
        masked = error.replace(self.endpoint.key, "***") if self.endpoint.key else error
        return masked[:LONGEST_ERROR] + ("..." if len(masked) > LONGEST_ERROR else "")

    async def _read(self, response: aiohttp.ClientResponse, answer: Answer, started: asyncio.Event | None) -> None:
        buffer = b""
        async for data in response.content.iter_any():
            arrived = time.perf_counter()
            buffer += data
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    if line[5:].strip() == b"[DONE]":
                        return
                    chunk = _parse(line[5:])
                    try:
                        self._take(chunk, arrived, answer)
                    except (AttributeError, LookupError, TypeError):
                        raise BadStreamError(f"not a chat completion chunk: {_decoded(line[5:])}") from None
                elif line.strip() and not line.startswith((b":", b"event:", b"id:", b"retry:")):
                    raise BadStreamError(f"not an event stream: {_decoded(line)}")
            if started is not None and answer.first is not None:
                started.set()
        if buffer.strip() and buffer.replace(b" ", b"") != b"data:[DONE]":
            raise BadStreamError(f"the stream broke in the middle of an event: {_decoded(buffer)}")

    def _take(self, chunk: dict[str, Any], arrived: float, answer: Answer) -> None:
        if chunk.get("error"):
            raise BadStreamError(f"the server sent an error: {_message(json.dumps(chunk))}")
        engine = self.endpoint.engine
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            answer.prompt_tokens = _whole(usage.get("prompt_tokens"))
            answer.completion_tokens = _whole(usage.get("completion_tokens"))
        answer.counts = engine.spec_counts(chunk) or answer.counts
        answer.prompt_ids = answer.prompt_ids or engine.prompt_ids(chunk)
        choices = chunk.get("choices")
        if not choices:
            return
        choice = choices[0]
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
        tokens = engine.chunk_tokens(chunk)
        answer.answer_ids += engine.answer_ids(chunk) or ()
        has_text = _has_text(choice.get("delta") or {})
        answer.text_seen = answer.text_seen or has_text
        if tokens or (tokens is None and has_text):
            answer.chunks.append((arrived, tokens))
            if answer.first is None:
                answer.first = arrived


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _has_text(delta: Mapping[str, Any]) -> bool:
    return any(delta.get(key) for key in ("content", "reasoning", "reasoning_content", "tool_calls"))


def _parse(data: bytes) -> dict[str, Any]:
    try:
        chunk = json.loads(data)
    except (ValueError, RecursionError):  # the latter for brackets nested too deep
        raise BadStreamError(f"not JSON in the stream: {_decoded(data)}") from None
    if not isinstance(chunk, dict):
        raise BadStreamError(f"not an object in the stream: {_decoded(data)}")
    return chunk


def _judge(answer: Answer) -> None:
    """A stream that ended is not yet an answer. Raises BadStreamError."""
    if answer.finish_reason is None:
        raise BadStreamError("the stream ended without a finish reason")
    if answer.completion_tokens is None:
        raise BadStreamError("the stream carried no usage: this server ignores stream_options.include_usage")
    shown = answer.text_seen or (answer.chunks and (answer.completion_tokens or 0) <= TEXTLESS)
    if answer.completion_tokens and not shown:
        raise BadStreamError(f"{answer.completion_tokens} tokens by usage, but no text arrived")


def _message(text: str) -> str:
    try:
        found = json.loads(text)
        inner = found.get("error", found)
        text = str(inner.get("message", inner) if isinstance(inner, dict) else inner)
    except (ValueError, AttributeError, RecursionError):
        pass
    return _printable(text)


def _decoded(data: bytes) -> str:
    return _printable(data.decode("utf-8", errors="replace"))


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
