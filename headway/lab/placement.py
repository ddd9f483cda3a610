"""Which hosts the ranks of a scenario's jobs run on: the same in the lab and in the simulator. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from headway.lab.draws import job_chance
from headway.lab.jobs import Job
from headway.lab.scenario import Scenario

_STREAM = -1
"""Of the draws of a random placement; ranks have theirs from 0."""


def place(scenario: Scenario, *, seed: int = 0) -> Mapping[str, tuple[int, ...]]:
    """Job name -> index of the host of each of its ranks, in the scenario's order of jobs.

    Jobs that name their hosts are placed first; then the others in their order, each on the hosts that have the
    fewest jobs. The ranks of one host are neighbours: rank r runs on the job's host number r // ranks_per_host.

    Args:
        scenario: with its jobs.
        seed: of the whole run; for `random`.
    """
    index = {name: host for host, name in enumerate(scenario.host_names)}
    jobs_on: Counter[int] = Counter()
    hosts_of: dict[str, Sequence[int]] = {}
    for job in scenario.jobs:
        if not isinstance(job.hosts, int):
            hosts_of[job.name] = [index[name] for name in job.hosts]
            jobs_on.update(hosts_of[job.name])
    racks = _racks(scenario)
    for job in scenario.jobs:
        if isinstance(job.hosts, int):
            hosts_of[job.name] = _chosen(job, job.hosts, racks, jobs_on, seed)
            jobs_on.update(hosts_of[job.name])
    return {
        job.name: tuple(host for host in hosts_of[job.name] for _ in range(job.ranks_per_host)) for job in scenario.jobs
    }


def _racks(scenario: Scenario) -> Sequence[int]:
    """The rack of each host; in a fat tree its edge switch, in a star all the same."""
    count = len(scenario.host_names)
    if scenario.fat_tree is not None:
        return [host // (scenario.fat_tree.k // 2) for host in range(count)]
    return [scenario.rack_of(host) or 0 for host in range(count)]


def _chosen(job: Job, count: int, racks: Sequence[int], jobs_on: Counter[int], seed: int) -> Sequence[int]:
    by_jobs: dict[int, list[int]] = {}
    for host in range(len(racks)):
        by_jobs.setdefault(jobs_on[host], []).append(host)
    chance = job_chance(job, _STREAM, seed=seed)
    chosen: list[int] = []
    for _, hosts in sorted(by_jobs.items()):
        if job.placement == "spread":
            hosts = _round_robin(hosts, racks)
        elif job.placement == "random":
            chance.shuffle(hosts)
        chosen += hosts[: count - len(chosen)]
    return chosen


def _round_robin(hosts: Sequence[int], racks: Sequence[int]) -> list[int]:
    """The first host of every rack, then the second of every rack, and so on."""
    seen: Counter[int] = Counter()
    turns = {}
    for host in hosts:
        turns[host] = (seen[racks[host]], racks[host])
        seen[racks[host]] += 1
    return sorted(hosts, key=lambda host: turns[host])
