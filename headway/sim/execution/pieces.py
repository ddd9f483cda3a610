"""A plan as the pipelined executor carries it out: pieces over one connection per ordered pair of ranks. Pure.

What `collectives.executor` does, message by message: a piece goes up a tree when all sums from below have been added,
and comes down when it is there; what a rank may send to a peer waits in a queue, the most urgent tag first; a window of
messages per peer is in the transport, where nothing is overtaken; a message leaves the window when the kernel has
taken it (`HostModel.kernel_bytes`). A rank handles one message at a time. How a connection's bytes cross the network:
see `tandem`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from heapq import heappop, heappush

from headway.collectives.pieces import Pieces, cut
from headway.collectives.plan import Plan
from headway.collectives.table import DOWN, UP, Table, window_messages
from headway.lab.draws import mix
from headway.sim.engine.network import Flow
from headway.sim.execution.message_counts import check_count, message_count
from headway.sim.execution.pauses import Processor
from headway.sim.execution.running import Call, Running
from headway.sim.execution.tandem import Tandem

KEPT = 64

_kept: dict[tuple[object, ...], tuple[Plan, Pieces, list[Table]]] = {}


def _tables(call: Call) -> tuple[Pieces, list[Table]]:
    """The pieces, and each rank's table."""
    key = (id(call.plan), call.collective, call.size_bytes, call.chunk_bytes, call.element_bytes)
    kept = _kept.get(key)
    if kept is None:
        plan = call.plan
        count = message_count(plan, call.collective, call.size_bytes, call.chunk_bytes)
        check_count(count, f"{call.collective.value} of {call.size_bytes} bytes by {plan.name}")
        pieces = cut(plan, call.collective, call.size_bytes, call.element_bytes, call.chunk_bytes)
        tables = [Table(plan, rank, call.collective, pieces) for rank in range(plan.size)]
        if len(_kept) >= KEPT:
            del _kept[next(iter(_kept))]
        kept = _kept[key] = (plan, pieces, tables)
    return kept[1], kept[2]


class _Connection:
    """From one rank to another.

    Attributes:
        waiting: heap of tags that may be sent. slots: how many more the transport takes.
        tandem: what the transport and the network do.
    """

    __slots__ = ("slots", "tandem", "waiting")

    def __init__(self, tandem: Tandem, waiting: Sequence[int], slots: int) -> None:
        self.tandem = tandem
        self.waiting = list(waiting)
        self.slots = slots


