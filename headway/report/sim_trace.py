"""A simulated run as Chrome trace JSON, which Perfetto and chrome://tracing open.

One process per job, one thread per rank, with spans of computing and communicating; one process "network" with the
scenario's events as spans and the utilisation of each link as a counter, in percent of what other rates and UDP load
left of it since the point before. Times are microseconds of the simulated clock.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headway.decide.journal import EventRecord
from headway.report.trace_events import MICRO, TraceEvent, lanes_of, process_events, trace_event
from headway.sim.engine.network import Network
from headway.sim.result import Result

NETWORK = 1_000_000
"""Process of the network; jobs count from 0."""
MOST_POINTS = 1024
"""Points per link; when there are more, every second one goes, and half as many are taken from then on."""
MOST_LINKS = 64
"""The busiest links have a counter."""


@dataclass(frozen=True, slots=True)
class BusySpan:
    """A rank of a job was busy with `kind` (`compute`, `send`, a collective), seconds of the simulated clock."""

    job: str
    rank: int
    kind: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class _Point:
    """What links had carried by `now_s`, and could have: the second only of links whose capacity has changed."""

    now_s: float
    carried_bytes: tuple[float, ...]
    room_bytes: Mapping[int, float]


@dataclass
class TraceRecorder:
    """Collects what a trace shows, beside the result. Implements `SpanSink`.

    Attributes:
        network: whose links are sampled, when communication ends; None: no counters.
    """

    network: Network | None = None
    _spans: list[BusySpan] = field(default_factory=list)
    _points: list[_Point] = field(default_factory=list)
    _least_s: float = 0.0

    def span(self, job: str, rank: int, kind: str, begin_s: float, end_s: float) -> None:
        """See `SpanSink`."""
        self._spans.append(BusySpan(job, rank, kind, begin_s, end_s))
        if self.network is not None and kind != "compute":
            self._sample(self.network)

    @property
    def spans(self) -> Sequence[BusySpan]:
        """What the ranks did, as it became known."""
        return self._spans

    def used(self, most_links: int = MOST_LINKS) -> list[tuple[str, list[tuple[float, float, float]]]]:
        """The busiest links, busiest first: (name, stretches of (begin, end, part of what it could carry in use))."""
        if self.network is None or not self._points:
            return []
        links, last = self.network.fabric.links, self._points[-1]
        total = {
            i: last.carried_bytes[i] / room
            for i in range(len(links))
            if last.carried_bytes[i] > 0 and (room := self._room_bytes(last, i)) > 0
        }
        found = []
        for index in sorted(total, key=lambda i: -total[i])[:most_links]:
            before_s, before_carried, before_room, stretches = 0.0, 0.0, 0.0, []
            for point in self._points:
                carried, room = point.carried_bytes[index], self._room_bytes(point, index)
                part = (carried - before_carried) / (room - before_room) if room > before_room else 0.0
                stretches.append((before_s, point.now_s, part))
                before_s, before_carried, before_room = point.now_s, carried, room
            found.append((links[index].name, stretches))
        return found

    def _room_bytes(self, point: _Point, link: int) -> float:
        assert self.network is not None
        return point.room_bytes.get(link, self.network.fabric.links[link].capacity_Bps * point.now_s)

    def _sample(self, network: Network) -> None:
        now_s = network.loop.now_s
        last_s = self._points[-1].now_s if self._points else 0.0
        if now_s <= last_s or now_s - last_s < self._least_s:
            return
        carried = tuple(network.carried_bytes(link) for link in range(len(network.fabric.links)))
        self._points.append(_Point(now_s, carried, {link: network.room_bytes(link) for link in network.changed_links}))
        if len(self._points) > MOST_POINTS:
            self._points = self._points[1::2]
            self._least_s = 2 * self._points[-1].now_s / MOST_POINTS

    def trace_json(self, result: Result) -> str:
        """All as one trace; see the module's docstring for what is where."""
        events = [*self._jobs(result), *process_events(NETWORK, "network", NETWORK)]
        events += _scenario_events(result)
        events += self._counters()
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})

    def _jobs(self, result: Result) -> Iterator[TraceEvent]:
        pids = {name: pid for pid, name in enumerate(result.jobs)}
        for name, job in result.jobs.items():
            yield from process_events(pids[name], f"job {name}", pids[name])
            for rank, host in enumerate(job.hosts):
                yield {
                    "name": "thread_name",
                    "ph": "M",
                    "pid": pids[name],
                    "tid": rank,
                    "args": {"name": f"rank {rank} on {host}"},
                }
        for span in self._spans:
            if span.begin_s >= result.end_s or span.end_s == span.begin_s:
                continue
            category = "compute" if span.kind == "compute" else "communicate"
            event = trace_event(span.kind, category, "X", _micro(span.begin_s), pids[span.job])
            yield {**event, "tid": span.rank, "dur": _micro(min(span.end_s, result.end_s) - span.begin_s)}

    def _counters(self) -> Iterator[TraceEvent]:
        for name, stretches in sorted(self.used()):
            for begin_s, _, part in stretches:
                event = trace_event(name, "utilisation", "C", _micro(begin_s), NETWORK)
                yield {**event, "args": {"%": round(100 * part, 3)}}
            end = trace_event(name, "utilisation", "C", _micro(stretches[-1][1]), NETWORK)
            yield {**end, "args": {"%": 0.0}}


def _scenario_events(result: Result) -> Iterator[TraceEvent]:
    began: dict[str, EventRecord] = {}
    spans: list[tuple[EventRecord, float]] = []
    for record in result.records:
        if isinstance(record, EventRecord):
            if record.phase == "begin":
                began[record.event] = record
            elif record.event in began:
                spans.append((began.pop(record.event), record.t_s))
    spans += [(record, result.end_s) for record in began.values()]
    spans.sort(key=lambda span: span[0].t_s)
    for (begin, end_s), lane in zip(spans, lanes_of((b.t_s, end_s) for b, end_s in spans), strict=True):
        about: Mapping[str, str] = {"id": begin.event, "links": ", ".join(begin.links)}
        event = trace_event(begin.what, "event", "X", _micro(begin.t_s), NETWORK)
        yield {**event, "tid": lane, "dur": _micro(end_s - begin.t_s), "args": dict(about)}


def _micro(time_s: float) -> float:
    return round(time_s * MICRO, 3)
