"""Ranks as the planners group them: hosts are nodes, since ranks on one host reach each other for free.

Planners make trees over nodes; `Layout.expand` turns them into trees over ranks, so that each tree crosses each
host's links as if the host were one rank. With one rank per host this only renames.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from headway.cluster.model import Cluster
from headway.collectives.plan import Collective, Plan, plan_of


@dataclass(frozen=True)
class Layout:
    """A cluster's occupied hosts as nodes 0 to H-1, in the order of their first rank."""

    cluster: Cluster

    @cached_property
    def ranks(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each node."""
        by_host: dict[int, list[int]] = defaultdict(list)
        for rank, host in enumerate(self.cluster.host_of):
            by_host[host].append(rank)
        return tuple(tuple(ranks) for ranks in by_host.values())

    @cached_property
    def hosts(self) -> tuple[int, ...]:
        """The host (index in the cluster) of each node."""
        return tuple(self.cluster.host_of[ranks[0]] for ranks in self.ranks)

    @property
    def size(self) -> int:
        """Number of nodes."""
        return len(self.ranks)

    def node_of(self, rank: int) -> int:
        """The node that holds `rank`."""
        return self.hosts.index(self.cluster.host_of[rank])

    def rates_Bps(self, collective: Collective) -> tuple[float, ...]:
        """What limits a node that forwards data: all-reduce both links, spreading its uplink, reducing its downlink."""
        hosts = [self.cluster.hosts[index] for index in self.hosts]
        if collective is Collective.ALL_REDUCE:
            return tuple(min(host.uplink_Bps, host.downlink_Bps) for host in hosts)
        return tuple(host.uplink_Bps if collective.spreads else host.downlink_Bps for host in hosts)

    @cached_property
    def racks(self) -> tuple[tuple[int, ...], ...]:
        """Nodes by rack, the racks with the thinnest uplinks at both ends; one group where there are no racks."""
        by_rack: dict[int | None, list[int]] = defaultdict(list)
        for node, index in enumerate(self.hosts):
            by_rack[self.cluster.hosts[index].rack].append(node)
        if len(by_rack) == 1 or None in by_rack:
            return (tuple(range(self.size)),)

        def rate(rack: int | None) -> float:
            assert rack is not None
            return min(self.cluster.racks[rack].uplink_Bps, self.cluster.racks[rack].downlink_Bps)

        slowest_first = sorted(by_rack, key=rate)
        ends_first = [*slowest_first[0::2], *reversed(slowest_first[1::2])]
        return tuple(tuple(by_rack[rack]) for rack in ends_first)

    @cached_property
    def slow_pairs(self) -> frozenset[tuple[int, int]]:
        """Pairs of nodes whose path is below 0.8 of what their links allow."""
        node_of_host = {host: node for node, host in enumerate(self.hosts)}
        pairs = set()
        for (a, b), rate in self.cluster.paths.items():
            fair = min(self.cluster.hosts[a].uplink_Bps, self.cluster.hosts[b].downlink_Bps)
            if a in node_of_host and b in node_of_host and rate < 0.8 * fair:
                pairs.add((node_of_host[a], node_of_host[b]))
        return frozenset(pairs)

    def order(self, *, avoid: bool = False) -> list[int]:
        """Nodes rack by rack; with `avoid`, rearranged so that slow pairs are not neighbours if that is possible."""
        order = [node for group in self.racks for node in group]
        return without_neighbours(order, self.slow_pairs) if avoid and self.slow_pairs else order

    def expand(self, plan: Plan, collective: Collective, *, root: int | None = None) -> Plan:
        """A plan over nodes as a plan over ranks.

        In tree t the node's rank number t (modulo) stands for it, the other ranks of the host hang below that one.
        `root` stands for its own node. Reduce-scatter, all-gather: each tree is repeated with each rank of the
        root's node as root, and the share is divided among them.
        """
        n = self.cluster.world_size
        if self.size == n:
            names = np.array([ranks[0] for ranks in self.ranks], dtype=np.int32)
            if np.array_equal(names, np.arange(n)):
                return plan
            rows = np.full_like(plan.parents, -1)
            rows[:, names] = np.where(plan.parents >= 0, names[plan.parents], -1)
            return plan_of(plan.name, rows, plan.shares, order=names[list(plan.order)] if plan.order else ())
        trees: list[list[int]] = []
        shares: list[float] = []
        for index, tree in enumerate(plan.trees):
            stand_ins = [ranks[index % len(ranks)] for ranks in self.ranks]
            if root is not None:
                stand_ins[self.node_of(root)] = root
            if collective in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER):
                for rank in self.ranks[tree.root]:
                    stand_ins[tree.root] = rank
                    trees.append(self._row(tree.parents, stand_ins))
                    shares.append(tree.share * self.size / n)
            else:
                trees.append(self._row(tree.parents, stand_ins))
                shares.append(tree.share)
        return plan_of(plan.name, trees, shares)

    def _row(self, parents: tuple[int, ...], stand_ins: Sequence[int]) -> list[int]:
        row = [0] * self.cluster.world_size
        for node, ranks in enumerate(self.ranks):
            for rank in ranks:
                row[rank] = stand_ins[node]
            above = parents[node]
            row[stand_ins[node]] = stand_ins[above] if above >= 0 else -1
        return row


def without_neighbours(order: Sequence[int], pairs: frozenset[tuple[int, int]]) -> list[int]:
    """`order` with elements swapped until no pair (either direction) is adjacent on the circle, or no swap helps."""
    bad = {frozenset(pair) for pair in pairs}
    ring = list(order)
    n = len(ring)

    def clashes(places: set[int]) -> int:
        edges = {edge % n for place in places for edge in (place - 1, place)}
        return sum(frozenset((ring[edge], ring[(edge + 1) % n])) in bad for edge in edges)

    for place in range(n):
        if frozenset((ring[place], ring[(place + 1) % n])) not in bad:
            continue
        for other in range(n):
            places = {(place + 1) % n, other}
            before = clashes(places)
            ring[(place + 1) % n], ring[other] = ring[other], ring[(place + 1) % n]
            if clashes(places) < before:
                break
            ring[(place + 1) % n], ring[other] = ring[other], ring[(place + 1) % n]
    return ring
