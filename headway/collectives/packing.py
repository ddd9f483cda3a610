"""The packing planner: shares of trees such that the busiest link is done earliest.

Columns are bundles of trees: members of the families, each with fixed inner shares. With L[l, k] the seconds that
link l needs for the whole vector if bundle k carried all of it, the linear program is

    minimise  z + epsilon * sum_k depth_k x_k     subject to   L x <= z,  sum x = 1,  x >= 0

The small second term only chooses among optima: the less deep one. Its tight rows are the bottlenecks, and their dual
prices (they add up to 1) say how much of the time each of them explains. Identical rows (symmetric hosts) are one row.

Objective: least max_link load/capacity; on equal links that is the ring, without a linear program.
Steps and bytes: those of the families in the mix. All-reduce: every rank's degree is about capacity / (2(n-1)S / sum
of capacities), but at least 1, so the result meets the lower bound of `limits` on a single switch.
Loses: where latency matters more than load (see `candidates`, which compares by `predict`), and where the capacities
it is given are wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from headway.cluster.model import Cluster, Link
from headway.collectives import families
from headway.collectives.layout import Layout
from headway.collectives.limits import lower_bound
from headway.collectives.loads import Floats, link_loads
from headway.collectives.plan import Collective, Plan, PlanError, plan_of
from headway.collectives.predict import DEFAULT_CHUNK_BYTES, DEFAULT_COSTS, CostModel, Prediction, predict

NEGLIGIBLE_SHARE = 0.02
"""A bundle with less of the vector than this is left out: its flows cost more than they carry."""
MAX_DIRECT_NODES = 128
"""Above this many hosts no star columns are offered: n(n-1) flows."""
MAX_SLOW_SETS = 4
_DEPTH_WEIGHT = 1e-5


@dataclass(frozen=True, slots=True)
class Tight:
    """A link that holds the plan back.

    Attributes:
        link: the link.
        price: its part of the explanation, 0 to 1; all prices add up to 1. Dual price of its row.
        count: how many links are in exactly this position (all hosts of an idle ring, say); `link` is the first.
    """

    link: Link
    price: float
    count: int


@dataclass(frozen=True)
class Packed:
    """A packing.

    Attributes:
        plan: over ranks.
        prediction: of the plan.
        shares: (bundle's name, its share), largest first.
        tight: bottlenecks by price, largest first.
        transfer_s: the linear program's optimum, max_link load/capacity in seconds, before negligible bundles are left
            out.
    """

    plan: Plan
    prediction: Prediction
    shares: tuple[tuple[str, float], ...]
    tight: tuple[Tight, ...]
    transfer_s: float


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
    if len(layout.racks) > 1:
        for slow in [(), *sets]:
            for turn in (False, True)[: 1 + (len(layout.racks) > 2)]:
                plans.append(families.two_level(layout.racks, last=slow, avoid=avoid, turn_groups=turn))
    if h <= MAX_DIRECT_NODES:
        for members in _classes(layout, rates):
            plans.append(families.direct([1.0 if node in members else 0.0 for node in range(h)]))
        plans.append(families.direct(direct_shares(rates)))
    return plans


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
    plans = [families.ring(order, midway=True)]
    groups = layout.racks if len(layout.racks) > 1 else None
    plans += [families.rooted_chains(order, last=slow, groups=groups) for slow in sets]
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
    for slow in sets:
        leaves = [node for node in slow if node != root]
        core = [node for node in order if node not in set(leaves)]
        plans.append(families.root_chains(root, core, last=leaves))
        plans.append(families.chain([*reversed([*core, *leaves]), root]))
    plans += [families.binary_tree([root, *order]), families.star(layout.size, root)]
    return plans


def pack(
    cluster: Cluster,
    collective: Collective,
    size_bytes: int,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    *,
    root: int = 0,
    columns: Sequence[Plan] | None = None,
    costs: CostModel = DEFAULT_COSTS,
) -> Packed:
    """The best mix of families for a large vector.

    Args:
        cluster: with the capacities as they are now.
        collective: what is computed.
        size_bytes: bytes of the whole vector.
        chunk_bytes: piece size, for the prediction.
        root: root of a broadcast or a reduce.
        columns: plans to mix; default `bundles`.
        costs: fixed costs, for the prediction.
    """
    layout = Layout(cluster)
    if columns is None and is_even(cluster, collective):
        plan = layout.expand(families.ring(layout.order(), midway=True), collective)
        prediction = predict(plan, cluster, collective, size_bytes, chunk_bytes, costs=costs)
        tight = _named(cluster, prediction)
        return Packed(plan, prediction, ((plan.name, 1.0),), tight, prediction.transfer_s)
    plans = list(bundles(cluster, collective, root=root) if columns is None else columns)
    capacities = np.array([link.capacity_Bps for link in cluster.links])
    busy_s = np.stack([link_loads(plan, cluster, collective) for plan in plans], axis=1)
    busy_s *= size_bytes / capacities[:, None]
    mix, optimum_s, tight = _solve(busy_s, [plan.depth for plan in plans], cluster)
    kept = [k for k in np.argsort(-mix, kind="stable").tolist() if mix[k] >= NEGLIGIBLE_SHARE]
    total = float(mix[kept].sum())
    shares = tuple((plans[k].name, float(mix[k]) / total) for k in kept)
    plan = _mixed([plans[k] for k in kept], [share for _, share in shares])
    prediction = predict(plan, cluster, collective, size_bytes, chunk_bytes, costs=costs)
    return Packed(plan, prediction, shares, tight, optimum_s)


def _solve(busy_s: Floats, depths: Sequence[int], cluster: Cluster) -> tuple[Floats, float, tuple[Tight, ...]]:
    links, columns = busy_s.shape
    scale = float(busy_s.max()) if links else 0.0
    if scale <= 0:
        mix = np.zeros(columns)
        mix[int(np.argmin(depths))] = 1.0
        return mix, 0.0, ()
    scaled = np.round(busy_s / scale, 12)
    rows, first, counts = np.unique(scaled, axis=0, return_index=True, return_counts=True)
    depth_cost = _DEPTH_WEIGHT * np.asarray(depths, dtype=np.float64) / max(1, max(depths))
    result = linprog(
        np.append(depth_cost, 1.0),
        A_ub=np.hstack([rows, -np.ones((len(rows), 1))]),
        b_ub=np.zeros(len(rows)),
        A_eq=np.append(np.ones(columns), 0.0)[None, :],
        b_eq=np.ones(1),
        bounds=(0, None),
        method="highs-ds",
    )
    if result.x is None:
        raise PlanError(f"the packing program is always feasible, but the solver says: {result.message}")
    mix = np.maximum(0.0, np.asarray(result.x[:-1], dtype=np.float64))
    prices = -np.asarray(result.ineqlin.marginals, dtype=np.float64)
    prices = np.maximum(0.0, prices) / max(1e-12, float(np.maximum(0.0, prices).sum()))
    order = [int(k) for k in np.argsort(-prices, kind="stable") if prices[k] > 1e-3]
    tight = tuple(Tight(cluster.links[int(first[k])], float(prices[k]), int(counts[k])) for k in order)
    return mix / mix.sum(), float(result.x[-1]) * scale, tight


def _mixed(plans: Sequence[Plan], shares: Sequence[float]) -> Plan:
    if len(plans) == 1:
        return plans[0]
    weights = np.concatenate([plan.shares * share for plan, share in zip(plans, shares, strict=True)])
    name = "packing: " + " + ".join(f"{share:.0%} {plan.name}" for plan, share in zip(plans, shares, strict=True))
    return plan_of(name, np.concatenate([plan.parents for plan in plans]), weights / weights.sum())


def _named(cluster: Cluster, prediction: Prediction) -> tuple[Tight, ...]:
    if prediction.bottleneck is None:
        return ()
    busiest = max(prediction.loads_bytes)
    count = sum(load >= busiest * (1 - 1e-9) for load in prediction.loads_bytes)
    return (Tight(prediction.bottleneck, 1.0, count),)


def distance_to_limit(packed: Packed, cluster: Cluster, collective: Collective, size_bytes: int) -> float:
    """Predicted time over the lower bound: 1.0 cannot be beaten."""
    bound = lower_bound(cluster, collective, size_bytes).time_s
    return packed.prediction.time_s / bound if bound > 0 else 1.0
