"""`toolkit lab serve`: the reference loop behind an OpenAI-compatible endpoint, one request at a time, in their order.

It speaks vLLM's dialect, so that sweep, audit and scoreboard work on it. Speculation makes each request faster here and
the server no wider. The model works in a thread of its own; the event loop reads, queues and writes.
"""

import asyncio
import json
import socket
import sys
import threading
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from types import TracebackType
from typing import Any

from aiohttp import web

from toolkit.errors import InputError
from toolkit.lab.answer import Job, Piece, answer
from toolkit.lab.counters import Page
from toolkit.lab.faults import Fault
from toolkit.lab.pairing import Pair, find_fault, planted
from toolkit.lab.reference import Drafter, Model
from toolkit.lab.reply import ChatReply, CompletionReply, Reply
from toolkit.lab.request import Ask, BadRequestError, read_chat, read_completion
from toolkit.lab.tokenizer import Tokenizer

OWNER = "toolkit-lab"
"""`owned_by` of the served model, by which `toolkit sweep --base-url` knows this server."""

MAX_MODEL_LEN = 2048
LARGEST_BODY = 2**24  # bytes
_ENDED = object()


def serve(
    load: Callable[[], Pair],
    k: int,
    fault_name: str | None = None,
    name: str | None = None,
    max_model_len: int | None = None,
    host: str = "127.0.0.1",
    port: int = 8100,
    ready: Callable[[str], object] = lambda base_url: None,
) -> None:
    """Serve the pair that `load` gives until interrupted; `ready` is told the base URL when requests are taken.

    Raises InputError when the port is taken or there is no such fault (before anything is loaded), the fault cannot lie
    in this pair, K is below 1, or `max_model_len` is more than the pair was made for; and what `load` raises.
    """
    if k < 1:
        raise InputError(f"--k {k}: at least 1; --drafter none does not speculate.")
    fault = None if fault_name is None else find_fault(fault_name)
    on = bound(host, port)
    pair = load()
    if max_model_len is not None and pair.longest is not None and max_model_len > pair.longest:
        raise InputError(f"--max-model-len {max_model_len}: {pair.name} was made for {pair.longest} tokens.")
    longest = max_model_len or min(MAX_MODEL_LEN, pair.longest or MAX_MODEL_LEN)
    service = Service(pair.target, pair.tokenizer, pair.drafter, k, fault, name or pair.name, longest)
    asyncio.run(service.listen(on, lambda: ready(_url(on)), asyncio.Event()))


class LabServer:
    """The server in a thread, for `with`: it listens when the block begins and is gone when it ends.

    `target` and `drafter` belong to this server alone: their caches are its state. `port` 0 takes any free one.
    Raises InputError when the port is taken, or `fault` cannot lie in such a drafter.
    """

    def __init__(
        self,
        target: Model,
        tokenizer: Tokenizer,
        drafter: Drafter | None = None,
        k: int = 4,
        fault: Fault | None = None,
        name: str = "lab",
        max_model_len: int = MAX_MODEL_LEN,
        port: int = 0,
    ) -> None:
        self._service = Service(target, tokenizer, drafter, k, fault, name, max_model_len)
        self._socket = bound("127.0.0.1", port)
        self.base_url = _url(self._socket)

    def __enter__(self) -> "LabServer":
        ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._done = asyncio.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join()

    def _run(self, ready: threading.Event) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._service.listen(self._socket, ready.set, self._done))


def bound(host: str, port: int) -> socket.socket:
    """A socket that has the address and does not listen yet, so that nobody connects before the model is there.

    Raises InputError when the address is taken or is none of this machine's.
    """
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
    except (OSError, OverflowError) as error:
        found.close()
        said = (error.strerror if isinstance(error, OSError) else None) or str(error).rstrip(".")
        raise InputError(f"cannot listen on {host}, port {port}: {said}. Choose another with --host, --port.") from None
    return found


def _url(on: socket.socket) -> str:
    host, port = on.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


