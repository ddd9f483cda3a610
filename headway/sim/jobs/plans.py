"""Plans that stay as they are: a family that is held, or the best by prediction. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from headway.collectives.limits import lower_bound
from headway.collectives.plan import Collective, Plan
from headway.collectives.plan_book import ROOTED, PlanBook
from headway.collectives.plan_codec import encode
from headway.decide.journal import Journal, OperationRecord, StartRecord
from headway.lab.jobs import Job
from headway.sim.engine.network import Flow
from headway.sim.jobs.job import OperationDone


class HeldPlans:
    """The plan source of a job with `policy: off`.

    Args:
        job: whose plans these are.
        book: where they are; it holds a family, or chooses by prediction.
        journal: gets the start and rank 0's operations.
    """

    def __init__(self, job: Job, book: PlanBook, journal: Journal) -> None:
        self._job = job
        self._cluster = book.cluster
        self._journal = journal
        self._book = book
        self._limits_s: dict[tuple[Collective, int, int], float] = {}
        self._roots: dict[int, int] = {}
        self._started = False
        self.reroutes: Mapping[tuple[int, int], int] = {}

    def plan_for(self, number: int, collective: Collective, size_bytes: int, root: int) -> Plan:
        """The same plan for every operation of this size."""
        plan = self._book.idle(collective, size_bytes, root)
        if not self._started:
            self._started = True
            self._write_start(plan)
        if collective in ROOTED:
            self._roots[number] = root
        return plan

    def flow_started(self, number: int, src: int, dst: int, flow: Flow) -> None:
        """Nothing to learn."""

    def operation_done(self, done: OperationDone) -> None:
        """Into the journal, as rank 0 saw it."""
        root = self._roots.pop(done.number, 0)
        kind = (done.collective, done.size_bytes, root)
        if kind not in self._limits_s:
            self._limits_s[kind] = lower_bound(self._cluster, done.collective, done.size_bytes, root=root).time_s
        self._journal.write(
            OperationRecord(
                t_s=done.ended_s[0],
                group=self._job.name,
                rank=0,
                operation=done.number,
                collective=done.collective.value,
                size_bytes=done.size_bytes,
                plan=done.plan.name,
                duration_s=done.ended_s[0] - done.ready_s[0],
                limit_s=self._limits_s[kind],
            )
        )

    def finish(self) -> None:
        """All is written."""

    def _write_start(self, plan: Plan) -> None:
        cluster = self._cluster
        hosts = [cluster.hosts[host] for host in cluster.host_of]
        self._journal.write(
            StartRecord(
                t_s=self._job.start,
                group=self._job.name,
                world_size=cluster.world_size,
                hosts=[host.name for host in hosts],
                policy=self._job.policy,
                settings={"plan": self._job.plan} if self._job.plan else {},
                racks=[cluster.racks[host.rack].name if host.rack is not None else "" for host in hosts],
                plan=plan.name,
                plan_trees=encode(plan),
            )
        )
