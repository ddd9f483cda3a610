"""`headway gateway`: an OpenAI-compatible reverse proxy that chooses a replica for each request.

What it needs is imported inside of the verb: that takes a second or more, in which signals must do what they promise.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headway.serving.gateway.config import Config


def gateway(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file; docs/gateway.md has its fields.")],
    check: Annotated[bool, typer.Option("--check", help="Check the file and print what would run.")] = False,
) -> None:
    """Answer OpenAI's API by the replicas of a file, each request where it is answered first."""
    logging.basicConfig(level=logging.WARNING, format="headway: %(message)s")
    if check:
        _check(config)
        return
    with _starting():
        import asyncio

        import uvloop

        from headway.serving.gateway.config_file import load_config

        read = load_config(config)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(read, config))


def _check(path: Path) -> None:
    from headway.serving.gateway.check import checked
    from headway.serving.gateway.config_file import load_config

    for line in checked(load_config(path), os.environ):
        print(line)


async def _run(config: Config, path: Path) -> None:
    from headway.serving.gateway.config_file import load_config
    from headway.serving.gateway.gateway import Gateway

    async with Gateway(config, os.environ, told=lambda line: print(f"gateway: {line}", flush=True)) as running:
        _rare_collections()
        pools = ", ".join(f"{pool.name} ({pool.policy})" for pool in config.pools)
        elsewhere = f", metrics on {running.metrics_url}" if running.metrics_url != running.url else ""
        print(f"gateway: listens on {running.url}; pools: {pools}{elsewhere}", flush=True)
        await running.until_stopped(lambda: load_config(path))


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """While the gateway starts and after it has ended: SIGHUP does nothing, as there is nothing to read again yet, and
    SIGTERM and SIGINT end it at once with 0, as there is nothing to let end. In between its event loop has them."""
    if threading.current_thread() is not threading.main_thread():  # only that one gets signals
        yield
        return
    before = {
        signal.SIGHUP: signal.signal(signal.SIGHUP, signal.SIG_IGN),
        signal.SIGTERM: signal.signal(signal.SIGTERM, _ended_early),
        signal.SIGINT: signal.signal(signal.SIGINT, _ended_early),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ended_early(number: int, frame: FrameType | None) -> None:
    os._exit(0)  # an exception could be swallowed by whatever is imported


def _rare_collections() -> None:
    """Keep the garbage collector from going through everything that was imported, 30 ms each time, between two chunks.

    What a request leaves behind is freed by its counts; only cycles, of errors mostly, wait for the collector.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
