"""How long a plan takes on a cluster: a small model whose every term can be named.

Network time. Link l carries load_l bytes at capacity c_l, so it is busy for load_l / c_l. It cannot begin before the
first piece reaches it, and after its last piece that piece still has to travel on. So

    T_net = max( max over links  head_l + alpha + load_l * incast_l / c_l + tail_l,
                 max over trees  time of one piece from the farthest leaf up and down again )

head_l and tail_l are least over the tree edges that use l, each a sum of hop times
alpha + piece / cap, with piece = min(chunk, share * S) and cap as in REACT's time-expanded network: the sender's
uplink and the receiver's downlink divided by the flows that the tree has there at once. In a ring every link starts
at once and head and tail vanish; in one chain the pipeline fills over its whole length. This is `depth * (alpha +
chunk / capacity)` with the depth counted where it matters.

Processor time. Every message costs the ranks that send and receive it `per_message_s`, one after the other:
T_cpu = per_message_s * most messages at one rank. T = T_net + T_cpu, as if nothing of it overlapped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headway.cluster.model import Cluster, Link
from headway.collectives.chunking import chunk_bytes_for, link_rate_Bps
from headway.collectives.loads import Edges, Floats, Ints, LinkTable, check_size, directions, edges_of, link_loads
from headway.collectives.plan import Collective, Plan


@dataclass(frozen=True, slots=True)
class CostModel:
    """Fixed costs. The latency of a hop between hosts is the cluster's `alpha_s`.

    Attributes:
        local_alpha_s: one hop between ranks of one host. Loopback TCP takes about 20 us on the testbed.
        per_message_s: processor time of a rank for one message sent or received. About 10 us: two system calls of
            2 us each (testbed facts: a raw getsockopt takes 2 us) and the event loop around them.
        incast: part of its time that a downlink loses when very many hosts send to it at once; a downlink fed by k
            hosts takes 1 + incast * (1 - 2/k) times as long for k > 2. An assumption, kept small: it decides between
            plans that are equal otherwise, in favour of few flows, and a measured trial corrects it.
    """

    local_alpha_s: float = 20e-6
    per_message_s: float = 10e-6
    incast: float = 0.03


DEFAULT_COSTS = CostModel()


@dataclass(frozen=True)
class Prediction:
    """What the model says of one plan.

    Attributes:
        time_s: the whole operation, seconds.
        loads_bytes: bytes on each link, in the order of `Cluster.links`.
        bottleneck: the link that decides; None on one host or one rank.
        transfer_s: the bottleneck's load over its capacity.
        fill_s: pipeline fill and latency: network time beyond `transfer_s`.
        cpu_s: fixed cost of messages.
    """

    time_s: float
    loads_bytes: tuple[float, ...]
    bottleneck: Link | None
    transfer_s: float
    fill_s: float
    cpu_s: float

    @property
    def bottleneck_name(self) -> str:
        """The bottleneck in words; "no link" where there is none."""
        return "no link" if self.bottleneck is None else self.bottleneck.name


def predict(
    plan: Plan,
    cluster: Cluster,
    collective: Collective,
    size_bytes: int,
    chunk_bytes: int | None = None,
    *,
    costs: CostModel = DEFAULT_COSTS,
) -> Prediction:
    """Time of `collective` over a vector of `size_bytes` (the whole vector, n blocks in a reduce-scatter).

    `chunk_bytes` is the piece size; None: the one that the executor chooses for this plan (`chunking`). Raises
    PlanError when plan and cluster differ in size. The plan must have passed `verify.check`.
    """
    check_size(plan, cluster)
    loads = link_loads(plan, cluster, collective) * size_bytes
    if plan.size == 1:
        return Prediction(0.0, tuple(loads.tolist()), None, 0.0, 0.0, 0.0)
    if chunk_bytes is None:
        chunk_bytes = chunk_bytes_for(plan, collective, size_bytes, 1, link_rate_Bps(cluster))
    table, edges = LinkTable(cluster), edges_of(plan)
    timing = _Timing(plan, cluster, table, edges, collective, size_bytes, chunk_bytes, costs)
    net_s, link = timing.network_time(loads)
    cpu_s = costs.per_message_s * _most_messages(plan, edges, collective, size_bytes, chunk_bytes)
    transfer_s = 0.0 if link is None else float(loads[link] / table.capacities_Bps[link])
    return Prediction(
        time_s=net_s + cpu_s,
        loads_bytes=tuple(loads.tolist()),
        bottleneck=None if link is None else cluster.links[link],
        transfer_s=transfer_s,
        fill_s=net_s - transfer_s,
        cpu_s=cpu_s,
    )


def _most_messages(plan: Plan, edges: Edges, collective: Collective, size_bytes: int, chunk_bytes: int) -> float:
    pieces = np.maximum(1.0, np.ceil(plan.shares * size_bytes / chunk_bytes))[edges.tree]
    at_rank = np.bincount(edges.rank, weights=pieces, minlength=plan.size)
    at_rank += np.bincount(edges.parent, weights=pieces, minlength=plan.size)
    return float(at_rank.max()) * (int(collective.reduces) + int(collective.spreads))


class _Timing:
    """Heads and tails of every edge of one plan; arrays are flat over (tree, rank)."""

    def __init__(
        self,
        plan: Plan,
        cluster: Cluster,
        table: LinkTable,
        edges: Edges,
        collective: Collective,
        size_bytes: int,
        chunk_bytes: int,
        costs: CostModel,
    ) -> None:
        self.plan, self.cluster, self.table, self.edges, self.collective = plan, cluster, table, edges, collective
        self.costs = costs
        n, trees = plan.size, len(plan.trees)
        self.below = edges.tree * n + edges.rank
        self.above = edges.tree * n + edges.parent
        piece = np.minimum(float(chunk_bytes), plan.shares * size_bytes)[edges.tree]
        host = table.host_of
        self.leaving = host[edges.rank] != host[edges.parent]
        children = np.bincount(self.above[self.leaving], minlength=trees * n)
        fan = np.maximum(1, children)[self.above].astype(np.float64)
        alpha = np.where(self.leaving, cluster.alpha_s, costs.local_alpha_s)
        up = alpha + piece * self._slowness(edges.rank, edges.parent, np.ones(len(fan)), fan)
        down = alpha + piece * self._slowness(edges.parent, edges.rank, fan, np.ones(len(fan)))
        self.up_s = up if collective.reduces else np.zeros_like(up)
        self.down_s = down if collective.spreads else np.zeros_like(down)
        self._walk(trees * n)

    def _slowness(self, src: Ints, dst: Ints, out_flows: Floats, in_flows: Floats) -> Floats:
        """Seconds per byte of one message on its slowest link, shared by the tree's flows at either end."""
        slow = np.zeros(len(src))
        for kind, use in enumerate(self.table.uses(src, dst)):
            here = 1.0 / self.table.capacities_Bps[use.links]
            if kind == 0:
                here = here * out_flows[use.messages]
            elif kind == 1:
                here = here * in_flows[use.messages]
            slow[use.messages] = np.maximum(slow[use.messages], here)
        return slow

    def _walk(self, nodes: int) -> None:
        """Longest times below each node, and from the start of the operation to each node's result."""
        depth = self.plan.hops[self.edges.tree, self.edges.rank]
        order = np.argsort(depth, kind="stable")
        levels = np.split(order, np.flatnonzero(np.diff(depth[order])) + 1)
        gathered, spread = np.zeros(nodes), np.zeros(nodes)
        for level in reversed(levels):
            low, high = self.below[level], self.above[level]
            np.maximum.at(gathered, high, gathered[low] + self.up_s[level])
            np.maximum.at(spread, high, spread[low] + self.down_s[level])
        roots = np.flatnonzero(self.plan.parents.reshape(-1) < 0)
        arrival, rest = np.zeros(nodes), np.zeros(nodes)
        arrival[roots], rest[roots] = gathered[roots], spread[roots]
        for level in levels:
            low, high = self.below[level], self.above[level]
            arrival[low] = arrival[high] + self.down_s[level]
            rest[low] = rest[high] + self.up_s[level]
        self.path_s = float((gathered[roots] + spread[roots]).max())
        self.gathered, self.spread, self.arrival, self.rest = gathered, spread, arrival, rest

    def network_time(self, loads: Floats) -> tuple[float, int | None]:
        """(seconds, index of the deciding link)."""
        count = len(loads)
        head, tail = np.full(count, np.inf), np.full(count, np.inf)
        phases: list[tuple[Floats, Floats]] = []
        if self.collective.reduces:
            phases.append((self.gathered[self.below], self.rest[self.above]))
        if self.collective.spreads:
            phases.append((self.arrival[self.above], self.spread[self.below]))
        for (src, dst), (before, after) in zip(directions(self.edges, self.collective), phases, strict=True):
            for use in self.table.uses(src, dst):
                np.minimum.at(head, use.links, before[use.messages])
                np.minimum.at(tail, use.links, after[use.messages])
        used = np.flatnonzero(loads > 0)
        if len(used) == 0:
            return self.path_s, None
        busy = loads * self._incast(count) / self.table.capacities_Bps
        total = head[used] + self.cluster.alpha_s + busy[used] + tail[used]
        worst = int(used[np.argmax(total)])
        return max(float(total.max()), self.path_s), worst

    def _incast(self, links: int) -> Floats:
        hosts = len(self.cluster.hosts)
        host = self.table.host_of
        meets = np.zeros((hosts, hosts), dtype=bool)
        for src, dst in directions(self.edges, self.collective):
            meets[host[src], host[dst]] = True
        np.fill_diagonal(meets, False)
        sources = np.maximum(2, meets.sum(axis=0))
        factor = np.ones(links)
        factor[hosts : 2 * hosts] = 1 + self.costs.incast * (1 - 2 / sources)
        return factor
