"""Small scenarios for tests, as a file would hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headway.lab.files import parse_scenario
from headway.lab.scenario import Scenario
from headway.sim.execution.collective import Execution
from headway.sim.result import Result
from headway.sim.run import simulate

Fields = Mapping[str, object]


def scenario_of(*jobs: Fields, **fields: object) -> Scenario:
    """Eight hosts on one switch at 200 Mbit/s unless `fields` say otherwise."""
    data: dict[str, object] = {"name": "test", "hosts": 8, "access": "200Mbit", **fields}
    return parse_scenario({**data, "jobs": [dict(job) for job in jobs]}, where="test")


def job(name: str = "a", *phases: Fields, **fields: object) -> Fields:
    """Four hosts and three iterations of `phases` unless `fields` say otherwise."""
    return {"name": name, "hosts": 4, "iterations": 3, "loop": [dict(phase) for phase in phases], **fields}


def streams(scenario: Scenario, *, seed: int = 0) -> Result:
    """As fluids."""
    return simulate(scenario, execution=Execution.STREAMS, seed=seed)


def durations(result: Result, name: str = "a") -> Sequence[float]:
    """Of a job's iterations, seconds."""
    return [iteration.duration_s for iteration in result.jobs[name].iterations]
