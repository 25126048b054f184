"""The stub server, for every test that talks to an endpoint."""

import signal
from collections.abc import Iterator

import pytest
from stub_server import StubServer

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job; what we start would not hear a Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def stub() -> Iterator[StubServer]:
    """A server that speaks like vLLM without speculation."""
    with StubServer() as server:
        yield server
