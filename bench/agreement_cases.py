"""What `bench.agreement` compares: networks, plans and jobs, and what model and simulator say of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headway.cluster.model import Cluster
from headway.collectives.candidates import candidates, idle_plan
from headway.collectives.chunking import chunk_bytes_for, link_rate_Bps
from headway.collectives.families import direct, double_tree, ring, star
from headway.collectives.plan import Collective, Plan
from headway.collectives.predict import predict
from headway.lab.effects import effects_of
from headway.lab.files import load_scenario, parse_scenario
from headway.lab.scenario import Event, Scenario
from headway.sim.background import Background
from headway.sim.engine.loop import Loop
from headway.sim.engine.network import Network
from headway.sim.engine.realism import IDEAL, LAB, Realism
from headway.sim.execution import collective
from headway.sim.execution.collective import Execution
from headway.sim.execution.host_model import DEFAULT_HOST, LAB_HOST, HostModel
from headway.sim.result import JobResult
from headway.sim.run import simulate
from headway.sim.topologies import cluster_of, fabric_of

MB = 1_000_000
ALL = Collective.ALL_REDUCE
DRAWS = 32
"""How many draws of the flows' ways are simulated where chance picks them, to find those nearest to the lab's."""
NEAR = 0.01
"""Draws count as equally near when they differ by less than this part of the vector."""
SETTLED_S = 0.1
"""When a simulated operation begins: events at the start have happened."""

Grid = Mapping[str, Mapping[int, tuple[str, ...]]]
"""Shipped scenario -> megabytes -> plans."""

FAMILIES = ("ring", "direct", "double-tree", "packing")
GRID: Grid = {
    "star8": {1: (*FAMILIES[:3], "star"), 4: (*FAMILIES[:3], "star"), 16: FAMILIES[:3]},
    "star8-udp50-down": {1: FAMILIES, 4: FAMILIES, 16: ("ring", "packing")},
    "star8-udp50-up": {4: FAMILIES},
    "star8-udp50-both": {4: FAMILIES},
    "star8-udp75-down": {4: FAMILIES},
    "star8-udp75-up": {4: FAMILIES},
    "star8-udp75-both": {4: FAMILIES},
    "star8-tcp-down": {4: FAMILIES, 16: ("ring", "packing")},
    "rack2x4": {4: FAMILIES, 16: ("ring",)},
    "rack2x4-slow-uplink": {4: FAMILIES},
    "rack2x4-udp50-uplink": {4: FAMILIES},
    "wan4": {1: FAMILIES, 4: FAMILIES},
    "wan4-congested": {4: FAMILIES},
}
JOBS: Mapping[str, Sequence[Mapping[str, object]]] = {
    "two rings over all hosts": [
        {"name": "a", "hosts": 8, "iterations": 8, "loop": [{"all_reduce": "4MB"}], "plan": "ring"},
        {"name": "b", "hosts": 8, "loop": [{"all_reduce": "4MB"}], "plan": "ring"},
    ],
    "ring and direct over four shared hosts": [
        {"name": "a", "hosts": ["host0", "host1", "host2", "host3"], "iterations": 8,
         "loop": [{"compute": "20ms"}, {"all_reduce": "4MB"}], "plan": "ring"},
        {"name": "b", "hosts": ["host2", "host3", "host4", "host5"], "loop": [{"all_reduce": "2MB"}], "plan": "direct"},
    ],
    "ring beside a steady sender": [
        {"name": "a", "hosts": 4, "iterations": 8, "loop": [{"all_reduce": "4MB"}], "plan": "ring"},
        {"name": "b", "hosts": ["host7", "host2"], "loop": [{"send": "100MB"}]},
    ],
    "two senders to one host": [
        {"name": "a", "hosts": ["host0", "host2"], "iterations": 8, "loop": [{"send": "8MB"}]},
        {"name": "b", "hosts": ["host1", "host2"], "loop": [{"send": "100MB"}]},
    ],
}  # fmt: skip
"""Jobs on star8."""
QUICK: Grid = {"star8": {4: ("ring", "direct")}, "star8-udp50-down": {4: ("ring", "packing")}}


@dataclass(frozen=True)
class Pair:
    """A plan for one size in one scenario.

    Attributes:
        scenario: with the events that are in force, and no jobs.
        plan_name: as the table has it.
        plan: what runs.
        size_bytes: of the whole vector.
    """

    scenario: Scenario
    plan_name: str
    plan: Plan
    size_bytes: int

    @property
    def chunk_bytes(self) -> int:
        """Piece size, for all three."""
        return chunk_bytes_for(self.plan, ALL, self.size_bytes, 4, link_rate_Bps(cluster_of(self.scenario)))

    @property
    def by_chance(self) -> bool:
        """Whether flows may take several ways."""
        return self.scenario.racks is not None


def events_at_start(scenario: Scenario) -> tuple[Event, ...]:
    """The events that are in force at time 0."""
    return tuple(event for event in scenario.events if event.start == 0)


def scenario_of(name: str) -> Scenario:
    """A shipped scenario with what is in force at time 0, and no jobs."""
    whole = load_scenario(name)
    return whole.model_copy(update={"events": events_at_start(whole), "jobs": ()})


def pairs_of(name: str, grid: Grid) -> Iterator[Pair]:
    """The pairs of one scenario."""
    scenario = scenario_of(name)
    ranks = len(scenario.host_names)
    for megabytes, plans in grid[name].items():
        size_bytes = megabytes * MB // (4 * ranks) * (4 * ranks)
        for plan in plans:
            yield Pair(scenario, plan, plan_of(plan, scenario, size_bytes), size_bytes)


def plan_of(name: str, scenario: Scenario, size_bytes: int) -> Plan:
    """A family as HEADWAY_PLAN holds it, or for `packing` what the planner takes when it knows the events."""
    ranks = len(scenario.host_names)
    match name:
        case "ring":
            return ring(range(ranks))
        case "direct":
            return direct([1.0] * ranks)
        case "double-tree":
            return double_tree(range(ranks))
        case "star":
            return star(ranks, 0)
    free = cluster_of(scenario)
    idle = idle_plan(free, ALL, size_bytes)
    return candidates(loaded(scenario), ALL, size_bytes, "packing", idle, idle)[0].plan


def loaded(scenario: Scenario) -> Cluster:
    """Payload rates that the scenario's events leave."""
    effects = [effects_of(event, scenario.targets_of(event)) for event in scenario.events]
    return cluster_of(scenario, in_force=effects)


