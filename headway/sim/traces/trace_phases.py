"""Collectives as ASTRA-sim's system layer runs them: chunks through the dimensions, each as messages. Pure.

A collective is cut into `splits` chunks. A chunk goes through phases, one per dimension (an all-reduce with
`up_and_down`: reduce-scatters up the dimensions, an all-reduce in the last, all-gathers down again). Each NPU has a
queue per dimension, in which `active_chunks` are at work at once; the others wait by the policy. A phase's messages
are those of `message_schedules`: each waits `endpoint_s` at its NPU before the first, and every received one
`endpoint_s` and its reduction before what follows from it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from headway.sim.engine.loop import Loop
from headway.sim.formats.astra_network import AstraNetwork
from headway.sim.formats.astra_system import Algorithm, AstraSystem, Implementation, Policy
from headway.sim.formats.chakra import CommKind, TraceNode
from headway.sim.traces.message_schedules import Exchange, Messages, direct, double_binary_tree, halving_doubling, ring
from headway.sim.traces.messages import Messenger, whole_ns

Callback = Callable[[], None]

EXCHANGES = {
    CommKind.ALL_REDUCE: Exchange.ALL_REDUCE,
    CommKind.ALL_GATHER: Exchange.ALL_GATHER,
    CommKind.REDUCE_SCATTER: Exchange.REDUCE_SCATTER,
    CommKind.REDUCE_SCATTER_BLOCK: Exchange.REDUCE_SCATTER,
    CommKind.ALL_TO_ALL: Exchange.ALL_TO_ALL,
}


@dataclass(frozen=True, slots=True)
class Stage:
    """One phase of a chunk: which NPUs exchange what in a dimension's queue, each beginning with `size_bytes`."""

    dimension: int
    npus: tuple[int, ...]
    exchange: Exchange
    size_bytes: float
    messages: Messages


class PhaseRun:
    """One phase on the network; each NPU begins when it gets there, and is done on its own."""

    def __init__(self, stage: Stage, loop: Loop, messenger: Messenger, system: AstraSystem) -> None:
        self._stage, self._loop, self._messenger, self._system = stage, loop, messenger, system
        ranks, messages = len(stage.npus), stage.messages
        self._begun = [False] * ranks
        self._on_done: list[Callback | None] = [None] * ranks
        self._early: list[list[int]] = [[] for _ in range(ranks)]
        self._missing = [len(message.after) for message in messages]
        self._left = [0] * ranks  # messages that a rank has yet to send, or to receive and have done with
        self._first: list[list[int]] = [[] for _ in range(ranks)]
        self._following: list[list[int]] = [[] for _ in messages]
        for index, message in enumerate(messages):
            self._left[message.src] += 1
            self._left[message.dst] += 1
            if not message.after:
                self._first[message.src].append(index)
            for before in message.after:
                self._following[before].append(index)

    def begin(self, rank: int, on_done: Callback) -> None:
        """Rank `rank` of the phase takes part from now on."""
        self._on_done[rank] = on_done
        self._loop.after(self._system.endpoint_s, partial(self._ready, rank))

    def _ready(self, rank: int) -> None:
        self._begun[rank] = True
        for index in self._first[rank]:
            self._send(index)
        for index in self._early[rank]:
            self._handle(index)

    def _send(self, index: int) -> None:
        message, npus = self._stage.messages[index], self._stage.npus
        size_bytes = message.part * self._stage.size_bytes
        self._messenger.send(npus[message.src], npus[message.dst], size_bytes, partial(self._received, index))
        self._count(message.src)

    def _received(self, index: int) -> None:
        rank = self._stage.messages[index].dst
        if self._begun[rank]:
            self._handle(index)
        else:
            self._early[rank].append(index)

    def _handle(self, index: int) -> None:
        reduced_bytes = self._stage.messages[index].reduced * self._stage.size_bytes
        reduce_s = 0.0
        if reduced_bytes > 0 and self._system.memory_Bps > 0:
            reduce_s = 3 * whole_ns(reduced_bytes / self._system.memory_Bps)  # two reads and a write
        self._loop.after(self._system.endpoint_s + reduce_s, partial(self._handled, index))

    def _handled(self, index: int) -> None:
        for following in self._following[index]:
            self._missing[following] -= 1
            if not self._missing[following]:
                self._send(following)
        self._count(self._stage.messages[index].dst)

    def _count(self, rank: int) -> None:
        self._left[rank] -= 1
        if not self._left[rank]:
            on_done = self._on_done[rank]
            assert on_done is not None  # nothing of a rank is counted before it began
            on_done()


@dataclass
class _Chunk:
    """One NPU's part in one chunk: the phases that it still has to go through, and what to call then."""

    key: tuple[object, ...]
    priority: int
    stages: deque[Stage]
    on_done: Callback
    passed: int = 0


@dataclass
class _Queue:
    """One NPU's chunks in one dimension."""

    waiting: list[_Chunk] = field(default_factory=list)
    running: int = 0


