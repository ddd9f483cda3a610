"""Rank 0's side of the agreement: gathers the reports of an epoch, lets the tuner decide, rules, and keeps the journal.

The tuner runs on a thread of its own: planning for a thousand ranks takes up to a second, and the progress thread must
not wait for it. Whatever happens there, a ruling comes out: ranks wait for it.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from headway.cluster.model import Cluster
from headway.collectives.agreement import LARGE_BYTES, EpochReport, Ruling, encode_plans
from headway.collectives.chunking import link_rate_Bps
from headway.collectives.operation import OperationOutcome
from headway.collectives.plan import Collective
from headway.collectives.plan_book import PlanBook
from headway.collectives.plan_codec import encode
from headway.collectives.planner import CandidatePlanner
from headway.collectives.tuner import Tuner
from headway.collectives.verdict import EpochMeasures, OperationTime, Verdict
from headway.collectives.verify import check
from headway.decide.journal import FailureRecord, FlowRecord, Journal, OperationRecord, StartRecord
from headway.observe.summary import RankSummary
from headway.settings import Settings

FIRST_EPOCH_WEIGHT = 2.0
"""Until something is known of the operations' length: two large ones."""

FIRST_LEAD_OPERATIONS = 1

TYPICAL_BYTES = 16 << 20
"""The journal's first record names the idle plan for an all-reduce of this size, a usual gradient bucket."""

NEVER_ENDS = 1e18
"""Weight of an epoch after which nothing is decided any more."""

_log = logging.getLogger("headway")


@dataclass(frozen=True)
class _Done:
    """One large operation as rank 0 saw it."""

    collective: Collective
    size_bytes: int
    plan: str
    ended_at_s: float
    duration_s: float


