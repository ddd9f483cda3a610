"""The packing planner: shares of trees such that the busiest link is done earliest.

Columns are bundles of trees: members of the families, each with fixed inner shares. With L[l, k] the seconds that
link l needs for the whole vector if bundle k carried all of it, the linear program is

    minimise  z + epsilon * sum_k extra_k x_k     subject to   L x <= z,  sum x = 1,  x >= 0

The small second term only chooses among optima: the one with less latency and incast. The mix and the best bundles
on their own are then compared by `predict`, which knows those costs exactly. The tight rows are the bottlenecks, and
their dual prices (they add up to 1) say how much of the time each of them explains. Identical rows (symmetric hosts)
are one row.

Objective: least max_link load/capacity; on equal links that is the ring, without a linear program.
Steps and bytes: those of the families in the mix. In an all-reduce on a single switch each rank's degree is about
t * capacity, but at least 1, with t such that all degrees add up to 2(n-1); so the result meets the lower bound.
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
from headway.collectives.chunking import chunk_bytes_for, link_rate_Bps
from headway.collectives.columns import bundles, is_even
from headway.collectives.layout import Layout
from headway.collectives.limits import lower_bound
from headway.collectives.loads import Floats, link_loads
from headway.collectives.plan import Collective, Plan, PlanError, plan_of
from headway.collectives.predict import DEFAULT_COSTS, CostModel, Prediction, predict

NEGLIGIBLE_SHARE = 0.02
"""A bundle with less of the vector than this is left out: its flows cost more than they carry."""
TRIED_ALONE = 3
"""How many single bundles are predicted beside the mix."""
TIE_WEIGHT = 1e-4
"""Weight of latency and incast against load: only chooses among mixes of equal load."""


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


def pack(
    cluster: Cluster,
    collective: Collective,
    size_bytes: int,
    chunk_bytes: int | None = None,
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
        chunk_bytes: piece size, for the prediction; None: the one that the executor chooses for each plan.
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
    # What the load leaves out, roughly: a pipeline to fill, and many flows into one downlink.
    pieces = [chunk_bytes or chunk_bytes_for(plan, collective, size_bytes, 1, link_rate_Bps(cluster)) for plan in plans]
    hop_s = cluster.alpha_s + np.minimum(pieces, size_bytes) / float(np.median(capacities))
    depths = np.array([plan.depth for plan in plans], dtype=np.float64)
    crowded = np.array([_crowd(plan) for plan in plans])
    extra_s = 2 * depths * hop_s + costs.incast * crowded * busy_s.max(axis=0)
    mix, optimum_s, tight = _solve(busy_s, extra_s, cluster)
    kept = [k for k in np.argsort(-mix, kind="stable").tolist() if mix[k] >= NEGLIGIBLE_SHARE]
    choices = [[(k, float(mix[k] / mix[kept].sum())) for k in kept]]
    alone = np.argsort(busy_s.max(axis=0) + extra_s, kind="stable")[:TRIED_ALONE].tolist()
    choices += [[(k, 1.0)] for k in alone if [k] != kept]
    best: Packed | None = None
    for choice in choices:
        plan = _mixed([plans[k] for k, _ in choice], [share for _, share in choice])
        prediction = predict(plan, cluster, collective, size_bytes, chunk_bytes, costs=costs)
        if best is None or prediction.time_s < best.prediction.time_s * (1 - 1e-9):
            shares = tuple((plans[k].name, share) for k, share in choice)
            best = Packed(plan, prediction, shares, tight, optimum_s)
    assert best is not None
    return best


def _crowd(plan: Plan) -> float:
    """0 for two neighbours, near 1 for flows from everywhere into one rank of a tree."""
    fan = int(np.bincount(plan.parents[0][plan.parents[0] >= 0], minlength=1).max(initial=0))
    return max(0.0, 1 - 2 / max(2, fan))


def _solve(busy_s: Floats, extra_s: Floats, cluster: Cluster) -> tuple[Floats, float, tuple[Tight, ...]]:
    links, columns = busy_s.shape
    scale = float(busy_s.max()) if links else 0.0
    if scale <= 0:
        mix = np.zeros(columns)
        mix[int(np.argmin(extra_s))] = 1.0
        return mix, 0.0, ()
    scaled = np.round(busy_s / scale, 12)
    rows, first, counts = np.unique(scaled, axis=0, return_index=True, return_counts=True)
    result = linprog(
        np.append(TIE_WEIGHT * extra_s / scale, 1.0),
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
