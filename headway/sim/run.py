"""A scenario's jobs on its network, from the start to the last iteration. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from headway.cluster.model import Cluster
from headway.collectives.predict import CostModel
from headway.decide.journal import MemoryJournal
from headway.errors import UsageError
from headway.lab.jobs import Job
from headway.lab.placement import place
from headway.lab.scenario import Scenario
from headway.sim.background import Background
from headway.sim.engine.fabric import Fabric
from headway.sim.engine.loop import Loop
from headway.sim.engine.network import Network
from headway.sim.engine.realism import IDEAL, Realism
from headway.sim.execution.collective import Execution
from headway.sim.execution.host_model import DEFAULT_HOST, HostModel
from headway.sim.execution.message_counts import check_job
from headway.sim.jobs.interleaved import Push, push_of
from headway.sim.jobs.job_run import JobRun, Setting, SpanSink
from headway.sim.jobs.sources import cluster_on, plan_sources
from headway.sim.result import Result
from headway.sim.topologies import cluster_in, cluster_of, costs_of, fabric_of, link_state


class Simulation:
    """One run, step by step; `simulate` is all of it at once.

    Args:
        scenario: with at least one job.
        execution: how plans are carried out.
        costs: fixed costs of messages; None: the scenario's own.
        realism: corrections to the fluid model.
        host: what the ends of connections add, in PIECES.
        seed: of noise, random placement and ECMP; the same seed gives the same result, to the bit.
        fabric: another network than the scenario's own, with at least as many hosts.
        spans: who wants to know what each rank does.
        push_of: how hard each job's flows push, instead of as its `interleave` says.

    Attributes:
        network: all flows; `network.loop` is the clock.
        jobs: by name, in the scenario's order.

    Raises:
        UsageError: a job asks for what cannot be.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        execution: Execution = Execution.PIECES,
        costs: CostModel | None = None,
        realism: Realism = IDEAL,
        host: HostModel = DEFAULT_HOST,
        seed: int = 0,
        fabric: Fabric | None = None,
        spans: SpanSink | None = None,
        push_of: Callable[[Job], Push | None] = push_of,
    ) -> None:
        if not scenario.jobs:
            raise UsageError("the scenario has no jobs", where=scenario.name)
        if fabric is not None and len(fabric.hosts) < len(scenario.host_names):
            what = f"has {len(fabric.hosts)} hosts, the scenario {len(scenario.host_names)}"
            raise UsageError(what, where=fabric.name, hint="the network must have at least as many")
        self.scenario = scenario
        self._own_fabric = fabric is None
        self.network = Network(Loop(), fabric or fabric_of(scenario), realism)
        self._journal = MemoryJournal()
        costs = costs_of(scenario) if costs is None else costs
        setting = Setting(self.network, execution, costs, host, seed, spans, push_of)
        self._background = Background(self.network, scenario, self._journal.write)
        placed = place(scenario, seed=seed)
        self.jobs = {}
        free = link_state(scenario)
        for job in scenario.jobs:
            hosts = placed[job.name]
            cluster = cluster_in(scenario, free, host_of=hosts) if fabric is None else cluster_on(fabric, hosts)
            if execution is Execution.PIECES:
                check_job(job, cluster)
            now = partial(self._cluster_now, cluster, hosts)
            plans = plan_sources(job, cluster, self.network, self._journal, cluster_now=now, seed=seed, costs=costs)
            self.jobs[job.name] = JobRun(job, hosts, cluster, plans, setting, self._job_ended)
        self._unfinished = sum(job.iterations is not None for job in scenario.jobs)
        self._background.start()
        for run in self.jobs.values():
            run.begin()

    def run(self, until_s: float = float("inf")) -> None:
        """Until every job with a number of iterations has ended, or `until_s`."""
        self.network.loop.run(until_s)

    def result(self) -> Result:
        """What has happened by now; call it once, after the last `run`."""
        for job in self.jobs.values():
            job.finish()
        self._background.stop()
        loop, links = self.network.loop, self.network.fabric.links
        return Result(
            scenario=self.scenario.name,
            end_s=loop.now_s,
            events=loop.events,
            jobs={name: job.result() for name, job in self.jobs.items()},
            carried_bytes={link.name: self.network.carried_bytes(index) for index, link in enumerate(links)},
            capacity_Bps={link.name: link.capacity_Bps for link in links},
            room_bytes={link.name: self.network.room_bytes(index) for index, link in enumerate(links)},
            records=tuple(self._journal.records),
        )

    def _cluster_now(self, cluster: Cluster, hosts: Sequence[int]) -> Cluster:
        """What events leave of a job's cluster now; as it is on a network that the scenario does not describe."""
        if self._own_fabric:
            return cluster_of(self.scenario, host_of=hosts, in_force=self._background.in_force)
        return cluster

    def _job_ended(self) -> None:
        self._unfinished -= 1
        if not self._unfinished:
            self.network.loop.stop()


def simulate(
    scenario: Scenario,
    *,
    execution: Execution = Execution.PIECES,
    costs: CostModel | None = None,
    realism: Realism = IDEAL,
    host: HostModel = DEFAULT_HOST,
    seed: int = 0,
    until_s: float = float("inf"),
    fabric: Fabric | None = None,
    spans: SpanSink | None = None,
) -> Result:
    """Run a scenario's jobs until all with a number of iterations have ended, or until `until_s`.

    See `Simulation` for the arguments. Raises UsageError for a scenario without jobs: see `with_default_job`.
    """
    simulation = Simulation(
        scenario,
        execution=execution,
        costs=costs,
        realism=realism,
        host=host,
        seed=seed,
        fabric=fabric,
        spans=spans,
    )
    simulation.run(until_s)
    return simulation.result()


def with_default_job(scenario: Scenario, *, size_bytes: int, iterations: int, policy: str = "off") -> Scenario:
    """A scenario without jobs, with one over all of its hosts that does nothing but all-reduce.

    Args:
        size_bytes: of the whole vector.
        iterations: how many.
        policy: who chooses plans; see `Job`.
    """
    job = Job.model_validate(
        {
            "name": "all",
            "hosts": len(scenario.host_names),
            "iterations": iterations,
            "loop": [{"all_reduce": size_bytes}],
            "policy": policy,
        }
    )
    return scenario.model_copy(update={"jobs": (job,)})
