"""One streamed answer: from the bytes of an event stream, each with its arrival, to an `Answer`."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from toolkit.analysis.endpoint import Endpoint
from toolkit.engines.contract import SpecCounts

TEXTLESS = 4  # tokens: an end mark, or the first part of a character, has no text of its own
_TEXTS = ("content", "reasoning", "reasoning_content", "tool_calls")
_read_json = json.JSONDecoder().raw_decode


@dataclass(slots=True)
class Answer:
    """One request as it went. Times are perf_counter seconds."""

    sent: float
    """Of the attempt that was answered: a rate limit may have held back earlier ones."""
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
    rate_limited: int = 0
    """Attempts that the server refused for its rate limit."""
    held_back: float = 0.0
    """Seconds from the first attempt to the last one."""

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


class EventStream:
    """Fills an `Answer` from an event stream. `started` is set at the first token."""

    __slots__ = ("_answer", "_engine", "_rest", "_shown", "_started")

    def __init__(self, endpoint: Endpoint, answer: Answer, started: asyncio.Event | None) -> None:
        self._engine = endpoint.engine
        self._answer = answer
        self._started = started
        self._rest = b""
        self._shown = 0

    def feed(self, data: bytes, arrived: float) -> bool:
        """Bytes as they came, cut anywhere; true at the stream's own end mark. Raises BadStreamError."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                text = line[5:].strip()
                if text == b"[DONE]":
                    self._rest = b""
                    return True
                chunk = _parse(text)
                try:
                    self._take(chunk, arrived)
                except (AttributeError, LookupError, TypeError):
                    raise BadStreamError(f"not a chat completion chunk: {_decoded(text)}") from None
            elif line and not line.isspace() and not line.startswith((b":", b"event:", b"id:", b"retry:")):
                raise BadStreamError(f"not an event stream: {_decoded(line)}")
        if self._started is not None and self._answer.first is not None:
            self._started.set()
            self._started = None
        return False

    def judge(self) -> None:
        """A stream that ended is not yet an answer. Raises BadStreamError."""
        answer, rest = self._answer, self._rest
        if rest.strip() and rest.replace(b" ", b"") != b"data:[DONE]":
            raise BadStreamError(f"the stream broke in the middle of an event: {_decoded(rest)}")
        if answer.finish_reason is None:
            raise BadStreamError("the stream ended without a finish reason")
        if answer.completion_tokens is None:
            raise BadStreamError("the stream carried no usage: this server ignores stream_options.include_usage")
        shown = answer.text_seen or (answer.chunks and answer.completion_tokens <= TEXTLESS)
        if answer.completion_tokens and not shown:
            raise BadStreamError(f"{answer.completion_tokens} tokens by usage, but no text arrived")

    def _take(self, chunk: dict[str, Any], arrived: float) -> None:
        if chunk.get("error"):
            raise BadStreamError(f"the server sent an error: {message_of(json.dumps(chunk))}")
        engine, answer = self._engine, self._answer
        usage, so_far = chunk.get("usage"), None
        if isinstance(usage, dict):
            answer.prompt_tokens = _whole(usage.get("prompt_tokens"))
            answer.completion_tokens = so_far = _whole(usage.get("completion_tokens"))
        told = engine.spec_counts(chunk)
        if told is not None:
            answer.counts = told.following(answer.counts)
            so_far = so_far if told.tokens is None else told.tokens
        answer.prompt_ids = answer.prompt_ids or engine.prompt_ids(chunk)
        answer.answer_ids += engine.answer_ids(chunk) or ()
        choices = chunk.get("choices")
        choice = choices[0] if choices else {}
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
        has_text = _has_text(choice.get("delta") or {})
        answer.text_seen = answer.text_seen or has_text
        tokens = engine.chunk_tokens(chunk)
        if tokens is None and so_far is not None and (has_text or self._shown):
            # A server that tells the tokens so far with its text: those without text are in the next chunk that tells.
            tokens, self._shown = max(0, so_far - self._shown), so_far
        if tokens or (tokens is None and has_text):
            answer.chunks.append((arrived, tokens))
            if answer.first is None:
                answer.first = arrived


def message_of(text: str) -> str:
    """What a server says in an error, in one line: the message in OpenAI's JSON, else all of it."""
    try:
        found = json.loads(text)
        inner = found.get("error", found)
        text = str(inner.get("message", inner) if isinstance(inner, dict) else inner)
    except (ValueError, AttributeError, RecursionError):
        pass
    return printable(text)


def printable(text: str) -> str:
    """`text` in one line, each letter that a terminal would act on a question mark."""
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _has_text(delta: Mapping[str, Any]) -> bool:
    return bool(delta.get("content")) or any(delta.get(key) for key in _TEXTS)


def _parse(data: bytes) -> dict[str, Any]:
    try:
        text = data.decode("utf-8", "surrogatepass")
        chunk, end = _read_json(text)
        if end != len(text):
            raise ValueError
    except (ValueError, RecursionError):  # the latter for brackets nested too deep
        raise BadStreamError(f"not JSON in the stream: {_decoded(data)}") from None
    if not isinstance(chunk, dict):
        raise BadStreamError(f"not an object in the stream: {_decoded(data)}")
    return chunk


def _decoded(data: bytes) -> str:
    return printable(data.decode("utf-8", errors="replace"))
