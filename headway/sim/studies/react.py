"""REACT's simulation study: three patterns, congestion on hosts and in the fabric, four ways to choose plans. Pure.

A cell is one pattern on n hosts under one condition with one policy. Jobs run one operation after the other; the
condition sets in after `CALM_S`, and what counts is the second half of the time, when tuning has come to rest.

How a plan is carried out is part of the cell: ROUNDS waits for the slowest transfer of each step, which is the cost
on the paper's time-expanded network; STREAMS is the limit of small pieces in a pipeline, and serves a thousand hosts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal

from pydantic import JsonValue, TypeAdapter

from headway.cluster.model import Cluster
from headway.collectives.families import double_tree, recursive_doubling, ring
from headway.collectives.limits import lower_bound
from headway.collectives.plan import Collective, Plan
from headway.collectives.plan_book import PlanBook
from headway.collectives.predict import DEFAULT_COSTS
from headway.decide.journal import DecisionRecord, Journal, MemoryJournal
from headway.lab.jobs import Job
from headway.lab.scenario import Scenario
from headway.sim.background import Background
from headway.sim.engine.loop import Loop
from headway.sim.engine.network import Network
from headway.sim.execution.collective import Execution
from headway.sim.execution.connections import job_key
from headway.sim.execution.samples import FlowSampler
from headway.sim.jobs.clairvoyant import KNOWN, ClairvoyantPlans, Ways
from headway.sim.jobs.job import PlanSource
from headway.sim.jobs.job_run import JobRun, Setting
from headway.sim.jobs.plans import HeldPlans
from headway.sim.jobs.tuned import TunedPlans
from headway.sim.studies.cells import Cell, Json
from headway.sim.topologies import cluster_of, fabric_of

Pattern = Literal["ring", "double tree", "recursive doubling"]
Policy = Literal["off", "react", "packing", "clairvoyant"]

ACCESS = "10Gbit"
SIZE_BYTES = {Collective.ALL_REDUCE: 2**27, Collective.ALL_GATHER: 2**28}
"""At 10 Gbit/s an idle ring takes 0.2 s for either: long enough that latency is a small part for most of the plans."""
ALPHA_S = 5e-6
"""One hop of an empty message: a data centre's, not the emulated cluster's."""
CALM_S = 2.5
HOSTS_PER_RACK = 4
SPINES = 4
LOST_SHARE = "2%"
"""What a link that is down still carries: a flow over a link without any capacity would never end, and neither would
the job, tuned or not."""

CONDITIONS: Mapping[str, tuple[Mapping[str, object], ...]] = {
    "idle": (),
    "uplink at 50 %": ({"target": "victim", "direction": "up", "rate": "50%"},),
    "uplink at 25 %": ({"target": "victim", "direction": "up", "rate": "25%"},),
    "downlink at 50 %": ({"target": "victim", "direction": "down", "rate": "50%"},),
    "downlink at 25 %": ({"target": "victim", "direction": "down", "rate": "25%"},),
    "one host of 8 at 50 %": ({"target": "eighth", "direction": "both", "rate": "50%"},),
    "uplink lost": ({"target": "victim", "direction": "up", "rate": LOST_SHARE},),
    "racks idle": (),
    "rack uplink at 25 %": ({"target": "rack0", "direction": "up", "path": 0, "rate": "25%"},),
    "spine path lost": ({"target": "rack0", "direction": "up", "path": 0, "rate": LOST_SHARE},),
}
"""Events by name. `victim` is the host in the middle, `eighth` every eighth host. Names that speak of racks or spines
have racks of `HOSTS_PER_RACK` hosts with `SPINES` links of a host's rate each to as many spines, hashed by ECMP."""