class NamedAlgorithms:
    """Runs collectives by the algorithms that a system file names.

    Args:
        loop, messenger: the clock, and what carries messages.
        network: its dimensions.
        system: what the file says.
    """

    def __init__(self, loop: Loop, messenger: Messenger, network: AstraNetwork, system: AstraSystem) -> None:
        self._loop, self._messenger, self._network, self._system = loop, messenger, network, system
        self._queues: dict[tuple[int, int], _Queue] = {}
        self._phases: dict[tuple[object, ...], tuple[PhaseRun, int]] = {}
        self._begun: dict[int, int] = {}

    def runs(self, comm: CommKind) -> bool:
        """All but broadcasts and the like."""
        return comm in EXCHANGES

    def begin(self, npu: int, node: TraceNode, key: tuple[object, ...], npus: Sequence[int], on_done: Callback) -> None:
        """NPU `npu` enters a collective over `npus`; `key` is the same for all of them. `on_done` when its part ends.

        UsageError: the system file names no algorithm that can do it.
        """
        count = self._system.splits
        chunk_bytes = node.size_bytes / count
        exchange = EXCHANGES[node.comm] if node.comm is not None else Exchange.ALL_REDUCE
        if exchange is not Exchange.ALL_GATHER:
            chunk_bytes = max(chunk_bytes, self._network.npus)  # as ASTRA-sim: a chunk has a byte for each NPU
        self._begun[npu] = order = self._begun.get(npu, 0) + 1
        priority = {Policy.LIFO: order, Policy.FIFO: -order, Policy.EXPLICIT: node.priority}[self._system.policy]
        left = count

        def chunk_done() -> None:
            nonlocal left
            left -= 1
            if not left:
                on_done()

        for chunk in range(count):
            stages = deque(self._stages(npu, node, exchange, npus, chunk_bytes, chunk))
            if not stages:
                self._loop.after(0.0, chunk_done)
                continue
            self._enter(npu, _Chunk((*key, chunk), priority, stages, chunk_done))

    def _stages(
        self, npu: int, node: TraceNode, exchange: Exchange, npus: Sequence[int], size_bytes: float, chunk: int
    ) -> list[Stage]:
        """What a chunk goes through at one NPU."""
        network, system = self._network, self._system
        name, all_dimensions = exchange.value, len(network.dimensions)
        whole = len(npus) == network.npus
        flat = not whole or system.implementation(name, 0, all_dimensions).flat
        if flat:
            named = system.implementation(name, 0, all_dimensions)
            if not whole and all_dimensions > 1:
                named = Implementation(Algorithm.RING)  # as ASTRA-sim: a group knows no dimensions
            return [self._stage(0, tuple(npus), exchange, size_bytes, named, chunk)] if len(npus) > 1 else []
        used = [
            at
            for at in range(all_dimensions)
            if not node.dimensions or (at < len(node.dimensions) and node.dimensions[at])
        ]
        steps = [(at, exchange) for at in used]
        if exchange is Exchange.ALL_GATHER:
            steps.reverse()
        elif exchange is Exchange.ALL_REDUCE and system.up_and_down:
            steps = [(at, Exchange.REDUCE_SCATTER) for at in used[:-1]] + steps[-1:]
            steps += [(at, Exchange.ALL_GATHER) for at in reversed(used[:-1])]
        stages = []
        half = len(steps) // 2
        for place, (at, step) in enumerate(steps):
            peers = network.peers(npu, at)
            back = exchange is Exchange.ALL_REDUCE and step is Exchange.ALL_GATHER and place > half
            named = system.implementation(name, at, all_dimensions)
            stages.append(self._stage(at, peers, step, size_bytes, named, chunk, back=back))
            if step is Exchange.REDUCE_SCATTER:
                size_bytes /= len(peers)
            elif step is Exchange.ALL_GATHER:
                size_bytes *= len(peers)
        return stages

    @staticmethod
    def _stage(
        at: int,
        npus: tuple[int, ...],
        exchange: Exchange,
        size_bytes: float,
        named: Implementation,
        chunk: int,
        *,
        back: bool = False,
    ) -> Stage:
        size = len(npus)
        if named.algorithm is Algorithm.RING:
            messages = ring(exchange, size, -1 if back else 1)
        elif named.algorithm is Algorithm.DIRECT:
            messages = direct(exchange, size, named.window)
        elif named.algorithm is Algorithm.HALVING_DOUBLING:
            messages = halving_doubling(exchange, size)
        else:
            messages = double_binary_tree(exchange, size, chunk % 2 == 1)
        return Stage(at, npus, exchange, size_bytes, messages)

    def _enter(self, npu: int, chunk: _Chunk) -> None:
        """Put a chunk into the queue of its next dimension: behind those that go before it or are as urgent."""
        queue = self._queue(npu, chunk.stages[0].dimension)
        place = sum(each.priority >= chunk.priority for each in queue.waiting)
        queue.waiting.insert(place, chunk)
        self._work(npu, queue)

    def _queue(self, npu: int, dimension: int) -> _Queue:
        return self._queues.setdefault((npu, dimension), _Queue())

    def _work(self, npu: int, queue: _Queue) -> None:
        while queue.waiting and queue.running < self._system.active_chunks:
            chunk = queue.waiting.pop(0)
            queue.running += 1
            stage = chunk.stages.popleft()
            self._phase(chunk, stage).begin(stage.npus.index(npu), partial(self._left, npu, chunk, queue))

    def _phase(self, chunk: _Chunk, stage: Stage) -> PhaseRun:
        """The run that all NPUs of a phase share; forgotten when the last has begun it."""
        key = (*chunk.key, chunk.passed, stage.npus)
        run, expected = self._phases.pop(key, (None, len(stage.npus)))
        if run is None:
            run = PhaseRun(stage, self._loop, self._messenger, self._system)
        if expected > 1:
            self._phases[key] = (run, expected - 1)
        return run

    def _left(self, npu: int, chunk: _Chunk, queue: _Queue) -> None:
        """A chunk has passed a dimension."""
        queue.running -= 1
        chunk.passed += 1
        over = not chunk.stages
        if not over:
            self._enter(npu, chunk)
        self._work(npu, queue)
        if over:
            chunk.on_done()
