"""Runs Chakra execution traces, one per NPU, on a simulated network. Pure.

What an NPU has: one CPU, one compute engine and one communication engine, each with one node at a time, in order of
the nodes' ids; receives do not occupy any. A node begins when the nodes that it waits for have ended and what it
occupies is free. As in ASTRA-sim (workload/Workload.cc):

- COMP: its recorded duration (1 ns if none is recorded), or by the roofline if the system file enables that.
- COMM_SEND, COMM_RECV: the k-th message of a tag between two NPUs belongs to the k-th receive. A send ends, like its
  receive, when the message has arrived.
- COMM_COLL: the k-th collective of a process group at each NPU; by the algorithms of the system file, or by a plan.
  Broadcasts and the like take their recorded duration, unless a plan carries them (broadcast and reduce, whose root is
  the group's first NPU); one without a duration is refused.
- METADATA, INVALID: no time. MEM_LOAD, MEM_STORE: refused, there is no model of remote memory.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from headway.errors import UsageError
from headway.sim.engine.fabric import Fabric
from headway.sim.engine.loop import Loop
from headway.sim.formats.astra_system import AstraSystem
from headway.sim.formats.chakra import CommKind, NodeKind, Trace, TraceNode
from headway.sim.traces.messages import Messenger, whole_ns

Callback = Callable[[], None]
NO_DURATION_S = 1e-9
"""What a compute node without a recorded duration takes, as in ASTRA-sim."""


class Collectives(Protocol):
    """Runs collectives: `trace_phases.NamedAlgorithms` or `trace_plans.PlannedCollectives`."""

    def runs(self, comm: CommKind) -> bool:
        """Whether it can run such a collective; others take their recorded duration."""
        ...

    def begin(self, npu: int, node: TraceNode, key: tuple[object, ...], npus: Sequence[int], on_done: Callback) -> None:
        """NPU `npu` enters a collective of the NPUs `npus`; `key` is the same for all. `on_done` when its part ends."""
        ...


@dataclass(frozen=True, slots=True)
class NodeTime:
    """When a node ran, seconds."""

    npu: int
    node: TraceNode
    start_s: float
    end_s: float


@dataclass(frozen=True)
class TraceResult:
    """What a run leaves.

    Attributes:
        nodes: in the order in which they ended.
        ends_s: when each NPU had ended its last node.
        compute_s: how long each NPU's compute engine worked; the rest is exposed communication (and waiting).
        carried_bytes: link name -> bytes.
        events: callbacks and flow ends, for the cost per event.
        plans: names of the plans that carried collectives.
    """

    nodes: Sequence[NodeTime]
    ends_s: Sequence[float]
    compute_s: Sequence[float]
    carried_bytes: Mapping[str, float]
    events: int
    plans: Sequence[str] = ()

    @property
    def end_s(self) -> float:
        """When the last NPU had ended."""
        return max(self.ends_s, default=0.0)


def run_traces(
    traces: Sequence[Trace],
    *,
    loop: Loop,
    fabric: Fabric,
    messenger: Messenger,
    collectives: Collectives,
    system: AstraSystem,
    groups: Mapping[str, Sequence[int]] | None = None,
) -> TraceResult:
    """Run one trace per NPU (host of `fabric`) until all have ended.

    Args:
        loop: the clock of `messenger` and `collectives`.
        groups: process groups by name, beside those that the traces name.

    Raises:
        UsageError: a node cannot run here, or the traces do not fit together: a message without its receive, NPUs
            that call different collectives; it names the file and the node.
    """
    if len(traces) != len(fabric.hosts):
        raise UsageError(f"{len(traces)} traces for {len(fabric.hosts)} NPUs")
    return _Run(traces, loop, fabric, messenger, collectives, system, groups or {}).result()


@dataclass(slots=True)
class _Met:
    """A collective as the first NPU called it."""

    node: TraceNode
    where: str


class _Run:
    def __init__(
        self,
        traces: Sequence[Trace],
        loop: Loop,
        fabric: Fabric,
        messenger: Messenger,
        collectives: Collectives,
        system: AstraSystem,
        groups: Mapping[str, Sequence[int]],
    ) -> None:
        self.loop, self.messenger, self.collectives, self.system = loop, messenger, collectives, system
        self._fabric = fabric
        self.times: list[NodeTime] = []
        self.mail = _Mail(messenger, len(traces))
        self._groups = groups
        self._met: dict[tuple[object, ...], _Met] = {}
        self._npus = [_Npu(self, npu, trace) for npu, trace in enumerate(traces)]

    def result(self) -> TraceResult:
        """Run to the end."""
        for npu in self._npus:
            npu.go()
        self.loop.run()
        for npu in self._npus:
            npu.check_ended()
        return TraceResult(
            self.times,
            [npu.end_s for npu in self._npus],
            [npu.compute_s for npu in self._npus],
            {link.name: self.messenger.carried_bytes(index) for index, link in enumerate(self._fabric.links)},
            self.loop.events,
        )

    def members(self, trace: Trace, npu: int, node: TraceNode, where: str) -> tuple[int, ...]:
        """The NPUs of a collective's process group."""
        everybody = tuple(range(len(self._npus)))
        if node.group in ("", "0") and node.group not in trace.groups:
            return everybody
        found = trace.groups.get(node.group, self._groups.get(node.group))
        if found is None:
            raise UsageError(
                f"there is no process group {node.group!r}", where=where, hint="give its members with --groups"
            )
        members = tuple(found) or everybody
        if npu not in members:
            raise UsageError(f"NPU {npu} is not in process group {node.group!r}", where=where)
        if len(set(members)) < len(members) or not set(members) <= set(everybody):
            raise UsageError(f"process group {node.group!r} names NPUs twice, or that are not there", where=where)
        return members

    def meet(self, key: tuple[object, ...], node: TraceNode, where: str) -> None:
        """An NPU calls a collective: it must be what the others called."""
        first = self._met.setdefault(key, _Met(node, where))
        if (first.node.comm, first.node.size_bytes) != (node.comm, node.size_bytes):
            raise UsageError(
                f"calls {_called(node)} where {first.where} calls {_called(first.node)}",
                where=where,
            )


