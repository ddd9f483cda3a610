"""Plans that stay as they are: a family that is held, or the best by prediction. Pure."""

from __future__ import annotations

from headway.cluster.model import Cluster
from headway.collectives.plan import Collective, Plan
from headway.collectives.plan_book import PINNABLE, PlanBook
from headway.errors import UsageError
from headway.lab.jobs import Job
from headway.sim.job import OperationDone
from headway.sim.network import Flow


class HeldPlans:
    """The plan source of a job with `policy: off`.

    Args:
        job: whose `plan` names a family, as HEADWAY_PLAN, or is empty.
        cluster: the job's ranks on hosts with the rates of free links.
        where: file, for the message of the UsageError that an unknown family raises.
    """

    def __init__(self, job: Job, cluster: Cluster, *, where: str = "") -> None:
        if job.plan and job.plan not in PINNABLE:
            known = ", ".join(PINNABLE)
            field = f"job {job.name}: plan"
            raise UsageError(
                f"{job.plan!r} is no plan", where=f"{where}: {field}" if where else field, hint=f"one of {known}"
            )
        self._book = PlanBook(cluster, "off", bitwise=False, pinned=job.plan)

    def plan_for(self, number: int, collective: Collective, size_bytes: int, root: int) -> Plan:
        """The same plan for every operation of this size."""
        return self._book.idle(collective, size_bytes, root)

    def flow_started(self, number: int, src: int, dst: int, flow: Flow) -> None:
        """Nothing to learn."""

    def operation_done(self, done: OperationDone) -> None:
        """Nothing to learn."""
