"""Who holds a collective back: the congested links, what each costs the running plan, and what it costs any plan.

A link is a suspect when it has clearly less than its baseline. For each suspect the plan is predicted once more with
that one link healed; the difference is what the link costs this plan. The lower bound with and without it is what it
costs any plan. The dual prices of the packing program, where there is one, say how much of a packed plan's time the
link explains when several bind at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headway.cluster.model import Cluster, Link, LinkKind
from headway.cluster.units import format_rate, format_time
from headway.collectives.limits import lower_bound
from headway.collectives.packing import Tight
from headway.collectives.plan import Collective, Plan
from headway.collectives.predict import DEFAULT_COSTS, CostModel, predict

SUSPECT_BELOW = 0.97
"""A link with less than this part of its baseline is a suspect."""
MAX_SUSPECTS = 8


@dataclass(frozen=True, slots=True)
class Blame:
    """One congested link and what it costs.

    Attributes:
        link: the link with its capacity as it is now.
        baseline_Bps: what the link has when it is free.
        cost: part of the plan's predicted time that would be saved if the link were free, 0 to 1.
        predicted_s: the plan's time now.
        healed_s: the plan's time if this link alone were free.
        limit_s: lower bound now.
        healed_limit_s: lower bound if this link alone were free.
        price: dual price of the link in the packing program, 0 to 1; None where no program was solved.
        sentence: all of this in words.
    """

    link: Link
    baseline_Bps: float
    cost: float
    predicted_s: float
    healed_s: float
    limit_s: float
    healed_limit_s: float
    price: float | None
    sentence: str


def blame(
    plan: Plan,
    cluster: Cluster,
    baseline: Cluster,
    collective: Collective,
    size_bytes: int,
    chunk_bytes: int | None = None,
    *,
    tight: Sequence[Tight] = (),
    root: int = 0,
    costs: CostModel = DEFAULT_COSTS,
) -> tuple[Blame, ...]:
    """Congested links, the costliest first; empty when nothing is congested.

    Args:
        plan: the plan that runs, or would.
        cluster: capacities now.
        baseline: the same hosts and racks with the capacities of the undisturbed cluster.
        collective: what is computed.
        size_bytes: bytes of the whole vector.
        chunk_bytes: piece size; None: the one that the executor chooses for each plan.
        tight: tight rows of `packing.pack`, if the plan comes from there.
        root: root of a broadcast or a reduce.
        costs: fixed costs of messages.
    """
    predicted_s = predict(plan, cluster, collective, size_bytes, chunk_bytes, costs=costs).time_s
    limit_s = lower_bound(cluster, collective, size_bytes, root=root).time_s
    prices = {row.link.name: row.price for row in tight}
    found = []
    for link, usual_Bps, healed in _suspects(cluster, baseline):
        healed_s = predict(plan, healed, collective, size_bytes, chunk_bytes, costs=costs).time_s
        healed_limit_s = lower_bound(healed, collective, size_bytes, root=root).time_s
        cost = max(0.0, 1 - healed_s / predicted_s) if predicted_s > 0 else 0.0
        sentence = _sentence(link, usual_Bps, collective, plan, cost, limit_s, healed_limit_s)
        price = prices.get(link.name, 0.0) if tight else None
        found.append(Blame(link, usual_Bps, cost, predicted_s, healed_s, limit_s, healed_limit_s, price, sentence))
    return tuple(sorted(found, key=lambda each: -each.cost))


def _sentence(
    link: Link, usual_Bps: float, collective: Collective, plan: Plan, cost: float, limit_s: float, healed_limit_s: float
) -> str:
    now = f"{format_rate(link.capacity_Bps)} of {format_rate(usual_Bps)}"
    verb = collective.value.replace("_", "-")
    limits = f"limit {format_time(limit_s)}, without it {format_time(healed_limit_s)}"
    if cost < 0.01:
        return f"{link.name} is down to {now}, but costs the {verb} nothing with {plan.name} ({limits})"
    return (
        f"{link.name} holds the {verb} back: down to {now}, it costs {cost:.0%} of the time with {plan.name} ({limits})"
    )


def _suspects(cluster: Cluster, baseline: Cluster) -> list[tuple[Link, float, Cluster]]:
    """(link, its baseline, the cluster with that link healed), the most reduced first."""
    usual = {(link.kind, link.name): link.capacity_Bps for link in baseline.links}
    hosts, racks = len(cluster.hosts), len(cluster.racks)
    path_pairs = sorted(cluster.paths)
    reduced: list[tuple[float, Link, float, Cluster]] = []
    for index, link in enumerate(cluster.links):
        free_Bps = usual.get((link.kind, link.name))
        if free_Bps is None and link.kind is LinkKind.PATH:
            a, b = path_pairs[index - 2 * hosts - 2 * racks]
            free_Bps = min(baseline.hosts[a].uplink_Bps, baseline.hosts[b].downlink_Bps)
        if free_Bps is None or link.capacity_Bps >= SUSPECT_BELOW * free_Bps:
            continue
        reduced.append((link.capacity_Bps / free_Bps, link, free_Bps, _healed(cluster, index, free_Bps)))
    reduced.sort(key=lambda row: row[0])
    return [(link, free_Bps, healed) for _, link, free_Bps, healed in reduced[:MAX_SUSPECTS]]


def _healed(cluster: Cluster, index: int, free_Bps: float) -> Cluster:
    hosts, racks = len(cluster.hosts), len(cluster.racks)
    if index < hosts:
        return cluster.with_host(index, uplink_Bps=free_Bps)
    if index < 2 * hosts:
        return cluster.with_host(index - hosts, downlink_Bps=free_Bps)
    at = index - 2 * hosts
    if at < 2 * racks:
        rack = cluster.racks[at % racks]
        changed = replace(rack, uplink_Bps=free_Bps) if at < racks else replace(rack, downlink_Bps=free_Bps)
        return replace(cluster, racks=(*cluster.racks[: at % racks], changed, *cluster.racks[at % racks + 1 :]))
    pair = sorted(cluster.paths)[at - 2 * racks]
    return replace(cluster, paths={**cluster.paths, pair: free_Bps})
