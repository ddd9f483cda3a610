"""The columns of the packing program: bundles of trees that suit a cluster, each a member of a family.

Few are enough. Nodes that no link tells apart are one class, and a class is a leaf, or a root, as a whole; so the
number of columns depends on the number of classes and not on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from headway.cluster.model import Cluster
from headway.collectives import families
from headway.collectives.layout import Layout
from headway.collectives.plan import Collective, Plan

MAX_DIRECT_NODES = 128
"""Above this many hosts no star columns are offered: n(n-1) flows."""
MAX_SLOW_SETS = 4
LEAST_LIGHT_NODES = 17
"""From this many hosts on, a double tree with slow nodes in its light places is offered: with fewer, chains and stars
do as well, and every further plan is one more that may be tried in vain. Ours."""


def direct_shares(rates_Bps: Sequence[float]) -> tuple[float, ...]:
    """Shares of `families.direct` in an all-reduce that meet the lower bound, in closed form (water-filling).

    A star rooted at i with share w_i loads i with (1 + w_i(n-2)) S in each direction. Let g_i = max(1, c_i t) with
    c_i the lesser of i's rates and t such that sum g_i = 2(n-1); then w_i = (g_i - 1) / (n-2) are shares, and
    every rank that is not at its minimum finishes at the same time. t is found by taking ranks in ascending order
    of rate out of the sum as long as they would be below 1.
    """
    rates = np.asarray(rates_Bps, dtype=np.float64)
    n = len(rates)
    if n <= 2:
        return tuple([1.0 / n] * n)
    ascending = np.sort(rates)
    above = np.cumsum(ascending[::-1])[::-1]
    at_minimum = np.arange(n)
    times = (2 * (n - 1) - at_minimum) / above
    first = int(np.argmax(ascending * times >= 1))
    shares = np.maximum(0.0, rates * times[first] - 1) / (n - 2)
    return tuple((shares / shares.sum()).tolist())


def slow_sets(rates_Bps: Sequence[float]) -> list[tuple[int, ...]]:
    """Sets of nodes worth making leaves: the slowest class, the two slowest, and so on; at least one is left out.

    A node gains by being a leaf if its fair degree (see `direct_shares`) is below 2(n-1)/n, so only nodes clearly
    below the median are considered. Rates within 5 % of each other are one class.
    """
    rates = np.asarray(rates_Bps, dtype=np.float64)
    limit = 0.97 * float(np.median(rates))
    below = [int(node) for node in np.argsort(rates, kind="stable") if rates[node] < limit]
    sets: list[tuple[int, ...]] = []
    for place, node in enumerate(below):
        last_of_class = place + 1 == len(below) or rates[below[place + 1]] > 1.05 * rates[node]
        if last_of_class and place + 1 < len(rates):
            sets.append(tuple(sorted(below[: place + 1])))
    if len(sets) > MAX_SLOW_SETS:
        kept = np.linspace(0, len(sets) - 1, MAX_SLOW_SETS).round().astype(int)
        sets = [sets[k] for k in kept]
    return sets


def is_even(cluster: Cluster, collective: Collective) -> bool:
    """Whether every occupied host has the same rates, there are no racks or slow paths, and so the ring is optimal."""
    layout = Layout(cluster)
    if collective in (Collective.BROADCAST, Collective.REDUCE) or layout.slow_pairs or len(layout.racks) > 1:
        return False
    ups = [cluster.hosts[index].uplink_Bps for index in layout.hosts]
    downs = [cluster.hosts[index].downlink_Bps for index in layout.hosts]
    return max(ups) - min(ups) <= 0.01 * max(ups) and max(downs) - min(downs) <= 0.01 * max(downs)


def bundles(cluster: Cluster, collective: Collective, *, root: int = 0) -> list[Plan]:
    """The columns: plans over ranks, each a member of a family that suits the cluster."""
    layout = Layout(cluster)
    rates = layout.rates_Bps(collective)
    sets = slow_sets(rates)
    if collective in (Collective.BROADCAST, Collective.REDUCE):
        nodes = _rooted_at_one(layout, sets, layout.node_of(root))
        return [layout.expand(plan, collective, root=root) for plan in nodes]
    order = layout.order(avoid=True)
    if collective is Collective.ALL_REDUCE:
        nodes = _all_reduce(layout, order, sets, rates)
    else:
        nodes = _rooted_at_each(layout, order, sets)
    return [layout.expand(plan, collective) for plan in nodes]


def _all_reduce(layout: Layout, order: list[int], sets: list[tuple[int, ...]], rates: Sequence[float]) -> list[Plan]:
    avoid, h = layout.slow_pairs, layout.size
    everything = families.ring(order, midway=True) if h <= families.MAX_ROTATIONS else families.chains(order)
    plans = [everything]
    for slow in sets:
        core = [node for node in order if node not in set(slow)]
        plans.append(families.chains(core, last=slow, avoid=avoid))
    for slow in ([()] if not sets else [sets[0], sets[-1]])[: 1 + (len(sets) > 1)]:
        core = [node for node in order if node not in set(slow)]
        plans.append(families.double_tree(core, last=slow))
    if sets and h >= LEAST_LIGHT_NODES:
        plans += _with_light_places(order, sets[0])
    if len(layout.racks) > 1:
        for slow in [(), *sets]:
            plans += [
                families.two_level(layout.racks, last=slow, avoid=avoid, turn_groups=turn)
                for turn in (False, True)[: 1 + (len(layout.racks) > 2)]
            ]
    if h <= MAX_DIRECT_NODES:
        plans += [
            families.direct([1.0 if node in members else 0.0 for node in range(h)])
            for members in _classes(layout, rates)
        ]
        plans.append(families.direct(direct_shares(rates)))
    return plans


def _with_light_places(order: list[int], slow: Sequence[int]) -> list[Plan]:
    """A double tree with the slow nodes where a node has one edge in each tree, if there are that many such places.

    They pay S as they would as extra leaves, but nobody pays for holding them: then a holder has 5 half edges, which is
    more than a slow node at 2/5 of the rate or above needs.
    """
    n = len(order)
    plan = families.double_tree(range(n))
    parents = plan.parents
    edges = np.bincount(parents[parents >= 0], minlength=n) + (parents >= 0).sum(axis=0)
    light = np.flatnonzero(edges <= 2).tolist()[: len(slow)]
    if n <= 2 or len(light) < len(slow):
        return []
    others = iter([node for node in order if node not in set(slow)])
    at = dict(zip(light, slow, strict=True))
    places = [at[place] if place in at else next(others) for place in range(n)]
    named = f"double tree, {families.names(slow)} lightest"
    return [replace(families.double_tree(places), name=named)]


def _classes(layout: Layout, rates: Sequence[float]) -> list[frozenset[int]]:
    """Nodes that no link tells apart: same rates, same rack, same number of ranks, same part in slow pairs."""
    in_pairs = {node for pair in layout.slow_pairs for node in pair}
    groups: dict[tuple[float, int, int | None, int], set[int]] = {}
    for node, host in enumerate(layout.hosts):
        key = (
            round(rates[node], 3),
            len(layout.ranks[node]),
            layout.cluster.hosts[host].rack,
            node if node in in_pairs else -1,
        )
        groups.setdefault(key, set()).add(node)
    return [frozenset(group) for group in groups.values()]


def _rooted_at_each(layout: Layout, order: list[int], sets: list[tuple[int, ...]]) -> list[Plan]:
    groups = layout.racks if len(layout.racks) > 1 else None
    avoid = layout.slow_pairs
    plans = [families.ring(order, midway=True)]
    if avoid:
        # These send one way round only, and so can leave out a path that is slow in one direction.
        plans += [families.ring(order), families.ring(order[::-1])]
    plans += [families.rooted_chains(order, last=slow, groups=groups, avoid=avoid) for slow in sets]
    if groups is not None:
        plans.append(families.rooted_chains(order, groups=groups))
    if layout.size <= MAX_DIRECT_NODES:
        plans.append(families.direct([1.0] * layout.size))
    return plans


def _rooted_at_one(layout: Layout, sets: list[tuple[int, ...]], root: int) -> list[Plan]:
    order = [node for node in layout.order() if node != root]
    if groups := [group for group in layout.racks if root in group]:
        home = [node for node in groups[0] if node != root]
        order = home + [node for node in order if node not in set(home)]
    plans = [families.chain([*reversed(order), root]), families.root_chains(root, order)]
    if layout.slow_pairs:
        circle = layout.order(avoid=True)
        around = circle[circle.index(root) + 1 :] + circle[: circle.index(root)]
        plans += [families.chain([*reversed(around), root]), families.chain([*around, root])]
    for slow in sets:
        leaves = [node for node in slow if node != root]
        core = [node for node in order if node not in set(leaves)]
        plans.append(families.root_chains(root, core, last=leaves))
        plans.append(families.chain([*reversed([*core, *leaves]), root]))
    plans += [families.binary_tree([root, *order]), families.star(layout.size, root)]
    return plans
