"""A journal as Chrome trace JSON, which Perfetto and chrome://tracing open. Pure.

One process per rank with its operations and a counter of algbw; one process "network" with events as spans and the
load of each host's links as counters; one process "decisions" whose decisions and failures are instant events. Times
are microseconds since the start of the first run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from math import isfinite
from typing import TypedDict

from headway.report.explain import decision_words
from headway.report.figures import algbw_Bps
from headway.report.heatmap import link_rows
from headway.report.runs import Run

MICRO = 1e6
PER_RUN = 100_000  # process ids of one run; ranks count from 0, the two others from the end
NETWORK, DECISIONS = PER_RUN - 2, PER_RUN - 1

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


def trace_json(runs: Sequence[Run]) -> str:
    """All runs in one trace. See the module's docstring for what is where."""
    zero_s = min((run.zero_s for run in runs), default=0.0)
    events: list[TraceEvent] = []
    for index, run in enumerate(runs):
        events.extend(_run_events(run, index * PER_RUN, run.zero_s - zero_s, several=len(runs) > 1))
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _run_events(run: Run, first_pid: int, shift_s: float, *, several: bool) -> Iterator[TraceEvent]:
    def at(time_s: float) -> float:
        return round((time_s + shift_s) * MICRO, 3)

    prefix = f"{run.label}: " if several else ""
    ranks = sorted({o.rank for o in run.operations})
    for rank in ranks:
        host = run.host(rank)
        name = f"rank {rank}" + (f" on {host}" if host != f"rank {rank}" else "")
        yield from process_events(first_pid + rank, prefix + name, rank)
        mine = sorted((o for o in run.operations if o.rank == rank), key=run.began_s)
        lanes = lanes_of((run.began_s(o), run.ended_s(o)) for o in mine)
        for op, lane in zip(mine, lanes, strict=True):
            arguments: dict[str, Argument] = {"operation": op.operation, "size_bytes": op.size_bytes, "plan": op.plan}
            if op.limit_s is not None and isfinite(op.limit_s):
                arguments["limit_ms"] = round(op.limit_s * 1e3, 3)
            event = trace_event(
                f"{op.collective} #{op.operation}", "operation", "X", at(run.began_s(op)), first_pid + rank
            )
            yield {**event, "tid": lane, "dur": round(op.duration_s * MICRO, 3), "args": arguments}
            if op.duration_s > 0:
                rate: dict[str, Argument] = {"MB/s": round(algbw_Bps(op) / 1e6, 3)}
                yield {**trace_event("algbw", "counter", "C", at(run.ended_s(op)), first_pid + rank), "args": rate}
    yield from _network(run, first_pid + NETWORK, prefix, at(0.0) / MICRO)
    yield from process_events(first_pid + DECISIONS, f"{prefix}decisions", PER_RUN)
    for decision in run.decisions:
        words = f"{decision.action}: {decision.plan_after}"
        told = decision.reason if decision.action == "hold" else decision_words(decision)
        more: dict[str, Argument] = {"epoch": decision.epoch, "from_operation": decision.from_operation, "told": told}
        when = at(decision.t_s - run.zero_s)
        yield {**trace_event(words, "decision", "i", when, first_pid + DECISIONS), "s": "g", "args": more}
    for failure in run.failures:
        blamed = -1 if failure.blamed_rank is None else failure.blamed_rank
        about: dict[str, Argument] = {"what": failure.what, "rank": failure.rank, "blamed_rank": blamed}
        when = at(failure.t_s - run.zero_s)
        event = trace_event(f"failed: {failure.operation}", "failure", "i", when, first_pid + DECISIONS)
        yield {**event, "s": "g", "args": about}


def _network(run: Run, pid: int, prefix: str, shift_s: float) -> Iterator[TraceEvent]:
    yield from process_events(pid, f"{prefix}network", PER_RUN)
    for event, lane in zip(run.events, lanes_of((e.begin_s, e.end_s) for e in run.events), strict=True):
        begin = round((event.begin_s + shift_s) * MICRO, 3)
        arguments: dict[str, Argument] = {"id": event.name, "links": ", ".join(event.links)}
        span = trace_event(event.what, "event", "X", begin, pid)
        yield {**span, "tid": lane, "dur": round((event.end_s - event.begin_s) * MICRO, 3), "args": arguments}
    for row in link_rows(run):
        for cell in row.cells:
            load: dict[str, Argument] = {"MB/s": round(cell.load_Bps / 1e6, 3)}
            begin = round((cell.begin_s + shift_s) * MICRO, 3)
            yield {**trace_event(f"{row.host} {row.direction}", "counter", "C", begin, pid), "args": load}


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
