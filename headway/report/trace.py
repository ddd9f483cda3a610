"""A journal as Chrome trace JSON, which Perfetto and chrome://tracing open. Pure.

One process per rank with its operations and a counter of algbw; one process "network" with events as spans and the
load of each host's links as counters; one process "decisions" whose decisions and failures are instant events. A
gateway's requests are as `serving_trace` says. Times are microseconds since the start of the first run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from math import isfinite

from headway.report.explain import decision_words
from headway.report.figures import algbw_Bps
from headway.report.heatmap import link_rows
from headway.report.runs import Run
from headway.report.serving_run import ServingRun
from headway.report.serving_trace import serving_events
from headway.report.trace_events import MICRO, Argument, TraceEvent, lanes_of, process_events, trace_event

PER_RUN = 100_000  # process ids of one run; ranks count from 0, the two others from the end
NETWORK, DECISIONS = PER_RUN - 2, PER_RUN - 1


def trace_json(runs: Sequence[Run], *, serving: Sequence[ServingRun] = ()) -> str:
    """All runs in one trace. See the module's docstring for what is where."""
    zero_s = min([*(run.zero_s for run in runs), *(run.zero_s for run in serving)], default=0.0)
    events: list[TraceEvent] = []
    for index, run in enumerate(runs):
        events.extend(_run_events(run, index * PER_RUN, run.zero_s - zero_s, several=len(runs) > 1))
    for index, gateway in enumerate(serving, start=len(runs)):
        prefix = f"{gateway.label}: " if len(runs) + len(serving) > 1 else ""
        events.extend(serving_events(gateway, index * PER_RUN, gateway.zero_s - zero_s, prefix))
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
