"""What the ranks of a lab's jobs told, in the form of the simulator's results, so that they can be compared. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from headway.bench.job_worker import IterationTold
from headway.bench.measures import percentile
from headway.cluster.units import format_time
from headway.lab.jobs import Job
from headway.sim.result import IterationResult, JobResult, OperationResult


def job_result(
    job: Job, hosts: Sequence[str], told: Mapping[int, Sequence[IterationTold]], plans: Mapping[int, str],
    limits_s: Sequence[float],
) -> JobResult:  # fmt: skip
    """The iterations that every rank has ended.

    Args:
        job: its loop.
        hosts: rank -> name of its host.
        told: rank -> its iterations in order; of every rank that has a part in the loop.
        plans: number of the group's operation (sends have none) -> name of its plan; others get "".
        limits_s: least time of each phase of the loop.
    """
    iterations: list[IterationResult] = []
    operations: list[OperationResult] = []
    collectives = 0
    for number in range(min(map(len, told.values()), default=0)):
        ranks = {rank: mine[number].marks_s for rank, mine in told.items()}
        iterations.append(
            IterationResult(min(marks[0] for marks in ranks.values()), max(marks[-1] for marks in ranks.values()))
        )
        for place, phase in enumerate(job.loop):
            if phase.kind == "compute":
                continue
            plan = ""
            if phase.kind != "send":
                plan = plans.get(collectives, "")
                collectives += 1
            among = [ranks[rank] for rank in ((phase.src, phase.dst) if phase.kind == "send" else ranks)]
            operations.append(
                OperationResult(
                    job=job.name,
                    number=len(operations),
                    iteration=number,
                    kind=phase.kind,
                    size_bytes=phase.size_bytes,
                    plan=plan,
                    start_s=max(marks[place] for marks in among),
                    end_s=max(marks[place + 1] for marks in among),
                    free_limit_s=limits_s[place],
                )
            )
    return JobResult(job.name, tuple(hosts), tuple(iterations), tuple(operations))


def to_json(scenario: str, backend: str, jobs: Mapping[str, JobResult]) -> str:
    """All jobs as one document; `docs/lab.md` has the fields.

    Args:
        scenario: its name.
        backend: of torch.distributed.
        jobs: by name.
    """
    document = {
        "v": 1,
        "scenario": scenario,
        "backend": backend,
        "jobs": {name: asdict(job) for name, job in jobs.items()},
    }
    return json.dumps(document, indent=1) + "\n"


def sentence(job: JobResult) -> str:
    """One line for people; times are the pace of iterations (`JobResult.paces_s`)."""
    times_s = sorted(job.paces_s)
    if not times_s:
        return f"job {job.name}: no iteration ended"
    middle, late = percentile(times_s, 50), percentile(times_s, 99)
    count = f"{len(times_s)} iteration{'s' * (len(times_s) != 1)}"
    return f"job {job.name}: {count}, median {format_time(middle)}, p99 {format_time(late)}"
