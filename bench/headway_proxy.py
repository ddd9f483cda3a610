"""Headway's gateway as the benches start it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.proxies import Proxy
from headway import __version__

POLICIES = ("round-robin", "prefix-and-load", "learned")
COMMAND = str(Path(sys.executable).with_name("headway"))
"""Of the environment that this runs in."""


def headway(
    policy: str, port: int, engines: Sequence[int], folder: Path, options: Mapping[str, object] | None = None
) -> Proxy:
    """The gateway with one policy, its journal on, as it would be run; `options` are the policy's."""
    pool = {
        "models": ["m"],
        "policy": policy,
        "options": dict(options or {}),
        "replicas": [f"http://127.0.0.1:{engine}" for engine in engines],
    }
    journal = {"path": str(folder / f"journal-{policy}-{port}")}
    file = folder / f"headway-{policy}-{port}.json"  # JSON is YAML
    file.write_text(json.dumps({"listen": {"port": port}, "pools": [pool], "journal": journal}))
    return Proxy(f"headway {policy}", f"headway {__version__}", (COMMAND, "gateway", str(file)))
