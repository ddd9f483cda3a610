"""Runs a connection matrix of htsim on a network: what each connection takes. Pure.

A connection is done when its last byte has arrived; that sets off `recv_done_trigger`. `send_done_trigger` is set off
when the sender knows, one more latency later; of a message on a reused connection already when its last byte has left,
as in htsim. Messages on one connection are sent one after the other, in the order in which they become due.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from functools import partial

from headway.errors import HeadwayError, UsageError
from headway.sim.engine.fabric import mix
from headway.sim.engine.network import Network
from headway.sim.formats.htsim_cm import Connection, ConnectionMatrix, TriggerKind


@dataclass(frozen=True, slots=True)
class ConnectionTime:
    """When a connection began to send and when its last byte arrived, simulated seconds. Without end: None."""

    connection: Connection
    start_s: float | None
    end_s: float | None

    @property
    def duration_s(self) -> float | None:
        """Its completion time, seconds."""
        return None if self.start_s is None or self.end_s is None else self.end_s - self.start_s


def run_connections(network: Network, matrix: ConnectionMatrix, *, subflows: int = 1) -> tuple[ConnectionTime, ...]:
    """Start what the matrix says, run the network's loop until all that can end has, and say when, in the file's order.

    Args:
        network: of a fabric that has at least the matrix's hosts; its clock's now is the matrix's 0.
        subflows: each connection is cut into so many equal flows with routes of their own, each of that part of the
            weight. One is a connection whose packets all go one way (ECMP); a transport that sprays its packets over
            all ways, as Ultra Ethernet's, is near the result of many.

    Raises UsageError: hosts that the fabric lacks; connections whose triggers are never set off, or of which none ever
    ends. HeadwayError: some never end, because a link of theirs carries nothing.
    """
    hosts = len(network.fabric.hosts)
    if matrix.hosts > hosts:
        raise UsageError(f"has {matrix.hosts} Nodes, the network {hosts} hosts", where=matrix.where)
    if matrix.connections and all(connection.size_bytes == float("inf") for connection in matrix.connections):
        raise UsageError("every size is 0, so nothing would end", where=matrix.where)
    if subflows < 1:
        raise UsageError(f"{subflows} subflows; one is the least")
    return _Run(network, matrix, subflows).run()


class _Run:
    def __init__(self, network: Network, matrix: ConnectionMatrix, subflows: int) -> None:
        self.network, self.matrix, self.subflows = network, matrix, subflows
        self.zero_s = network.loop.now_s
        self.start_s: dict[int, float] = {}
        self.end_s: dict[int, float] = {}
        self.waiting: dict[int, deque[int]] = defaultdict(deque)
        self.needed = {t.id: t.count if t.kind is TriggerKind.BARRIER else 1 for t in matrix.triggers.values()}
        self.queues: dict[int, deque[int]] = defaultdict(deque)
        self.left = sum(connection.size_bytes < float("inf") for connection in matrix.connections)
        for number, connection in enumerate(matrix.connections):
            if connection.trigger:
                self.waiting[connection.trigger].append(number)

    def run(self) -> tuple[ConnectionTime, ...]:
        loop, connections = self.network.loop, self.matrix.connections
        for number, connection in enumerate(connections):
            if connection.start_s is not None:
                loop.at(self.zero_s + connection.start_s, partial(self.due, number))
        if self.left:
            loop.run()
        if self.left:
            self.explain()
        return tuple(
            ConnectionTime(c, self.start_s.get(number), self.end_s.get(number)) for number, c in enumerate(connections)
        )

    def due(self, number: int) -> None:
        connection = self.matrix.connections[number]
        if not connection.message:
            self.begin(number)
            return
        queue = self.queues[connection.id]
        queue.append(number)
        if len(queue) == 1:
            self.begin(number)

    def begin(self, number: int) -> None:
        connection = self.matrix.connections[number]
        self.start_s[number] = self.network.loop.now_s
        unsent = unfinished = self.subflows
        latency_s = 0.0

        def sent() -> None:
            nonlocal unsent
            unsent -= 1
            if not unsent:
                self.sent(number)

        def done() -> None:
            nonlocal unfinished
            unfinished -= 1
            if not unfinished:
                self.done(number, latency_s)

        for part in range(self.subflows):
            flow = self.network.start(
                connection.src,
                connection.dst,
                connection.size_bytes / self.subflows,
                key=mix(number, part),
                weight=1 / self.subflows,
                on_sent=sent,
                on_done=done,
            )
            latency_s = max(latency_s, flow.latency_s)

    def sent(self, number: int) -> None:
        connection = self.matrix.connections[number]
        if connection.message:
            queue = self.queues[connection.id]
            queue.popleft()
            if queue:
                self.begin(queue[0])
            self.set_off(connection.send_done)

    def done(self, number: int, latency_s: float) -> None:
        connection = self.matrix.connections[number]
        self.end_s[number] = self.network.loop.now_s
        self.set_off(connection.recv_done)
        if connection.send_done and not connection.message:
            self.network.loop.after(latency_s, partial(self.set_off, connection.send_done))
        self.left -= 1
        if not self.left:
            self.network.loop.stop()

    def set_off(self, trigger: int) -> None:
        if not trigger:
            return
        self.needed[trigger] -= 1
        waiting = self.waiting[trigger]
        if self.matrix.triggers[trigger].kind is TriggerKind.MULTISHOT:
            if waiting:
                self.due(waiting.popleft())
        elif self.needed[trigger] == 0:
            while waiting:
                self.due(waiting.popleft())

    def explain(self) -> None:
        """Raise what keeps the rest from ending."""
        for number, connection in enumerate(self.matrix.connections):
            if number in self.start_s and number not in self.end_s and connection.size_bytes < float("inf"):
                what = f"the connection in line {connection.line} never ends: a link of its route carries nothing"
                raise HeadwayError(f"{self.matrix.where}: {what}")
        for number, connection in enumerate(self.matrix.connections):
            if number not in self.start_s and connection.trigger:
                what = f"never starts: trigger {connection.trigger} is never set off, or waits for what waits for it"
                raise UsageError(what, where=f"{self.matrix.where}:{connection.line}: trigger")
        raise HeadwayError(f"{self.matrix.where}: {self.left} connections never start")
