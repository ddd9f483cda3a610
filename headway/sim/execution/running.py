"""What the three ways of carrying out a plan have in common: the ranks of one operation, and its flows. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from headway.collectives.plan import Collective, Plan, PlanError
from headway.collectives.predict import DEFAULT_COSTS, CostModel
from headway.errors import HeadwayError
from headway.lab.draws import mix
from headway.sim.engine.network import Flow, Network
from headway.sim.execution.host_model import DEFAULT_HOST, HostModel

KeyOf = Callable[[int, int], int]
OnDone = Callable[[Sequence[float]], None]
OnRank = Callable[[int, float], None]
OnFlow = Callable[[int, int, Flow], None]

HELD = float("inf")
"""When a rank may begin that waits for `Running.begin`."""


@dataclass(frozen=True)
class Call:
    """One operation as `collective.start` was asked for it; see there."""

    network: Network
    plan: Plan
    collective: Collective
    size_bytes: int
    hosts: tuple[int, ...]
    chunk_bytes: int
    element_bytes: int = 1
    weight: float = 1.0
    priority: int = 0
    key: int | KeyOf = 0
    seed: int = 0
    costs: CostModel = DEFAULT_COSTS
    host: HostModel = DEFAULT_HOST
    on_done: OnDone | None = None
    on_rank: OnRank | None = None
    on_flow: OnFlow | None = None

    def __post_init__(self) -> None:
        if self.plan.size != len(self.hosts):
            raise PlanError(f"plan {self.plan.name} is for {self.plan.size} ranks, the job has {len(self.hosts)}")
        if self.size_bytes < 0:
            raise HeadwayError(f"a vector of {self.size_bytes} bytes cannot be")

    def flow_key(self, src: int, dst: int) -> int:
        """The key of the connection from rank `src` to rank `dst`; two ranks of one host have connections apart."""
        return self.key(src, dst) if callable(self.key) else mix(self.key, src, dst)

    def way(self, src: int, dst: int) -> Sequence[int]:
        """The links from rank `src` to rank `dst`, in order; none on one host."""
        router = self.network.fabric.router
        return router.route(self.hosts[src], self.hosts[dst], self.flow_key(src, dst))

    def flow(
        self,
        src: int,
        dst: int,
        size_bytes: float,
        weight: float,
        *,
        route: Sequence[int] | None = None,
        arrives: bool = True,
        on_sent: Callable[[], None] | None = None,
        on_done: Callable[[], None] | None = None,
    ) -> Flow:
        """Begin a flow from rank `src` to rank `dst`, on the pair's way or on `route`; tell whoever wants to know."""
        arrived = on_done
        if on_done is not None and self.hosts[src] == self.hosts[dst]:
            arrived = partial(self._later, on_done)
        flow = self.network.start(
            self.hosts[src],
            self.hosts[dst],
            size_bytes,
            key=self.flow_key(src, dst) if route is None else 0,
            route=route,
            weight=weight,
            priority=self.priority,
            on_sent=on_sent,
            on_done=arrived,
        )
        flow.arrives = arrives
        if self.on_flow is not None:
            self.on_flow(src, dst, flow)
        return flow

    def _later(self, callback: Callable[[], None]) -> None:
        self.network.loop.after(self.costs.local_alpha_s, callback)


class Running(ABC):
    """One operation on its way.

    Attributes:
        ends_s: when each rank's part was complete; infinity for those that are not.
        ended: whether all are.
    """

    def __init__(self, call: Call, ready: Sequence[float] | None) -> None:
        self.call = call
        self.loop = call.network.loop
        self.weight = call.weight
        ranks = len(call.hosts)
        if ready is not None and len(ready) != ranks:
            raise HeadwayError(f"{len(ready)} times for {ranks} ranks")
        self.ends_s = [float("inf")] * ranks
        self.ended = False
        self.stopped = False
        self._begun = [False] * ranks
        self._missing = ranks
        self._ready = tuple(ready) if ready is not None else (self.loop.now_s,) * ranks

    def launch(self) -> None:
        """Let each rank begin when it is ready. Called once, by `collective.start`."""
        now: list[int] = []
        later: dict[float, list[int]] = {}
        for rank, ready_s in enumerate(self._ready):
            if ready_s <= self.loop.now_s:
                now.append(rank)
            elif ready_s != HELD:
                later.setdefault(ready_s, []).append(rank)
        for ready_s, ranks in later.items():
            self.loop.at(ready_s, partial(self._begin, ranks))
        self._begin(now)

    def begin(self, rank: int) -> None:
        """Let a rank begin that was held (`ready` infinite). Once for each."""
        self._begin([rank])

    def set_weight(self, weight: float) -> None:
        """Change the weight of all its flows, those under way and those to come."""
        self.weight = weight
        for flow, part in self.weighted_flows():
            self.call.network.set_weight(flow, weight * part)

    def stop(self) -> None:
        """End it early: its flows stop, and nothing more is called. Harmless when it has ended."""
        self.stopped = True
        for flow, _ in list(self.weighted_flows()):
            self.call.network.stop(flow)

    @abstractmethod
    def weighted_flows(self) -> Iterable[tuple[Flow, float]]:
        """Its flows that are on their way, and each one's part of the operation's weight."""

    @abstractmethod
    def sent_bytes(self) -> float:
        """What all its flows have sent by now."""

    @abstractmethod
    def begun(self, ranks: Sequence[int]) -> None:
        """These ranks begin now."""

    def _begin(self, ranks: Sequence[int]) -> None:
        if self.stopped:
            return
        fresh = [rank for rank in ranks if not self._begun[rank]]
        for rank in fresh:
            self._begun[rank] = True
        if fresh:
            self.begun(fresh)

    def has_begun(self, rank: int) -> bool:
        """Whether that rank has begun."""
        return self._begun[rank]

    @property
    def all_begun(self) -> bool:
        """Whether every rank has begun."""
        return all(self._begun)

    def rank_ended(self, rank: int, end_s: float) -> None:
        """That rank's part is complete at this instant; with the last one the operation is."""
        if self.stopped:
            return
        self.ends_s[rank] = end_s
        self._missing -= 1
        if self.call.on_rank is not None:
            self.call.on_rank(rank, end_s)
        if not self._missing:
            self.ended = True
            if self.call.on_done is not None:
                self.call.on_done(tuple(self.ends_s))
