"""The load client: streamed chat requests, stamped when their bytes arrive, each told as one `Answer`.

aiohttp rather than the openai package: its per-chunk models would cost more than the engine does here, and a load
client that is the bottleneck measures itself.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from toolkit.analysis.arrivals import Arrivals, StampingConnector
from toolkit.analysis.endpoint import Endpoint
from toolkit.analysis.rate_limit import pause_asked, too_long
from toolkit.analysis.stream import Answer as Answer
from toolkit.analysis.stream import BadStreamError, EventStream, message_of, printable
from toolkit.analysis.workload import Prompt
from toolkit.engines.contract import Counters

LONGEST_ERROR = 300  # characters of what a server said
LAST_BYTES = 0.25  # seconds between a stream's own end mark and that of its response
METRICS_TIMEOUT = 10.0  # seconds: a page that hangs must not hold up a cell


@dataclass(frozen=True, slots=True)
class Sampling:
    """What every request asks for."""

    max_tokens: int = 128
    temperature: float = 0.0
    ignore_eos: bool = False
    further: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the engine's own, sent as they are."""

    def fields(self) -> dict[str, Any]:
        """The request's body fields; `ignore_eos` (an extension of vLLM and SGLang) only when asked for."""
        body: dict[str, Any] = {**self.further, "max_tokens": self.max_tokens, "temperature": self.temperature}
        return {**body, "ignore_eos": True} if self.ignore_eos else body


class _RateLimitedError(Exception):
    """The server asks for a pause of so many seconds."""

    def __init__(self, pause: float, said: str) -> None:
        super().__init__(said)
        self.pause = pause


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
        self._plain = self._url.startswith("http:")
        self._arrivals = Arrivals()

    async def __aenter__(self) -> "Client":
        # A pooled connection that a server closes as the next request comes loses that request, and a server that was
        # held up closes many at once. Without TLS a new one costs next to nothing.
        self._session = aiohttp.ClientSession(
            connector=StampingConnector(self._arrivals, limit=0, force_close=self._plain),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=30),  # aiohttp's own read timer costs a chunk dear
            headers=self.endpoint.headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def ask(self, prompt: Prompt, max_tokens: int | None = None, started: asyncio.Event | None = None) -> Answer:
        """Send one prompt and read its stream to the end. Never raises for what the server does: see `Answer.error`.

        A refusal that says when to come again (see `rate_limit`) is obeyed, and counted in the answer.
        `started` is set at the first token, or at the end when there was none.
        """
        body = {**self._fixed, "messages": list(prompt.messages)}
        if max_tokens is not None:
            body["max_tokens"] = max_tokens
        begun, times = time.perf_counter(), 0
        while True:
            answer = Answer(sent=time.perf_counter(), rate_limited=times)
            answer.held_back = answer.sent - begun if times else 0.0
            try:
                await self._attempt(body, answer, started)
            except _RateLimitedError as limit:
                times = answer.rate_limited = times + 1
                why = too_long(limit.pause, time.perf_counter() - begun)
                if not why:
                    await asyncio.sleep(limit.pause)
                    continue
                answer.error = f"rate limit: {why}; it said: {limit}"
            except BadStreamError as error:
                answer.error = str(error)
            except TimeoutError:
                answer.error = f"no byte for {self.stall:g} s"
            except aiohttp.ClientError as error:
                answer.error = f"connection: {printable(str(error)) or type(error).__name__}"
            break
        answer.ended = answer.ended or time.perf_counter()
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

    async def _attempt(self, body: dict[str, Any], answer: Answer, started: asyncio.Event | None) -> None:
        async with asyncio.timeout(self.stall):
            response = await self._session.post(self._url, json=body, allow_redirects=False)
        async with response:
            if response.status != 200:
                async with asyncio.timeout(self.stall):
                    text = (await response.content.read(2000)).decode("utf-8", errors="replace")
                said = f"HTTP {response.status}: {message_of(text)}"
                pause = pause_asked(response.status, response.headers)
                raise BadStreamError(said) if pause is None else _RateLimitedError(pause, said)
            stream = EventStream(self.endpoint, answer, started)
            await self._arrivals.follow(response, stream.feed, self.stall)
            answer.ended = time.perf_counter()
            stream.judge()
            if not self._plain:  # a connection whose answer was not read to its end is closed: the next one would greet
                with suppress(TimeoutError, aiohttp.ClientError):
                    async with asyncio.timeout(LAST_BYTES):
                        await response.content.wait_eof()