class PieceRun(Running):
    """One operation, piece by piece."""

    def __init__(self, call: Call, ready: Sequence[float] | None) -> None:
        super().__init__(call, ready)
        pieces, self._tables = _tables(call)
        ranks = call.plan.size
        self._tree = pieces.tree
        self._size = [last - first for first, last in zip(pieces.first, pieces.last, strict=True)]
        self._per_message_s = call.costs.per_message_s
        self._copy_s = 1.0 / call.host.copy_Bps
        self._header_bytes = call.host.header_bytes
        window = window_messages(call.chunk_bytes)
        self._connections = [
            {
                peer: _Connection(Tandem(call, rank, peer, partial(self._wake, rank)), tags, window)
                for peer, tags in table.ready.items()
            }
            for rank, table in enumerate(self._tables)
        ]
        self._left = [table.messages + 1 for table in self._tables]
        self._owed = [[len(table.children[tree]) for tree in pieces.tree] for table in self._tables]
        seed = mix(call.seed, 0 if callable(call.key) else call.key, round(1e9 * self.loop.now_s))
        self._processors = [
            Processor(
                pauses_per_s=call.host.pauses_per_s,
                pause_s=call.host.pause_s,
                draw=random.Random(mix(seed, rank)),
                now_s=self.loop.now_s,
            )
            for rank in range(ranks)
        ]
        self._held: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]

    def weighted_flows(self) -> Iterable[tuple[Flow, float]]:
        """See `Running`."""
        return [(flow, 1.0) for tandem in self._tandems() for flow in tandem.flows()]

    def sent_bytes(self) -> float:
        """See `Running`. What has crossed the whole way."""
        return sum(tandem.arrived_bytes for tandem in self._tandems())

    def set_weight(self, weight: float) -> None:
        """See `Running`."""
        super().set_weight(weight)
        for tandem in self._tandems():
            tandem.weight = weight

    def begun(self, ranks: Sequence[int]) -> None:
        """See `Running`."""
        for rank in ranks:
            for connection in self._connections[rank].values():
                while connection.waiting and connection.slots > 0:
                    connection.slots -= 1
                    self._give(connection, heappop(connection.waiting))
            held, self._held[rank] = self._held[rank], []
            for src, tag in held:
                self._work(rank, src, tag)
            self._count_down(rank)

    def _tandems(self) -> Iterator[Tandem]:
        return (connection.tandem for peers in self._connections for connection in peers.values())

    def _post(self, rank: int, dst: int, tag: int) -> None:
        """The rank may send `tag`."""
        connection = self._connections[rank][dst]
        if connection.slots > 0:
            connection.slots -= 1
            self._give(connection, tag)
        else:
            heappush(connection.waiting, tag)

    def _give(self, connection: _Connection, tag: int) -> None:
        """Into the transport, after what the rank does now."""
        self._do(connection.tandem.src, self._per_message_s, partial(self._send, connection, tag))

    def _wake(self, rank: int, action: Callable[[], None]) -> None:
        self._do(rank, 0.0, action)

    def _do(self, rank: int, work_s: float, action: Callable[[], None]) -> None:
        """Let the rank's processor do it, after what it has to do already."""
        end_s = self._processors[rank].done_s(self.loop.now_s, work_s)
        if end_s > self.loop.now_s:
            self.loop.at(end_s, action)
        else:
            action()

    def _send(self, connection: _Connection, tag: int) -> None:
        """Into the connection, behind what is in it."""
        if not self.stopped:
            size_bytes = self._size[tag >> 1] + self._header_bytes
            connection.tandem.send(
                size_bytes, partial(self._taken, connection), partial(self._left_network, connection, tag)
            )

    def _taken(self, connection: _Connection) -> None:
        """The kernel has taken a message: a place in the window is free."""
        if connection.waiting:
            self._give(connection, heappop(connection.waiting))
        else:
            connection.slots += 1
        self._count_down(connection.tandem.src)

    def _left_network(self, connection: _Connection, tag: int, latency_s: float) -> None:
        """Its last byte has left: it is there one latency later."""
        src, dst = connection.tandem.src, connection.tandem.dst
        if latency_s > 0:
            self.loop.after(latency_s, partial(self._arrived, dst, src, tag))
        else:
            self._arrived(dst, src, tag)

    def _arrived(self, rank: int, src: int, tag: int) -> None:
        if self.has_begun(rank):
            self._work(rank, src, tag)
        else:
            self._held[rank].append((src, tag))

    def _work(self, rank: int, src: int, tag: int) -> None:
        work_s = self._per_message_s + self._size[tag >> 1] * self._copy_s
        self._do(rank, work_s, partial(self._received, rank, src, tag))

    def _received(self, rank: int, src: int, tag: int) -> None:
        """Add a contribution, or pass a result on."""
        if self.stopped:
            return
        piece = tag >> 1
        tree, table = self._tree[piece], self._tables[rank]
        if tag & UP:
            owed = self._owed[rank]
            owed[piece] -= 1
            if not owed[piece]:
                parent = table.parent[tree]
                if parent >= 0:
                    self._post(rank, parent, 2 * piece + UP)
                elif self.call.collective.spreads:
                    for child in table.children[tree]:
                        self._post(rank, child, 2 * piece + DOWN)
        else:
            for child in table.children[tree]:
                self._post(rank, child, tag)
        self._count_down(rank)

    def _count_down(self, rank: int) -> None:
        self._left[rank] -= 1
        if not self._left[rank]:
            self.rank_ended(rank, self.loop.now_s)
