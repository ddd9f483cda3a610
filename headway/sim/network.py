"""Flows on a fabric as fluids: at every instant each has its max-min fair rate, and it ends when its bytes are gone.

Rates are exact between events: they change only when a flow begins or ends or when somebody changes a capacity, a
weight or a cap, and are solved anew once for everything that happens at one instant (see `maxmin`). A flow's last
byte leaves when its bytes are gone (`on_sent`) and arrives one route latency later (`on_done`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from headway.errors import HeadwayError
from headway.sim.fabric import Fabric
from headway.sim.loop import Loop
from headway.sim.loss import either, tcp_limit_Bps
from headway.sim.maxmin import Floats, Ints, fill, least_time, move

FIRST_SLOTS = 256
SAME_INSTANT = 1e-13
"""Ends that differ by less than this part of the clock are one event: rounding makes them differ."""

TINY_S = 1e-12
FULL = 1e-9
"""A link is full when less than this part of it is left."""

Callback = Callable[[], None]


class Flow:
    """One flow on its way. Made by `Network.start`.

    Attributes:
        latency_s: of its route when it began.
        began_s, ended_s: on the clock; the end is infinite while it runs.
    """

    __slots__ = (
        "began_s",
        "cap_Bps",
        "ended_s",
        "final_bytes",
        "latency_s",
        "marks",
        "on_done",
        "on_sent",
        "size_bytes",
        "slot",
    )

    def __init__(
        self, slot: int, size_bytes: float, latency_s: float, on_sent: Callback | None, on_done: Callback | None
    ) -> None:
        self.slot = slot
        self.size_bytes = size_bytes
        self.latency_s = latency_s
        self.on_sent = on_sent
        self.on_done = on_done
        self.final_bytes = 0.0
        self.began_s = 0.0
        self.ended_s = float("inf")
        self.cap_Bps = float("inf")
        self.marks: deque[tuple[float, Callback]] = deque()

    @property
    def ended(self) -> bool:
        """Whether all its bytes have left, or it was stopped."""
        return self.slot < 0


class Network:
    """The flows of a fabric, on a loop's clock.

    Args:
        loop: the clock.
        fabric: what the flows run over.
    """

    def __init__(self, loop: Loop, fabric: Fabric) -> None:
        self.loop = loop
        self.fabric = fabric
        self._capacity_Bps: Floats = np.array([link.capacity_Bps for link in fabric.links], dtype=np.float64)
        self._latency_s = [link.latency_s for link in fabric.links]
        self._loss = [0.0] * len(fabric.links)
        self._loses = False
        self._carried_bytes: Floats = np.zeros(len(fabric.links))
        self._flows: list[Flow | None] = [None] * FIRST_SLOTS
        self._free = list(range(FIRST_SLOTS - 1, -1, -1))
        self._route: Ints = np.zeros((FIRST_SLOTS, 2), dtype=np.int64)
        self._hops: Ints = np.zeros(FIRST_SLOTS, dtype=np.int64)
        self._weight: Floats = np.ones(FIRST_SLOTS)
        self._cap_Bps: Floats = np.full(FIRST_SLOTS, np.inf)
        self._class: Ints = np.zeros(FIRST_SLOTS, dtype=np.int64)
        self._left_bytes: Floats = np.zeros(FIRST_SLOTS)
        self._mark_left_bytes: Floats = np.full(FIRST_SLOTS, np.inf)
        self._rate_Bps: Floats = np.zeros(FIRST_SLOTS)
        self._active: npt.NDArray[np.bool_] = np.zeros(FIRST_SLOTS, dtype=np.bool_)
        self._since_s = 0.0
        self._changed = False
        self._moved = False
        self._next_s = float("inf")
        loop.add_source(self)

    def start(
        self,
        src: int,
        dst: int,
        size_bytes: float,
        *,
        key: int = 0,
        route: Sequence[int] | None = None,
        weight: float = 1.0,
        priority: int = 0,
        cap_Bps: float = float("inf"),
        on_sent: Callback | None = None,
        on_done: Callback | None = None,
    ) -> Flow:
        """Begin a flow of `size_bytes` (may be infinite) from host `src` to host `dst` at this instant.

        Args:
            key: chooses among several routes; see `Router`.
            route: these links instead of the router's: of a flow whose ends are no hosts of the fabric.
            weight: its share of a full link against the other flows there.
            priority: 0 is served first; a later class gets what is left.
            cap_Bps: the most it takes.
            on_sent: called when the last byte has left.
            on_done: called when the last byte has arrived.
        """
        if not size_bytes >= 0 or not 0 < weight < float("inf") or not cap_Bps > 0:
            raise HeadwayError(f"a flow of {size_bytes} bytes, weight {weight}, cap {cap_Bps} cannot be")
        if route is None:
            route = self.fabric.router.route(src, dst, key)
        latency_s = sum(self._latency_s[link] for link in route)
        slot = self._slot(len(route))
        flow = Flow(slot, size_bytes, latency_s, on_sent, on_done)
        flow.began_s = self.loop.now_s
        self._advance_bytes()
        self._flows[slot] = flow
        self._route[slot, : len(route)] = route
        self._hops[slot] = len(route)
        self._weight[slot] = weight
        flow.cap_Bps = cap_Bps
        self._cap_Bps[slot] = min(cap_Bps, self._loss_limit_Bps(flow))
        self._class[slot] = priority
        self._left_bytes[slot] = size_bytes
        self._mark_left_bytes[slot] = np.inf
        self._rate_Bps[slot] = 0.0
        self._active[slot] = True
        self._changed = True
        return flow

    def stop(self, flow: Flow) -> None:
        """End a flow early; nothing is called. Harmless when it has ended."""
        if not flow.ended:
            flow.final_bytes = self.sent_bytes(flow)
            self._release(flow)

    def extend(self, flow: Flow, more_bytes: float) -> None:
        """Give a running flow more to send; it ends when that has left too. Its rate stays."""
        if flow.ended or not more_bytes >= 0:
            raise HeadwayError(
                f"{more_bytes} more bytes cannot be given to this flow: it has ended, or they are below 0"
            )
        self._advance_bytes()
        flow.size_bytes += more_bytes
        self._left_bytes[flow.slot] += more_bytes
        self._moved = True

    def on_bytes(self, flow: Flow, sent_bytes: float, callback: Callback) -> None:
        """Call `callback` at the instant when `sent_bytes` of the flow have left it: at this instant if they have.

        Several per flow; those of one instant come before `on_sent`, those of one byte in the order set. A flow that
        is stopped, or ends with fewer bytes, calls no more.
        """
        if flow.ended:
            raise HeadwayError(f"nothing can be called at byte {sent_bytes}: the flow has ended")
        marks = flow.marks
        at = len(marks)
        while at and marks[at - 1][0] > sent_bytes:
            at -= 1
        marks.insert(at, (sent_bytes, callback))
        if at == 0:
            self._advance_bytes()
            self._set_mark(flow)

    def full(self, link: int) -> bool:
        """Whether the flows leave nothing of a link, as of the last time that everything had settled."""
        return bool(self.use()[0][link])

    def use(self) -> tuple[npt.NDArray[np.bool_], Ints]:
        """Of each link: whether it is full, and how many flows are on it, as of the last settling."""
        links = len(self._capacity_Bps)
        active = np.flatnonzero(self._active)
        used_Bps, flows = np.zeros(links), np.zeros(links, dtype=np.int64)
        for hop in range(self._route.shape[1]):
            on = active[self._hops[active] > hop]
            used_Bps += np.bincount(self._route[on, hop], weights=self._rate_Bps[on], minlength=links)
            flows += np.bincount(self._route[on, hop], minlength=links)
        return (flows > 0) & (used_Bps >= self._capacity_Bps * (1 - FULL)), flows

    def links_of(self, flow: Flow) -> tuple[int, ...]:
        """A running flow's links, in order; empty for one that has ended."""
        return () if flow.ended else tuple(self._route[flow.slot, : self._hops[flow.slot]].tolist())

    def set_weight(self, flow: Flow, weight: float) -> None:
        """Give a running flow another weight."""
        self._change(flow, self._weight, weight)

    def set_cap(self, flow: Flow, cap_Bps: float) -> None:
        """Give a running flow another cap, bytes per second."""
        if not flow.ended:
            self._change(flow, self._cap_Bps, min(cap_Bps, self._loss_limit_Bps(flow)))
            flow.cap_Bps = cap_Bps

    def rate_Bps(self, flow: Flow) -> float:
        """Its rate, as of the last time that everything had settled."""
        return 0.0 if flow.ended else float(self._rate_Bps[flow.slot])

    def sent_bytes(self, flow: Flow) -> float:
        """How much of it has left by now."""
        if flow.ended:
            return flow.final_bytes
        self._advance_bytes()
        return flow.size_bytes - float(self._left_bytes[flow.slot])

    def capacity_Bps(self, link: int) -> float:
        """Of a link, now."""
        return float(self._capacity_Bps[link])

    def set_capacity(self, link: int, capacity_Bps: float) -> None:
        """Change a link's capacity from this instant; 0 stops what uses it."""
        if not 0 <= capacity_Bps < float("inf"):
            raise HeadwayError(f"{self.fabric.links[link].name}: capacity {capacity_Bps} cannot be")
        if capacity_Bps != self._capacity_Bps[link]:
            self._advance_bytes()
            self._capacity_Bps[link] = capacity_Bps
            self._changed = True

    def set_latency(self, link: int, latency_s: float) -> None:
        """Change a link's latency for flows that begin from now on."""
        self._latency_s[link] = latency_s

    def set_loss(self, link: int, loss: float) -> None:
        """Let a link lose that part of its packets, 0 to 1: flows over it get at most `loss.tcp_limit_Bps`."""
        if not 0 <= loss < 1:
            raise HeadwayError(f"{self.fabric.links[link].name}: a loss of {loss} cannot be")
        if loss != self._loss[link]:
            self._loss[link] = loss
            self._loses = any(self._loss)
            for flow in self._flows:
                if flow is not None and link in self._route[flow.slot, : self._hops[flow.slot]]:
                    self.set_cap(flow, flow.cap_Bps)

    def carried_bytes(self, link: int) -> float:
        """What a link has carried so far."""
        self._advance_bytes()
        return float(self._carried_bytes[link])

    def settle(self) -> float:
        """Solve the rates if anything changed, and say when the next flow ends. For the loop."""
        if self._changed:
            self._changed = False
            active = np.flatnonzero(self._active)
            left_Bps = self._capacity_Bps.copy()
            fill(active, self._route, self._hops, self._weight, self._cap_Bps, self._class, left_Bps, self._rate_Bps)
            self._moved = True
        if self._moved:
            self._moved = False
            self._next_s = self.loop.now_s + float(
                least_time(self._active, self._left_bytes, self._mark_left_bytes, self._rate_Bps)
            )
        return self._next_s

    def advance(self) -> None:
        """End the flows whose bytes are gone. For the loop."""
        self._advance_bytes()
        active = np.flatnonzero(self._active)
        slack_bytes = self._rate_Bps[active] * (SAME_INSTANT * max(self.loop.now_s, TINY_S))
        least = np.minimum(self._left_bytes[active], self._mark_left_bytes[active])
        due = [self._flows[slot] for slot in active[least <= slack_bytes]]
        self._moved = True
        for flow in due:
            assert flow is not None
            self._let_happen(flow)

    def _let_happen(self, flow: Flow) -> None:
        slack_bytes = SAME_INSTANT * max(self.loop.now_s, TINY_S) * self.rate_Bps(flow)
        while flow.marks and not flow.ended and self._mark_left_bytes[flow.slot] <= slack_bytes:
            callback = flow.marks.popleft()[1]
            self._set_mark(flow)
            callback()
        if flow.ended or self._left_bytes[flow.slot] > slack_bytes:
            return
        flow.final_bytes = flow.size_bytes
        self._release(flow)
        if flow.on_sent is not None:
            flow.on_sent()
        if flow.on_done is not None:
            if flow.latency_s > 0:
                self.loop.after(flow.latency_s, flow.on_done)
            else:
                flow.on_done()

    def _set_mark(self, flow: Flow) -> None:
        sent_bytes = flow.size_bytes - float(self._left_bytes[flow.slot])
        self._mark_left_bytes[flow.slot] = flow.marks[0][0] - sent_bytes if flow.marks else np.inf
        self._moved = True

    def _loss_limit_Bps(self, flow: Flow) -> float:
        if not self._loses:
            return float("inf")
        route = self._route[flow.slot, : self._hops[flow.slot]]
        return tcp_limit_Bps(either(self._loss[link] for link in route), flow.latency_s)

    def _change(self, flow: Flow, values: Floats, value: float) -> None:
        if not value > 0:
            raise HeadwayError(f"a flow's weight or cap of {value} cannot be")
        if not flow.ended and values[flow.slot] != value:
            self._advance_bytes()
            values[flow.slot] = value
            self._changed = True

    def _advance_bytes(self) -> None:
        """Bring the bytes of all flows up to now."""
        passed_s = self.loop.now_s - self._since_s
        if passed_s <= 0:
            return
        self._since_s = self.loop.now_s
        move(
            passed_s,
            self._active,
            self._rate_Bps,
            self._left_bytes,
            self._mark_left_bytes,
            self._route,
            self._hops,
            self._carried_bytes,
        )

    def _release(self, flow: Flow) -> None:
        slot, flow.slot = flow.slot, -1
        flow.ended_s = self.loop.now_s
        self._flows[slot] = None
        self._active[slot] = False
        self._rate_Bps[slot] = 0.0
        self._free.append(slot)
        self._changed = True

    def _slot(self, hops: int) -> int:
        slots, width = self._route.shape
        if hops > width:
            wider = np.zeros((slots, hops), dtype=np.int64)
            wider[:, :width] = self._route
            self._route = wider
        if not self._free:
            self._grow(2 * slots)
        return self._free.pop()

    def _grow(self, slots: int) -> None:
        old = len(self._flows)
        self._flows += [None] * (slots - old)
        self._free = list(range(slots - 1, old - 1, -1))
        for name in (
            "_route",
            "_hops",
            "_weight",
            "_cap_Bps",
            "_class",
            "_left_bytes",
            "_mark_left_bytes",
            "_rate_Bps",
            "_active",
        ):
            array = getattr(self, name)
            larger = np.zeros((slots, *array.shape[1:]), dtype=array.dtype)
            larger[:old] = array
            setattr(self, name, larger)
