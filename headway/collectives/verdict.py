"""What goes into the tuner and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from headway.cluster.model import Cluster, LinkKind
from headway.collectives.plan import Collective, Plan
from headway.decide.journal import DecisionRecord, FindingRecord, OptionRecord
from headway.observe.findings import Finding
from headway.observe.summary import RankSummary

Action = Literal["hold", "try", "keep", "revert", "restore"]


@dataclass(frozen=True, slots=True)
class OperationTime:
    """One operation of an epoch.

    Attributes:
        number: of the operation.
        collective: what was computed.
        size_bytes: the whole vector.
        duration_s: what it took, the mean over the ranks. A rank that is done early begins the next operation early and
            waits there, so means add up to the time that passes, which maxima do not.
    """

    number: int
    collective: Collective
    size_bytes: int
    duration_s: float


@dataclass(frozen=True)
class EpochMeasures:
    """Everything that the deciding rank knows of one epoch.

    Attributes:
        epoch: which one.
        now_s: time that the group has spent in large operations so far, seconds. The tuner's waits are counted in it:
            what a trial costs is operations, so a job that computes between them, or pauses, is not tried more often.
        operations: in order of their numbers.
        summaries: what the flows of each rank did in its large operations.
    """

    epoch: int
    now_s: float
    operations: Sequence[OperationTime]
    summaries: Sequence[RankSummary]


@dataclass(frozen=True, slots=True)
class Option:
    """One plan that could be used, with what the model says of it.

    Attributes:
        plan: the plan.
        predicted_s: its time for one operation under the findings.
        bottleneck: the link that decides, in words.
    """

    plan: Plan
    predicted_s: float
    bottleneck: str


class Planner(Protocol):
    """Makes plans for the tuner. Every plan must be one that all ranks can run (it passed the verifier)."""

    def idle(self, collective: Collective, size_bytes: int) -> Plan:
        """The plan for a network without congestion."""
        ...

    def options(
        self, collective: Collective, size_bytes: int, findings: Sequence[Finding], current: Plan
    ) -> Sequence[Option]:
        """Plans for the network as the findings describe it, best prediction first; may contain `current`."""
        ...

    def predict(self, collective: Collective, size_bytes: int, findings: Sequence[Finding], plan: Plan) -> Option:
        """What the model says of one plan."""
        ...

    def limit_s(self, collective: Collective, size_bytes: int, findings: Sequence[Finding]) -> float | None:
        """The lower bound that no plan can beat, seconds; None where there is none."""
        ...


@dataclass(frozen=True)
class Verdict:
    """What the tuner decided at the end of an epoch.

    Attributes:
        action: hold, try, keep, revert, or restore (back to the idle plan).
        reason: why, in words.
        collective: what the decision is about; None when nothing large ran.
        plans: changes to the plans in force; None: the idle plan. Empty: nothing changes.
        epoch_weight: length of the next epoch in large operations.
        lead_operations: operations between the end of the next epoch and the first that its verdict holds for.
        plan_before: in force during the epoch.
        plan_after: in force from now on.
        findings: what is congested.
        options: what was considered.
        barred: names of options that were tabu.
        predicted_s: of `plan_after`, one operation.
        measured_s: median operation of this epoch, or of the trial that ended.
        reference_s: what a trial is held against.
        limit_s: the lower bound under the findings.
        reroutes: (source, destination) ranks whose flow gets a new connection, so that it may get another path.
    """

    action: Action
    reason: str
    collective: Collective | None
    plans: Mapping[Collective, Plan | None]
    epoch_weight: float
    lead_operations: int
    plan_before: Plan | None = None
    plan_after: Plan | None = None
    findings: tuple[Finding, ...] = ()
    options: tuple[Option, ...] = ()
    barred: frozenset[str] = field(default_factory=frozenset)
    predicted_s: float | None = None
    measured_s: float | None = None
    reference_s: float | None = None
    limit_s: float | None = None
    reroutes: tuple[tuple[int, int], ...] = ()

    def record(
        self, cluster: Cluster, *, t_s: float, group: str, epoch: int, from_operation: int, plan_trees: str = ""
    ) -> DecisionRecord:
        """This verdict as the journal keeps it."""
        return DecisionRecord(
            t_s=t_s,
            group=group,
            epoch=epoch,
            action=self.action,
            reason=self.reason,
            from_operation=from_operation,
            plan_before=self.plan_before.name if self.plan_before else "",
            plan_after=self.plan_after.name if self.plan_after else "",
            plan_trees=plan_trees,
            predicted_s=self.predicted_s,
            measured_s=self.measured_s,
            reference_s=self.reference_s,
            limit_s=self.limit_s,
            reroutes=[f"rank {src} to rank {dst}" for src, dst in self.reroutes],
            findings=[finding_record(cluster, finding) for finding in self.findings],
            options=[
                OptionRecord(
                    plan=option.plan.name,
                    predicted_s=option.predicted_s,
                    bottleneck=option.bottleneck,
                    tabu=option.plan.name in self.barred,
                )
                for option in self.options
            ],
        )


def link_name(cluster: Cluster, finding: Finding) -> str:
    """The link of a finding as `Cluster.links` names it."""
    name = cluster.hosts[finding.host].name
    if finding.kind is LinkKind.PATH and finding.peer is not None:
        return f"path {name} to {cluster.hosts[finding.peer].name}"
    return f"{finding.kind.value} of {name}"


def finding_record(cluster: Cluster, finding: Finding) -> FindingRecord:
    """A finding as the journal keeps it."""
    return FindingRecord(
        link=link_name(cluster, finding),
        capacity_Bps=finding.capacity_Bps,
        baseline_Bps=finding.baseline_Bps,
        pattern=finding.pattern.value,
        samples=finding.samples,
    )
