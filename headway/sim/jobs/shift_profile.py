"""What a scenario's jobs send when each is alone, as circles for a central plan; and the plan as a scenario. Pure.

Each job runs alone in the simulator, without noise and events. Its second iteration is cut where phases begin and end;
what a link carries between two cuts, over the time between, is an arc. With noise an iteration takes longer than the
phases without it, since a collective waits for the slowest rank: the period is then the mean of `NOISY` iterations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headway.interleave.central import CentralPlan
from headway.interleave.shifts import Arc, Circle, groups
from headway.lab.jobs import Job
from headway.lab.placement import place
from headway.lab.scenario import Scenario
from headway.sim.engine.fabric import Fabric
from headway.sim.execution.collective import Execution
from headway.sim.run import Simulation

NOISY = 50
_STEADY = 4
"""Iterations of a run without noise; the second one is looked at."""
_NOTHING = 1e-6
"""Part of a link's capacity that is no burst."""


@dataclass(frozen=True)
class Profile:
    """Jobs alone.

    Attributes:
        circles: one for each job, in the scenario's order; links by the fabric's names.
        capacity_Bps: of each link, payload.
    """

    circles: tuple[Circle, ...]
    capacity_Bps: Mapping[str, float]


def profile(
    scenario: Scenario, *, execution: Execution = Execution.STREAMS, seed: int = 0, fabric: Fabric | None = None
) -> Profile:
    """Every job of the scenario alone on its network; see the module, and `Simulation` for the arguments."""
    placed = place(scenario, seed=seed)
    circles, capacity_Bps = [], {}
    for job in scenario.jobs:
        hosts = tuple(scenario.host_names[host] for host in dict.fromkeys(placed[job.name]))
        alone = _Alone(scenario, job, hosts, execution, seed, fabric)
        circles.append(alone.circle())
        capacity_Bps = alone.capacity_Bps
    return Profile(tuple(circles), capacity_Bps)


class _Alone:
    """One job on the empty network."""

    def __init__(
        self,
        scenario: Scenario,
        job: Job,
        hosts: tuple[str, ...],
        execution: Execution,
        seed: int,
        fabric: Fabric | None,
    ) -> None:
        self._scenario, self._execution, self._seed, self._fabric = scenario, execution, seed, fabric
        quiet = tuple(phase.model_copy(update={"noise": 0.0}) for phase in job.loop)
        same = {"hosts": hosts, "placement": "packed", "start": 0.0, "period": None, "interleave": None}
        self._job = job.model_copy(update={**same, "loop": quiet, "iterations": _STEADY})
        self._noisy = None
        if any(phase.noise for phase in job.loop):
            self._noisy = job.model_copy(update={**same, "iterations": NOISY})
        links = self._simulation(self._job).network.fabric.links
        self.capacity_Bps = {link.name: link.capacity_Bps for link in links}

    def _simulation(self, job: Job) -> Simulation:
        alone = self._scenario.model_copy(update={"jobs": (job,), "events": ()})
        return Simulation(alone, execution=self._execution, seed=self._seed, fabric=self._fabric)

    def circle(self) -> Circle:
        """See the module."""
        first = self._simulation(self._job)
        first.run()
        result = first.result().jobs[self._job.name]
        begin_s, end_s = (result.iterations[index].start_s for index in (1, 2))
        period_s = end_s - begin_s
        cuts_s = {begin_s, end_s}
        cuts_s.update(t for each in result.operations for t in (each.start_s, each.end_s) if begin_s < t < end_s)
        arcs: dict[str, list[Arc]] = {}
        again = self._simulation(self._job)
        carried: list[float] | None = None
        before_s = begin_s
        for cut_s in sorted(cuts_s):
            again.run(cut_s)
            now = [again.network.carried_bytes(link) for link in range(len(again.network.fabric.links))]
            for link, was, sent in zip(again.network.fabric.links, carried or now, now, strict=True):
                if sent - was > _NOTHING * link.capacity_Bps * (cut_s - before_s):
                    demand_Bps = min(link.capacity_Bps, (sent - was) / (cut_s - before_s))
                    arcs.setdefault(link.name, []).append(Arc(before_s - begin_s, cut_s - before_s, demand_Bps))
            carried, before_s = now, cut_s
        if self._noisy is not None:
            noisy = self._simulation(self._noisy)
            noisy.run()
            iterations = noisy.result().jobs[self._noisy.name].iterations
            period_s = max(period_s, (iterations[-1].start_s - iterations[0].start_s) / (len(iterations) - 1))
        return Circle(self._job.name, period_s, arcs)


def starts_s(scenario: Scenario, profiled: Profile, plan: CentralPlan) -> dict[str, float]:
    """When each job must begin so that the plan's shifts hold: no earlier than it did, and as soon as it can."""
    jobs = {job.name: job for job in scenario.jobs}
    found = {}
    for group in groups(profiled.circles):
        names = [profiled.circles[index].name for index in group]
        anchor_s = jobs[names[0]].start - plan.shifts_s[names[0]]
        for name in names:
            start_s = jobs[name].start
            wait_s = (anchor_s + plan.shifts_s[name] - start_s) % plan.periods_s[name]
            near = 1e-9 * plan.periods_s[name]
            found[name] = start_s + (wait_s if near < wait_s < plan.periods_s[name] - near else 0.0)
    return found


def shifted(scenario: Scenario, profiled: Profile, plan: CentralPlan) -> Scenario:
    """The scenario with the plan's starts and periods, and without `interleave`."""
    starts = starts_s(scenario, profiled, plan)
    jobs = tuple(
        job.model_copy(update={"start": starts[job.name], "period": plan.periods_s[job.name], "interleave": None})
        for job in scenario.jobs
    )
    return scenario.model_copy(update={"jobs": jobs})
