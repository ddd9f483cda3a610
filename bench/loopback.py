"""All-reduce on loopback, executor and TCP transport against torch's gloo, interleaved in one run.

    python -m bench.loopback [--ranks 4] [--sizes 4KiB,64KiB,...] [--blocks 9] [--plans ring,direct,...] [--chunk 64KiB]

Every rank is a process with one gloo group and one Headway transport. A block is a number of all-reduces with gloo,
then the same number with each plan, in an order that turns from block to block; the time of a block is the slowest
rank's. The ratio is gloo's time over ours within one block: 1.2x means that we are faster. The second ratio is of the
CPU time of all ranks, which other load on the machine disturbs less. Sums are checked.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from headway.cluster.units import format_bytes, format_time, parse_bytes
from headway.collectives import families
from headway.collectives.chunking import chunk_bytes_for
from headway.collectives.executor import PipelinedExecutor
from headway.collectives.operation import Operation, OperationOutcome
from headway.collectives.plan import Collective, Plan
from headway.collectives.reducers import NumpyReducer, ReduceKind
from headway.torch.store import StoreRendezvous
from headway.transport.tcp import TcpTransport

DEFAULT_SIZES = "4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,16MiB,64MiB,256MiB"
BLOCK_BYTES = 96 * 2**20
LIMIT_S = 120.0


@dataclass(frozen=True)
class _Options:
    ranks: int
    sizes: tuple[int, ...]
    blocks: int
    plans: tuple[str, ...]
    chunk_bytes: int | None
    store: str
    profile: str


def make_plan(name: str, ranks: int) -> Plan:
    """A plan by the name that people know it by."""
    order = list(range(ranks))
    makers: dict[str, Callable[[], Plan]] = {
        "ring": lambda: families.ring(order),
        "ring-midway": lambda: families.ring(order, midway=True),
        "direct": lambda: families.direct([1.0] * ranks),
        "star": lambda: families.star(ranks, 0),
        "double-tree": lambda: families.double_tree(order),
    }
    return makers[name]()


class _Ours:
    """All-reduces of one plan after the other on one executor."""

    def __init__(self, transport: TcpTransport, chunk_bytes: int | None) -> None:
        self._executor = PipelinedExecutor(transport)
        self._reducer = NumpyReducer(ReduceKind.SUM, "float32", size=transport.size)
        self._chunk_bytes = chunk_bytes
        self._number = 0

    def all_reduce(self, plan: Plan, buffer: memoryview) -> None:
        """In place; blocks."""
        ended = threading.Event()
        outcomes: list[OperationOutcome] = []

        def done(outcome: OperationOutcome) -> None:
            outcomes.append(outcome)
            ended.set()

        chunk = self._chunk_bytes or chunk_bytes_for(plan, Collective.ALL_REDUCE, len(buffer), 4)
        operation = Operation(
            number=self._number,
            collective=Collective.ALL_REDUCE,
            plan=plan,
            buffer=buffer,
            element_bytes=4,
            reducer=self._reducer,
            in_rank_order=False,
            chunk_bytes=chunk,
            label=f"all_reduce #{self._number} of group bench",
            deadline_s=time.monotonic() + LIMIT_S,
        )
        self._number += 1
        self._executor.start(operation, done)
        ended.wait()
        if outcomes[0].error is not None:
            raise outcomes[0].error


def _worker(rank: int, options: _Options) -> None:
    torch.set_num_threads(1)
    store = FileStore(options.store, options.ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=options.ranks)
    rendezvous = StoreRendezvous(store, "loopback")
    transport = TcpTransport(rank=rank, size=options.ranks, rendezvous=rendezvous)
    if options.profile and rank == 0:
        _profile_progress_thread(transport, options.profile)
    ours = _Ours(transport, options.chunk_bytes)
    plans = {name: make_plan(name, options.ranks) for name in options.plans}
    if rank == 0:
        print(f"{'size':>10} {'gloo':>10}  " + "  ".join(f"{name + ' ratio (spread) cpu ratio':>40}" for name in plans))
    for size_bytes in options.sizes:
        _measure(rank, options, ours, plans, size_bytes)
    dist.barrier()
    transport.close()
    dist.destroy_process_group()


def _measure(rank: int, options: _Options, ours: _Ours, plans: dict[str, Plan], size_bytes: int) -> None:
    tensor = torch.empty(size_bytes // 4)
    buffer = tensor.numpy().data.cast("B")
    repeats = max(1, min(200, BLOCK_BYTES // options.ranks // size_bytes))
    runs: dict[str, Callable[[], None]] = {"gloo": lambda: dist.all_reduce(tensor)}
    for name, plan in plans.items():
        runs[name] = partial(ours.all_reduce, plan, buffer)
    names = list(runs)
    times: dict[str, list[float]] = {name: [] for name in names}
    cpu: dict[str, list[float]] = {name: [] for name in names}
    for block in range(options.blocks + 1):
        for name in names[block % len(names) :] + names[: block % len(names)]:
            tensor.fill_(rank + 1)
            runs[name]()
            if tensor[0] != sum(range(1, options.ranks + 1)) or not bool((tensor == tensor[0]).all()):
                raise AssertionError(f"{name}: wrong sum of {size_bytes} bytes on rank {rank}")
            tensor.zero_()
            dist.barrier()
            started_s, cpu_s = time.perf_counter(), time.process_time()
            for _ in range(repeats):
                runs[name]()
            took = torch.tensor([(time.perf_counter() - started_s) / repeats], dtype=torch.float64)
            used = torch.tensor([(time.process_time() - cpu_s) / repeats], dtype=torch.float64)
            dist.all_reduce(took, op=dist.ReduceOp.MAX)
            dist.all_reduce(used)
            if block:  # the first one warms up
                times[name].append(float(took))
                cpu[name].append(float(used))
    if rank == 0:
        row = [f"{format_bytes(size_bytes):>10} {format_time(statistics.median(times['gloo'])):>10}  "]
        for name in plans:
            ratios = sorted(a / b for a, b in zip(times["gloo"], times[name], strict=True))
            text = f"{format_time(statistics.median(times[name]))} {statistics.median(ratios):.2f}x"
            saved = statistics.median(cpu["gloo"]) / statistics.median(cpu[name])
            row.append(f"{text} ({ratios[0]:.2f}-{ratios[-1]:.2f}) {saved:5.2f}x".rjust(40))
        print("  ".join(row), flush=True)


def _profile_progress_thread(transport: TcpTransport, path: str) -> None:
    import cProfile

    profile = cProfile.Profile()
    transport.run_soon(profile.enable)

    def write() -> None:
        profile.disable()
        profile.dump_stats(path)
        profile.enable()
        transport.run_at(time.monotonic() + 1.0, write)

    transport.run_soon(lambda: transport.run_at(time.monotonic() + 1.0, write))


def main() -> None:
    """Parse, start the ranks, wait."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--sizes", default=DEFAULT_SIZES)
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--plans", default="direct,ring")
    parser.add_argument("--chunk", default="")
    parser.add_argument("--profile", default="", help="write rank 0's progress thread's profile to this file")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    np.seterr(all="ignore")
    with tempfile.TemporaryDirectory() as folder:
        options = _Options(
            ranks=given.ranks,
            sizes=tuple(parse_bytes(size, where="--sizes") for size in given.sizes.split(",")),
            blocks=given.blocks,
            plans=tuple(given.plans.split(",")),
            chunk_bytes=parse_bytes(given.chunk, where="--chunk") if given.chunk else None,
            store=os.path.join(folder, "store"),
            profile=given.profile,
        )
        context = multiprocessing.get_context("spawn")
        workers = [context.Process(target=_worker, args=(rank, options)) for rank in range(options.ranks)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if any(worker.exitcode for worker in workers):
            raise SystemExit(1)


if __name__ == "__main__":
    main()
