"""Bytes are stamped as they come off the socket, however long it takes to understand them, and cheaply."""

import asyncio
import importlib.util
import ssl
import statistics
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from toolkit.analysis.arrivals import Arrivals, StampingConnector
from toolkit.analysis.client import Client, Sampling
from toolkit.analysis.endpoint import Endpoint
from toolkit.analysis.workload import Prompt
from toolkit.engines import ENGINES

ROOT = Path(__file__).parents[3]
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PROMPT = Prompt(({"role": "user", "content": "hi"},), "chat")
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def read_requests(reader: asyncio.StreamReader) -> None:
    await reader.readuntil(b"\r\n\r\n")


async def served_at(serve: Serve, context: ssl.SSLContext | None = None) -> tuple[asyncio.Server, str]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    scheme = "https" if context else "http"
    return server, f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


class TestStamps:
    def test_streams_that_become_readable_together_are_stamped_before_any_is_parsed(self) -> None:
        writers: list[asyncio.StreamWriter] = []
        stamps: list[float] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_requests(reader)
            writer.write(HEAD)
            writers.append(writer)

        def slow(data: bytes, arrived: float) -> bool:
            stamps.append(arrived)
            time.sleep(0.3)
            return True

        async def four() -> None:
            server, url = await served_at(serve)
            arrivals = Arrivals()
            async with server, aiohttp.ClientSession(connector=StampingConnector(arrivals)) as session:
                responses = [await session.get(url) for _ in range(4)]
                following = [asyncio.create_task(arrivals.follow(one, slow, 5)) for one in responses]
                await asyncio.sleep(0.05)
                for writer in writers:
                    writer.write(chunked(b"x"))
                await asyncio.gather(*following)
                for writer in writers:
                    writer.close()

        asyncio.run(four())
        assert max(stamps) - min(stamps) < 0.24, stamps  # 0.9 if the last were stamped after the others' parsing

    def test_bytes_that_came_while_the_loop_was_busy_with_a_head_are_stamped_at_their_read(self) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_requests(reader)
            writer.write(HEAD + chunked(b"first"))

        async def once() -> float:
            server, url = await served_at(serve)
            arrivals, stamps = Arrivals(), list[float]()
            async with server, aiohttp.ClientSession(connector=StampingConnector(arrivals)) as session:
                response = await session.get(url)
                time.sleep(0.1)  # what other streams may cost before this one's task goes on
                later = time.perf_counter()
                await arrivals.follow(response, lambda data, arrived: stamps.append(arrived) is None, 5)
            return later - stamps[0]

        assert asyncio.run(once()) > 0.09

    def test_a_stall_counts_from_the_last_byte(self) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_requests(reader)
            writer.write(HEAD)
            for _ in range(4):
                await asyncio.sleep(0.6)
                writer.write(chunked(b"x"))

        async def once() -> float:
            server, url = await served_at(serve)
            arrivals, stamps = Arrivals(), list[float]()
            async with server, aiohttp.ClientSession(connector=StampingConnector(arrivals)) as session:
                response = await session.get(url)
                with pytest.raises(TimeoutError):
                    await arrivals.follow(response, lambda data, arrived: bool(stamps.append(arrived)), 1.2)
            return time.perf_counter() - stamps[-1]

        assert 1.05 < asyncio.run(once()) < 2.4


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate that it signs itself, for two days."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(key.private_bytes(*form) + certificate.public_bytes(serialization.Encoding.PEM))
    return path


