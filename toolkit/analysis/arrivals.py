"""When the bytes of a response arrived: stamped as they come off the socket, before anything is made of them.

A tap stands between each transport and aiohttp's own protocol, which goes on to do HTTP. It takes the body out of the
reader at once, so that no task wakes for a chunk, and leaves it to the loop's next turn to be understood: the streams
that became readable together are all stamped before the first of them is parsed.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import aiohttp

Feed = Callable[[bytes, float], bool]
"""Takes bytes and the perf_counter of their arrival; true when the stream has ended. May raise what ends it."""


class StampingConnector(aiohttp.TCPConnector):
    """aiohttp's connector with a tap on every connection. `arrivals` are shared by all streams of a client."""

    def __init__(self, arrivals: "Arrivals", **options: Any) -> None:
        super().__init__(**options)
        self._arrivals = arrivals

    async def _create_connection(self, *arguments: Any) -> Any:
        handler = await super()._create_connection(*arguments)
        if isinstance(handler.transport, asyncio.Transport):  # else it was lost again meanwhile
            handler.transport.set_protocol(_Tap(handler, self._arrivals))
        return handler


class Arrivals:
    """Bytes that were stamped and not yet understood, of all streams, in the order of their arrival."""

    def __init__(self) -> None:
        self._waiting: list[tuple[_Stream, bytes | BaseException | None, float]] = []

    async def follow(self, response: aiohttp.ClientResponse, feed: Feed, stall: float) -> None:
        """Give the body of `response` to `feed` until it says that it ended, or the body does.

        Raises what `feed` raises, aiohttp.ClientError for a broken connection, TimeoutError after `stall` seconds
        without a byte.
        """
        connection = response.connection
        tap = connection.transport.get_protocol() if connection and connection.transport else None
        if not isinstance(tap, _Tap):  # all of it came with the head, and the connection has been given back
            ended = False
            while not ended:
                async with asyncio.timeout(stall):
                    data = await response.content.readany()
                ended = not data or feed(data, time.perf_counter())
            return
        stream = _Stream(tap, response.content, feed, stall)
        try:
            tap.stream = stream
            tap.pass_on(tap.arrived)  # what came with the head
            await stream.ended
        finally:
            tap.stream = None
            stream.timer.cancel()

    def add(self, stream: "_Stream", data: bytes | BaseException | None, at: float) -> None:
        """`data` of `stream`; an exception or None ends it."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._understand)
        self._waiting.append((stream, data, at))

    def _understand(self) -> None:
        waiting, self._waiting = self._waiting, []
        for stream, data, at in waiting:
            if stream.ended.done():
                continue
            if not isinstance(data, bytes):
                stream.end(data)
                continue
            try:
                if stream.feed(data, at):
                    stream.end()
            except Exception as error:
                stream.end(error)


class _Stream:
    """A body that is being read."""

    __slots__ = ("content", "ended", "feed", "stall", "tap", "timer")

    def __init__(self, tap: "_Tap", content: aiohttp.StreamReader, feed: Feed, stall: float) -> None:
        loop = asyncio.get_running_loop()
        self.tap, self.content, self.feed, self.stall = tap, content, feed, stall
        self.ended: asyncio.Future[None] = loop.create_future()
        self.timer = loop.call_later(stall, self._look)

    def end(self, error: BaseException | None = None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)

    def _look(self) -> None:
        """One timer a stall and not one a chunk: it looks when the last byte came."""
        left = self.tap.arrived + self.stall - time.perf_counter()
        if left <= 0:
            self.end(TimeoutError())
        else:
            self.timer = asyncio.get_running_loop().call_later(left, self._look)


class _Tap(asyncio.Protocol):
    """Hands everything on to aiohttp's protocol; `arrived` is when the last read came."""

    __slots__ = ("_arrivals", "_handler", "arrived", "stream")

    def __init__(self, handler: Any, arrivals: Arrivals) -> None:
        self._handler = handler
        self._arrivals = arrivals
        self.arrived = time.perf_counter()
        self.stream: _Stream | None = None

    def data_received(self, data: bytes) -> None:
        self.arrived = at = time.perf_counter()
        self._handler.data_received(data)
        if self.stream is not None:
            self.pass_on(at)

    def pass_on(self, at: float) -> None:
        """What aiohttp made of the bytes so far, and the end where that was one."""
        stream = self.stream
        assert stream is not None
        content = stream.content
        try:
            if data := content.read_nowait():
                self._arrivals.add(stream, data, at)
        except Exception as error:
            self._arrivals.add(stream, error, at)
        if content.is_eof():
            self._arrivals.add(stream, None, at)
            self.stream = None

    def eof_received(self) -> bool | None:
        result: bool | None = self._handler.eof_received()
        return result

    def connection_lost(self, error: Exception | None) -> None:
        self._handler.connection_lost(error)
        if self.stream is not None:
            self.pass_on(self.arrived)
            if self.stream is not None:  # neither an end nor a fault that aiohttp knows of
                self._arrivals.add(self.stream, error or aiohttp.ServerDisconnectedError(), self.arrived)

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()
