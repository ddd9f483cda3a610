"""The paper's own moves: position-equivalent swaps of ranks in ring, double tree and recursive doubling.

A pattern is a set of places; which rank sits on which place is free, and every relabelling computes the same thing.
REACT prepares such swaps and takes those that avoid congested nodes and edges:

- ring: any permutation; up to 8 ranks all of them are scored, above that the ranks at the slowest edge are swapped
  with others as long as it helps;
- double tree: a congested rank trades places with one that has less to carry; share moves from one tree to the
  other ("choose other aggregators");
- recursive doubling: swaps that bring a congested pair into an early step, in which few blocks move.

Scored by `step_cost.rounds_time`, the cost on the time-expanded network. Objective, steps and bytes are those of the
families. Loses against the packing: a ring has no place where a slow rank carries less, and a tree's places are coarse.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from headway.cluster.model import Cluster
from headway.collectives import families
from headway.collectives.layout import Layout
from headway.collectives.loads import LinkTable
from headway.collectives.plan import Collective, Plan
from headway.collectives.step_cost import rounds_time

Orders = npt.NDArray[np.int32]
ALL_ORDERS_UP_TO = 8
ALL_PLACES_UP_TO = 16
MAX_PARTNERS = 64
MAX_SWAPS = 32
CONGESTED = 0.9
"""A link below this part of its baseline (or of the median, where no baseline differs) counts as congested."""
SHARES = (0.5, 0.25, 0.75, 0.0, 1.0)


def moves(
    plan: Plan,
    cluster: Cluster,
    baseline: Cluster,
    collective: Collective,
    size_bytes: int,
    chunk_bytes: int | None = None,
) -> list[tuple[Plan, float]]:
    """Relabelled patterns and their cost in rounds, seconds, best first.

    Args:
        plan: what runs now; its order is where the search of its own pattern starts.
        cluster: with the capacities as they are now.
        baseline: with the capacities of the undisturbed cluster.
        collective: all-reduce moves in ring and double tree, reduce-scatter and all-gather in ring and recursive
            doubling; broadcast and reduce have no such moves (an empty list).
        size_bytes: bytes of the whole vector.
        chunk_bytes: piece size; None: the one that the executor chooses for each plan.
    """
    if collective in (Collective.BROADCAST, Collective.REDUCE) or cluster.world_size < 2:
        return []
    n = cluster.world_size
    bad_ranks, bad_pairs = congested(cluster, baseline)
    start = list(plan.order) if len(plan.order) == n else _host_order(cluster)
    found = [families.ring(order) for order in _ring_orders(start, cluster, bad_ranks)]
    if collective is Collective.ALL_REDUCE:
        found += _double_trees(start, bad_ranks, cluster, size_bytes, chunk_bytes)
    else:
        found += _doublings(start, bad_ranks, bad_pairs, cluster, collective, size_bytes, chunk_bytes)
    scored = [(each, rounds_time(each, cluster, collective, size_bytes, chunk_bytes)) for each in found]
    return sorted(scored, key=lambda pair: pair[1])


def congested(cluster: Cluster, baseline: Cluster) -> tuple[list[int], list[tuple[int, int]]]:
    """(ranks on hosts with a congested link, pairs of ranks on a congested path), against the baseline."""
    same = cluster.hosts == baseline.hosts
    ups = np.array([host.uplink_Bps for host in cluster.hosts])
    downs = np.array([host.downlink_Bps for host in cluster.hosts])
    usual_up = np.median(ups) if same else np.array([host.uplink_Bps for host in baseline.hosts])
    usual_down = np.median(downs) if same else np.array([host.downlink_Bps for host in baseline.hosts])
    slowness = np.minimum(ups / usual_up, downs / usual_down)
    slow_hosts = [int(host) for host in np.argsort(slowness, kind="stable") if slowness[host] < CONGESTED]
    ranks = [rank for host in slow_hosts for rank, at in enumerate(cluster.host_of) if at == host]
    slow_paths = {
        pair for pair, rate in cluster.paths.items() if rate < CONGESTED * baseline.paths.get(pair, float("inf"))
    }
    pairs = [
        (i, j)
        for i, a in enumerate(cluster.host_of)
        for j, b in (enumerate(cluster.host_of) if slow_paths else ())
        if (a, b) in slow_paths
    ]
    return ranks, pairs


def _host_order(cluster: Cluster) -> list[int]:
    layout = Layout(cluster)
    return [rank for node in layout.order() for rank in layout.ranks[node]]


def _swapped(order: Sequence[int], a: int, b: int) -> list[int]:
    changed = list(order)
    changed[a], changed[b] = changed[b], changed[a]
    return changed


@lru_cache(maxsize=ALL_ORDERS_UP_TO)
def _all_orders(n: int) -> Orders:
    """Orders on a circle, place 0 fixed; a ring and its mirror image load the same links."""
    rest = [order for order in itertools.permutations(range(1, n)) if n < 3 or order[0] < order[-1]]
    return np.array([(0, *order) for order in rest], dtype=np.int32)


def _ring_slowness(orders: Orders, cluster: Cluster) -> npt.NDArray[np.float64]:
    """Seconds per byte of the slowest edge of each ring, both directions; shape (orders,)."""
    table, n = LinkTable(cluster), orders.shape[1]
    count, links = len(orders), len(table.capacities_Bps)
    worst = np.zeros(count)
    ring = np.repeat(np.arange(count), n)
    ahead = np.roll(orders, -1, axis=1).reshape(-1).astype(np.intp)
    here = orders.reshape(-1).astype(np.intp)
    for src, dst in ((here, ahead), (ahead, here)):
        for use in table.uses(src, dst):
            keys = ring[use.messages] * links + use.links
            _, group, sharing = np.unique(keys, return_inverse=True, return_counts=True)
            np.maximum.at(worst, ring[use.messages], sharing[group] / table.capacities_Bps[use.links])
    return worst


def _ring_orders(start: list[int], cluster: Cluster, bad_ranks: Sequence[int]) -> list[list[int]]:
    """The start, and the best ring found."""
    n = len(start)
    if n <= 3:
        return [start]
    if n <= ALL_ORDERS_UP_TO:
        orders = _all_orders(n)
        slowness = _ring_slowness(orders, cluster)
        best = orders[int(np.argmin(slowness))].tolist()
        now = float(_ring_slowness(np.array([start], dtype=np.int32), cluster)[0])
        return [start, best] if float(slowness.min()) < now * (1 - 1e-9) else [start]
    order, now = start, float(_ring_slowness(np.array([start], dtype=np.int32), cluster)[0])
    for _ in range(MAX_SWAPS):
        place = _slowest_edge(order, cluster)
        options = [_swapped(order, own, other) for own in (place, (place + 1) % n) for other in _partners(n, own)]
        slowness = _ring_slowness(np.array(options, dtype=np.int32), cluster)
        best_at = int(np.argmin(slowness))
        if float(slowness[best_at]) >= now * (1 - 1e-9):
            break
        order, now = options[best_at], float(slowness[best_at])
    return [start] if order == start else [start, order]


def _slowest_edge(order: list[int], cluster: Cluster) -> int:
    table = LinkTable(cluster)
    here = np.array(order, dtype=np.intp)
    ahead = np.roll(here, -1)
    slow = np.zeros(len(order))
    for src, dst in ((here, ahead), (ahead, here)):
        for use in table.uses(src, dst):
            slow[use.messages] = np.maximum(slow[use.messages], 1 / table.capacities_Bps[use.links])
    return int(np.argmax(slow))


def _partners(n: int, own: int) -> list[int]:
    others = [place for place in range(n) if place != own]
    if len(others) <= MAX_PARTNERS:
        return others
    kept = np.linspace(0, len(others) - 1, MAX_PARTNERS).astype(int)
    return [others[k] for k in kept]


def _double_trees(
    start: list[int], bad_ranks: Sequence[int], cluster: Cluster, size_bytes: int, chunk_bytes: int | None
) -> list[Plan]:
    """Congested ranks trade places one after the other, then share moves; the best for each split of the share."""
    n = len(start)

    def cost(order: Sequence[int], share: float) -> float:
        plan = families.double_tree(order, share=share)
        return rounds_time(plan, cluster, Collective.ALL_REDUCE, size_bytes, chunk_bytes)

    splits = SHARES if bad_ranks else SHARES[:1]
    found = []
    for share in splits:
        order = start
        for rank in bad_ranks[:4]:
            own = order.index(rank)
            options = [order, *(_swapped(order, own, other) for other in _light_places(order, own, bad_ranks, cluster))]
            order = min(options, key=lambda option: cost(option, share))
        found.append(families.double_tree(order, share=share))
    return found if start == list(range(n)) or not bad_ranks else [families.double_tree(start), *found]


def _light_places(order: Sequence[int], own: int, bad_ranks: Sequence[int], cluster: Cluster) -> list[int]:
    """Places other than `own`, those with the fewest edges in both trees together first.

    Congested ranks don't trade with each other. Beyond `ALL_PLACES_UP_TO` ranks, of the places that are alike (same
    number of children and depth in both trees, same rack) one is enough: there are about 4 log2(n)^2 kinds.
    """
    n = len(order)
    plan = families.double_tree(range(n))
    children = np.stack([np.bincount(row[row >= 0], minlength=n) for row in plan.parents])
    bad = set(bad_ranks)
    places = [
        int(place)
        for place in np.argsort(children.sum(axis=0), kind="stable")
        if place != own and order[place] not in bad
    ]
    if n <= ALL_PLACES_UP_TO:
        return places
    kinds: dict[tuple[object, ...], int] = {}
    for place in places:
        rack = cluster.hosts[cluster.host_of[order[place]]].rack
        kinds.setdefault((*children[:, place].tolist(), *plan.hops[:, place].tolist(), rack), place)
    return list(kinds.values())[:MAX_PARTNERS]


def _doublings(
    start: list[int],
    bad_ranks: Sequence[int],
    bad_pairs: Sequence[tuple[int, int]],
    cluster: Cluster,
    collective: Collective,
    size_bytes: int,
    chunk_bytes: int | None,
) -> list[Plan]:
    """Pairs into step 0 (places that differ in bit 0), and congested ranks to other places, while it helps."""
    n = len(start)

    def cost(order: Sequence[int]) -> float:
        return rounds_time(families.recursive_doubling(order), cluster, collective, size_bytes, chunk_bytes)

    order, now = start, cost(start)
    for a, b in [*bad_pairs[:8], *((rank, -1) for rank in bad_ranks[:4])]:
        own = order.index(a)
        options = [_swapped(order, own, other) for other in _partners(n, own)[: MAX_PARTNERS // (1 + n // 128)]]
        if b >= 0 and own ^ 1 < n:
            options.insert(0, _swapped(order, order.index(b), own ^ 1))
        costs = [cost(option) for option in options]
        best = int(np.argmin(costs))
        if costs[best] < now * (1 - 1e-9):
            order, now = options[best], costs[best]
    plans = [families.recursive_doubling(start)]
    return plans if order == start else [*plans, families.recursive_doubling(order)]
