"""A run of execution traces as Chrome trace JSON: a process per NPU with its nodes, in simulated microseconds."""

from __future__ import annotations

import json

from headway.report.trace_events import MICRO, TraceEvent, lanes_of, process_events, trace_event
from headway.sim.traces.trace_run import TraceResult


def npu_trace_json(result: TraceResult) -> str:
    """Spans of all nodes that took time."""
    events: list[TraceEvent] = []
    for npu in range(len(result.ends_s)):
        events += process_events(npu, f"npu{npu}", npu)
        mine = sorted(
            (time for time in result.nodes if time.npu == npu and time.end_s > time.start_s),
            key=lambda time: (time.start_s, time.node.id),
        )
        lanes = lanes_of((time.start_s, time.end_s) for time in mine)
        for time, lane in zip(mine, lanes, strict=True):
            node = time.node
            event = trace_event(node.name or node.kind.name, node.kind.name, "X", time.start_s * MICRO, npu)
            event["tid"] = lane
            event["dur"] = (time.end_s - time.start_s) * MICRO
            event["args"] = {"node": node.id, "bytes": node.size_bytes, "group": node.group}
            events.append(event)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"})
