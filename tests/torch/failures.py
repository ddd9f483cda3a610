"""Ranks that fail on purpose: what the others see."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from headway.errors import DeadlineError, PeerLostError, TransportError

VICTIM = 1
LARGE = 8_000_000
"""Elements: long enough under way on loopback that the victim fails in the middle."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def seen(call: Callable[[], object]) -> dict[str, object]:
    """What `call` raised, and how long it took."""
    began_s = time.monotonic()
    try:
        call()
    except RuntimeError as error:
        return {
            "seconds": time.monotonic() - began_s,
            "kind": type(error).__name__,
            "rank": error.rank if isinstance(error, TransportError) else None,
            "lost": isinstance(error, PeerLostError),
            "late": isinstance(error, DeadlineError),
            "text": str(error),
        }
    return {"seconds": time.monotonic() - began_s, "kind": "none"}


def fails_midway(how: str) -> dict[str, object]:
    """The victim dies or stops while an all-reduce is under way; what the others saw, and what they have left."""
    dist.all_reduce(torch.ones(1000))
    if dist.get_rank() == VICTIM:
        threading.Timer(0.02, die if how == "die" else stop).start()
    tensor = torch.ones(LARGE)

    def many() -> None:
        for _ in range(100):
            dist.all_reduce(tensor)

    report = seen(many)
    report["again"] = seen(lambda: dist.all_reduce(torch.ones(2)))
    group = dist.group.WORLD
    assert group is not None
    group.abort()
    dist.destroy_process_group()
    report["threads"] = [thread.name for thread in threading.enumerate() if thread.name.startswith("headway")]
    return report


def one_stays_away() -> dict[str, object]:
    """The victim is alive but does not take part; the limit is the group's."""
    group = dist.new_group(timeout=timedelta(seconds=1.5))
    dist.barrier()
    report: dict[str, object] = {}
    if dist.get_rank() != VICTIM:
        report = seen(lambda: dist.all_reduce(torch.ones(100), group=group))
    else:
        time.sleep(3.0)
    dist.barrier()
    return report


def call_limit() -> dict[str, object]:
    """A wait with a limit of its own leaves the operation running."""
    report: dict[str, object] = {}
    dist.barrier()
    if dist.get_rank() == VICTIM:
        time.sleep(1.0)
    tensor = torch.ones(4)
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    if dist.get_rank() != VICTIM:
        report = seen(lambda: work.wait(timedelta(seconds=0.2)))
    assert work.wait()
    assert tensor.tolist() == [dist.get_world_size()] * 4
    return report


def aborted() -> dict[str, object]:
    """Rank 0 aborts while the others wait for it."""
    dist.all_reduce(torch.ones(10))
    group = dist.group.WORLD
    assert group is not None
    if dist.get_rank() == 0:
        time.sleep(0.3)
        group.abort()
        return {}
    return seen(lambda: dist.all_reduce(torch.ones(10)))


def subgroup_names_both_ranks() -> dict[str, object]:
    """In a group of ranks 1 and 2 its rank 1 is the job's rank 2."""
    group = dist.new_group([1, 2], timeout=timedelta(seconds=20))
    if dist.get_rank():
        dist.all_reduce(torch.ones(100), group=group)
    dist.barrier()
    if dist.get_rank() == 2:
        die()
    if dist.get_rank() == 1:
        return seen(lambda: dist.all_reduce(torch.ones(100), group=group))
    return {}


def leaves_a_dump() -> None:
    """The victim misses the last all-reduce; every kind of operation comes before."""
    size, rank = dist.get_world_size(), dist.get_rank()
    dist.all_reduce(torch.ones(8))
    dist.all_gather([torch.ones(2) for _ in range(size)], torch.ones(2))
    dist.reduce_scatter(torch.ones(2), [torch.ones(2) for _ in range(size)])
    dist.broadcast(torch.ones(3), 0)
    dist.gather(torch.ones(2), [torch.ones(2) for _ in range(size)] if rank == 0 else None)
    dist.scatter(torch.ones(2), [torch.ones(2) for _ in range(size)] if rank == 0 else None)
    dist.all_to_all_single(torch.ones(size), torch.ones(size))
    if rank == 0:
        dist.send(torch.ones(4), 1)
    elif rank == 1:
        dist.recv(torch.ones(4), 0)
    dist.barrier()
    if rank != VICTIM:
        seen(lambda: dist.all_reduce(torch.ones(5)))
    else:
        time.sleep(2.0)


def called_differently(how: str) -> dict[str, object]:
    """In the second operation the victim calls something else; every rank leaves as soon as it has its error."""
    dist.all_reduce(torch.ones(10))
    count, dtype, op = 50_000, torch.float32, dist.ReduceOp.SUM
    if dist.get_rank() == VICTIM:
        count = 40_000 if how == "size" else count
        dtype = {"dtype": torch.float64, "same size": torch.int32}.get(how, dtype)
        op = dist.ReduceOp.MAX if how == "op" else op
    elif how == "broadcast 1, early":
        time.sleep(0.5)
    tensor = torch.ones(count, dtype=dtype)

    def call() -> None:
        if how.startswith("broadcast") and dist.get_rank() == VICTIM:
            dist.broadcast(tensor, int(how[10]))
            dist.all_reduce(tensor)
        else:
            dist.all_reduce(tensor, op)

    return seen(call)


def both_wait_for_the_other() -> dict[str, object]:
    """No message is ever sent: each rank takes another one for the root."""
    return seen(lambda: dist.broadcast(torch.ones(10), 1 - dist.get_rank()))


def one_comes_too_late() -> dict[str, object]:
    """The victim calls when the others have given up and left."""
    dist.all_reduce(torch.ones(10))
    if dist.get_rank() == VICTIM:
        time.sleep(3.0)
    return seen(lambda: dist.all_reduce(torch.ones(10)))
