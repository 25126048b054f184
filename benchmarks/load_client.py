"""What a chunk costs the load client: ours beside `vllm bench serve`, 64 streams of one server, in one run.

usage: load_client.py [--streams 64] [--tokens 500] [--turns 5] [--rate 50] [--plain]

A stub in a process of its own streams vLLM's chunks over plain sockets, one write a chunk: as fast as it can, then
`--rate` chunks per second and stream, all streams in one burst as an engine's step sends them. Each client is a process
of its own; they take turns. The peer is the request function that `vllm bench serve` runs
(`vllm.benchmarks.lib.endpoint_request_func.async_request_openai_chat_completions`) with that command's session, without
its progress bar and tokenizer. Ours is `toolkit.analysis.client.Client`, and for the share of a core a whole cell of a
sweep (`toolkit.analysis.cell.measure`, its records written as JSON lines). Cores are CPU seconds of the client's
process, so that the stub, which has a core of its own, is no part of them. `straight` is a loop over aiohttp's lines
with json.loads. `--plain` leaves the peer out.
"""

import argparse
import asyncio
import json
import os
import selectors
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

MODEL = "stub/model"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


def main() -> None:
    """Serve, be one client, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=500, help="chunks of an answer")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rate", type=float, default=50.0, help="chunks per second and stream")
    parser.add_argument("--plain", action="store_true", help="without the peer, which needs vLLM")
    parser.add_argument("--client", help="be this client of --port")
    parser.add_argument("--port", type=int, default=0)
    asked = parser.parse_args()
    if asked.client:
        print(json.dumps(be(asked.client, asked.port, asked.streams, asked.tokens)))
        return
    compare(asked)


def compare(asked: argparse.Namespace) -> None:
    """Print both tables."""
    names = ["ours", "straight", *([] if asked.plain else ["peer"])]
    with Stub(asked.tokens) as stub:
        found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for turn in range(asked.turns):
            for name in names if turn % 2 else names[::-1]:
                found[name].append(stub.ask(name, asked))
    print(f"as fast as it can, {asked.streams} streams x {asked.tokens} chunks, {asked.turns} turns each:")
    for name in names:
        rates = sorted(one["chunks"] / one["cpu"] for one in found[name])
        wall = statistics.median(one["chunks"] / one["wall"] for one in found[name])
        print(
            f"  {name}: {statistics.median(rates):,.0f} chunks/s per core ({rates[0]:,.0f} to {rates[-1]:,.0f}), "
            f"{wall:,.0f} chunks/s in all"
        )
    for name in names[1:]:
        ratios = sorted(theirs["cpu"] / ours["cpu"] for ours, theirs in zip(found["ours"], found[name], strict=True))
        print(f"  ours over {name}: {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    with Stub(asked.tokens, asked.rate) as stub:
        print(f"at {asked.streams} streams x {asked.rate:g} chunks/s:")
        for name in [*names, "cell"]:
            one = stub.ask(name, asked)
            rate = one["chunks"] / one["wall"] / asked.streams
            print(f"  {name}: {one['cpu'] / one['wall']:.1%} of a core at {rate:.1f} chunks/s and stream")


@dataclass
class Stub:
    """The server's process. `rate` is chunks per second and stream, None is as fast as it can."""

    tokens: int
    rate: float | None = None

    def __enter__(self) -> "Stub":
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = listener.getsockname()[1]
        self.pid = os.fork()
        if self.pid == 0:
            try:
                serve(listener, self.tokens, self.rate)
            finally:
                os._exit(0)
        listener.close()
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)

    def ask(self, name: str, asked: argparse.Namespace) -> dict[str, float]:
        """One turn of one client, in a process of its own."""
        words = ["--client", name, "--port", self.port, "--streams", asked.streams, "--tokens", asked.tokens]
        done = subprocess.run(
            [sys.executable, __file__, *map(str, words)], stdout=subprocess.PIPE, text=True, check=True
        )
        result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return result


