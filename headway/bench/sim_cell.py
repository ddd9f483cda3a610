"""One cell of a simulated sweep: what a worker runs, and what its row holds."""

from __future__ import annotations

from itertools import pairwise

from pydantic import JsonValue

from headway.lab.scenario import Scenario
from headway.report.sim_summary import job_summaries, link_summaries
from headway.sim.result import JobResult, Result
from headway.sim.run import simulate
from headway.sim.studies.cells import Json
from headway.sim.studies.event_limits import event_limits_s
from headway.sim.studies.sweep import arguments_of, scenario_of


def run_cell(work: Json) -> Json:
    """Simulate a cell; see `row_values` for what it returns."""
    scenario = scenario_of(work)
    execution, seed, until_s = arguments_of(work)
    result = simulate(scenario, execution=execution, seed=seed, until_s=until_s)
    return row_values(scenario, result, seed=seed)


def row_values(scenario: Scenario, result: Result, *, seed: int) -> Json:
    """What a row says of a run, as JSON (docs/sim-sweep.md): per job its times, and what the whole run cost."""
    limits = event_limits_s(scenario, result, seed=seed)
    jobs: dict[str, JsonValue] = {}
    for summary, job in zip(job_summaries(result, limits), result.jobs.values(), strict=True):
        jobs[summary.name] = {
            "iterations": summary.iterations,
            "mean_s": summary.mean_s,
            "p50_s": summary.p50_s,
            "p99_s": summary.p99_s,
            "algbw_Bps": summary.algbw_Bps,
            "limit_Bps": _limit_Bps(job, sum(limits[summary.name])),
            "limit": summary.limit,
            "free_limit": summary.free_limit,
            "switches": switches(job),
            "plan": summary.plans[-1] if summary.plans else "",
        }
    busiest = link_summaries(result)[:1]
    return {
        "jobs": jobs,
        "end_s": result.end_s,
        "events": result.events,
        "busiest": busiest[0].name if busiest else "",
        "busiest_used": busiest[0].used if busiest else 0.0,
        "busiest_taken": busiest[0].taken if busiest else 0.0,
    }


def switches(job: JobResult) -> int:
    """How often an operation ran another plan than the one before it of the same kind and size."""
    plans: dict[tuple[str, int], list[str]] = {}
    for operation in sorted(job.operations, key=lambda each: each.number):
        if operation.plan:
            plans.setdefault((operation.kind, operation.size_bytes), []).append(operation.plan)
    return sum(a != b for names in plans.values() for a, b in pairwise(names))


def _limit_Bps(job: JobResult, limit_s: float) -> float | None:
    """The algbw at the limit; None for a job that also sends, whose limit is not of its collectives alone."""
    if not job.operations or any(each.kind == "send" for each in job.operations) or limit_s <= 0:
        return None
    return sum(each.size_bytes for each in job.operations) / limit_s
