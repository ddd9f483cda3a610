"""Journals into runs: one group's operations, flows and decisions, with the network's events beside them. Pure.

Times inside a run are seconds since its start (`Run.zero_s`), so that runs made one after the other can be compared.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

from headway.decide.journal import (
    DecisionRecord,
    DroppedRecord,
    EventRecord,
    FailureRecord,
    FlowRecord,
    InterleaveRecord,
    OperationRecord,
    Record,
    StartRecord,
)

SMALL = 1 / 8  # operations below this fraction of the largest are bound by latency and left out of algbw


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time in which something was wrong with the network; seconds since the run's start.

    Attributes:
        name: the event's id, or the link's name where the span comes from findings.
        begin_s: when it began; not below 0.
        end_s: when it ended; the end of the run where it never did.
        what: in words.
        links: the links that lose capacity.
        known: whether the lab said so (an event) rather than the detector (a finding).
    """

    name: str
    begin_s: float
    end_s: float
    what: str
    links: tuple[str, ...]
    known: bool


@dataclass(frozen=True)
class Run:
    """What one group did, from its start to the end of its journal.

    Attributes:
        label: how pictures and tables name it.
        group: the group.
        start: its start record, where the journal has one.
        operations: in the order of the journal, of every rank that wrote one.
        flows: what each flow did per epoch.
        decisions: what rank 0 decided.
        failures: operations that failed.
        dropped: what the writer had to leave out.
        interleaved: what interleaving had learnt at the end.
        events: what the lab did to the network meanwhile.
        zero_s: wall clock of its start.
        end_s: seconds from its start to its last record.
    """

    label: str
    group: str
    start: StartRecord | None
    operations: tuple[OperationRecord, ...] = ()
    flows: tuple[FlowRecord, ...] = ()
    decisions: tuple[DecisionRecord, ...] = ()
    failures: tuple[FailureRecord, ...] = ()
    dropped: tuple[DroppedRecord, ...] = ()
    interleaved: tuple[InterleaveRecord, ...] = ()
    events: tuple[Span, ...] = ()
    zero_s: float = 0.0
    end_s: float = 0.0

    @property
    def world_size(self) -> int:
        """Number of ranks; as many as the flows name where there is no start record."""
        if self.start is not None:
            return self.start.world_size
        ranks = {f.src for f in self.flows} | {f.dst for f in self.flows} | {o.rank for o in self.operations}
        return max(ranks, default=-1) + 1

    def host(self, rank: int) -> str:
        """Name of the host of `rank`."""
        if self.start is not None and rank < len(self.start.hosts):
            return self.start.hosts[rank]
        return f"rank {rank}"

    @property
    def first_plan(self) -> str:
        """The plan in force from the start."""
        if self.start is not None and self.start.plan:
            return self.start.plan
        named = [d.plan_before for d in self.decisions if d.plan_before] + [o.plan for o in self.operations[:1]]
        return named[0] if named else ""

    def main_operations(self) -> tuple[OperationRecord, ...]:
        """The operations that tell about bandwidth: one rank's, of the collective that moves most bytes, large ones."""
        rank = min((o.rank for o in self.operations), default=0)
        moved: dict[str, int] = {}
        for op in self.operations:
            moved[op.collective] = moved.get(op.collective, 0) + op.size_bytes
        if not moved:
            return ()
        collective = max(moved, key=lambda name: moved[name])
        mine = [o for o in self.operations if o.rank == rank and o.collective == collective and o.duration_s > 0]
        largest = max((o.size_bytes for o in mine), default=0)
        return tuple(o for o in mine if o.size_bytes >= largest * SMALL)

    def began_s(self, op: OperationRecord) -> float:
        """When an operation began, seconds since the run's start."""
        return op.t_s - op.duration_s - self.zero_s

    def ended_s(self, op: OperationRecord) -> float:
        """When an operation ended, seconds since the run's start."""
        return op.t_s - self.zero_s

    def operation_at(self, time_s: float) -> int | None:
        """Number of the last operation that began by `time_s`; None before the first."""
        index = bisect_right(self._begins, (time_s, self._highest)) - 1
        return self._begins[index][1] if index >= 0 else None

    def in_force_s(self, decision: DecisionRecord) -> float:
        """When a decision took effect: its first operation's begin; when it was made, where that never ran."""
        made_s = decision.t_s - self.zero_s
        index = bisect_left(self._numbers, (decision.from_operation, -inf))
        return max(self._numbers[index][1], made_s) if index < len(self._numbers) else made_s

    def has_main(self, first: int, end: int) -> bool:
        """Whether operations `first` to `end` - 1 have a main one; True where none of them was recorded."""
        known = [number for number, _ in self._numbers if first <= number < end]
        return not known or any(number in self._main_numbers for number in known)

    @cached_property
    def _main_numbers(self) -> frozenset[int]:
        return frozenset(o.operation for o in self.main_operations())

    @cached_property
    def _begins(self) -> list[tuple[float, int]]:
        return sorted((self.began_s(o), o.operation) for o in self.operations)

    @cached_property
    def _numbers(self) -> list[tuple[int, float]]:
        return sorted((o.operation, self.began_s(o)) for o in self.operations)

    @cached_property
    def _highest(self) -> int:
        return max((o.operation for o in self.operations), default=0)

    def plan_trees(self) -> dict[str, str]:
        """Trees as text of each plan that the journal spells out, by the plan's name."""
        trees = {d.plan_after: d.plan_trees for d in self.decisions if d.plan_trees}
        if self.start is not None and self.start.plan and self.start.plan_trees:
            trees.setdefault(self.start.plan, self.start.plan_trees)
        return trees

    def congested(self) -> tuple[Span, ...]:
        """When the network was in trouble: the lab's events if there are any, else what the detector found."""
        return self.events or self.found()

    def found(self) -> tuple[Span, ...]:
        """What the detector found: each link from the first decision that names it to the first that does not."""
        spans: list[Span] = []
        opened: dict[str, tuple[float, str]] = {}
        for decision in self.decisions:
            now_s = decision.t_s - self.zero_s
            seen = {f.link: f for f in decision.findings}
            for link, finding in seen.items():
                opened.setdefault(link, (now_s, finding.pattern))
            for link in [link for link in opened if link not in seen]:
                begin_s, pattern = opened.pop(link)
                spans.append(Span(link, begin_s, now_s, f"{link}, {pattern}", (link,), known=False))
        for link, (begin_s, pattern) in opened.items():
            spans.append(Span(link, begin_s, self.end_s, f"{link}, {pattern}", (link,), known=False))
        return tuple(sorted(spans, key=lambda span: span.begin_s))