@dataclass(frozen=True)
class Study:
    """One cell.

    Attributes:
        pattern: untuned, and where tuning starts: an all-reduce as a ring or double binary tree, or an all-gather by
            recursive doubling.
        hosts: how many, one rank of each job on each.
        condition: name of one of `CONDITIONS`.
        policy: who chooses plans, in every job.
        jobs: on the same hosts.
        execution: a value of `Execution`.
        operations: of each job.
        noise: of what a tuner measures.
        seed: of noise and ECMP.
    """

    pattern: Pattern
    hosts: int
    condition: str
    policy: Policy
    jobs: int = 1
    execution: str = Execution.STREAMS.value
    operations: int = 36
    noise: float = 0.03
    seed: int = 0

    @property
    def collective(self) -> Collective:
        """What is computed."""
        return Collective.ALL_GATHER if self.pattern == "recursive doubling" else Collective.ALL_REDUCE

    @property
    def size_bytes(self) -> int:
        """Of the whole vector."""
        return SIZE_BYTES[self.collective]

    def scenario(self) -> Scenario:
        """The network and its jobs."""
        racked = "rack" in self.condition or "spine" in self.condition
        names = {
            "victim": [f"host{self.hosts // 2}"],
            "eighth": [f"host{host}" for host in range(self.hosts // 2 % 8, self.hosts, 8)],
        }
        events = [
            {
                "id": f"e{k}",
                "type": "bw",
                "start": CALM_S,
                **event,
                "target": names.get(str(event["target"]), event["target"]),
            }
            for k, event in enumerate(CONDITIONS[self.condition])
        ]
        racks = {
            "racks": max(2, self.hosts // HOSTS_PER_RACK),
            "spines": SPINES,
            "uplink": ACCESS,
        }
        return Scenario.model_validate(
            {
                "name": self.condition,
                "hosts": self.hosts,
                "access": ACCESS,
                **({"racks": racks} if racked else {}),
                "events": events,
                "jobs": [
                    {
                        "name": f"job{k}",
                        "hosts": [f"host{host}" for host in range(self.hosts)],
                        "iterations": self.operations,
                        "policy": self.policy,
                        "loop": [{self.collective.value: self.size_bytes}],
                    }
                    for k in range(self.jobs)
                ],
            }
        )

    def cell(self) -> Cell:
        """For a sweep."""
        fields = asdict(self)
        shown = ("pattern", "hosts", "condition", "policy", "jobs", "execution")
        return Cell(parameters={name: fields[name] for name in shown}, work=fields)


@dataclass
class PatternBook(PlanBook):
    """The plans of a job that begins with one pattern. `pattern` stands for every large collective that it carries."""

    pattern: Pattern = "ring"

    def _make(self, collective: Collective, size_bytes: int, root: int) -> Plan:
        ranks = range(self.cluster.world_size)
        if self.pattern == "double tree" and collective is Collective.ALL_REDUCE:
            return double_tree(ranks)
        if self.pattern == "recursive doubling" and collective is Collective.ALL_GATHER:
            return recursive_doubling(ranks)
        return ring(ranks)


_STUDY = TypeAdapter(Study)


def run(work: Json) -> Json:
    """One cell, from its fields; its figures.

    - `time_s`, `algbw_Bps`: of an operation, the median over all jobs in the second half of the time.
    - `rates_Bps`: of each job, what it got done in the second half.
    - `limit_Bps`: algbw at the lower bound, for one job alone; `of_limit`: one job's `algbw_Bps` over it; of several
      jobs the sum of `rates_Bps`.
    - `switches`, `late_switches`: changes of plan per job, in all and in the second half.
    - `reaction_operations`: per job, from the condition's begin until another plan runs.

    With several jobs, what happens after the first of them has left does not count.
    """
    study = _STUDY.validate_python(dict(work))
    scenario = study.scenario()
    network = Network(Loop(), fabric_of(scenario, wire_alpha_s=ALPHA_S))
    journal = MemoryJournal()
    background = Background(network, scenario, journal.write)
    setting = Setting(network, Execution(study.execution), DEFAULT_COSTS, seed=study.seed)
    hosts = list(range(study.hosts))
    cluster = cluster_of(scenario, wire_alpha_s=ALPHA_S)
    left = len(scenario.jobs)

    def ended() -> None:
        nonlocal left
        left -= 1
        if not left:
            network.loop.stop()

    def now() -> Cluster:
        return cluster_of(scenario, in_force=background.in_force, wire_alpha_s=ALPHA_S)

    runs = [
        JobRun(job, hosts, cluster, partial(_plans, study, job, cluster, network, now, journal), setting, ended)
        for job in scenario.jobs
    ]
    background.start()
    for each in runs:
        each.begin()
    network.loop.run()
    for each in runs:
        each.finish()
    limit_s = lower_bound(now(), study.collective, study.size_bytes).time_s
    return _figures(study, runs, limit_s, journal)


def _plans(
    study: Study, job: Job, cluster: Cluster, network: Network, now: Callable[[], Cluster], journal: Journal
) -> PlanSource:
    policy = "packing" if study.policy == "clairvoyant" else study.policy
    book = PatternBook(cluster, policy, bitwise=False, pattern=study.pattern)
    if study.policy == "off":
        return HeldPlans(job, book, journal)
    clock = network.loop
    if study.policy == "clairvoyant":
        ways = Ways(network, range(study.hosts), job_key(job.name, study.seed))
        return ClairvoyantPlans(book, now, group=job.name, clock=lambda: clock.now_s, journal=journal, ways=ways)
    return TunedPlans(
        book,
        group=job.name,
        clock=lambda: clock.now_s,
        sampler=FlowSampler(network, range(study.hosts)),
        journal=journal,
        noise=study.noise,
        seed=study.seed,
    )


def _figures(study: Study, runs: Sequence[JobRun], limit_s: float, journal: MemoryJournal) -> Json:
    times_s: list[float] = []
    switches: list[JsonValue] = []
    late_switches: list[JsonValue] = []
    reactions: list[JsonValue] = []
    rates_Bps: list[float] = []
    together_s = min(each.result().operations[-1].end_s for each in runs)  # then the first job leaves
    for each in runs:
        operations = [operation for operation in each.result().operations if operation.end_s <= together_s]
        late_s = [operation.duration_s for operation in operations if operation.start_s >= together_s / 2]
        times_s += late_s
        rates_Bps.append(study.size_bytes * len(late_s) / sum(late_s) if late_s else 0.0)
        changes = _changes(journal, each.job.name, together_s)
        switches.append(len(changes))
        late_switches.append(sum(change.t_s >= together_s / 2 for change in changes))
        first = next((operation.number for operation in operations if operation.end_s > CALM_S), 0)
        after = [change.from_operation - first for change in changes if change.from_operation > first]
        reactions.append(after[0] if after else None)
    time_s = statistics.median(times_s)
    last = runs[0].result().operations[-1]
    return {
        "time_s": time_s,
        "algbw_Bps": study.size_bytes / time_s,
        "limit_Bps": study.size_bytes / limit_s,
        "of_limit": limit_s / time_s if study.jobs == 1 else sum(rates_Bps) * limit_s / study.size_bytes,
        "rates_Bps": list[JsonValue](rates_Bps),
        "switches": switches,
        "late_switches": late_switches,
        "reaction_operations": reactions,
        "plan": last.plan,
        "simulated_s": last.end_s,
    }


def _changes(journal: MemoryJournal, job: str, until_s: float) -> list[DecisionRecord]:
    """Decisions that brought another plan into force: `keep` and `restore` confirm one that runs already."""
    return [
        record
        for record in journal.records
        if isinstance(record, DecisionRecord)
        and record.group == job
        and record.t_s < until_s
        and (record.action in ("try", "revert") or record.reason == KNOWN)
    ]