def _called(node: TraceNode) -> str:
    return f"{node.comm.name.lower() if node.comm else 'nothing'} of {node.size_bytes} bytes"


class _Mail:
    """Messages on their way, and receives that wait for one."""

    def __init__(self, messenger: Messenger, npus: int) -> None:
        self._messenger, self._npus = messenger, npus
        self._arrived: dict[tuple[int, int, int], deque[int]] = {}
        self._waiting: dict[tuple[int, int, int], deque[tuple[int, str, Callback]]] = {}

    def send(self, key: tuple[int, int, int], size_bytes: int, on_done: Callback) -> None:
        """A message (from, to, tag)."""
        self._messenger.send(key[0], key[1], size_bytes, partial(self._arrive, key, size_bytes, on_done))

    def receive(self, key: tuple[int, int, int], size_bytes: int, where: str, on_done: Callback) -> None:
        """A receive of one; `on_done` when it is there."""
        arrived = self._arrived.get(key)
        if arrived:
            _check_size(arrived.popleft(), size_bytes, where)
            on_done()
        else:
            self._waiting.setdefault(key, deque()).append((size_bytes, where, on_done))

    def _arrive(self, key: tuple[int, int, int], size_bytes: int, on_done: Callback) -> None:
        waiting = self._waiting.get(key)
        if waiting:
            expected_bytes, where, received = waiting.popleft()
            _check_size(size_bytes, expected_bytes, where)
            received()
        else:
            self._arrived.setdefault(key, deque()).append(size_bytes)
        on_done()


def _check_size(sent_bytes: int, expected_bytes: int, where: str) -> None:
    if sent_bytes != expected_bytes:
        raise UsageError(f"expects {expected_bytes} bytes, and {sent_bytes} were sent", where=where)