def merged(spans: Iterable[Span]) -> list[tuple[float, float]]:
    """Times covered by any of the spans, as disjoint (begin, end) in order."""
    covered: list[tuple[float, float]] = []
    for span in sorted(spans, key=lambda s: s.begin_s):
        if covered and span.begin_s <= covered[-1][1]:
            covered[-1] = (covered[-1][0], max(covered[-1][1], span.end_s))
        else:
            covered.append((span.begin_s, span.end_s))
    return covered


def aligned(runs: Sequence[Run]) -> list[Run]:
    """The same runs, begun so much later that their first events begin at one time; unchanged if one has none."""
    if not all(run.events for run in runs):
        return list(runs)
    latest_s = max((run.events[0].begin_s for run in runs), default=0.0)
    return [_later(run, latest_s - run.events[0].begin_s) for run in runs]


def _later(run: Run, shift_s: float) -> Run:
    events = tuple(replace(e, begin_s=e.begin_s + shift_s, end_s=e.end_s + shift_s) for e in run.events)
    return replace(run, zero_s=run.zero_s - shift_s, end_s=run.end_s + shift_s, events=events)


@dataclass
class _Draft:
    group: str
    start: StartRecord | None = None
    records: list[Record] = field(default_factory=list)


def runs_of(journals: Sequence[tuple[str, Sequence[Record]]]) -> list[Run]:
    """The runs in some journals, in order; events of any journal go to every run that they overlap.

    Args:
        journals: (label, records) per file. A group that starts again in one file begins another run there. A file
            of nothing but events (the lab's own) makes no run.
    """
    events = [r for _, records in journals for r in records if isinstance(r, EventRecord)]
    runs: list[Run] = []
    for label, records in journals:
        drafts: list[_Draft] = []
        open_: dict[str, _Draft] = {}
        for record in records:
            if isinstance(record, EventRecord):
                continue
            draft = open_.get(record.group)
            if draft is None or (isinstance(record, StartRecord) and draft.start is not None):
                draft = open_[record.group] = _Draft(record.group)
                drafts.append(draft)
            if isinstance(record, StartRecord):
                draft.start = record
            draft.records.append(record)
        several_groups = len(open_) > 1
        counts: dict[str, int] = {}
        for draft in drafts:
            counts[draft.group] = counts.get(draft.group, 0) + 1
            name = f"{label}, group {draft.group}" if several_groups else label
            if counts[draft.group] > 1:
                name += f" ({counts[draft.group]})"
            runs.append(_finish(draft, name))
    return [replace(run, events=_events_of(run, events)) for run in runs]


def _finish(draft: _Draft, label: str) -> Run:
    records = draft.records
    operations = tuple(r for r in records if isinstance(r, OperationRecord))
    begins = [o.t_s - o.duration_s for o in operations] + [r.t_s for r in records]
    zero_s = min(begins)
    return Run(
        label=label,
        group=draft.group,
        start=draft.start,
        operations=operations,
        flows=tuple(r for r in records if isinstance(r, FlowRecord)),
        decisions=tuple(r for r in records if isinstance(r, DecisionRecord)),
        failures=tuple(r for r in records if isinstance(r, FailureRecord)),
        dropped=tuple(r for r in records if isinstance(r, DroppedRecord)),
        interleaved=tuple(r for r in records if isinstance(r, InterleaveRecord)),
        zero_s=zero_s,
        end_s=max(r.t_s for r in records) - zero_s,
    )


def _events_of(run: Run, events: Sequence[EventRecord]) -> tuple[Span, ...]:
    opened: dict[str, EventRecord] = {}
    spans: list[Span] = []

    def close(begin: EventRecord, end_s: float) -> None:
        begin_s = max(0.0, begin.t_s - run.zero_s)
        end_s = min(end_s, run.end_s)
        if end_s > begin_s:
            spans.append(Span(begin.event, begin_s, end_s, begin.what, tuple(begin.links), known=True))

    for event in sorted(events, key=lambda e: e.t_s):
        begin = opened.pop(event.event, None)
        if begin is not None:
            close(begin, event.t_s - run.zero_s)
        if event.phase == "begin":
            opened[event.event] = event
    for begin in opened.values():
        close(begin, run.end_s)
    return tuple(sorted(spans, key=lambda s: s.begin_s))
