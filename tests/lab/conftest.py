"""Skips the tests that need real namespaces where those cannot be made."""

from __future__ import annotations

import os

import pytest

from headway.lab import kernel


@pytest.fixture
def privileged() -> None:
    """Skips where labs cannot be built."""
    if not kernel.privileged():
        pytest.skip("making network namespaces needs root")
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        pytest.skip("no /dev/net/tun, which delay and loss need without netem")
