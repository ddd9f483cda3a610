"""Curves made in processes are those made one after the other."""

from __future__ import annotations

import os

import pytest

from headway.serving.allocation import engine_profile
from headway.serving.allocation.engine_profile import Task, curves
from headway.serving.allocation.types import Shape
from headway.serving.profiling import processes
from headway.serving.profiling.processes import LEAST_TASKS, in_processes
from headway.serving.workflows.calls import Call

MODEL = "llama-3.2-1b"
CALLS = [
    Call("w", f"r{run}", str(at), MODEL, 50.0 * run, 50.0 * run + 1, 100 + run, 5)
    for run in range(4)
    for at in range(8)
]


def tasks(spreads: range) -> list[Task]:
    shapes = [Shape(1, 5), Shape(1, 10)]
    engines = engine_profile.fitting("a100", MODEL, shapes, 10, cache_tokens=1, block_tokens=16)
    return [Task(engine, spread, 40) for spread in spreads for engine in engines.values()]


@pytest.mark.parametrize("spreads", [range(1, 2), range(1, 5)])
def test_the_same_curves_in_the_same_order(spreads: range) -> None:
    asked = tasks(spreads)
    told: list[tuple[int, int]] = []
    made = list(in_processes(lambda done, total: told.append((done, total)))(CALLS, 3, asked))
    assert made == list(curves(CALLS, 3, asked))
    assert told == [(done, len(asked)) for done in range(len(asked) + 1)]


def test_there_are_no_more_processes_than_cores_and_none_for_few_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def pool(workers: int, **_: object) -> object:
        started.append(workers)
        raise InterruptedError

    monkeypatch.setattr(processes, "ProcessPoolExecutor", pool)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(3)))
    many = tasks(range(1, LEAST_TASKS))
    with pytest.raises(InterruptedError):
        next(iter(in_processes(lambda *_: None)(CALLS, 1, many)))
    assert started == [3]
    few = tasks(range(1, 2))
    assert len(list(in_processes(lambda *_: None)(CALLS, 1, few))) == len(few) < LEAST_TASKS
    assert started == [3]
