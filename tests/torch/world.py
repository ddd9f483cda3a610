"""A small job on loopback: one process per rank, forked from a server that has torch loaded already."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["torch._dynamo", "torch.distributed.fsdp", "headway.torch.backend", "tests.torch.world"]
)

Body = Callable[..., Any]
_KEPT: list[object] = []


class WorldError(AssertionError):
    """A rank raised, ended, or ran out of time."""


def run_world(
    size: int,
    body: Body,
    *args: object,
    backend: str = "headway",
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
    group_timeout_s: float = 30.0,
    may_die: Sequence[int] = (),
) -> list[Any]:
    """Run `body(*args)` in `size` processes with the default group made; its results by rank.

    Args:
        size: number of ranks.
        body: a function of a module; what it returns must be picklable.
        args: for `body`.
        backend: of the default group.
        environment: more variables for the ranks.
        timeout_s: for all of it; what runs longer is killed.
        group_timeout_s: the default group's.
        may_die: ranks whose result may be missing, in which case it is None.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipes: list[Connection] = []
    processes = []
    for rank in range(size):
        mine, theirs = CONTEXT.Pipe(duplex=False)
        variables = {"MASTER_ADDR": "127.0.0.1", "RANK": str(rank), "WORLD_SIZE": str(size), **(environment or {})}
        process = CONTEXT.Process(
            target=_rank_main,
            args=(theirs, rank, size, store.port, backend, variables, group_timeout_s, body, args),
            daemon=True,
        )
        process.start()
        theirs.close()
        pipes.append(mine)
        processes.append(process)
    try:
        return _collect(pipes, time.monotonic() + timeout_s, may_die)
    finally:
        for process in processes:
            process.join(2.0)
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in pipes:
            pipe.close()


def _collect(pipes: list[Connection], deadline_s: float, may_die: Sequence[int]) -> list[Any]:
    results: dict[int, Any] = {}
    failures: list[str] = []
    while len(results) < len(pipes):
        open_pipes = {pipe: rank for rank, pipe in enumerate(pipes) if rank not in results}
        only_dead = set(open_pipes.values()) <= set(may_die)
        ready = wait(list(open_pipes), timeout=0.5 if only_dead else max(0.0, deadline_s - time.monotonic()))
        if not ready and only_dead and not failures:
            return [results.get(rank) for rank in range(len(pipes))]
        if not ready:
            raise WorldError("\n".join([*failures, f"ranks {sorted(open_pipes.values())} did not end in time"]))
        for pipe in ready:
            assert isinstance(pipe, Connection)
            rank = open_pipes[pipe]
            try:
                succeeded, value = pipe.recv()
            except EOFError:
                succeeded, value = rank in may_die, f"rank {rank} ended without a result"
                if succeeded:
                    value = None
            results[rank] = value
            if not succeeded:
                failures.append(f"rank {rank}: {value}")
                deadline_s = min(deadline_s, time.monotonic() + 5.0)
    if failures:
        raise WorldError("\n".join(failures))
    return [results[rank] for rank in range(len(pipes))]


def _rank_main(
    pipe: Connection,
    rank: int,
    size: int,
    port: int,
    backend: str,
    variables: Mapping[str, str],
    group_timeout_s: float,
    body: Body,
    args: tuple[object, ...],
) -> None:
    os.environ.update(variables)
    torch.set_num_threads(1)
    if "stand-in" in backend:
        dist.Backend.register_backend("stand-in", _stand_in, devices=["cuda"])
    try:
        store = TCPStore("127.0.0.1", port, is_master=False)
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=group_timeout_s)
        )
        if backend == "gloo":
            # A callback on gloo's own thread must not be the last to hold the group: that aborts the process.
            _KEPT.append(dist.group.WORLD)
        value = body(*args)
        if dist.is_initialized():
            dist.destroy_process_group()
        pipe.send((True, value))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
    finally:
        pipe.close()


def _stand_in(store: Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroupGloo:
    """Another device's backend, as a plugin registers it."""
    return dist.ProcessGroupGloo(store, rank, size, timeout)
