"""One operation on a star of hosts with uneven links: how long it takes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from headway.cluster.model import Cluster, Host
from headway.collectives import families
from headway.collectives.plan import Collective, Plan
from headway.collectives.predict import CostModel
from headway.sim.engine.fabric import Fabric, FabricLink, star
from headway.sim.engine.loop import Loop
from headway.sim.engine.network import Flow, Network
from headway.sim.execution import collective
from headway.sim.execution.collective import Execution
from headway.sim.execution.host_model import IDEAL_HOST, HostModel
from headway.sim.execution.running import Running

FREE = CostModel(local_alpha_s=0.0, per_message_s=0.0, incast=0.0)
RATE_Bps = 25e6
COLLECTIVES = tuple(Collective)
NAMES = st.sampled_from(("ring", "direct", "recursive doubling", "star", "chain", "double tree", "binary tree"))


@dataclass
class Trial:
    """One operation, and what it leaves.

    Attributes:
        ends_s: each rank's end.
        flows: (src, dst, flow) in the order begun.
    """

    network: Network
    running: Running
    ends_s: list[float] = field(default_factory=list)
    flows: list[tuple[int, int, Flow]] = field(default_factory=list)

    @property
    def time_s(self) -> float:
        """Of the whole operation."""
        return max(self.ends_s)


def uneven_star(up_Bps: Sequence[float], down_Bps: Sequence[float], *, latency_s: float = 0.0) -> Fabric:
    """Hosts with a rate each in either direction."""
    fabric = star(len(up_Bps), RATE_Bps)
    links = tuple(
        FabricLink(link.name, rate, latency_s) for link, rate in zip(fabric.links, [*up_Bps, *down_Bps], strict=True)
    )
    return Fabric(fabric.name, fabric.hosts, links, fabric.router)


def fabric_of(cluster: Cluster) -> Fabric:
    """The star that a cluster of one rank on each host describes."""
    hosts: Sequence[Host] = cluster.hosts
    return uneven_star([h.uplink_Bps for h in hosts], [h.downlink_Bps for h in hosts], latency_s=cluster.alpha_s / 2)


def run(
    fabric: Fabric,
    plan: Plan,
    what: Collective,
    size_bytes: int,
    execution: Execution,
    *,
    hosts: Sequence[int] | None = None,
    costs: CostModel = FREE,
    host: HostModel = IDEAL_HOST,
    chunk_bytes: int | None = None,
    element_bytes: int = 1,
    ready: Sequence[float] | None = None,
    weight: float = 1.0,
    background: Sequence[tuple[int, int]] = (),
    until_s: float = float("inf"),
) -> Trial:
    """Run one operation to its end; `background` are endless flows between hosts."""
    network = Network(Loop(), fabric)
    for src, dst in background:
        network.start(src, dst, float("inf"))
    flows: list[tuple[int, int, Flow]] = []
    ends: list[float] = []

    def done(ends_s: Sequence[float]) -> None:
        ends.extend(ends_s)
        network.loop.stop()

    running = collective.start(
        network, plan, what, size_bytes, hosts=range(plan.size) if hosts is None else hosts, execution=execution,
        costs=costs, host=host, chunk_bytes=chunk_bytes, element_bytes=element_bytes, ready=ready, weight=weight,
        on_done=done, on_flow=lambda src, dst, flow: flows.append((src, dst, flow)),
    )  # fmt: skip
    if not ends:
        network.loop.run(until_s)
    return Trial(network, running, ends, flows)


def plan_for(size: int, name: str, seed: int, what: Collective) -> Plan:
    """A plan that can carry `what`, with its ranks shuffled."""
    draw = random.Random(seed)
    order = draw.sample(range(size), size)
    if what in (Collective.BROADCAST, Collective.REDUCE):
        trees = {"star": families.star(size, 0), "binary tree": families.binary_tree(order)}
        return trees.get(name, families.chain(order))
    rooted = {
        "ring": families.ring(order),
        "direct": families.direct([1.0] * size),
        "recursive doubling": families.recursive_doubling(order),
    }
    if what is Collective.ALL_REDUCE:
        rooted |= {
            "star": families.star(size, order[0]),
            "chain": families.chain(order),
            "double tree": families.double_tree(order),
            "binary tree": families.binary_tree(order),
        }
    return rooted.get(name, families.ring(order))
