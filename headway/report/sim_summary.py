"""A simulated run in figures: one line per job, the busiest links, and all of it as JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from headway.collectives.plan import Collective
from headway.sim.result import JobResult, Result

_COLLECTIVES = frozenset(collective.value for collective in Collective)


@dataclass(frozen=True, slots=True)
class JobSummary:
    """One job.

    Attributes:
        name: of the job. ranks: how many.
        iterations: that have ended.
        mean_s, p50_s, p99_s: of an iteration; None where none has ended.
        algbw_Bps: bytes of its collectives' vectors over the time that they took; None without collectives.
        limit: least time of its collectives and sends on free links (`OperationResult.limit_s`), as a part of what
            they took; None where there were none.
        plans: names, in the order of their first use.
    """

    name: str
    ranks: int
    iterations: int
    mean_s: float | None
    p50_s: float | None
    p99_s: float | None
    algbw_Bps: float | None
    limit: float | None
    plans: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LinkSummary:
    """One link: payload that it could carry per second as built, and that it did carry; `used` is the part in use."""

    name: str
    capacity_Bps: float
    carried_bytes: float
    used: float


def job_summaries(result: Result) -> list[JobSummary]:
    """In the scenario's order."""
    return [_summary(job) for job in result.jobs.values()]


def _summary(job: JobResult) -> JobSummary:
    durations = np.array([each.duration_s for each in job.iterations])
    known = len(durations) > 0
    collectives = [each for each in job.operations if each.kind in _COLLECTIVES]
    busy_s = sum(each.duration_s for each in collectives)
    all_s = sum(each.duration_s for each in job.operations)
    return JobSummary(
        name=job.name,
        ranks=len(job.hosts),
        iterations=len(durations),
        mean_s=float(durations.mean()) if known else None,
        p50_s=float(np.percentile(durations, 50)) if known else None,
        p99_s=float(np.percentile(durations, 99)) if known else None,
        algbw_Bps=sum(each.size_bytes for each in collectives) / busy_s if busy_s > 0 else None,
        limit=sum(each.limit_s for each in job.operations) / all_s if all_s > 0 else None,
        plans=tuple(dict.fromkeys(each.plan for each in collectives)),
    )


def link_summaries(result: Result) -> list[LinkSummary]:
    """Those that carried something, the busiest first."""
    found = []
    for name, carried in result.carried_bytes.items():
        could = result.capacity_Bps[name] * result.end_s
        if carried > 0 and could > 0:
            found.append(LinkSummary(name, result.capacity_Bps[name], carried, carried / could))
    return sorted(found, key=lambda link: -link.used)


def result_json(result: Result) -> str:
    """Everything but the journal, for programs. The same run gives the same text."""
    jobs = [
        {
            **asdict(summary),
            "hosts": list(job.hosts),
            "iteration_times": [[each.start_s, each.end_s] for each in job.iterations],
            "operations": [asdict(each) for each in job.operations],
        }
        for summary, job in zip(job_summaries(result), result.jobs.values(), strict=True)
    ]
    links: Sequence[dict[str, object]] = [asdict(link) for link in link_summaries(result)]
    document = {
        "scenario": result.scenario,
        "end_s": result.end_s,
        "events": result.events,
        "jobs": jobs,
        "links": links,
    }
    return json.dumps(document, indent=1)
