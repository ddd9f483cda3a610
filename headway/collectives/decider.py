"""One decision per epoch: the reports of all ranks through the tuner into a ruling and the journal's records. Pure.

The clock is given: rank 0 of a live group decides on the wall clock, a simulated group on the simulated one.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headway.cluster.model import Cluster
from headway.collectives.agreement import EpochReport, Ruling, encode_plans
from headway.collectives.chunking import link_rate_Bps
from headway.collectives.plan import Collective
from headway.collectives.plan_book import PlanBook
from headway.collectives.plan_codec import encode
from headway.collectives.planner import CandidatePlanner
from headway.collectives.tuner import Tuner
from headway.collectives.verdict import EpochMeasures, OperationTime, Verdict
from headway.collectives.verify import check
from headway.decide.journal import FlowRecord, OperationRecord, Record, StartRecord
from headway.observe.summary import RankSummary

TYPICAL_BYTES = 16 << 20
"""The journal's first record names the idle plan for an all-reduce of this size, a usual gradient bucket."""


@dataclass(frozen=True, slots=True)
class DoneOperation:
    """One large operation as rank 0 saw it. `ended_at_s` is on the decider's clock."""

    collective: Collective
    size_bytes: int
    plan: str
    ended_at_s: float
    duration_s: float


@dataclass(frozen=True)
class Decision:
    """What came out of one epoch.

    Attributes:
        ruling: for all ranks.
        verdict: the tuner's.
        summaries: of all ranks.
        mean_s: number of each operation of the epoch -> seconds, mean over the ranks.
        done: the operations since the last decision.
    """

    ruling: Ruling
    verdict: Verdict
    summaries: tuple[RankSummary, ...]
    mean_s: Mapping[int, float]
    done: Mapping[int, DoneOperation]


class Decider:
    """Decides for one group.

    Args:
        book: the plans in force without rulings.
        group: its name.
        clock: seconds, for the records.
    """

    def __init__(self, *, book: PlanBook, group: str, clock: Callable[[], float]) -> None:
        self._book = book
        self._group = group
        self._clock = clock
        policy = "off" if book.pinned else book.policy
        self._planner = CandidatePlanner(self._usual_cluster, policy, book.bitwise, book.idle, book.costs)
        self._tuner = Tuner(book.cluster, self._planner, name=group, trust_nominal=False)
        self._spent_s = 0.0

    def start_record(self, policy: str, settings: Mapping[str, str]) -> StartRecord:
        """Who takes part, where, and under which settings."""
        cluster = self._book.cluster
        plan = self._book.idle(Collective.ALL_REDUCE, TYPICAL_BYTES)
        hosts = [cluster.hosts[host] for host in cluster.host_of]
        return StartRecord(
            t_s=self._clock(),
            group=self._group,
            world_size=cluster.world_size,
            hosts=[host.name for host in hosts],
            policy=policy,
            settings=dict(settings),
            racks=[cluster.racks[host.rack].name if host.rack is not None else "" for host in hosts],
            plan=plan.name,
            plan_trees=encode(plan),
        )

    def decide(
        self, epoch: int, from_operation: int, reports: Sequence[EpochReport], done: Mapping[int, DoneOperation]
    ) -> Decision:
        """Take in the reports of all ranks, by rank. PlanError when a plan would compute something wrong."""
        times_s: dict[int, list[float]] = defaultdict(list)
        for report in reports:
            for number, duration_s in report.durations_s.items():
                times_s[number].append(duration_s)
        mean_s = {number: statistics.fmean(values) for number, values in times_s.items()}
        operations = [
            OperationTime(number, done[number].collective, done[number].size_bytes, mean_s[number])
            for number in sorted(mean_s)
        ]
        summaries = tuple(RankSummary.from_json(report.summary) for report in reports)
        self._spent_s += sum(operation.duration_s for operation in operations)
        verdict = self._tuner.decide(EpochMeasures(epoch, self._spent_s, operations, summaries))
        for collective, plan in verdict.plans.items():
            if plan is not None:
                check(plan, collective)
        ruling = Ruling(
            epoch=epoch,
            from_operation=from_operation,
            plans=encode_plans(verdict.plans),
            epoch_weight=verdict.epoch_weight,
            lead_operations=verdict.lead_operations,
            link_Bps=self._link_Bps(),
            reroutes=verdict.reroutes,
        )
        return Decision(ruling, verdict, summaries, mean_s, done)

    def records(self, decision: Decision) -> Iterator[Record]:
        """The journal's records of one decision: operations, flows, and what was decided."""
        yield from self.operation_records(decision.done, decision.mean_s, decision.verdict)
        now_s = self._clock()
        for summary in decision.summaries:
            for flow in summary.flows:
                yield FlowRecord(
                    t_s=now_s,
                    group=self._group,
                    epoch=decision.ruling.epoch,
                    src=flow.src,
                    dst=flow.dst,
                    acked_bytes=flow.acked_bytes,
                    network_limited_s=flow.network_limited_s,
                    rate_Bps=flow.rate_Bps,
                    rtt_s=flow.rtt_s,
                    retransmits=flow.retransmits,
                    span_s=sum(summary.bin_s),
                )
        verdict = decision.verdict
        changed = verdict.plan_after is not None and verdict.action != "hold"
        yield verdict.record(
            self._book.cluster,
            t_s=self._clock(),
            group=self._group,
            epoch=decision.ruling.epoch,
            from_operation=decision.ruling.from_operation,
            plan_trees=encode(verdict.plan_after) if changed and verdict.plan_after is not None else "",
        )

    def operation_records(
        self,
        done: Mapping[int, DoneOperation],
        mean_s: Mapping[int, float] | None = None,
        verdict: Verdict | None = None,
    ) -> Iterator[OperationRecord]:
        """Operations of an epoch with the mean time over the ranks; those outside one with rank 0's own."""
        limits_s: dict[tuple[Collective, int], float | None] = {}
        for number, each in sorted(done.items()):
            kind = (each.collective, each.size_bytes)
            if verdict is not None and kind not in limits_s:
                limits_s[kind] = self._planner.limit_s(*kind, verdict.findings)
            yield OperationRecord(
                t_s=each.ended_at_s,
                group=self._group,
                rank=0,
                operation=number,
                collective=each.collective.value,
                size_bytes=each.size_bytes,
                plan=each.plan,
                duration_s=(mean_s or {}).get(number, each.duration_s),
                limit_s=limits_s.get(kind),
            )

    def _link_Bps(self) -> float | None:
        """In steps of a factor of two: pieces that change their size all the time would be cut anew each time."""
        if len(set(self._book.cluster.host_of)) < 2:
            return None
        return float(2 ** round(math.log2(link_rate_Bps(self._usual_cluster()))))

    def _usual_cluster(self) -> Cluster:
        return self._tuner.usual_cluster()
