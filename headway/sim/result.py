"""What a simulated run leaves: plain records, in simulated seconds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headway.decide.journal import Record


@dataclass(frozen=True, slots=True)
class IterationResult:
    """One pass of a job's loop: from when its first rank began it until its last rank had ended it.

    Ranks need not wait for each other, so the next iteration may begin before this one has ended, by more and more:
    how fast a job is, `JobResult.paces_s` says.
    """

    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        """Seconds."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class OperationResult:
    """One communicating phase.

    Attributes:
        job: whose. number: counted from 0 in the job. iteration: in which.
        kind: the collective's name, or `send`.
        size_bytes: the whole vector.
        plan: name of the plan; empty for `send`.
        start_s: when its last rank began it. end_s: when its last rank had its result.
        free_limit_s: least time on links that nobody else uses (`collectives.limits`); latency left out.
    """

    job: str
    number: int
    iteration: int
    kind: str
    size_bytes: int
    plan: str
    start_s: float
    end_s: float
    free_limit_s: float

    @property
    def duration_s(self) -> float:
        """Seconds."""
        return self.end_s - self.start_s


@dataclass(frozen=True)
class JobResult:
    """One job: its iterations and operations, in order of their ends.

    Attributes:
        name: of the job.
        hosts: rank -> name of its host.
        iterations: those that have ended. operations: likewise.
    """

    name: str
    hosts: Sequence[str]
    iterations: Sequence[IterationResult]
    operations: Sequence[OperationResult]

    @property
    def paces_s(self) -> Sequence[float]:
        """What each iteration added to the job's time, seconds: from the last end of the one before to its own.

        The first counts from its begin, and so does one that began only after the end of the one before, because it
        had to wait for its period. Without a period they add up to the time from the job's begin to its last end.
        """
        paces_s, before_s = [], 0.0
        for each in self.iterations:
            paces_s.append(each.end_s - max(before_s, each.start_s))
            before_s = each.end_s
        return paces_s


@dataclass(frozen=True)
class Result:
    """A whole run.

    Attributes:
        scenario: its name.
        end_s: the simulated clock at the end.
        events: callbacks and flow ends that were handled, for the cost per event.
        jobs: by name, in the scenario's order.
        carried_bytes: link name -> payload bytes of jobs and of background flows that it carried.
        capacity_Bps: link name -> payload bytes per second, as built.
        room_bytes: link name -> payload bytes that it could have carried: what events and UDP load left of it, over
            time.
        records: the journal: starts, operations, decisions, events; `t_s` is the simulated clock.
    """

    scenario: str
    end_s: float
    events: int
    jobs: Mapping[str, JobResult]
    carried_bytes: Mapping[str, float]
    capacity_Bps: Mapping[str, float]
    room_bytes: Mapping[str, float]
    records: Sequence[Record]
