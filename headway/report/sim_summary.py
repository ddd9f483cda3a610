"""A simulated run in figures: one line per job, the busiest links, and all of it as JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from headway.collectives.plan import Collective
from headway.sim.result import JobResult, Result

Limits = Mapping[str, Sequence[float]]
"""Job -> least time of each of its operations, seconds (`sim.event_limits`)."""
LEAST_TAKEN = 1e-9
"""Less is rounding."""
_COLLECTIVES = frozenset(collective.value for collective in Collective)


@dataclass(frozen=True, slots=True)
class JobSummary:
    """One job.

    Attributes:
        name: of the job. ranks: how many.
        iterations: that have ended.
        mean_s, p50_s, p99_s: pace of its iterations (`JobResult.paces_s`), the percentiles interpolated; None where
            none has ended.
        algbw_Bps: bytes of its collectives' vectors over the time that they took; None without collectives.
        limit: least time of its collectives and sends with what events left of the links (`sim.event_limits`), as a
            part of what they took; None where there were none, or none used the network.
        free_limit: the same on free links (`OperationResult.free_limit_s`).
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
    free_limit: float | None
    plans: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LinkSummary:
    """One link over a whole run.

    Attributes:
        name: of the link. capacity_Bps: payload per second, as built.
        taken: part of that which other rates and UDP load took, the mean over time.
        carried_bytes: payload of jobs and of TCP load.
        used: that over what the link could have carried with the rest.
    """

    name: str
    capacity_Bps: float
    taken: float
    carried_bytes: float
    used: float


def job_summaries(result: Result, limits_s: Limits) -> list[JobSummary]:
    """In the scenario's order; the limits are of the same run."""
    return [_summary(job, sum(limits_s[name])) for name, job in result.jobs.items()]


def _summary(job: JobResult, limit_s: float) -> JobSummary:
    paces_s = np.array(job.paces_s)
    known = len(paces_s) > 0
    collectives = [each for each in job.operations if each.kind in _COLLECTIVES]
    busy_s = sum(each.duration_s for each in collectives)
    all_s = sum(each.duration_s for each in job.operations)
    free_limit_s = sum(each.free_limit_s for each in job.operations)
    return JobSummary(
        name=job.name,
        ranks=len(job.hosts),
        iterations=len(paces_s),
        mean_s=float(paces_s.mean()) if known else None,
        p50_s=float(np.percentile(paces_s, 50)) if known else None,
        p99_s=float(np.percentile(paces_s, 99)) if known else None,
        algbw_Bps=sum(each.size_bytes for each in collectives) / busy_s if busy_s > 0 else None,
        limit=limit_s / all_s if all_s > 0 and limit_s > 0 else None,
        free_limit=free_limit_s / all_s if all_s > 0 and free_limit_s > 0 else None,
        plans=tuple(dict.fromkeys(each.plan for each in collectives)),
    )


def link_summaries(result: Result) -> list[LinkSummary]:
    """Those that carried something, first those that did most of what they could beside events and UDP load."""
    found = []
    for name, carried in result.carried_bytes.items():
        capacity_Bps, room = result.capacity_Bps[name], result.room_bytes[name]
        if carried > 0 and room > 0:
            taken = 1 - room / (capacity_Bps * result.end_s)
            found.append(
                LinkSummary(name, capacity_Bps, taken if taken > LEAST_TAKEN else 0.0, carried, carried / room)
            )
    return sorted(found, key=lambda link: -link.used)


def result_json(result: Result, limits_s: Limits) -> str:
    """Everything but the journal, for programs. The same run gives the same text."""
    jobs = [
        {
            **asdict(summary),
            "hosts": list(job.hosts),
            "iteration_times": [[each.start_s, each.end_s] for each in job.iterations],
            "paces_s": list(job.paces_s),
            "operations": [
                {**asdict(each), "limit_s": limit_s}
                for each, limit_s in zip(job.operations, limits_s[job.name], strict=True)
            ],
        }
        for summary, job in zip(job_summaries(result, limits_s), result.jobs.values(), strict=True)
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
