"""Flows on a fabric as fluids: at every instant each has its max-min fair rate, and it ends when its bytes are gone.

Rates are exact between events: they change only when a flow begins or ends or when somebody changes a capacity, a
weight or a cap, and are solved anew once for everything that happens at one instant, for the flows whose rates can
change (see `maxmin`). A flow's bytes are worked out when its rate changes, never in steps. Its last byte leaves when
its bytes are gone (`on_sent`) and arrives one route latency later (`on_done`). Flows that are due at one instant are
called in the order of their start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headway.errors import HeadwayError
from headway.sim.engine import flows as rows
from headway.sim.engine.fabric import Fabric
from headway.sim.engine.loop import Loop
from headway.sim.engine.loss import either, tcp_limit_Bps
from headway.sim.engine.maxmin import sent_bytes
from headway.sim.engine.realism import IDEAL, Realism, SlowStart, Sources
from headway.sim.engine.tables import POPPED, Tables

FULL = 1e-9
"""A link is full when less than this part of it is left."""

MOST_ROUTES = 200_000
"""Routes remembered, so that a fabric need not work them out for every flow. About 300 bytes each."""

INF = float("inf")

Callback = Callable[[], None]
Route = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Flow:
    """One flow on its way. Made by `Network.start`.

    Attributes:
        latency_s: of its route, one way, when it began.
        size_bytes: how much it has to send, or had.
        cap_Bps: the most it takes by its owner's wish.
        began_s, ended_s: on the clock; the end is infinite while it runs.
        arrives: whether what it has sent is there; else it has another link to cross (`tandem`).
        slot, route, window_Bps, final_bytes, marks: the network's own.
    """

    slot: int
    src: int
    route: Route
    latency_s: float
    size_bytes: float
    weight: float
    cap_Bps: float
    began_s: float
    on_sent: Callback | None
    on_done: Callback | None
    ended_s: float = INF
    arrives: bool = True
    window_Bps: float = INF
    final_bytes: float = 0.0
    marks: deque[tuple[float, Callback]] | None = None

    @property
    def ended(self) -> bool:
        """Whether all its bytes have left, or it was stopped."""
        return self.slot < 0


class Network:
    """The flows of a fabric, on a loop's clock.

    Args:
        loop: the clock.
        fabric: what the flows run over.
        realism: corrections to the fluid model; none unless given.
    """

    def __init__(self, loop: Loop, fabric: Fabric, realism: Realism = IDEAL) -> None:
        self.loop = loop
        self.fabric = fabric
        self.realism = realism
        self._nominal_Bps = [link.capacity_Bps for link in fabric.links]
        self._room: dict[int, tuple[float, float]] = {}
        self._latency_s = [link.latency_s for link in fabric.links]
        self._loss: dict[int, float] = {}
        self._sources = Sources()
        self._routes: dict[tuple[int, ...], tuple[Route, float]] = {}
        self._tables = Tables.of(self._nominal_Bps)
        self._flows: list[Flow | None] = []
        self._look_at_tables()
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
        cap_Bps: float = INF,
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
        if not size_bytes >= 0 or not 0 < weight < INF or not cap_Bps > 0:
            raise HeadwayError(f"a flow of {size_bytes} bytes, weight {weight}, cap {cap_Bps} cannot be")
        links, latency_s = self._way(src, dst, key) if route is None else self._measured(route)
        self._make_room(len(links))
        flow = Flow(-1, src, links, latency_s, size_bytes, weight, cap_Bps, self.loop.now_s, on_sent, on_done)
        if self.realism.slow_start is not None:
            self._start_slowly(flow, self.realism.slow_start)
        tables = self._tables
        flow.slot = slot = rows.begin(
            tables.flows,
            tables.uses,
            tables.queues,
            tables.links,
            tables.state,
            self.loop.now_s,
            links,
            size_bytes,
            weight,
            self._limit_Bps(flow),
            priority,
        )
        self._flows[slot] = flow
        if self.realism.incast > 0 and len(links):
            self._sources.add(int(links[-1]), src)
            self._set_effective(int(links[-1]))
        return flow

    def stop(self, flow: Flow) -> None:
        """End a flow early; nothing is called. Harmless when it has ended."""
        if flow.slot >= 0:
            self._end(flow, whole=False)

    def extend(self, flow: Flow, more_bytes: float) -> None:
        """Give a running flow more to send; it ends when that has left too. Its rate stays."""
        if flow.slot < 0 or not more_bytes >= 0:
            raise HeadwayError(
                f"{more_bytes} more bytes cannot be given to this flow: it has ended, or they are below 0"
            )
        flow.size_bytes += more_bytes
        self._aim(flow)

    def on_bytes(self, flow: Flow, sent_bytes: float, callback: Callback) -> None:
        """Call `callback` at the instant when `sent_bytes` of the flow have left it: at this instant if they have.

        Several per flow; those of one instant come before `on_sent`, those of one byte in the order set. A flow that
        is stopped, or ends with fewer bytes, calls no more.
        """
        if flow.slot < 0:
            raise HeadwayError(f"nothing can be called at byte {sent_bytes}: the flow has ended")
        if flow.marks is None:
            flow.marks = deque()
        marks = flow.marks
        at = len(marks)
        while at and marks[at - 1][0] > sent_bytes:
            at -= 1
        marks.insert(at, (sent_bytes, callback))
        if at == 0:
            self._aim(flow)

    def set_weight(self, flow: Flow, weight: float) -> None:
        """Give a running flow another weight."""
        if not 0 < weight < INF:
            raise HeadwayError(f"a flow's weight of {weight} cannot be")
        flow.weight = weight
        self._change(flow)

    def set_cap(self, flow: Flow, cap_Bps: float) -> None:
        """Give a running flow another cap, bytes per second."""
        if not cap_Bps > 0:
            raise HeadwayError(f"a flow's cap of {cap_Bps} cannot be")
        flow.cap_Bps = cap_Bps
        self._change(flow)

    def rate_Bps(self, flow: Flow) -> float:
        """Its rate, as of the last time that everything had settled."""
        return 0.0 if flow.slot < 0 else float(self._rate_Bps[flow.slot])

    def sent_bytes(self, flow: Flow) -> float:
        """How much of it has left by now."""
        if flow.slot < 0:
            return flow.final_bytes
        return float(sent_bytes(self._tables.flows, flow.slot, self.loop.now_s))

    def capacity_Bps(self, link: int) -> float:
        """Of a link, now; without what `realism` takes."""
        return self._nominal_Bps[link]

    def set_capacity(self, link: int, capacity_Bps: float) -> None:
        """Change a link's capacity from this instant; 0 stops what uses it."""
        if not 0 <= capacity_Bps < INF:
            raise HeadwayError(f"{self.fabric.links[link].name}: capacity {capacity_Bps} cannot be")
        self._room[link] = self.loop.now_s, self.room_bytes(link)
        self._nominal_Bps[link] = capacity_Bps
        self._set_effective(link)

    def set_latency(self, link: int, latency_s: float) -> None:
        """Change a link's latency for flows that begin from now on."""
        self._latency_s[link] = latency_s
        self._routes.clear()

    def set_loss(self, link: int, loss: float) -> None:
        """Let a link lose that part of its packets, 0 to 1: flows over it get at most `loss.tcp_limit_Bps`."""
        if not 0 <= loss < 1:
            raise HeadwayError(f"{self.fabric.links[link].name}: a loss of {loss} cannot be")
        if loss != self._loss.get(link, 0.0):
            self._loss[link] = loss
            if not loss:
                del self._loss[link]
            tables = self._tables
            for slot in rows.flows_on(tables.uses, tables.queues, tables.links, link):
                flow = self._flows[slot]
                assert flow is not None
                self._change(flow)

    def carried_bytes(self, link: int) -> float:
        """What a link has carried so far."""
        tables = self._tables
        return float(rows.carried_bytes(tables.flows, tables.uses, tables.queues, tables.links, self.loop.now_s, link))

    def room_bytes(self, link: int) -> float:
        """What a link could have carried so far: its capacity over time; without what `realism` takes."""
        since_s, room_bytes = self._room.get(link, (0.0, 0.0))
        return room_bytes + self._nominal_Bps[link] * (self.loop.now_s - since_s)

    @property
    def changed_links(self) -> Collection[int]:
        """Those whose capacity was ever set."""
        return self._room.keys()

    def full(self, link: int) -> bool:
        """Whether the flows leave nothing of a link, as of the last time that everything had settled."""
        used_Bps, flows = rows.use(self._tables.queues, self._tables.links, link)
        return bool(flows > 0 and used_Bps >= self._tables.links["capacity_Bps"][link] * (1 - FULL))

    def use(self) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """Of each link: whether it is full, and how many flows are on it, as of the last settling."""
        used_Bps, flows = rows.use_of_all(self._tables.queues, self._tables.links)
        return (flows > 0) & (used_Bps >= self._tables.links["capacity_Bps"] * (1 - FULL)), flows

    def links_of(self, flow: Flow) -> tuple[int, ...]:
        """A running flow's links, in order; empty for one that has ended."""
        return () if flow.slot < 0 else tuple(flow.route.tolist())

    @property
    def flows(self) -> int:
        """How many run."""
        return int(self._tables.state["flows"][0])

    @property
    def solved(self) -> int:
        """Rates of single flows worked out so far, for the cost per event."""
        return int(self._tables.state["solved"][0])

    def settle(self) -> float:
        """Solve the rates if anything changed, and say when the next flow is due. For the loop."""
        tables = self._tables
        return float(rows.settle(tables.flows, tables.uses, tables.queues, tables.links, tables.state, self.loop.now_s))

    def advance(self) -> None:
        """Let happen what is due of the flows. For the loop."""
        tables = self._tables
        count = rows.take_due(tables.flows, tables.state, self.loop.now_s)
        for flow in [self._flows[slot] for slot in tables.flows["ready"][:count].tolist()]:
            assert flow is not None
            self._let_happen(flow)

    def _let_happen(self, flow: Flow) -> None:
        """Marks, then the end, of a flow that was due; unless a callback takes it back, and it is due anew or never."""
        marks = flow.marks
        while flow.slot >= 0 and self._place[flow.slot] == POPPED:
            if marks and self._reaches(flow, marks[0][0]):
                callback = marks.popleft()[1]
                self._mark_bytes[flow.slot] = marks[0][0] if marks else INF
                callback()
            elif self._reaches(flow, flow.size_bytes):
                self._end(flow, whole=True)
                if flow.on_sent is not None:
                    flow.on_sent()
                if flow.on_done is not None:
                    if flow.latency_s > 0:
                        self.loop.after(flow.latency_s, flow.on_done)
                    else:
                        flow.on_done()
            else:
                self._aim(flow)

    def _reaches(self, flow: Flow, target_bytes: float) -> bool:
        return bool(rows.reaches(self._tables.flows, self.loop.now_s, flow.slot, target_bytes))

    def _end(self, flow: Flow, *, whole: bool) -> None:
        slot, flow.slot = flow.slot, -1
        tables = self._tables
        flow.final_bytes = rows.end(
            tables.flows, tables.uses, tables.queues, tables.links, tables.state, self.loop.now_s, slot, whole
        )
        self._flows[slot] = None
        flow.ended_s = self.loop.now_s
        if self.realism.incast > 0 and len(flow.route):
            self._sources.remove(int(flow.route[-1]), flow.src)
            self._set_effective(int(flow.route[-1]))

    def _aim(self, flow: Flow) -> None:
        mark_bytes = flow.marks[0][0] if flow.marks else INF
        tables = self._tables
        rows.aim(tables.flows, tables.state, self.loop.now_s, flow.slot, flow.size_bytes, mark_bytes)

    def _change(self, flow: Flow) -> None:
        if flow.slot >= 0:
            rows.change(self._tables.flows, self._tables.state, flow.slot, flow.weight, self._limit_Bps(flow))

    def _limit_Bps(self, flow: Flow) -> float:
        limit_Bps = min(flow.cap_Bps, flow.window_Bps)
        if self._loss:
            loss = either(self._loss.get(link, 0.0) for link in flow.route.tolist())
            limit_Bps = min(limit_Bps, tcp_limit_Bps(loss, flow.latency_s))
        return limit_Bps

    def _start_slowly(self, flow: Flow, slow_start: SlowStart) -> None:
        rtt_s = slow_start.rtt_s(flow.latency_s)
        flow.window_Bps = slow_start.first_cap_Bps(flow.latency_s)

        def one_round_trip_later() -> None:
            if flow.slot >= 0:
                binds = self.rate_Bps(flow) >= flow.window_Bps * (1 - FULL)
                flow.window_Bps = 2 * flow.window_Bps if binds else INF
                self._change(flow)
                if binds:
                    self.loop.after(rtt_s, one_round_trip_later)

        if len(flow.route):
            self.loop.after(rtt_s, one_round_trip_later)
        else:
            flow.window_Bps = INF

    def _set_effective(self, link: int) -> None:
        """Give the solver a link's capacity after incast."""
        capacity_Bps = self._nominal_Bps[link]
        if self.realism.incast > 0:
            capacity_Bps *= self.realism.incast_part(self._sources.count(link))
        rows.change_capacity(self._tables.queues, self._tables.links, self._tables.state, link, capacity_Bps)

    def _way(self, *key: int) -> tuple[Route, float]:
        if key not in self._routes:
            if len(self._routes) >= MOST_ROUTES:
                self._routes.clear()
            self._routes[key] = self._measured(self.fabric.router.route(*key))
        return self._routes[key]

    def _measured(self, route: Sequence[int]) -> tuple[Route, float]:
        return np.array(route, dtype=np.int64), sum(self._latency_s[link] for link in route)

    def _make_room(self, hops: int) -> None:
        tables = self._tables
        if hops > tables.width:
            tables.wider(hops)
        if not self._free_flows[0]:
            tables.more_flows()
            self._look_at_tables()
        while self._free_queues[0] < hops:
            tables.more_queues()

    def _look_at_tables(self) -> None:
        """Columns of the tables that are read one row at a time; and a place for each row's flow."""
        tables = self._tables
        self._rate_Bps = tables.flows["rate_Bps"]
        self._place = tables.flows["place"]
        self._mark_bytes = tables.flows["mark_bytes"]
        self._free_flows = tables.state["free_flows"]
        self._free_queues = tables.state["free_queues"]
        self._flows += [None] * (len(tables.flows) - len(self._flows))
