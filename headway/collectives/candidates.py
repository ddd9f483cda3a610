"""The plans worth trying, best prediction first: what the tuner chooses from.

Small vectors are decided by steps and messages, large ones by load; `predict` has both, so one ranking serves all
sizes. `packing` may use every family; `react` only what NCCL has and the paper moves in; bitwise mode only stars,
which add in rank order whoever is root, so that a change of plan never changes a bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from headway.cluster.model import Cluster, LinkKind
from headway.collectives import families, react
from headway.collectives.columns import MAX_DIRECT_NODES, bundles, direct_shares, slow_sets
from headway.collectives.layout import Layout
from headway.collectives.limits import lower_bound
from headway.collectives.packing import pack
from headway.collectives.plan import Collective, Plan
from headway.collectives.predict import DEFAULT_COSTS, CostModel, Prediction, predict
from headway.observe.findings import Finding

POLICIES = ("packing", "react", "off")


@dataclass(frozen=True)
class Candidate:
    """One plan that could run next.

    Attributes:
        plan: the plan.
        prediction: its time on the cluster as it is now.
        bottleneck: the link that decides it, in words.
        limit_s: lower bound that no plan beats.
    """

    plan: Plan
    prediction: Prediction
    bottleneck: str
    limit_s: float

    @property
    def predicted_s(self) -> float:
        """Predicted time, seconds."""
        return self.prediction.time_s


def findings_to_cluster(baseline: Cluster, findings: Iterable[Finding]) -> Cluster:
    """The cluster with the capacities that the findings report; the least counts where several concern one link."""
    cluster = baseline
    for finding in findings:
        host = cluster.hosts[finding.host]
        match finding.kind:
            case LinkKind.UPLINK:
                cluster = cluster.with_host(finding.host, uplink_Bps=min(host.uplink_Bps, finding.capacity_Bps))
            case LinkKind.DOWNLINK:
                cluster = cluster.with_host(finding.host, downlink_Bps=min(host.downlink_Bps, finding.capacity_Bps))
            case LinkKind.PATH:
                if finding.peer is None:
                    raise ValueError("a finding about a path names no peer")
                pair = (finding.host, finding.peer)
                least = min(cluster.paths.get(pair, float("inf")), finding.capacity_Bps)
                cluster = replace(cluster, paths={**cluster.paths, pair: least})
            case LinkKind.RACK_UPLINK | LinkKind.RACK_DOWNLINK:
                up = finding.kind is LinkKind.RACK_UPLINK
                rack = cluster.racks[finding.host]
                changed = (
                    replace(rack, uplink_Bps=min(rack.uplink_Bps, finding.capacity_Bps))
                    if up
                    else replace(rack, downlink_Bps=min(rack.downlink_Bps, finding.capacity_Bps))
                )
                racks = (*cluster.racks[: finding.host], changed, *cluster.racks[finding.host + 1 :])
                cluster = replace(cluster, racks=racks)
    return cluster


def idle_plan(
    cluster: Cluster,
    collective: Collective,
    size_bytes: int,
    policy: str = "packing",
    *,
    bitwise: bool = False,
    root: int = 0,
    chunk_bytes: int | None = None,
    costs: CostModel = DEFAULT_COSTS,
) -> Plan:
    """The plan to start with, and to return to when congestion ends.

    Args:
        cluster: with its capacities when nobody disturbs.
        collective: what is computed.
        size_bytes: bytes of the whole vector.
        policy: `packing` and `off` choose among all families, `react` among NCCL's.
        bitwise: only stars.
        root: root of a broadcast or a reduce.
        chunk_bytes: piece size; None: the one that the executor chooses for each plan.
        costs: fixed costs of messages.
    """
    plans = idle_families(cluster, collective, policy, bitwise=bitwise, root=root)
    predictions = [predict(plan, cluster, collective, size_bytes, chunk_bytes, costs=costs).time_s for plan in plans]
    return plans[min(range(len(plans)), key=lambda k: predictions[k])]


def idle_families(
    cluster: Cluster, collective: Collective, policy: str = "packing", *, bitwise: bool = False, root: int = 0
) -> list[Plan]:
    """The plans that `idle_plan` chooses from, those with the fewest flows first."""
    layout = Layout(cluster)
    h = layout.size
    if collective in (Collective.BROADCAST, Collective.REDUCE):
        if bitwise and collective is Collective.REDUCE:
            return [families.star(cluster.world_size, root)]
        return bundles(cluster, collective, root=root)
    if bitwise:
        return _stars(cluster, collective)
    order = layout.order()
    plans = [families.ring(order)]
    if policy == "react":
        if collective is Collective.ALL_REDUCE:
            plans.append(families.double_tree(order))
        else:
            plans.append(families.recursive_doubling(order))
        return [layout.expand(plan, collective) for plan in plans]
    plans.append(families.ring(order, midway=True))
    plans.append(families.recursive_doubling(order))
    if h <= MAX_DIRECT_NODES:
        plans.append(families.direct([1.0] * h))
    if collective is Collective.ALL_REDUCE:
        plans += [families.double_tree(order), families.star(h, order[0])]
        if len(layout.racks) > 1:
            plans.append(families.two_level(layout.racks))
    elif len(layout.racks) > 1:
        plans.append(families.rooted_chains(order, groups=layout.racks))
    return [layout.expand(plan, collective) for plan in plans]


def _stars(cluster: Cluster, collective: Collective) -> list[Plan]:
    """Stars over ranks, not over hosts: only then does the root add in rank order."""
    n = cluster.world_size
    plans = [families.direct([1.0] * n)]
    if collective is Collective.ALL_REDUCE:
        rates = [
            min(cluster.hosts[host].uplink_Bps, cluster.hosts[host].downlink_Bps) / cluster.host_of.count(host)
            for host in cluster.host_of
        ]
        plans.append(families.direct(direct_shares(rates)))
        plans.append(families.star(n, max(range(n), key=lambda rank: rates[rank])))
    return plans


def candidates(
    cluster: Cluster,
    collective: Collective,
    size_bytes: int,
    policy: str,
    current: Plan,
    idle: Plan,
    *,
    bitwise: bool = False,
    root: int = 0,
    chunk_bytes: int | None = None,
    costs: CostModel = DEFAULT_COSTS,
    baseline: Cluster | None = None,
) -> list[Candidate]:
    """Plans to consider now, by predicted time; `current` and `idle` are always among them.

    Args:
        cluster: with the capacities as they are now (`findings_to_cluster`).
        collective: what is computed.
        size_bytes: bytes of the whole vector.
        policy: `packing`, `react`, or `off` (nothing but `current` and `idle`).
        current: the plan that runs now.
        idle: the plan of the undisturbed cluster.
        bitwise: only stars.
        root: root of a broadcast or a reduce.
        chunk_bytes: piece size; None: the one that the executor chooses for each plan.
        costs: fixed costs of messages.
        baseline: the undisturbed cluster, by which `react` tells congested links; default: no link counts as such
            beyond what differs from the median.
    """
    plans: list[Plan] = [current, idle]
    if policy != "off":
        if bitwise:
            plans += idle_families(cluster, collective, policy, bitwise=True, root=root)
        elif policy == "react":
            plans += [plan for plan, _ in react.moves(current, cluster, baseline or cluster, collective, size_bytes)]
        else:
            plans += _packings(cluster, collective, size_bytes, root, chunk_bytes, costs)
    limit_s = lower_bound(cluster, collective, size_bytes, root=root).time_s
    ranked = []
    for plan in _distinct(plans):
        prediction = predict(plan, cluster, collective, size_bytes, chunk_bytes, costs=costs)
        ranked.append(Candidate(plan, prediction, prediction.bottleneck_name, limit_s))
    return sorted(ranked, key=lambda candidate: candidate.predicted_s)


def _packings(
    cluster: Cluster, collective: Collective, size_bytes: int, root: int, chunk_bytes: int | None, costs: CostModel
) -> list[Plan]:
    """The linear program's mix with and without stars (whose incast is hard to predict), and each family on its own.

    A trial measures what the model cannot know.
    """
    columns = bundles(cluster, collective, root=root)
    mix = pack(cluster, collective, size_bytes, chunk_bytes, root=root, columns=columns, costs=costs).plan
    plans = [mix, *columns]
    if collective is Collective.ALL_REDUCE:
        few_flows = [plan for plan in columns if not plan.name.startswith("direct")]
        if len(few_flows) < len(columns):
            plans.append(pack(cluster, collective, size_bytes, chunk_bytes, columns=few_flows, costs=costs).plan)
        layout = Layout(cluster)
        order = layout.order(avoid=True)
        rates = layout.rates_Bps(collective)
        fastest = max(range(layout.size), key=lambda node: rates[node])
        extra = [families.star(layout.size, fastest)]
        if layout.size <= MAX_DIRECT_NODES:
            extra.append(families.recursive_doubling(order))
        slow = slow_sets(rates)
        if slow:
            core = [node for node in order if node not in set(slow[0])]
            extra.append(families.chain([*slow[0][:1], *core, *slow[0][1:]], midway=True))
        plans += [layout.expand(plan, collective) for plan in extra]
    return plans


def _distinct(plans: Sequence[Plan]) -> list[Plan]:
    seen: list[Plan] = []
    for plan in plans:
        if not any(plan is other or plan.trees == other.trees for other in seen):
            seen.append(plan)
    return seen