def events(tokens: int) -> list[bytes]:
    """The HTTP chunks of one answer as vLLM 0.32 streams it, with the token ids that we ask for."""
    common = {"id": f"chatcmpl-{'0' * 32}", "object": "chat.completion.chunk", "created": 1_790_000_000, "model": MODEL}

    def choice(delta: dict[str, str], ids: list[int] | None, reason: str | None = None) -> dict[str, Any]:
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason, "token_ids": ids}

    bodies = [{**common, "choices": [choice({"role": "assistant", "content": ""}, None)], "prompt_token_ids": [1] * 64}]
    bodies += [
        {**common, "choices": [choice({"content": " word"}, [1000 + i], "length" if i == tokens - 1 else None)]}
        for i in range(tokens)
    ]
    bodies.append({**common, "choices": [], "usage": {"prompt_tokens": 64, "completion_tokens": tokens}})
    texts = [json.dumps(body, separators=(",", ":")) for body in bodies] + ["[DONE]"]
    lines = [b"data: %s\n\n" % text.encode() for text in texts]
    return [b"%x\r\n%s\r\n" % (len(line), line) for line in lines] + [b"0\r\n\r\n"]


def serve(listener: socket.socket, tokens: int, rate: float | None) -> None:
    """Answer for ever: one send a chunk, the streams in turn; under a rate all of them at each tick."""
    chunks = events(tokens)
    waiting = selectors.DefaultSelector()
    waiting.register(listener, selectors.EVENT_READ, None)
    streams: dict[socket.socket, int] = {}
    asked: dict[socket.socket, bytes] = {}
    tick = time.perf_counter()
    while True:
        pause = None if not streams else 0.0 if rate is None else max(0.0, tick - time.perf_counter())
        for key, _ in waiting.select(pause):
            if key.fileobj is listener:
                one, _ = listener.accept()
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                one.setblocking(False)
                asked[one] = b""
                waiting.register(one, selectors.EVENT_READ)
                continue
            one = key.fileobj  # type: ignore[assignment]
            data = one.recv(65536)
            if not data:
                waiting.unregister(one)
                streams.pop(one, None)
                one.close()
                continue
            asked[one] += data
            if asked[one].startswith(b"GET"):  # no metrics
                one.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            elif is_whole(asked[one]):
                asked[one] = b""
                one.send(HEAD)
                streams[one] = 0
        if rate is not None and time.perf_counter() < tick:
            continue
        tick = max(tick + 1 / rate, time.perf_counter() - 1 / rate) if rate else tick
        for one, place in list(streams.items()):
            try:
                sent = one.send(chunks[place])
            except BlockingIOError:
                continue
            except OSError:
                del streams[one]
                continue
            if sent < len(chunks[place]):
                one.setblocking(True)
                one.sendall(chunks[place][sent:])
                one.setblocking(False)
            streams[one] += 1
            if place + 1 >= len(chunks) - 2:  # the usage, DONE and the end come together
                one.setblocking(True)
                one.sendall(b"".join(chunks[place + 1 :]))
                one.setblocking(False)
                del streams[one]


def is_whole(request: bytes) -> bool:
    """Whether head and body of a POST are there."""
    head, found, body = request.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
    return bool(found) and len(body) >= int(lengths[0] if lengths else 0)


def be(name: str, port: int, streams: int, tokens: int) -> dict[str, float]:
    """Chunks, CPU and wall seconds of one client that reads `streams` answers at once."""
    run = {"ours": ours, "peer": peer, "straight": straight, "cell": cell}[name]
    return asyncio.run(run(f"http://127.0.0.1:{port}/v1", streams, tokens))


