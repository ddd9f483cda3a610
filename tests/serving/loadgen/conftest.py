"""The server that the load generator is tested on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.openai_server import MisbehavingServer, misbehaving_server


@pytest.fixture
def server() -> Iterator[MisbehavingServer]:
    """Runs until the test ends."""
    with misbehaving_server() as running:
        yield running
