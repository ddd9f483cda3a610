"""A trace's collectives by our own plans, on the fluid network. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headway.cluster.model import star as star_cluster
from headway.collectives.plan import Collective, Plan
from headway.collectives.plan_book import PINNABLE, PlanBook
from headway.collectives.predict import CostModel
from headway.sim.engine.loop import Loop
from headway.sim.engine.network import Network
from headway.sim.execution.collective import Execution, link_rate_Bps, start
from headway.sim.execution.host_model import IDEAL_HOST
from headway.sim.execution.running import HELD, Running
from headway.sim.formats.chakra import CommKind, TraceNode
from headway.sim.traces.trace_run import Collectives

Callback = Callable[[], None]

NO_COSTS = CostModel(local_alpha_s=0.0, per_message_s=0.0, incast=0.0)
"""Nothing beside the network: an NPU's messages are started by hardware."""

COLLECTIVES = {
    CommKind.ALL_REDUCE: Collective.ALL_REDUCE,
    CommKind.ALL_GATHER: Collective.ALL_GATHER,
    CommKind.REDUCE_SCATTER: Collective.REDUCE_SCATTER,
    CommKind.REDUCE_SCATTER_BLOCK: Collective.REDUCE_SCATTER,
    CommKind.BROADCAST: Collective.BROADCAST,
    CommKind.REDUCE: Collective.REDUCE,
}


class PlannedCollectives:
    """Runs collectives by plans: a family held, or of all families the one that is fastest alone on this network.

    A vector is rounded up to whole blocks of whole bytes. What has no plan (an all-to-all) is left to `otherwise`.

    Args:
        network: the fluid network.
        otherwise: runs what there are no plans for.
        execution: how a plan is carried out.
        plan: a family (`plan_book.PINNABLE`; one that cannot do a collective leaves it to the planner's choice for
            equal hosts on one switch), or empty: the fastest.
        costs: of messages; by default none.
    """

    def __init__(
        self,
        network: Network,
        otherwise: Collectives,
        *,
        execution: Execution,
        plan: str = "",
        costs: CostModel = NO_COSTS,
    ) -> None:
        self._otherwise = otherwise
        self._network, self._execution, self._plan, self._costs = network, execution, plan, costs
        self._chosen: dict[tuple[tuple[int, ...], Collective, int], Plan] = {}
        self._running: dict[tuple[object, ...], tuple[Running, dict[int, Callback]]] = {}

    @property
    def plan_names(self) -> tuple[str, ...]:
        """Of the plans that it has used, each once."""
        return tuple(dict.fromkeys(plan.name for plan in self._chosen.values()))

    def runs(self, comm: CommKind) -> bool:
        """All that there are plans for, and what `otherwise` runs."""
        return comm in COLLECTIVES or self._otherwise.runs(comm)

    def begin(self, npu: int, node: TraceNode, key: tuple[object, ...], npus: Sequence[int], on_done: Callback) -> None:
        """As `trace_run.Collectives` says. UsageError: there is no such family of plans."""
        assert node.comm is not None  # the reader sees to it
        if node.comm not in COLLECTIVES:
            self._otherwise.begin(npu, node, key, npus, on_done)
            return
        collective = COLLECTIVES[node.comm]
        if key not in self._running:
            ranks = len(npus)
            block_bytes = node.size_bytes if collective is Collective.ALL_GATHER else -(-node.size_bytes // ranks)
            ends: dict[int, Callback] = {}
            running = start(
                self._network,
                self._plan_for(tuple(npus), collective, ranks * block_bytes),
                collective,
                ranks * block_bytes,
                hosts=npus,
                execution=self._execution,
                ready=[HELD] * len(npus),
                costs=self._costs,
                host=IDEAL_HOST,
                on_rank=lambda rank, _: ends.pop(rank)(),
            )
            self._running[key] = (running, ends)
        running, ends = self._running[key]
        rank = list(npus).index(npu)
        ends[rank] = on_done
        running.begin(rank)

    def _plan_for(self, npus: tuple[int, ...], collective: Collective, size_bytes: int) -> Plan:
        key = (npus, collective, size_bytes)
        if key not in self._chosen:
            route = self._network.fabric.router.route(npus[0], npus[-1], 0)
            alpha_s = sum(self._network.fabric.links[link].latency_s for link in route)
            cluster = star_cluster(len(npus), link_rate_Bps(self._network, npus), alpha_s=alpha_s)
            names = (self._plan,) if self._plan else ("", *PINNABLE)
            plans = [
                PlanBook(cluster, "off", bitwise=False, pinned=name).idle(collective, size_bytes) for name in names
            ]
            different = {plan.name: plan for plan in plans}.values()
            self._chosen[key] = min(different, key=lambda plan: self._alone_s(plan, collective, size_bytes, npus))
        return self._chosen[key]

    def _alone_s(self, plan: Plan, collective: Collective, size_bytes: int, npus: tuple[int, ...]) -> float:
        """What a plan takes on this fabric with nothing else on it, seconds; simulated."""
        if self._plan:
            return 0.0  # there is no choice
        ends: list[Sequence[float]] = []
        loop = Loop()
        start(
            Network(loop, self._network.fabric),
            plan,
            collective,
            size_bytes,
            hosts=npus,
            execution=self._execution,
            costs=self._costs,
            host=IDEAL_HOST,
            on_done=ends.append,
        )
        loop.run()
        return max(ends[0]) if ends else float("inf")
