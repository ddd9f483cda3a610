"""How single messages cross a fabric: as fluids that share, or stored whole at every device. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Protocol

from headway.sim.engine.fabric import Fabric
from headway.sim.engine.loop import Loop
from headway.sim.engine.network import Network

Callback = Callable[[], None]


def whole_ns(duration_s: float) -> float:
    """A duration cut to whole nanoseconds, in which ASTRA-sim counts; within 1e-6 ns of the next it is the next."""
    return math.floor(duration_s * 1e9 + 1e-6) * 1e-9


class Forwarding(Enum):
    """CUT_THROUGH: a flow on all its links at once. STORE: one link after the other, as ASTRA-sim's backend does."""

    CUT_THROUGH = "cut-through"
    STORE = "store"


class Messenger(Protocol):
    """Carries messages."""

    def send(self, src: int, dst: int, size_bytes: float, on_done: Callback) -> None:
        """Send from host to host; `on_done` when the last byte has arrived."""
        ...

    def carried_bytes(self, link: int) -> float:
        """What a link of the fabric has carried so far."""
        ...


class CutThrough:
    """Each message is a flow of `network`. One host sends another one message after the other, as a connection does;
    flows of different pairs share a link max-min fairly.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._waiting: dict[tuple[int, int], deque[tuple[float, Callback]]] = {}

    def send(self, src: int, dst: int, size_bytes: float, on_done: Callback) -> None:
        """As `Messenger` says."""
        waiting = self._waiting.get((src, dst))
        if waiting is None:
            self._waiting[src, dst] = deque()
            self._begin((src, dst), size_bytes, on_done)
        else:
            waiting.append((size_bytes, on_done))

    def carried_bytes(self, link: int) -> float:
        """As `Messenger` says."""
        return self._network.carried_bytes(link)

    def _begin(self, pair: tuple[int, int], size_bytes: float, on_done: Callback) -> None:
        self._network.start(*pair, size_bytes, on_sent=partial(self._sent, pair), on_done=on_done)

    def _sent(self, pair: tuple[int, int]) -> None:
        if self._waiting[pair]:
            self._begin(pair, *self._waiting[pair].popleft())
        else:
            del self._waiting[pair]


@dataclass(slots=True)
class _Packet:
    route: tuple[int, ...]
    hop: int
    size_bytes: float
    on_done: Callback


class StoreAndForward:
    """Each device receives a message whole before it passes it on; a link sends one after the other, first come first.

    On a link of capacity C and latency a, a message of S bytes arrives after S/C + a, and the next may begin after S/C,
    both in whole nanoseconds: ASTRA-sim's analytical backend that knows congestion, to the nanosecond. Capacities are
    those of the fabric and do not change.
    """

    def __init__(self, loop: Loop, fabric: Fabric) -> None:
        self._loop = loop
        self._fabric = fabric
        self._queues: list[deque[_Packet]] = [deque() for _ in fabric.links]
        self._busy = [False] * len(fabric.links)
        self._carried_bytes = [0.0] * len(fabric.links)

    def send(self, src: int, dst: int, size_bytes: float, on_done: Callback) -> None:
        """As `Messenger` says."""
        self._pass_on(_Packet(tuple(self._fabric.router.route(src, dst, 0)), 0, size_bytes, on_done))

    def carried_bytes(self, link: int) -> float:
        """As `Messenger` says; a message counts when it begins."""
        return self._carried_bytes[link]

    def _pass_on(self, packet: _Packet) -> None:
        if packet.hop == len(packet.route):
            self._loop.after(0.0, packet.on_done)
            return
        link = packet.route[packet.hop]
        self._queues[link].append(packet)
        if not self._busy[link]:
            self._next(link)

    def _next(self, link: int) -> None:
        self._busy[link] = bool(self._queues[link]) and self._fabric.links[link].capacity_Bps > 0
        if not self._busy[link]:
            return
        packet = self._queues[link].popleft()
        busy_s = packet.size_bytes / self._fabric.links[link].capacity_Bps
        self._carried_bytes[link] += packet.size_bytes
        self._loop.after(whole_ns(busy_s + self._fabric.links[link].latency_s), lambda: self._arrived(packet))
        self._loop.after(whole_ns(busy_s), lambda: self._next(link))

    def _arrived(self, packet: _Packet) -> None:
        packet.hop += 1
        self._pass_on(packet)
