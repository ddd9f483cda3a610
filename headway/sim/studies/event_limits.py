"""The least time of each operation of a run with what the scenario's events left of the links meanwhile. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

from headway.lab.effects import Effect
from headway.lab.placement import place
from headway.lab.scenario import LoadEvent, Scenario
from headway.lab.steps import Step, steps
from headway.sim.jobs.job_run import phase_limit_s
from headway.sim.result import Result
from headway.sim.topologies import cluster_of


def event_limits_s(scenario: Scenario, result: Result, *, seed: int = 0) -> Mapping[str, Sequence[float]]:
    """Job -> for each of its operations, in the result's order, a time that none can be shorter than, seconds.

    What counts is what took capacity during the whole operation: other rates, and UDP, which gives way to nobody. TCP
    load shares by the number of flows, so a plan with many flows keeps most of a link, and it bounds nothing. Other
    jobs are left out too.

    Args:
        scenario: as it was run, with its own network.
        result: of the run. seed: of the run.
    """
    spans = sorted(_spans(scenario, result.end_s), key=lambda span: span[0].at_s)
    placed = place(scenario, seed=seed)
    known: dict[tuple[str, int, tuple[str, ...]], float] = {}
    limits: dict[str, list[float]] = {}
    for job in scenario.jobs:
        phases = [index for index, phase in enumerate(job.loop) if phase.kind != "compute"]
        operations = result.jobs[job.name].operations
        limits[job.name] = [0.0] * len(operations)
        open_: list[tuple[Step, float]] = []
        coming = iter(spans)
        following = next(coming, None)
        for number in sorted(range(len(operations)), key=lambda each: operations[each].start_s):
            operation = operations[number]
            while following is not None and following[0].at_s <= operation.start_s:
                open_.append(following)
                following = next(coming, None)
            open_ = [span for span in open_ if span[1] >= operation.start_s]
            index = phases[operation.number % len(phases)]
            holding = [span for span in open_ if operation.end_s <= span[1]]
            key = (job.name, index, tuple(step.key for step, _ in holding))
            if key not in known:
                effects = [_certain(step.effects) for step, _ in holding]
                cluster = cluster_of(scenario, host_of=placed[job.name], in_force=effects)
                known[key] = phase_limit_s(job.loop[index], cluster)
            limits[job.name][number] = known[key]
    return limits


def free_limits_s(result: Result) -> Mapping[str, Sequence[float]]:
    """The same without events, from the result alone: for a network that the scenario does not describe."""
    return {name: [each.free_limit_s for each in job.operations] for name, job in result.jobs.items()}


def _spans(scenario: Scenario, end_s: float) -> list[tuple[Step, float]]:
    """What was in force: (its begin, when it ended)."""
    open_: dict[str, Step] = {}
    spans: list[tuple[Step, float]] = []
    for step in takewhile(lambda step: step.at_s <= end_s, steps(scenario)):
        if step.phase == "begin":
            open_[step.key] = step
        else:
            spans.append((open_.pop(step.key), step.at_s))
    return spans + [(step, float("inf")) for step in open_.values()]


def _certain(effects: Sequence[Effect]) -> tuple[Effect, ...]:
    return tuple(e for e in effects if not (isinstance(e.event, LoadEvent) and e.event.tcp is not None))
