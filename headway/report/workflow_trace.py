"""Workflows' runs as Chrome trace JSON, which Perfetto and chrome://tracing open. Pure.

One process per run, runs at the times at which they were. Each call is a span named by its model; calls of a run that
overlap lie on lanes of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from headway.report.trace_events import MICRO, Argument, TraceEvent, lanes_of, process_events, trace_event
from headway.serving.workflows.calls import Run


def workflow_trace_json(runs: Sequence[Run]) -> str:
    """All runs in one trace; times are microseconds since the start of the first one."""
    zero_s = min((run.start_s for run in runs), default=0.0)
    events = [event for pid, run in enumerate(runs, start=1) for event in _events(run, pid, zero_s)]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _events(run: Run, pid: int, zero_s: float) -> Iterator[TraceEvent]:
    yield from process_events(pid, f"{run.workflow} {run.id}", pid)
    lanes = lanes_of((call.start_s, call.end_s) for call in run.calls)
    for call, lane in zip(run.calls, lanes, strict=True):
        about: dict[str, Argument] = {
            "id": call.id,
            "input_tokens": call.input_tokens,
            "output_tokens": call.output_tokens,
        }
        event = trace_event(call.model, "call", "X", round((call.start_s - zero_s) * MICRO, 3), pid)
        duration = round((call.end_s - call.start_s) * MICRO, 3)
        yield {**event, "tid": lane, "dur": duration, "args": about}