async def timed(work: Coroutine[Any, Any, int]) -> dict[str, float]:
    """`work` returns the chunks that it saw."""
    wall, cpu = time.perf_counter(), time.process_time()
    chunks = await work
    return {"chunks": chunks, "cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}


async def ours(url: str, streams: int, tokens: int) -> dict[str, float]:
    """The client of a sweep, as it asks a vLLM."""
    from toolkit.analysis.client import Client, Sampling
    from toolkit.analysis.endpoint import Endpoint
    from toolkit.analysis.workload import Prompt
    from toolkit.engines import ENGINES

    prompt = Prompt(({"role": "user", "content": "hi"},), "chat")

    async def all_streams(client: Client) -> int:
        answers = await asyncio.gather(*(client.ask(prompt) for _ in range(streams)))
        assert all(answer.error is None and len(answer.chunks) == tokens for answer in answers), answers[0].error
        return streams * tokens

    async with Client(Endpoint("stub", url, MODEL, ENGINES["vllm"]), Sampling(max_tokens=tokens)) as client:
        return await timed(all_streams(client))


async def straight(url: str, streams: int, tokens: int) -> dict[str, float]:
    """What is written in five minutes: aiohttp's lines, each through json.loads, and a stamp."""
    import aiohttp

    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": tokens, "stream": True}

    async def one(session: aiohttp.ClientSession) -> int:
        stamps = []
        async with session.post(f"{url}/chat/completions", json=body) as response:
            async for line in response.content:
                if line.startswith(b"data:") and b"[DONE]" not in line:
                    choices = json.loads(line[5:])["choices"]
                    if choices and choices[0]["delta"].get("content"):
                        stamps.append(time.perf_counter())
        return len(stamps)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as session:

        async def all_streams() -> int:
            return sum(await asyncio.gather(*(one(session) for _ in range(streams))))

        return await timed(all_streams())


async def cell(url: str, streams: int, tokens: int) -> dict[str, float]:
    """A whole cell: two requests a stream, each record made and written."""
    from toolkit.analysis.cell import CellPlan, Job, measure
    from toolkit.analysis.client import Client, Sampling
    from toolkit.analysis.endpoint import Endpoint
    from toolkit.analysis.records import CellKey, RequestRecord
    from toolkit.analysis.workload import Prompt
    from toolkit.engines import ENGINES

    prompt = Prompt(({"role": "user", "content": "hi"},), "chat")
    key = CellKey(arm="stub", side="arm", workload="w", concurrency=streams, round=1)
    plan = CellPlan(key, 1, 0, "stub", [Job(i, prompt) for i in range(2 * streams)], None)
    with open(os.devnull, "w") as file:

        def write(record: RequestRecord) -> None:
            assert (record.error, len(record.chunks)) == (None, tokens), record.error
            file.write(record.model_dump_json(by_alias=True, exclude_none=True))

        async with Client(Endpoint("stub", url, MODEL, ENGINES["vllm"]), Sampling(max_tokens=tokens)) as client:

            async def one_cell() -> int:
                record = await measure(client, plan, write)
                return record.requests * tokens

            return await timed(one_cell())


async def peer(url: str, streams: int, tokens: int) -> dict[str, float]:
    """`vllm bench serve`'s request function in a session as it opens one."""
    import aiohttp
    from vllm.benchmarks.lib.endpoint_request_func import RequestFuncInput, async_request_openai_chat_completions

    connector = aiohttp.TCPConnector(
        limit=streams, limit_per_host=streams, ttl_dns_cache=300, use_dns_cache=True, keepalive_timeout=60,
        enable_cleanup_closed=True, force_close=False,
    )  # fmt: skip
    timeout = aiohttp.ClientTimeout(total=6 * 60 * 60)
    asked = RequestFuncInput(
        prompt="hi", api_url=f"{url}/chat/completions", prompt_len=64, output_len=tokens, model=MODEL,
        extra_body={"return_token_ids": True},
    )  # fmt: skip
    async with aiohttp.ClientSession(connector=connector, trust_env=True, timeout=timeout) as session:

        async def all_streams() -> int:
            done = await asyncio.gather(
                *(async_request_openai_chat_completions(asked, session) for _ in range(streams))
            )
            # Its first chunk is the role's, which carries no token.
            assert all(one.success and one.output_tokens == tokens for one in done), done[0].error
            assert all(len(one.itl) == tokens for one in done), len(done[0].itl)
            return streams * tokens

        return await timed(all_streams())


if __name__ == "__main__":
    main()
