"""The pieces of a Chrome trace: events, names of processes, lanes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypedDict

MICRO = 1e6

Argument = str | int | float


class TraceEvent(TypedDict, total=False):
    """One entry of `traceEvents`, as the Trace Event Format names the fields."""

    name: str
    cat: str
    ph: str
    ts: float
    dur: float
    pid: int
    tid: int
    s: str
    args: dict[str, Argument]


def process_events(pid: int, name: str, order: int) -> Iterator[TraceEvent]:
    """The name of a process, and its place among the others."""
    yield {"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": name}}
    yield {"name": "process_sort_index", "ph": "M", "pid": pid, "tid": 0, "args": {"sort_index": order}}


def trace_event(name: str, category: str, phase: str, when: float, pid: int) -> TraceEvent:
    """What every event has, on thread 0; `when` in microseconds."""
    return {"name": name, "cat": category, "ph": phase, "ts": when, "pid": pid, "tid": 0}


def lanes_of(spans: Iterable[tuple[float, float]]) -> list[int]:
    """A lane per span, given in order of begin: spans on one lane must not overlap, or viewers nest them."""
    ends: list[float] = []
    lanes: list[int] = []
    for begin_s, end_s in spans:
        lane = next((k for k, busy_s in enumerate(ends) if busy_s <= begin_s), len(ends))
        if lane == len(ends):
            ends.append(0.0)
        ends[lane] = end_s
        lanes.append(lane)
    return lanes
