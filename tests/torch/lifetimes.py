"""Groups that begin and end: each function runs in every rank of a test world."""

from __future__ import annotations

import threading
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

LIMIT = timedelta(seconds=20)


def generations() -> list[float]:
    """Three jobs' worth of groups one after the other in one store, and subgroups of changing members in each."""
    store = dist.distributed_c10d._get_default_store()
    rank, size = dist.get_rank(), dist.get_world_size()
    sums = []
    for generation in range(3):
        dist.destroy_process_group()
        dist.init_process_group("headway", store=store, rank=rank, world_size=size, timeout=LIMIT)
        tensor = torch.full((4,), rank + 1.0)
        dist.all_reduce(tensor)
        gathered: list[object] = [None] * size
        dist.gather_object((generation, rank), gathered if rank == 0 else None, dst=0)
        assert rank or gathered == [(generation, other) for other in range(size)]
        for members in (list(range(size)), [generation % size, (generation + 1) % size], list(range(size))):
            group = dist.new_group(sorted(members))
            if rank in members:
                part = torch.ones(3)
                dist.all_reduce(part, group=group)
                assert part.tolist() == [len(members)] * 3
                dist.barrier(group=group)
                dist.destroy_process_group(group)
        sums.append(tensor[0].item())
    return sums


def the_last_holder_is_a_callback(operation: str) -> bool:
    """A callback that holds the group goes on after everybody else has let go of it. Whether it ran to its end.

    On a thread of gloo's this would abort the process.
    """
    group = dist.group.WORLD
    assert group is not None
    began, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def callback(_: torch.futures.Future[list[Tensor]], held: object = group) -> None:
        began.set()
        may_end.wait(20)
        ended.set()

    if operation == "barrier":
        work = dist.barrier(async_op=True)
    elif operation == "all_to_all_single":
        work = dist.all_to_all_single(torch.zeros(4_000_002), torch.ones(4_000_002), async_op=True)
    else:
        work = dist.all_reduce(torch.ones(4_000_002), async_op=True)
    assert work is not None
    future = work.get_future().then(callback)
    del group, callback, work, future
    assert began.wait(20)
    dist.destroy_process_group()
    may_end.set()
    return ended.wait(20)


def callbacks_wait_for_gloo() -> list[float]:
    """More callbacks than gloo has threads, each waiting for another operation of gloo's."""
    size = dist.get_world_size()

    def exchange(_: torch.futures.Future[list[Tensor]]) -> Tensor:
        output = torch.zeros(size)
        dist.all_to_all_single(output, torch.ones(size))
        return output

    sums = []
    for _ in range(4):
        work = dist.barrier(async_op=True)
        assert work is not None
        sums.append(float(work.get_future().then(exchange).wait().sum()))
    return sums
