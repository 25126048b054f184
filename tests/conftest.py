"""The stub server, for every test that talks to an endpoint."""

from collections.abc import Iterator

import pytest
from stub_server import StubServer


@pytest.fixture
def stub() -> Iterator[StubServer]:
    """A server that speaks like vLLM without speculation."""
    with StubServer() as server:
        yield server