def predicted_s(pair: Pair) -> float:
    """Seconds, by the model."""
    return predict(pair.plan, loaded(pair.scenario), ALL, pair.size_bytes, pair.chunk_bytes).time_s


@dataclass(frozen=True)
class Model:
    """What is simulated beside fluids.

    Attributes:
        realism: of the network. host: of the ranks.
        seeds: how many runs the median is taken of, where something is left to chance.
    """

    realism: Realism
    host: HostModel
    seeds: int = 1


MODELS = {"ideal": Model(IDEAL, DEFAULT_HOST), "lab": Model(LAB, LAB_HOST, seeds=5)}
"""As `headway sim --realism` has them."""

Uneven = Mapping[str, float]
"""Link between switches -> bytes that it carried beyond the mean of those beside it: how a plan's flows were spread.
What is equal on all of them, such as background load, does not show."""


@dataclass(frozen=True)
class Simulated:
    """One operation: seconds, and how its flows were spread over the ways."""

    time_s: float
    uneven: Uneven


def uneven(carried_bytes: Mapping[str, float]) -> Uneven:
    """See `Uneven`. Links to hosts, which have no others beside them, are left out."""
    beside: dict[str, list[str]] = {}
    for name in carried_bytes:
        owner, by, _ = name.partition(" by ")
        if by:
            beside.setdefault(owner, []).append(name)
    means = {owner: statistics.fmean(carried_bytes[name] for name in names) for owner, names in beside.items()}
    return {name: carried_bytes[name] - means[owner] for owner, names in beside.items() for name in names}


def simulated_s(pair: Pair, spreads: Sequence[Uneven], model: Model, *, draws: int = DRAWS) -> float:
    """Seconds of one operation on free links, with the events in force.

    Args:
        pair: what runs.
        model: what is simulated beside fluids.
        spreads: of the lab's repeats, where chance picks the ways. For each of them the mean is taken over the draws
            that are nearest to it: loads do not tell flows of equal size from each other. Without any, over all.
        draws: how many there are.
    """
    if not pair.by_chance:
        return statistics.median(simulated(pair, 0, model, seed).time_s for seed in range(model.seeds))
    drawn = [simulated(pair, key, model, seed=key) for key in range(draws)]
    if not spreads:
        return statistics.fmean(draw.time_s for draw in drawn)
    return statistics.fmean(_like(drawn, spread, NEAR * pair.size_bytes) for spread in spreads)


def _like(drawn: Sequence[Simulated], spread: Uneven, near_bytes: float) -> float:
    distances = [_distance(draw.uneven, spread) for draw in drawn]
    most = min(distances) + near_bytes
    return statistics.fmean(draw.time_s for draw, distance in zip(drawn, distances, strict=True) if distance <= most)


def _distance(one: Uneven, other: Uneven) -> float:
    return sum(abs(one[name] - other[name]) for name in one)


def simulated(pair: Pair, key: int, model: Model, seed: int) -> Simulated:
    """One operation whose flows go as `key` says; `seed` is of what the model leaves to chance."""
    network = Network(Loop(), fabric_of(pair.scenario), model.realism)
    background = Background(network, pair.scenario, lambda record: None)
    background.start()
    network.loop.run(SETTLED_S)
    collective.start(
        network,
        pair.plan,
        ALL,
        pair.size_bytes,
        hosts=range(pair.plan.size),
        execution=Execution.PIECES,
        key=key,
        chunk_bytes=pair.chunk_bytes,
        element_bytes=4,
        host=model.host,
        seed=seed,
        on_done=lambda ends_s: network.loop.stop(),
    )
    network.loop.run()
    background.stop()
    carried = {link.name: network.carried_bytes(index) for index, link in enumerate(network.fabric.links)}
    return Simulated(network.loop.now_s - SETTLED_S, uneven(carried))


def jobs_scenario(name: str) -> Scenario:
    """Jobs of `JOBS` on the hosts of star8."""
    idle = load_scenario("star8")
    scenario = parse_scenario({"name": name, "hosts": 8, "access": "1Mbit", "jobs": JOBS[name]}, where=name)
    return idle.model_copy(update={"name": name, "jobs": scenario.jobs})


def simulated_jobs_s(scenario: Scenario, model: Model) -> Mapping[str, float]:
    """Job -> median seconds of its iterations but the first; jobs that get to two."""
    jobs = simulate(scenario, execution=Execution.PIECES, realism=model.realism, host=model.host).jobs
    return {name: statistics.median(times) for name, job in jobs.items() if (times := steady_s(job))}


def steady_s(job: JobResult) -> list[float]:
    """Seconds of each iteration without the first, which opens connections in the lab."""
    return [iteration.duration_s for iteration in job.iterations[1:]]
