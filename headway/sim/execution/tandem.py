"""A connection whose bytes cross the links of its way one after the other, with queues between them. Pure.

A fluid flow over several links at once moves at the rate of the tightest, and what it can't use of the others is lost
to it at that moment. Real links have queues in front of them: a sender fills the queue of a busy downlink and goes on
to its next peer, and the downlink is never idle while anything waits. That matters where a rank's peers take turns: an
all-reduce of 16 MB by recursive doubling took 1.23 s in the lab, 1.39 s without these queues, 1.18 s with them.

So the connection has a stage on each link, a flow of its own, and moves packets, at most `PACKET_BYTES` long, the
largest that the kernel hands down at once. A packet enters the next stage as soon as its first byte leaves the last
one (cut through), and has arrived when it has left all stages. What is in all stages together is at most the kernel's
buffer; more waits at the sender. Stages are shared max-min fairly, not first come first served. No queue overflows: see
`realism` for what that costs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from headway.sim.engine.buckets import buckets_of
from headway.sim.engine.network import Flow
from headway.sim.execution.running import Call

PACKET_BYTES = 64 * 1024

WRITABLE = 2 / 3
"""Of a send buffer; the kernel tells when no more than this part of it is used (Linux: sk_stream_min_wspace)."""


class _Packet:
    """`pending`: stages that it has not left. The callbacks are the message's, on its last packet."""

    __slots__ = ("arrived", "pending", "size_bytes", "taken")

    def __init__(
        self, size_bytes: float, pending: int, taken: Callable[[], None] | None, arrived: Callable[[float], None] | None
    ) -> None:
        self.size_bytes = size_bytes
        self.pending = pending
        self.taken = taken
        self.arrived = arrived


class _Stage:
    __slots__ = ("base", "flow", "given", "latency_s", "link", "packets")

    def __init__(self, link: int, latency_s: float) -> None:
        self.link = link
        self.latency_s = latency_s
        self.packets: deque[_Packet] = deque()
        self.flow: Flow | None = None
        self.base = self.given = 0.0


class Tandem:
    """From one rank to another, in one operation.

    Args:
        call: the operation.
        src, dst: ranks.
        wake: makes the sender give the kernel more, when its processor gets to it. The kernel asks when a third of its
            buffer is free.

    Attributes:
        weight: of the flows that it begins.
        arrived_bytes: that have left all stages.
    """

    def __init__(self, call: Call, src: int, dst: int, wake: Callable[[Callable[[], None]], None]) -> None:
        self.src, self.dst = src, dst
        self.weight = call.weight
        self.arrived_bytes = 0.0
        self._call, self._network = call, call.network
        self._buffer_bytes = call.host.kernel_bytes
        self._wake, self._woken = wake, False
        self._buckets = buckets_of(call.network)
        self._stages = [_Stage(link, call.network.fabric.links[link].latency_s) for link in call.way(src, dst)]
        self._queue: deque[_Packet] = deque()
        self._inside_bytes = 0.0

    def send(self, size_bytes: float, taken: Callable[[], None], arrived: Callable[[float], None]) -> None:
        """A message, behind those before it.

        Args:
            taken: called when the kernel has taken it all.
            arrived: called with the way's latency when its last byte has left.
        """
        stages = len(self._stages)
        if not stages:
            self.arrived_bytes += size_bytes
            loop = self._network.loop
            loop.at(loop.now_s, taken)
            arrived(self._call.costs.local_alpha_s)
            return
        left = size_bytes
        while left > PACKET_BYTES:
            self._queue.append(_Packet(PACKET_BYTES, stages, None, None))
            left -= PACKET_BYTES
        self._queue.append(_Packet(left, stages, taken, arrived))
        self._feed()

    def flows(self) -> Iterator[Flow]:
        """Those that run."""
        for stage in self._stages:
            if stage.flow is not None and not stage.flow.ended:
                yield stage.flow

    def _feed(self) -> None:
        """Let the kernel take what it has room for."""
        queue = self._queue
        while queue and (not self._inside_bytes or self._inside_bytes + queue[0].size_bytes <= self._buffer_bytes):
            packet = queue.popleft()
            self._inside_bytes += packet.size_bytes
            self._enter(0, packet)
            if packet.taken is not None:
                loop = self._network.loop
                loop.at(loop.now_s, packet.taken)

    def _enter(self, index: int, packet: _Packet) -> None:
        stage = self._stages[index]
        first = not stage.packets
        stage.packets.append(packet)
        free_bytes = 0.0
        if first and self._buckets is not None:
            free_bytes = self._buckets.take(stage.link, packet.size_bytes)
        if free_bytes < packet.size_bytes:
            self._flow(index, packet.size_bytes - free_bytes)
        if first and index + 1 < len(self._stages):
            self._enter(index + 1, packet)
        if free_bytes == packet.size_bytes:
            self._left(index)

    def _flow(self, index: int, size_bytes: float) -> None:
        stage = self._stages[index]
        flow = stage.flow
        if flow is None or flow.ended:
            stage.base = stage.given
            last = index + 1 == len(self._stages)
            stage.flow = flow = self._call.flow(
                self.src, self.dst, size_bytes, self.weight, route=(stage.link,), arrives=last
            )
            stage.latency_s = flow.latency_s
        else:
            self._network.extend(flow, size_bytes)
        stage.given += size_bytes
        self._network.on_bytes(flow, stage.given - stage.base, partial(self._left, index))

    def _left(self, index: int) -> None:
        """The first packet of a stage has left it; the next one begins, and enters the next stage."""
        stage = self._stages[index]
        packet = stage.packets.popleft()
        packet.pending -= 1
        if stage.packets and index + 1 < len(self._stages):
            self._enter(index + 1, stage.packets[0])
        if packet.pending:
            return
        self.arrived_bytes += packet.size_bytes
        if packet.arrived is not None:
            packet.arrived(sum(each.latency_s for each in self._stages))
        self._inside_bytes -= packet.size_bytes
        if self._queue and not self._woken and self._inside_bytes <= WRITABLE * self._buffer_bytes:
            self._woken = True
            self._wake(self._more)

    def _more(self) -> None:
        self._woken = False
        self._feed()
