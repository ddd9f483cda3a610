"""A gateway's requests as Chrome trace events. Pure.

One process per replica: a request is a span with two inside, `queue + prefill` from its sending to the first token and
`decode` from there to its end; requests that overlap lie on lanes of their own. One process "gateway" with the requests
that it turned away or that no replica answered, and what changed in the fleet as instant events.
"""

from __future__ import annotations

from collections.abc import Iterator

from headway.decide.journal import RequestRecord
from headway.report.serving_run import ServingRun
from headway.report.trace_events import MICRO, Argument, TraceEvent, lanes_of, process_events, trace_event


def serving_events(run: ServingRun, first_pid: int, shift_s: float, prefix: str) -> Iterator[TraceEvent]:
    """A run's events.

    Args:
        run: the run.
        first_pid: process id of the gateway; its replicas follow.
        shift_s: from the trace's start to the run's.
        prefix: goes before each process's name.
    """

    def at(wall_s: float) -> float:
        return round((wall_s - run.zero_s + shift_s) * MICRO, 3)

    yield from process_events(first_pid, f"{prefix}gateway", first_pid)
    for change in run.changes:
        told: dict[str, Argument] = {"what": change.what, "replica": change.replica, "policy": change.policy}
        name = f"{change.event}: {change.replica or change.policy}"
        yield {**trace_event(name, "serving", "i", at(change.t_s), first_pid), "s": "p", "args": told}
    for record in run.requests:
        if not record.replica:
            event = trace_event(f"{record.end}: {record.request}", "request", "i", at(record.arrived_s), first_pid)
            yield {**event, "s": "t", "args": _arguments(record)}
    replicas = sorted({record.replica for record in run.requests if record.replica})
    for number, replica in enumerate(replicas, start=1):
        pid = first_pid + number
        yield from process_events(pid, f"{prefix}replica {replica}", pid)
        mine = sorted((r for r in run.requests if r.replica == replica), key=_sent_s)
        lanes = lanes_of((_sent_s(r), _end_s(r)) for r in mine)
        for record, lane in zip(mine, lanes, strict=True):
            sent_s, end_s = _sent_s(record), _end_s(record)
            first_s = end_s if record.ttft_s is None else record.arrived_s + record.ttft_s
            whole = trace_event(f"{record.request} ({record.end})", "request", "X", at(sent_s), pid)
            yield {**whole, "tid": lane, "dur": _duration(sent_s, end_s), "args": _arguments(record)}
            prefill = trace_event("queue + prefill", "prefill", "X", at(sent_s), pid)
            yield {**prefill, "tid": lane, "dur": _duration(sent_s, first_s)}
            if record.ttft_s is not None:
                decode = trace_event("decode", "decode", "X", at(first_s), pid)
                yield {**decode, "tid": lane, "dur": _duration(first_s, end_s)}


def _sent_s(record: RequestRecord) -> float:
    return record.arrived_s + (record.sent_s or 0.0)


def _end_s(record: RequestRecord) -> float:
    return record.arrived_s + record.e2e_s


def _duration(begin_s: float, end_s: float) -> float:
    return round(max(0.0, end_s - begin_s) * MICRO, 3)


def _arguments(record: RequestRecord) -> dict[str, Argument]:
    found: dict[str, Argument | None] = {
        "model": record.group,
        "rule": record.by or record.policy,
        "reason": record.reason,
        "status": record.status,
        "input_tokens": record.input_tokens,
        "hit_tokens": record.hit_tokens,
        "cached_tokens": record.cached_tokens,
        "output_tokens": record.output_tokens,
        "predicted_ttft_ms": _ms(record.predicted_ttft_s),
        "ttft_ms": _ms(record.ttft_s),
        "attempts": record.attempts,
    }
    return {name: value for name, value in found.items() if value is not None}


def _ms(time_s: float | None) -> float | None:
    return round(time_s * 1e3, 3) if time_s is not None else None
