"""`headway gateway`: an OpenAI-compatible reverse proxy that chooses a replica for each request."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from headway.serving.gateway.check import checked
from headway.serving.gateway.config import Config
from headway.serving.gateway.config_file import load_config
from headway.serving.gateway.gateway import Gateway


def gateway(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file; docs/gateway.md has its fields.")],
    check: Annotated[bool, typer.Option("--check", help="Check the file and print what would run.")] = False,
) -> None:
    """Answer OpenAI's API by the replicas of a file, each request where it is answered first."""
    logging.basicConfig(level=logging.WARNING, format="headway: %(message)s")
    read = load_config(config)
    if check:
        for line in checked(read, os.environ):
            print(line)
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(read, config))


async def _run(config: Config, path: Path) -> None:
    async with Gateway(config, os.environ, told=lambda line: print(f"gateway: {line}", flush=True)) as running:
        pools = ", ".join(f"{pool.name} ({pool.policy})" for pool in config.pools)
        elsewhere = f", metrics on {running.metrics_url}" if running.metrics_url != running.url else ""
        print(f"gateway: listens on {running.url}; pools: {pools}{elsewhere}", flush=True)
        _rare_collections()
        await running.until_stopped(lambda: load_config(path))


def _rare_collections() -> None:
    """Keep the garbage collector from going through everything that was imported, 30 ms each time, between two chunks.

    What a request leaves behind is freed by its counts; only cycles, of errors mostly, wait for the collector.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