class _Npu:
    """One NPU's nodes."""

    def __init__(self, run: _Run, npu: int, trace: Trace) -> None:
        self._run, self._npu, self._trace = run, npu, trace
        self._nodes = {node.id: node for node in trace.nodes}
        self._missing = {node.id: len(node.after) for node in trace.nodes}
        self._following: dict[int, list[int]] = {}
        for node in trace.nodes:
            for before in node.after:
                self._following.setdefault(before, []).append(node.id)
        self._free: dict[str, list[int]] = {"cpu": [], "compute": [], "communication": [], "": []}
        self._busy: dict[str, bool] = dict.fromkeys(self._free, False)
        self._left = len(trace.nodes)
        self._started: dict[int, float] = {}
        self._called: dict[str, int] = {}
        self.end_s = 0.0
        self.compute_s = 0.0
        for node in trace.nodes:
            if not node.after:
                heapq.heappush(self._free[_occupies(node)], node.id)

    def go(self) -> None:
        """Begin every node that can; in order of ids on each engine."""
        for engine, free in self._free.items():
            while free and not self._busy[engine]:
                self._busy[engine] = engine != ""
                self._begin(self._nodes[heapq.heappop(free)], engine)

    def check_ended(self) -> None:
        """UsageError unless all nodes have ended."""
        if self._left:
            stuck = min(self._started, default=min((id for free in self._free.values() for id in free), default=-1))
            raise UsageError("never ends: what it waits for does not come", where=self._where(self._nodes[stuck]))

    def _where(self, node: TraceNode) -> str:
        return f"{self._trace.where}: node {node.id}"

    def _begin(self, node: TraceNode, engine: str) -> None:
        run, where = self._run, self._where(node)
        self._started[node.id] = run.loop.now_s
        done = partial(self._done, node, engine)
        kind = node.kind
        if kind in (NodeKind.INVALID, NodeKind.METADATA):
            run.loop.after(0.0, done)
        elif kind in (NodeKind.MEM_LOAD, NodeKind.MEM_STORE) and not run.system.replay:
            raise UsageError("there is no model of remote memory", where=where, hint="replay-only takes its duration")
        elif run.system.replay or kind is NodeKind.COMP:
            run.loop.after(self._duration_s(node), done)
        elif kind is NodeKind.COMM_SEND:
            src = self._npu if node.src < 0 else node.src
            self._check_pair(src, node.dst, src, where, "comm_src")
            run.mail.send((src, node.dst, node.tag), node.size_bytes, done)
        elif kind is NodeKind.COMM_RECV:
            dst = self._npu if node.dst < 0 else node.dst
            self._check_pair(node.src, dst, dst, where, "comm_dst")
            run.mail.receive((node.src, dst, node.tag), node.size_bytes, where, done)
        else:
            self._collective(node, where, done)

    def _duration_s(self, node: TraceNode) -> float:
        system = self._run.system
        if node.kind is NodeKind.COMP and system.roofline and not system.replay and not node.cpu:
            if node.tensor_bytes <= 0 or node.ops <= 0:
                return 0.0
            return whole_ns(node.ops / min(system.peak_per_s, system.memory_Bps * node.ops / node.tensor_bytes))
        return node.duration_s or NO_DURATION_S

    def _check_pair(self, src: int, dst: int, own: int, where: str, field: str) -> None:
        if own != self._npu:
            raise UsageError(f"is {own} in the file of NPU {self._npu}", where=f"{where}: {field}")
        if not 0 <= max(src, dst) < len(self._run._npus) or src == dst:
            raise UsageError(f"there is no way from NPU {src} to NPU {dst}", where=where)

    def _collective(self, node: TraceNode, where: str, done: Callback) -> None:
        run = self._run
        assert node.comm is not None  # the reader sees to it
        npus = run.members(self._trace, self._npu, node, where)
        number = self._called.get(node.group, 0)
        self._called[node.group] = number + 1
        key = (npus, node.group, number)
        run.meet(key, node, where)
        if run.collectives.runs(node.comm):
            run.collectives.begin(self._npu, node, key, npus, done)
        elif node.duration_s > 0:
            run.loop.after(node.duration_s, done)
        else:
            raise UsageError(f"no {node.comm.name.lower()} runs here, and it has no recorded duration", where=where)

    def _done(self, node: TraceNode, engine: str) -> None:
        now_s = self._run.loop.now_s
        start_s = self._started.pop(node.id)
        self._run.times.append(NodeTime(self._npu, node, start_s, now_s))
        if engine == "compute":
            self.compute_s += now_s - start_s
        self.end_s = now_s
        self._left -= 1
        self._busy[engine] = False
        for following in self._following.get(node.id, ()):
            self._missing[following] -= 1
            if not self._missing[following]:
                heapq.heappush(self._free[_occupies(self._nodes[following])], following)
        # All that ends at this instant frees its nodes before the next ones begin.
        self._run.loop.after(0.0, self.go)


def _occupies(node: TraceNode) -> str:
    if node.cpu:
        return "cpu"
    if node.kind is NodeKind.COMP:
        return "compute"
    return "" if node.kind is NodeKind.COMM_RECV else "communication"
