"""Curves from the engine model, made in several processes: on one core those of calls in bursts take minutes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from headway.serving.allocation.engine_profile import CurvesOf, Maker, Task, curves
from headway.serving.allocation.types import Curve
from headway.serving.workflows.calls import Call

LEAST_TASKS = 8
"""Curves from which on processes are worth their start (count)."""

_maker: Maker | None = None
"""Of this process: what it makes all its curves with."""


def in_processes(told: Callable[[int, int], None]) -> CurvesOf:
    """`engine_profile.curves` on all cores that this process may use; `told` gets how many of how many are made."""

    def made(calls: Sequence[Call], seed: int, tasks: Sequence[Task]) -> Iterator[Curve]:
        told(0, len(tasks))
        for number, curve in enumerate(_curves(calls, seed, tasks), start=1):
            told(number, len(tasks))
            yield curve

    return made


def _curves(calls: Sequence[Call], seed: int, tasks: Sequence[Task]) -> Iterator[Curve]:
    workers = min(len(os.sched_getaffinity(0)), len(tasks))
    if workers < 2 or len(tasks) < LEAST_TASKS:
        yield from curves(calls, seed, tasks)
        return
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawned, initializer=_begin, initargs=(calls, seed)) as pool:
        try:
            yield from pool.map(_curve, tasks)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _begin(calls: Sequence[Call], seed: int) -> None:
    global _maker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends them, in one place and without their tracebacks
    _maker = Maker(calls, seed)


def _curve(task: Task) -> Curve:
    assert _maker is not None
    return _maker.curve(task)
