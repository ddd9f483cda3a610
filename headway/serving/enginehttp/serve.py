"""Several engines in one process, until told to stop."""

from __future__ import annotations

import asyncio
import resource
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from headway.errors import HeadwayError
from headway.serving.engine.types import EngineProfile
from headway.serving.enginehttp.answering import ServingSettings
from headway.serving.enginehttp.server import Engine

WATCH_S = 10.0
"""How often it is looked whether the machine keeps up, seconds."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """Equal engines.

    Attributes:
        count: how many, at least 1.
        profile: of each.
        settings: of each; the seeds count up.
        host: where they listen.
        port: the first one's; the others count up. 0: any that are free.
        faults_path: whether `/admin/faults` is there.
    """

    count: int
    profile: EngineProfile
    settings: ServingSettings
    host: str = "127.0.0.1"
    port: int = 8001
    faults_path: bool = False


async def serve(replicas: Replicas, announce: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM. UsageError where a port is taken; HeadwayError when an engine's core has failed.

    `announce` is told in a line what is served where, and when the machine cannot keep up.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection each; the usual 1024 are soon gone
    told_to_stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told_to_stop.set)
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(_engine(replicas, number)) for number in range(replicas.count)]
        profile = replicas.profile
        for engine in engines:
            announce(
                f"{engine.url}/v1  {replicas.settings.model} on {profile.device}, KV cache of {profile.cache_tokens} "
                f"tokens, contexts up to {engine.answering.most_context_tokens}"
            )
        lost_s = 0.0
        while not told_to_stop.is_set():
            try:
                await asyncio.wait_for(told_to_stop.wait(), WATCH_S)
            except TimeoutError:
                lost_s = _watch(engines, lost_s, announce)
        async with asyncio.TaskGroup() as group:
            for engine in engines:
                group.create_task(engine.stop())


def _engine(replicas: Replicas, number: int) -> Engine:
    return Engine(
        replicas.profile,
        replace(replicas.settings, seed=replicas.settings.seed + number),
        host=replicas.host,
        port=replicas.port + number if replicas.port else 0,
        faults_path=replicas.faults_path,
    )


def _watch(engines: list[Engine], known_lost_s: float, announce: Callable[[str], None]) -> float:
    """Say when the machine cannot keep up: time lost so far by all engines."""
    for engine in engines:
        if engine.answering.failure is not None:
            raise HeadwayError(f"{engine.url}: the engine has failed: {engine.answering.failure!r}")
    lost_s = sum(engine.answering.pace.lost_s for engine in engines)
    if lost_s > known_lost_s:
        announce(
            f"this machine is too slow for it: in the last {WATCH_S:g} s the engines fell behind by "
            f"{lost_s - known_lost_s:.1f} s more; lower --speed or the load"
        )
    return lost_s
