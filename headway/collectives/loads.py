"""What a plan puts on each link: the one place where trees meet the cluster's links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from headway.cluster.model import Cluster
from headway.collectives.plan import Collective, Plan, PlanError

Ints = npt.NDArray[np.intp]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Use:
    """Which of some messages use one kind of link, and which link each uses.

    Attributes:
        messages: indices into the arrays of messages.
        links: index into `Cluster.links` for each of them, same length.
    """

    messages: Ints
    links: Ints


@dataclass(frozen=True)
class LinkTable:
    """The links of a cluster as arrays, for many messages at once."""

    cluster: Cluster

    @cached_property
    def capacities_Bps(self) -> Floats:
        """Capacity of each link, in the order of `Cluster.links`."""
        return np.array([link.capacity_Bps for link in self.cluster.links], dtype=np.float64)

    @cached_property
    def host_of(self) -> Ints:
        """Host of each rank."""
        return np.array(self.cluster.host_of, dtype=np.intp)

    @cached_property
    def _rack_of(self) -> Ints:
        return np.array([-1 if host.rack is None else host.rack for host in self.cluster.hosts], dtype=np.intp)

    def uses(self, src: Ints, dst: Ints) -> Iterator[Use]:
        """What messages from ranks `src` to ranks `dst` use, one kind of link after the other."""
        hosts, racks = len(self.cluster.hosts), len(self.cluster.racks)
        a, b = self.host_of[src], self.host_of[dst]
        leaving = np.flatnonzero(a != b)
        a, b = a[leaving], b[leaving]
        yield Use(leaving, a)
        yield Use(leaving, hosts + b)
        if racks:
            rack_a, rack_b = self._rack_of[a], self._rack_of[b]
            crossing = np.flatnonzero((rack_a != rack_b) & (rack_a >= 0) & (rack_b >= 0))
            yield Use(leaving[crossing], 2 * hosts + rack_a[crossing])
            yield Use(leaving[crossing], 2 * hosts + racks + rack_b[crossing])
        if self.cluster.paths:
            keys = np.array([x * hosts + y for x, y in sorted(self.cluster.paths)], dtype=np.intp)
            wanted = a * hosts + b
            at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            limited = np.flatnonzero(keys[at] == wanted)
            yield Use(leaving[limited], 2 * hosts + 2 * racks + at[limited])


@dataclass(frozen=True)
class Edges:
    """Every tree edge of a plan as a message of the up phase (`rank` to `parent`); reversed in the down phase.

    Attributes:
        tree: index of the tree, one entry per edge.
        rank: the lower end.
        parent: the upper end.
    """

    tree: Ints
    rank: Ints
    parent: Ints


def edges_of(plan: Plan) -> Edges:
    """The (size - 1) edges of each tree."""
    tree, rank = np.nonzero(plan.parents >= 0)
    return Edges(tree, rank, plan.parents[tree, rank].astype(np.intp))


def directions(edges: Edges, collective: Collective) -> list[tuple[Ints, Ints]]:
    """(src, dst) of the messages of the collective's phases: up, down, or both, in this order."""
    phases = []
    if collective.reduces:
        phases.append((edges.rank, edges.parent))
    if collective.spreads:
        phases.append((edges.parent, edges.rank))
    return phases


def check_size(plan: Plan, cluster: Cluster) -> None:
    """PlanError when the plan is for another number of ranks than the cluster has."""
    if plan.size != cluster.world_size:
        raise PlanError(f"plan {plan.name} is for {plan.size} ranks, the cluster has {cluster.world_size}")


def link_loads(plan: Plan, cluster: Cluster, collective: Collective) -> Floats:
    """Load of each link (order of `Cluster.links`) as a multiple of the vector's bytes."""
    check_size(plan, cluster)
    table, edges = LinkTable(cluster), edges_of(plan)
    weights = plan.shares[edges.tree]
    total = np.zeros(len(cluster.links))
    for src, dst in directions(edges, collective):
        for use in table.uses(src, dst):
            total += np.bincount(use.links, weights=weights[use.messages], minlength=len(total))
    return total
