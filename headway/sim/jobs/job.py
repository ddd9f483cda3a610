"""What a job on the simulated network asks of those who choose its plans. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headway.collectives.plan import Collective, Plan
from headway.sim.engine.network import Flow


@dataclass(frozen=True)
class OperationDone:
    """One collective that has ended on every rank, on the simulated clock.

    Attributes:
        number: counted from 0 in the job; `send` phases have numbers too, but are no operations for a plan source.
        collective: what was computed.
        size_bytes: the whole vector.
        plan: what `plan_for` gave.
        ready_s: when each rank came to it.
        ended_s: when each rank had its result.
    """

    number: int
    collective: Collective
    size_bytes: int
    plan: Plan
    ready_s: Sequence[float]
    ended_s: Sequence[float]


class PlanSource(Protocol):
    """Chooses the plans of one job, learns how they did, and writes the job's records into the journal."""

    @property
    def reroutes(self) -> Mapping[tuple[int, int], int]:
        """(source, destination) ranks -> how often their flow was given a new connection; absent: never."""
        ...

    def plan_for(self, number: int, collective: Collective, size_bytes: int, root: int) -> Plan | None:
        """The plan of operation `number`; asked in order of numbers, when the first rank comes to it.

        The operation before may still run on other ranks then. None: what it showed decides, so the ranks wait for
        its end; asked again right after its `operation_done`, which always gives a plan.
        """
        ...

    def flow_started(self, number: int, src: int, dst: int, flow: Flow) -> None:
        """Operation `number` began a flow from rank `src` to rank `dst`."""
        ...

    def operation_done(self, done: OperationDone) -> None:
        """Called at the instant when the last rank has its result; its flows have all ended."""
        ...

    def finish(self) -> None:
        """The job has ended, or the run has: write what is left to be written."""
        ...