class Coordinator:
    """Decides for a group, on rank 0.

    Args:
        book: the plans in force without rulings.
        group: its name.
        size: number of ranks.
        journal: takes decisions, flows and large operations.
        rule: sends a ruling to every rank; called on the tuner's thread.
    """

    def __init__(
        self, *, book: PlanBook, group: str, size: int, journal: Journal, rule: Callable[[Ruling], None]
    ) -> None:
        self._book = book
        self._group = group
        self._size = size
        self._journal = journal
        self._rule = rule
        policy = "off" if book.pinned else book.policy
        self._planner = CandidatePlanner(self._usual_cluster, policy, book.bitwise, book.idle)
        self._tuner = Tuner(book.cluster, self._planner, name=group, trust_nominal=False)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=f"headway-tuner-{group}")
        self._done: dict[int, _Done] = {}
        self._reports: dict[int, dict[int, EpochReport]] = {}
        self._closed = False
        self._spent_s = 0.0

    def record_start(self, settings: Settings) -> None:
        """Journal who takes part, where, and under which settings."""
        cluster = self._book.cluster
        plan = self._book.idle(Collective.ALL_REDUCE, TYPICAL_BYTES)
        hosts = [cluster.hosts[host] for host in cluster.host_of]
        given = {name: str(value) for name, value in asdict(settings).items() if value}
        if settings.bitwise:
            given["bitwise_cost"] = f"{self._book.bitwise_cost(TYPICAL_BYTES):+.0%} predicted"
        self._journal.write(
            StartRecord(
                t_s=time.time(),
                group=self._group,
                world_size=self._size,
                hosts=[host.name for host in hosts],
                policy=settings.policy,
                settings=given,
                racks=[cluster.racks[host.rack].name if host.rack is not None else "" for host in hosts],
                plan=plan.name,
                plan_trees=encode(plan),
            )
        )

    def operation_done(
        self, number: int, collective: Collective, plan: str, size_bytes: int, outcome: OperationOutcome
    ) -> None:
        """Note one operation that is complete here. Progress thread."""
        if size_bytes >= LARGE_BYTES:
            duration_s = outcome.ended_s - outcome.started_s
            self._done[number] = _Done(collective, size_bytes, plan, time.time(), duration_s)

    def receive(self, report: EpochReport) -> None:
        """Take one rank's report; when it is the epoch's last, decide. Progress thread."""
        gathered = self._reports.setdefault(report.epoch, {})
        gathered[report.rank] = report
        if len(gathered) == self._size and not self._closed:
            del self._reports[report.epoch]
            done = {number: each for number, each in self._done.items() if number < report.ruled_from}
            for number in done:
                del self._done[number]
            reports = [gathered[rank] for rank in range(self._size)]
            self._worker.submit(self._decide, report.epoch, report.ruled_from, reports, done)

    def stop(self) -> None:
        """Wait for a decision under way, and end the thread. Reports that come later need no ruling any more."""
        self._closed = True
        self._worker.shutdown(wait=True)

    def record_rest(self) -> None:
        """Journal the operations that no epoch ended after. Call when the progress thread has ended."""
        self._record_operations(self._done, {}, None)

    def _link_Bps(self) -> float | None:
        """In steps of a factor of two: pieces that change their size all the time would be cut anew each time."""
        if len(set(self._book.cluster.host_of)) < 2:
            return None
        return float(2 ** round(math.log2(link_rate_Bps(self._usual_cluster()))))

    def _usual_cluster(self) -> Cluster:
        return self._tuner.usual_cluster()

    def _decide(
        self, epoch: int, from_operation: int, reports: Sequence[EpochReport], done: Mapping[int, _Done]
    ) -> None:
        times_s: dict[int, list[float]] = defaultdict(list)
        for report in reports:
            for number, duration_s in report.durations_s.items():
                times_s[number].append(duration_s)
        mean_s = {number: statistics.fmean(values) for number, values in times_s.items()}
        operations = [
            OperationTime(number, done[number].collective, done[number].size_bytes, mean_s[number])
            for number in sorted(mean_s)
        ]
        try:
            summaries = [RankSummary.from_json(report.summary) for report in reports]
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
        except Exception as error:
            _log.exception("group %s: the tuner failed in epoch %d; plans stay as they are", self._group, epoch)
            what = f"{type(error).__name__}: {error}"
            self._journal.write(
                FailureRecord(
                    t_s=time.time(),
                    group=self._group,
                    rank=0,
                    blamed_rank=None,
                    operation=f"decision of epoch {epoch}",
                    what=what,
                )
            )
            self._rule(
                Ruling(epoch=epoch, from_operation=from_operation, plans={}, epoch_weight=NEVER_ENDS, lead_operations=0)
            )
            return
        self._rule(ruling)
        self._record_operations(done, mean_s, verdict)
        self._record_flows(epoch, summaries)
        self._record_decision(epoch, from_operation, verdict)

    def _record_operations(
        self, done: Mapping[int, _Done], mean_s: Mapping[int, float], verdict: Verdict | None
    ) -> None:
        """Operations of an epoch with the mean time over the ranks; those outside one with rank 0's own."""
        limits_s: dict[tuple[Collective, int], float | None] = {}
        for number, each in sorted(done.items()):
            kind = (each.collective, each.size_bytes)
            if verdict is not None and kind not in limits_s:
                limits_s[kind] = self._planner.limit_s(*kind, verdict.findings)
            self._journal.write(
                OperationRecord(
                    t_s=each.ended_at_s,
                    group=self._group,
                    rank=0,
                    operation=number,
                    collective=each.collective.value,
                    size_bytes=each.size_bytes,
                    plan=each.plan,
                    duration_s=mean_s.get(number, each.duration_s),
                    limit_s=limits_s.get(kind),
                )
            )

    def _record_flows(self, epoch: int, summaries: Sequence[RankSummary]) -> None:
        now_s = time.time()
        for summary in summaries:
            for flow in summary.flows:
                self._journal.write(
                    FlowRecord(
                        t_s=now_s,
                        group=self._group,
                        epoch=epoch,
                        src=flow.src,
                        dst=flow.dst,
                        acked_bytes=flow.acked_bytes,
                        network_limited_s=flow.network_limited_s,
                        rate_Bps=flow.rate_Bps,
                        rtt_s=flow.rtt_s,
                        retransmits=flow.retransmits,
                        span_s=sum(summary.bin_s),
                    )
                )

    def _record_decision(self, epoch: int, from_operation: int, verdict: Verdict) -> None:
        changed = verdict.plan_after is not None and verdict.action != "hold"
        self._journal.write(
            verdict.record(
                self._book.cluster,
                t_s=time.time(),
                group=self._group,
                epoch=epoch,
                from_operation=from_operation,
                plan_trees=encode(verdict.plan_after) if changed and verdict.plan_after is not None else "",
            )
        )
