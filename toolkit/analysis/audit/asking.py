"""Questions to one server: generate, and score what was generated, in OpenAI's words and vLLM's."""

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import httpx

from toolkit.analysis.audit.replies import LOWEST, MOST_IDS, Question, Ranked, Reply, Side, reply_of
from toolkit.analysis.endpoint import Endpoint
from toolkit.analysis.rate_limit import pause_asked, too_long
from toolkit.engines.contract import SpecCounts
from toolkit.errors import EngineError, InputError

TOP = 5  # of the server's own log probabilities; a greedy gap needs two, and the other reply's token among them
SCORED = 20  # what vLLM gives at most unless it was told otherwise (--max-logprobs)
STALL = 300.0
LONGEST_ERROR = 300
Found = TypeVar("Found")


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

        Raises RefusedError when the server refuses such requests, InputError when it wants a key, EngineError when it
        fails.
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
        try:
            async with aclosing(self._stream(f"{self.endpoint.base_url}/chat/completions", body)) as chunks:
                async for chunk in chunks:
                    collected.take(chunk, self.endpoint)
            if collected.finish_reason is None:
                raise EngineError(f"{self.endpoint.name}: a stream ended without a reason to finish.")
            return reply_of({**_asked(request), "side": self.side, **collected.fields()})
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise EngineError(f"{self.endpoint.name}: its stream cannot be read: {self._told(str(error))}.") from None

    async def _stream(self, url: str, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        try:
            async with self._answered(url, body) as response:
                if response.status_code != 200:
                    raise self._failure(response.status_code, (await response.aread()).decode("utf-8", "replace"))
                async for line in response.aiter_lines():
                    if line.startswith("data:") and line[5:].strip() != "[DONE]":
                        chunk = self._object(line[5:])
                        if chunk.get("error"):
                            raise self._failure(500, line[5:])
                        yield chunk
        except httpx.HTTPError as error:
            raise EngineError(f"{self.endpoint.name}: {self._told(str(error) or type(error).__name__)}.") from None

    @asynccontextmanager
    async def _answered(self, url: str, body: dict[str, Any]) -> AsyncIterator[httpx.Response]:
        """The first response that no rate limit gave, or that asks to wait too long."""
        begun = time.monotonic()
        while True:
            async with self.client.stream("POST", url, json=body) as response:
                pause = pause_asked(response.status_code, response.headers)
                if pause is None or too_long(pause, time.monotonic() - begun):
                    yield response
                    return
            await asyncio.sleep(pause)

    async def _score(self, prompt: list[int], emitted: list[int]) -> Scores:
        body = {
            "model": self.endpoint.model,
            "prompt": [*prompt, *emitted],
            "max_tokens": 1,
            "temperature": 0,
            "prompt_logprobs": SCORED,
        }
        try:
            async with self._answered(f"{self.endpoint.base_url}/completions", body) as response:
                await response.aread()
        except httpx.HTTPError as error:
            raise EngineError(f"{self.endpoint.name}: {self._told(str(error) or type(error).__name__)}.") from None
        if response.status_code != 200:
            raise self._failure(response.status_code, response.text)
        choices = self._object(response.text).get("choices")
        first = choices[0] if isinstance(choices, list) and choices else None
        found = first.get("prompt_logprobs") if isinstance(first, dict) else None
        if not isinstance(found, list) or len(found) != len(prompt) + len(emitted):
            raise RefusedError("it answers without prompt_logprobs")
        try:
            return _scores(found[len(prompt) :])
        except (AttributeError, LookupError, TypeError, ValueError):
            raise EngineError(f"{self.endpoint.name}: its prompt_logprobs cannot be read.") from None

    def _failure(self, status: int, text: str) -> Exception:
        said = f"HTTP {status}: {self._told(text)}".removesuffix(": ")
        if status in (400, 404, 405, 422, 501):
            return RefusedError(said)
        if status in (401, 403):
            return InputError(f"{self.endpoint.name} wants a key, pass --api-key-env NAME. It answered {said}")
        return EngineError(f"{self.endpoint.name} answered {said}")

    def _object(self, text: str) -> dict[str, Any]:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise EngineError(f"{self.endpoint.name}: sent something that is no JSON object: {self._told(text)!r}.")
        return found

    def _told(self, text: str) -> str:
        """The beginning of what the server said, in one line and without the key, which it may have repeated."""
        without = text.replace(self.endpoint.key, "***") if self.endpoint.key else text
        return " ".join(without.split())[:LONGEST_ERROR]


def _asked(request: Request) -> dict[str, Any]:
    """What a Reply keeps of its question."""
    return {
        "question": request.question,
        "concurrency": request.concurrency,
        "prompt": request.prompt,
        "seed": request.seed,
        "stop": next(iter(request.fields.get("stop", [])), None),
    }


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
        """One chunk. Raises what reading nonsense raises."""
        told = endpoint.engine.spec_counts(chunk)
        self.counts = told.following(self.counts) if told is not None else self.counts
        self.prompt_ids = endpoint.engine.prompt_ids(chunk) or chunk.get("prompt_token_ids") or self.prompt_ids
        choices = chunk.get("choices")
        if not choices:
            self.token_ids += endpoint.engine.answer_ids(chunk) or ()  # SGLang: all of them, after the text
            return
        choice = choices[0]
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        delta = choice.get("delta") or {}
        self.text += "".join(delta.get(name) or "" for name in ("reasoning", "reasoning_content", "content"))
        if ids := choice.get("token_ids"):
            self.token_ids += ids
            self.chunks.append(len(ids))
        self.top += [_ranked(entry) for entry in (choice.get("logprobs") or {}).get("content") or []]

    def fields(self) -> dict[str, Any]:
        """As a Reply has them. Log probabilities are kept only if each token has some under token ids."""
        told = bool(self.top) and all(self.top) and len(self.top) == len(self.token_ids)
        return {
            "prompt_ids": self.prompt_ids,
            "token_ids": self.token_ids,
            "chunks": self.chunks,
            "text": self.text.encode("utf-8", "replace").decode(),  # half a surrogate pair cannot be written down
            "finish_reason": self.finish_reason,
            "top": self.top if told else None,
            "counts": asdict(self.counts) if self.counts else None,
        }


def _ranked(entry: dict[str, Any]) -> Ranked:
    """A chat log probability entry whose tokens are written `token_id:7`; empty when they are written otherwise."""
    found = {}
    for one in [entry, *(entry.get("top_logprobs") or [])]:
        name, _, number = str(one["token"]).partition(":")
        if name == "token_id" and number.isdecimal():
            found[int(number)] = _logprob(one)
    return _best_first(found)


def _scores(found: Sequence[Any]) -> Scores:
    rows: list[Ranked] = []
    words: dict[int, str] = {}
    for row in found:
        by_id = {_id(token): one for token, one in row.items()}
        rows.append(_best_first({token: _logprob(one) for token, one in by_id.items()}))
        words |= {token: str(one.get("decoded_token") or "") for token, one in by_id.items()}
        if rows[-1][0][1] <= LOWEST:
            raise ValueError("a place where no token is possible")
    return Scores(rows, words)


def _id(text: str) -> int:
    found = int(text)
    if not 0 <= found < MOST_IDS:
        raise ValueError(f"a token id of {found}")
    return found


def _logprob(one: Mapping[str, Any]) -> float:
    found = max(float(one["logprob"]), LOWEST)
    if not math.isfinite(found):
        raise ValueError(f"a log probability of {found}")
    return found


def _best_first(found: Mapping[int, float]) -> Ranked:
    return sorted(found.items(), key=lambda pair: -pair[1])


async def _all(work: Sequence[Coroutine[Any, Any, Found]]) -> list[Found]:
    """Results in order; the first failure ends the rest and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as group_error:
        raise group_error.exceptions[0] from None
    return [task.result() for task in tasks]