class Service:
    """The routes and the queue over one pair of models. Raises InputError when `fault` cannot lie in its drafter."""

    def __init__(
        self,
        target: Model,
        tokenizer: Tokenizer,
        drafter: Drafter | None,
        k: int,
        fault: Fault | None,
        name: str,
        max_model_len: int,
    ) -> None:
        self._rule, self._drafter = planted(fault, drafter)
        self._target, self._tokenizer = target, tokenizer
        self._k = None if drafter is None else k
        self._name, self._max_model_len = name, max_model_len
        self._page = Page(name, self._k)
        self._turn = asyncio.Lock()  # fair: who asked first is first
        self._model_thread = ThreadPoolExecutor(1, "lab-model")

    async def listen(self, on: socket.socket, ready: Callable[[], object], done: asyncio.Event) -> None:
        """Serve on a bound socket until `done`; `ready` is called when requests are taken."""
        app = web.Application(middlewares=[_in_words], client_max_size=LARGEST_BODY)
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                web.get("/v1/models", self._models),
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/completions", self._completion),
            ]
        )
        # A client that goes away cancels its handler, which gives up its place in the queue or its turn.
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.SockSite(runner, on).start()
            ready()
            await done.wait()
        finally:
            await runner.cleanup()
            self._model_thread.shutdown(cancel_futures=True)

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._page.text(), headers={"Content-Type": "text/plain; version=0.0.4"})

    async def _models(self, _: web.Request) -> web.Response:
        one = {"id": self._name, "object": "model", "created": 0, "owned_by": OWNER, "root": self._name}
        return web.json_response({"object": "list", "data": [{**one, "max_model_len": self._max_model_len}]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._respond(request, read_chat(await request.read()), ChatReply)

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        return await self._respond(request, read_completion(await request.read()), CompletionReply)

    async def _respond(self, request: web.Request, ask: Ask, kind: type[Reply]) -> web.StreamResponse:
        if ask.model not in (None, self._name):
            raise BadRequestError(f"the model {ask.model!r} does not exist here, this server has {self._name!r}.", 404)
        job = ask.job(self._tokenizer, self._target.size, self._max_model_len)
        reply = kind(ask, self._name, self._tokenizer, job.prompt, self._k)
        async with aclosing(self._pieces(job)) as pieces:
            if ask.stream:
                return await _stream(request, reply, pieces)
            return web.json_response(reply.whole([piece async for piece in pieces]))

    async def _pieces(self, job: Job) -> AsyncGenerator[Piece, None]:
        """The answer to `job` when it is its turn. A step that runs when its client leaves runs to its end first."""
        loop = asyncio.get_running_loop()
        with self._page.waiting():
            await self._turn.acquire()
        try:
            with self._page.running(job):
                steps = answer(self._target, self._tokenizer, job, self._drafter, self._k or 0, self._rule)
                while isinstance(piece := await loop.run_in_executor(self._model_thread, next, steps, _ENDED), Piece):
                    self._page.add(piece)
                    yield piece
        finally:
            self._turn.release()


async def _stream(request: web.Request, reply: Reply, pieces: AsyncIterator[Piece]) -> web.StreamResponse:
    """Server-sent events, one chunk per step. A failure after the first of them is an event too."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    try:
        async for piece in pieces:
            if not response.prepared:
                await response.prepare(request)
                await _send(response, *reply.opening())
            await _send(response, reply.chunk(piece))
    except Exception as error:
        if not response.prepared or isinstance(error, ConnectionError):
            raise
        await _send(response, _failure(error))
    else:
        await _send(response, *reply.closing())
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


async def _send(response: web.StreamResponse, *chunks: dict[str, Any]) -> None:
    for chunk in chunks:
        await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")


@web.middleware
async def _in_words(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Every refusal and failure as one message in the shape of OpenAI's errors."""
    try:
        return await handler(request)
    except BadRequestError as error:
        told = _told(error.status, str(error))
    except web.HTTPException as error:
        told = _told(error.status, f"{request.method} {request.path}: {error.reason}.")
    except ConnectionError:
        raise
    except Exception as error:
        told = _failure(error)
    return web.json_response(told, status=told["error"]["code"])


def _failure(error: Exception) -> dict[str, Any]:
    traceback.print_exception(error, file=sys.stderr)
    return _told(500, f"the reference loop failed: {type(error).__name__}. The server's log says more.")


def _told(status: int, message: str) -> dict[str, Any]:
    kind = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError"}.get(status, "Error")
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}
