"""Skips the tests that need the kernel to load programs where it does not."""

from __future__ import annotations

import pytest

from headway.interleave import bpf


@pytest.fixture
def loadable() -> None:
    """Skips, with the reason, where BPF programs cannot be compiled or loaded."""
    missing = [reason for reason in bpf.requirements("bpf-reno").values() if reason is not None]
    if missing:
        pytest.skip("; ".join(missing))