class TestConnections:
    """A hosted service is asked over TLS, and a connection is used again: a handshake is no part of TTFT."""

    def test_a_stream_over_tls_is_stamped_and_its_connection_used_again(self, certificate: Path) -> None:
        connections: list[int] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.append(1)
            while True:
                try:
                    await read_requests(reader)
                except (asyncio.IncompleteReadError, ConnectionError):
                    break
                writer.write(HEAD + chunked(b"a"))
                await asyncio.sleep(0.05)
                writer.write(chunked(b"b") + b"0\r\n\r\n")
            writer.close()

        async def thrice() -> list[tuple[bytes, bool]]:
            ours = ssl.create_default_context(cafile=certificate)
            ours.check_hostname = False
            theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            theirs.load_cert_chain(certificate)
            server, url = await served_at(serve, theirs)
            arrivals, found = Arrivals(), []
            session = aiohttp.ClientSession(connector=StampingConnector(arrivals, ssl=ours))
            async with server, session:
                for _ in range(3):
                    read: list[tuple[bytes, float]] = []
                    async with session.get(url) as response:
                        await arrivals.follow(response, lambda *one, to=read: to.append(one) is not None, 5)
                    found.append((b"".join(data for data, _ in read), read[-1][1] - read[0][1] > 0.03))
            return found

        assert asyncio.run(thrice()) == [(b"ab", True)] * 3
        assert len(connections) == 1

    def test_the_client_keeps_a_connection_whose_end_comes_after_the_streams_own(
        self, certificate: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        connections: list[int] = []
        events = [
            b'data: {"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]}\n\n',
            b'data: {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}\n\ndata: [DONE]\n\n',
        ]

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.append(1)
            while True:
                try:
                    await read_requests(reader)
                    await reader.readuntil(b"}")
                    await reader.read(1000)
                except (asyncio.IncompleteReadError, ConnectionError):
                    break
                writer.write(HEAD + b"".join(map(chunked, events)))
                await asyncio.sleep(0.05)
                writer.write(b"0\r\n\r\n")
            writer.close()

        async def twice() -> list[str | None]:
            theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            theirs.load_cert_chain(certificate)
            server, url = await served_at(serve, theirs)
            endpoint = Endpoint("a", url.rstrip("/").replace("127.0.0.1", "localhost"), "m", ENGINES["openai"])
            async with server, Client(endpoint, Sampling(), 5.0) as client:
                return [(await client.ask(PROMPT)).error for _ in range(2)]

        trusting = ssl.create_default_context(cafile=certificate)
        monkeypatch.setattr("aiohttp.connector._SSL_CONTEXT_VERIFIED", trusting)
        assert (asyncio.run(twice()), len(connections)) == ([None, None], 1)

    def test_a_body_that_came_whole_with_its_head_is_read(self) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_requests(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab")

        async def once() -> bytes:
            server, url = await served_at(serve)
            arrivals, read = Arrivals(), bytearray()
            session = aiohttp.ClientSession(connector=StampingConnector(arrivals))
            async with server, session, session.get(url) as response:
                await arrivals.follow(response, lambda data, arrived: read.extend(data) is not None, 5)
            return bytes(read)

        assert asyncio.run(once()) == b"ab"


@pytest.fixture(scope="module")
def load_client() -> ModuleType:
    spec = importlib.util.spec_from_file_location("load_client", ROOT / "benchmarks" / "load_client.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestCost:
    """benchmarks/load_client.py has the figures, and the comparison with `vllm bench serve`; here are ratios alone."""

    def test_a_chunk_costs_less_than_in_a_loop_over_lines(self, load_client: ModuleType) -> None:
        ratios = []
        with load_client.Stub(100) as stub:
            for _ in range(5):
                theirs, ours = (load_client.be(name, stub.port, 64, 100)["cpu"] for name in ("straight", "ours"))
                ratios.append(theirs / ours)
        assert statistics.median(ratios) > 1.1, ratios  # 1.6 on an idle machine

    def test_64_streams_of_50_chunks_a_second_leave_the_core_idle(self, load_client: ModuleType) -> None:
        with load_client.Stub(50, 50.0) as stub:
            shares = [one["cpu"] / one["wall"] for one in (load_client.be("ours", stub.port, 64, 50) for _ in range(2))]
        assert min(shares) < 0.2, shares  # 0.06 on an idle machine


def test_a_client_that_is_given_up_leaves_no_task_and_no_timer() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_requests(reader)
        writer.write(HEAD + chunked(b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'))

    async def once() -> int:
        server, url = await served_at(serve)
        endpoint = Endpoint("a", url.rstrip("/"), "m", ENGINES["openai"])
        async with server, Client(endpoint, Sampling(), 60.0) as client:
            asking = asyncio.create_task(client.ask(PROMPT))
            await asyncio.sleep(0.1)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            return len(asyncio.all_tasks()) - 2  # this one, and the server's connection

    assert asyncio.run(once()) <= 0
