"""Questions to one server: generate, and score what was generated, in OpenAI's words and vLLM's."""

import asyncio
import json
import re
import zlib
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from toolkit.analysis.audit.replies import Question, Ranked, Reply, Side
from toolkit.analysis.endpoint import Endpoint
from toolkit.engines.contract import SpecCounts
from toolkit.errors import EngineError

TOP = 5  # of the server's own log probabilities; a greedy gap needs two, and the other reply's token among them
SCORED = 20  # what vLLM gives at most unless it was told otherwise (--max-logprobs)
STALL = 300.0
LONGEST_ERROR = 300
Found = TypeVar("Found")
_WORD = re.compile(r"\S+\s*")


class RefusedError(Exception):
    """The server does not take such a request; the message is its own."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `fields` go into the body as they are."""

    question: Question
    concurrency: int
    prompt: int
    messages: Sequence[Mapping[str, str]]
    max_tokens: int
    seed: int | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scores:
    """The reference's rows for the emitted tokens, and the words that it spelled out."""

    rows: list[Ranked]
    words: dict[int, str]


@dataclass(slots=True)
class Asking:
    """One side's server. Use as an async context."""

    side: Side
    endpoint: Endpoint
    client: httpx.AsyncClient = field(init=False)

    async def __aenter__(self) -> "Asking":
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        timeout = httpx.Timeout(STALL, connect=30)
        self.client = httpx.AsyncClient(
            headers=self.endpoint.headers, timeout=timeout, limits=limits, trust_env=False, follow_redirects=False
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()

    async def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """All replies in the order of `requests`, which are one batch of the concurrency they name.

        Raises RefusedError when the server refuses such requests, EngineError when it fails.
        """
        gate = asyncio.Semaphore(requests[0].concurrency if requests else 1)

        async def one(request: Request) -> Reply:
            async with gate:
                return await self._generate(request)

        return await _all([one(request) for request in requests])

    async def score(self, sequences: Sequence[tuple[list[int], list[int]]], concurrency: int) -> list[Scores]:
        """For (prompt ids, emitted ids): the raw log probabilities of each emitted token's place. Errors as above."""
        gate = asyncio.Semaphore(concurrency)

        async def one(prompt: list[int], emitted: list[int]) -> Scores:
            async with gate:
                return await self._score(prompt, emitted)

        return await _all([one(*sequence) for sequence in sequences])

    async def _generate(self, request: Request) -> Reply:
        body = {
            "model": self.endpoint.model,
            "messages": [dict(message) for message in request.messages],
            "max_tokens": request.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"seed": request.seed} if request.seed is not None else {}),
            **self.endpoint.engine.request_fields(),
            **request.fields,
        }
        collected = _Collected()
        async for chunk in self._stream(f"{self.endpoint.base_url}/chat/completions", body):
            collected.take(chunk, self.endpoint)
        if collected.finish_reason is None:
            raise EngineError(f"{self.endpoint.name}: a stream ended without a reason to finish.")
        ids = collected.token_ids
        if collected.chunks and not ids:  # a server without token ids: its words stand for them
            ids = [zlib.crc32(word.encode()) for word in _WORD.findall(collected.text)]
        return Reply(
            question=request.question,
            side=self.side,
            concurrency=request.concurrency,
            prompt=request.prompt,
            seed=request.seed,
            prompt_ids=collected.prompt_ids,
            token_ids=ids,
            chunks=collected.chunks if collected.token_ids else [],
            text=collected.text,
            finish_reason=collected.finish_reason,
            stop=next(iter(request.fields.get("stop", [])), None),
            top=collected.top if len(collected.top) == len(ids) and ids else None,
            counts=collected.counts,
        )

    async def _stream(self, url: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        try:
            async with self.client.stream("POST", url, json=body) as response:
                if response.status_code != 200:
                    raise self._failure(response.status_code, (await response.aread()).decode("utf-8", "replace"))
                async for line in response.aiter_lines():
                    if line.startswith("data:") and line[5:].strip() != "[DONE]":
                        chunk = _object(line[5:], self.endpoint.name)
                        if chunk.get("error"):
                            raise self._failure(500, json.dumps(chunk))
                        yield chunk
        except httpx.HTTPError as error:
            raise EngineError(f"{self.endpoint.name}: {error or type(error).__name__}.") from None

    async def _score(self, prompt: list[int], emitted: list[int]) -> Scores:
        body = {
            "model": self.endpoint.model,
            "prompt": [*prompt, *emitted],
            "max_tokens": 1,
            "temperature": 0,
            "prompt_logprobs": SCORED,
        }
        try:
            response = await self.client.post(f"{self.endpoint.base_url}/completions", json=body)
        except httpx.HTTPError as error:
            raise EngineError(f"{self.endpoint.name}: {error or type(error).__name__}.") from None
        if response.status_code != 200:
            raise self._failure(response.status_code, response.text)
        choices = _object(response.text, self.endpoint.name).get("choices")
        found = choices[0].get("prompt_logprobs") if isinstance(choices, list) and choices else None
        if not isinstance(found, list) or len(found) != len(prompt) + len(emitted):
            raise RefusedError("it answers without prompt_logprobs")
        return _scores(found[len(prompt) :], self.endpoint.name)

    def _failure(self, status: int, text: str) -> Exception:
        said = " ".join(text.split())
        key = self.endpoint.key
        said = (said.replace(key, "***") if key else said)[:LONGEST_ERROR]
        if status in (400, 404, 405, 422, 501):
            return RefusedError(f"HTTP {status}: {said}")
        return EngineError(f"{self.endpoint.name} answered HTTP {status}: {said}")


@dataclass(slots=True)
class _Collected:
    """A stream, put together."""

    prompt_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    top: list[Ranked] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    counts: SpecCounts | None = None

    def take(self, chunk: dict[str, Any], endpoint: Endpoint) -> None:
        self.counts = endpoint.engine.spec_counts(chunk) or self.counts
        prompt_ids = chunk.get("prompt_token_ids")
        if isinstance(prompt_ids, list):
            self.prompt_ids = prompt_ids
        choices = chunk.get("choices")
        if not choices:
            return
        choice = choices[0]
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        delta = choice.get("delta") or {}
        text = "".join(delta.get(name) or "" for name in ("reasoning", "reasoning_content", "content"))
        self.text += text
        ids = choice.get("token_ids")
        if isinstance(ids, list):
            self.token_ids += ids
        size = len(ids) if isinstance(ids, list) else bool(text)
        if size:
            self.chunks.append(int(size))
        for entry in (choice.get("logprobs") or {}).get("content") or []:
            self.top.append(_ranked(entry))


def _ranked(entry: dict[str, Any]) -> Ranked:
    """A chat log probability entry whose tokens are written `token_id:7`."""
    found = {}
    for one in [entry, *(entry.get("top_logprobs") or [])]:
        name, _, number = str(one["token"]).partition(":")
        if name == "token_id" and number.isdigit():
            found[int(number)] = float(one["logprob"])
    return sorted(found.items(), key=lambda pair: -pair[1])


def _scores(found: Sequence[Any], name: str) -> Scores:
    rows, words = [], {}
    try:
        for row in found:
            rows.append(sorted(((int(i), float(one["logprob"])) for i, one in row.items()), key=lambda pair: -pair[1]))
            words.update({int(i): str(one.get("decoded_token") or "") for i, one in row.items()})
    except (AttributeError, KeyError, TypeError, ValueError):
        raise EngineError(f"{name}: its prompt_logprobs cannot be read.") from None
    return Scores(rows, words)


def _object(text: str, name: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise EngineError(f"{name}: sent something that is not JSON: {' '.join(text.split())[:80]!r}.")
    return found


async def _all(work: Sequence[Coroutine[Any, Any, Found]]) -> list[Found]:
    """Results in order; the first failure ends the rest and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as group_error:
        raise group_error.exceptions[0] from None
    return [task.result() for task in tasks]
