"""A gateway in this process, in front of the engines of a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from headway.serving.gateway.config import Config
from headway.serving.gateway.gateway import Gateway

PATIENCE_S = 5.0


def config_of(urls: Sequence[str], *, pool: Mapping[str, Any] | None = None, **parts: Any) -> Config:
    """A configuration with one pool of these replicas on a free port."""
    replicas = [{"url": url, "name": f"r{number}"} for number, url in enumerate(urls)]
    whole = {"policy": "round-robin", "replicas": replicas, "scrape_s": 0.05, **(pool or {})}
    return Config.model_validate({"listen": {"port": 0}, "pools": [whole], **parts})


@asynccontextmanager
async def gateway(
    urls: Sequence[str],
    *,
    pool: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    told: list[str] | None = None,
    **parts: Any,
) -> AsyncIterator[Gateway]:
    """A gateway whose replicas have all joined.

    Args:
        urls: of the engines; they are named r0, r1 and so on.
        pool: fields of its one pool.
        environment: variables.
        told: gets the lines that it has to say.
        parts: other parts of its configuration.
    """
    lines = told if told is not None else []
    config = config_of(urls, pool=pool, **parts)
    async with Gateway(config, environment or {}, told=lines.append) as running:
        async with asyncio.timeout(PATIENCE_S):
            while len(running.admission.pools[0].fleet.names) < len(urls):
                await asyncio.sleep(0.01)
        yield running
