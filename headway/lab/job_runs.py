"""A scenario's jobs as processes on a lab's hosts: what can run, who runs where, in which environment. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.errors import UsageError
from headway.lab.jobs import Job
from headway.lab.placement import place
from headway.lab.ranks import MASTER_PORT, HostLike, rank_environment
from headway.lab.scenario import Scenario

SEND_PORT = 20_000
"""Rank k, counted over all jobs, takes its connections for `send` on this port + k: hosts may be shared by jobs."""
MOST_RANKS = MASTER_PORT - SEND_PORT
MOST_STREAMS = 16
"""Parallel connections of a job with a weight, between two ranks."""


@dataclass(frozen=True, slots=True)
class JobRank:
    """One rank of one job.

    Attributes:
        job: whose.
        rank: in the job.
        hosts: index of the host of each of the job's ranks.
        store_port: of the job's group. send_ports: where each of the job's ranks listens.
    """

    job: Job
    rank: int
    hosts: tuple[int, ...]
    store_port: int
    send_ports: tuple[int, ...]

    @property
    def host(self) -> int:
        """Index of its host."""
        return self.hosts[self.rank]

    def environment(self, hosts: Sequence[HostLike]) -> dict[str, str]:
        """torchrun's environment in its own group, and for the backend "headway" what the job says of it."""
        environment = rank_environment([hosts[host] for host in self.hosts], self.rank, port=self.store_port)
        job, interleave = self.job, self.job.interleave
        environment |= {"HEADWAY_POLICY": job.policy, "HEADWAY_PLAN": job.plan, "HEADWAY_STREAMS": f"{job.weight:g}"}
        environment["HEADWAY_INTERLEAVE"] = "off" if interleave is None else interleave.actuator
        if interleave is not None:
            environment |= {
                f"HEADWAY_INTERLEAVE_{name.upper()}": repr(getattr(interleave, name))
                for name in ("slope", "intercept", "most")
            }
        if job.congestion_control:
            environment["HEADWAY_CONGESTION_CONTROL"] = job.congestion_control
        return environment


def check_runnable(scenario: Scenario) -> None:
    """UsageError where a scenario has no jobs, or jobs that only the simulator can run."""
    if not scenario.jobs:
        raise UsageError(
            f"scenario {scenario.name} has no jobs", hint="give a command after --, or write jobs (docs/lab.md)"
        )
    for job in scenario.jobs:
        for field, wrong in (
            ("policy: clairvoyant", job.policy == "clairvoyant"),
            ("priority", job.priority != 0),
        ):
            if wrong:
                raise UsageError("is for the simulator only", where=f"job {job.name}: {field}")
        if job.weight != round(job.weight) or not 1 <= job.weight <= MOST_STREAMS:
            what = f"{job.weight:g} is no whole number from 1 to {MOST_STREAMS}: the lab has that many parallel streams"
            raise UsageError(what, where=f"job {job.name}: weight")
        if job.weight != 1 and job.interleave is not None:
            raise UsageError("an interleaved job has no weight of its own", where=f"job {job.name}: weight")
        if job.congestion_control and job.interleave is not None and job.interleave.actuator.startswith("bpf-"):
            what = f"{job.interleave.actuator} is a congestion control itself"
            raise UsageError(what, where=f"job {job.name}: congestion_control", hint="leave one of them out")
    ranks = sum(len(hosts) for hosts in place(scenario).values())
    if ranks > MOST_RANKS:
        raise UsageError(f"the jobs have {ranks} ranks together, the lab runs up to {MOST_RANKS}")


def job_ranks(scenario: Scenario, *, seed: int = 0) -> tuple[JobRank, ...]:
    """Every rank of every job.

    Args:
        scenario: with its jobs.
        seed: of the whole run, for placement.
    """
    ranks: list[JobRank] = []
    placed = place(scenario, seed=seed)
    for number, job in enumerate(scenario.jobs):
        hosts = placed[job.name]
        ports = tuple(SEND_PORT + len(ranks) + rank for rank in range(len(hosts)))
        ranks += [JobRank(job, rank, hosts, MASTER_PORT + number, ports) for rank in range(len(hosts))]
    return tuple(ranks)
