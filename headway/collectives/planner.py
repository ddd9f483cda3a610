"""The tuner's planner: candidates for the cluster as the findings describe it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from headway.cluster.model import Cluster, LinkKind
from headway.collectives.candidates import candidates, findings_to_cluster
from headway.collectives.limits import lower_bound
from headway.collectives.plan import Collective, Plan
from headway.collectives.predict import DEFAULT_COSTS, CostModel, predict
from headway.collectives.verdict import Option
from headway.observe.findings import Finding


@dataclass(frozen=True)
class CandidatePlanner:
    """Options from `candidates`. Implements `verdict.Planner`.

    Attributes:
        usual: the cluster with the rates of its free links, as far as they are known by now.
        policy: `packing` or `react`.
        bitwise: only plans that add in rank order.
        idle_of: the plan that every rank runs when nothing is ruled: (collective, bytes) -> plan.
        costs: of messages.
    """

    usual: Callable[[], Cluster]
    policy: str
    bitwise: bool
    idle_of: Callable[[Collective, int], Plan]
    costs: CostModel = DEFAULT_COSTS

    def idle(self, collective: Collective, size_bytes: int) -> Plan:
        """The plan for a network without congestion."""
        return self.idle_of(collective, size_bytes)

    def options(
        self, collective: Collective, size_bytes: int, findings: Sequence[Finding], current: Plan
    ) -> Sequence[Option]:
        """Plans for the network as the findings describe it, best prediction first; `current` is among them."""
        found = candidates(
            self._congested(findings),
            collective,
            size_bytes,
            self.policy,
            current,
            self.idle(collective, size_bytes),
            bitwise=self.bitwise,
            costs=self.costs,
            baseline=self.usual(),
        )
        return [Option(option.plan, option.predicted_s, option.bottleneck) for option in found]

    def predict(self, collective: Collective, size_bytes: int, findings: Sequence[Finding], plan: Plan) -> Option:
        """What the model says of one plan."""
        prediction = predict(plan, self._congested(findings), collective, size_bytes, costs=self.costs)
        return Option(plan, prediction.time_s, prediction.bottleneck_name)

    def limit_s(self, collective: Collective, size_bytes: int, findings: Sequence[Finding]) -> float | None:
        """The lower bound that no plan can beat, seconds."""
        return lower_bound(self._congested(findings), collective, size_bytes).time_s

    def _congested(self, findings: Sequence[Finding]) -> Cluster:
        """Each link of a finding at that part of its usual rate that it has left: what a flow gets of a link and what
        the link was found to carry are not the same to the last per cent, the ratio is."""
        usual = self.usual()
        scaled = [replace(each, capacity_Bps=each.ratio * _usual_Bps(usual, each)) for each in findings]
        return findings_to_cluster(usual, scaled)


def _usual_Bps(cluster: Cluster, finding: Finding) -> float:
    host = cluster.hosts[finding.host]
    match finding.kind:
        case LinkKind.UPLINK:
            return host.uplink_Bps
        case LinkKind.DOWNLINK:
            return host.downlink_Bps
        case LinkKind.PATH if finding.peer is not None:
            return min(host.uplink_Bps, cluster.hosts[finding.peer].downlink_Bps)
        case _:
            return finding.baseline_Bps
