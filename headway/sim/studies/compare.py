"""Plans side by side on a scenario with all its events in force: predicted, simulated, and against the limit. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from headway.cluster.model import Cluster
from headway.cluster.units import format_rate
from headway.collectives import families, react
from headway.collectives.blame import blame
from headway.collectives.candidates import candidates, idle_plan
from headway.collectives.layout import Layout
from headway.collectives.limits import lower_bound
from headway.collectives.plan import Collective, Plan
from headway.collectives.plan_book import PINNABLE, ROOTED, PlanBook
from headway.collectives.predict import CostModel, predict
from headway.collectives.verify import check
from headway.errors import UsageError
from headway.lab.effects import Effect, effects_of
from headway.lab.scenario import Event, LoadEvent, Scenario
from headway.sim.background import Background
from headway.sim.engine.loop import Loop
from headway.sim.engine.network import Network
from headway.sim.execution import collective as collectives
from headway.sim.execution.collective import Execution
from headway.sim.execution.pair_loads import pair_loads
from headway.sim.topologies import cluster_of, costs_of, fabric_of

CHOSEN = ("idle", "react", "packing")
"""Plans that are chosen by prediction: for the network without events, by REACT's moves from there, by packing."""
PLANS = (*PINNABLE, "recursive-doubling", "two-level", *CHOSEN)
ONLY_ALL_REDUCE = ("double-tree", "star", "two-level")


@dataclass(frozen=True)
class Compared:
    """One plan for one size on one scenario.

    Attributes:
        scenario: its name. size_bytes: of the whole vector. asked: the plan as it was asked for.
        plan: the plan's own name.
        predicted_s, simulated_s: time of one operation.
        limit_s: lower bound with the events in force (`event_limits` says which of them bound).
        bottleneck: the link that decides, in words, with what it has left.
        busiest: the link that was in use for most of the simulated time, in words; where flows meet on one of several
            paths it tells more than the prediction, which counts all paths together.
        blame: what congested links cost this plan, in sentences.
        several_paths: whether its flows take one of several paths each. Then the prediction, which counts all paths
            together, is not to be trusted: flows meet on one, and the slowest one decides.
        best: whether no other plan of this scenario and size was simulated to be faster, and the network was used.
    """

    scenario: str
    size_bytes: int
    asked: str
    plan: str
    predicted_s: float
    simulated_s: float
    limit_s: float
    bottleneck: str
    busiest: str
    blame: tuple[str, ...]
    several_paths: bool = False
    best: bool = False

    @property
    def algbw_Bps(self) -> float | None:
        """Bytes of the vector per second of the simulated operation; None where it took no time."""
        return self.size_bytes / self.simulated_s if self.simulated_s > 0 else None

    @property
    def limit(self) -> float | None:
        """Least time as a part of the simulated one; None where no network is used."""
        return self.limit_s / self.simulated_s if self.simulated_s > 0 and self.limit_s > 0 else None


def check_asked(asked: Sequence[str], collective: Collective) -> None:
    """UsageError for a plan that there is not, or that cannot carry the collective."""
    for name in asked:
        if name not in PLANS:
            raise UsageError(f"{name!r} is no plan", where="--plans", hint=f"of {', '.join(PLANS)}")
        rooted = collective in ROOTED and name not in CHOSEN
        if rooted or (collective is not Collective.ALL_REDUCE and name in ONLY_ALL_REDUCE):
            raise UsageError(f"{name} does not carry {collective.value}", where="--plans")


def compare(
    scenario: Scenario,
    asked: Sequence[str],
    collective: Collective,
    sizes_bytes: Sequence[int],
    *,
    execution: Execution = Execution.PIECES,
    costs: CostModel | None = None,
) -> Iterator[Compared]:
    """Every plan for every size, one rank on each of the scenario's hosts; its jobs do not run.

    All events are in force during the whole operation, their own times and patterns left aside, as in
    `headway bench --scenario`. A plan that the network does not have (`two-level` without racks) is left out.
    `costs` of messages are the scenario's own unless given.
    """
    costs = costs_of(scenario) if costs is None else costs
    held = scenario.model_copy(update={"events": tuple(_held(event) for event in scenario.events), "jobs": ()})
    effects = [effects_of(event, held.targets_of(event)) for event in held.events]
    free, now = cluster_of(held), cluster_of(held, in_force=effects)
    bounding = cluster_of(held, in_force=[_certain(group) for group in effects])
    for size_bytes in sizes_bytes:
        found: list[Compared] = []
        for name in asked:
            plan = plan_called(name, free, now, collective, size_bytes, costs)
            if plan is None:
                continue
            check(plan, collective)
            prediction = predict(plan, now, collective, size_bytes, costs=costs)
            link = prediction.bottleneck
            blamed = blame(plan, now, free, collective, size_bytes, costs=costs)
            time_s, busiest = simulated(held, plan, collective, size_bytes, execution=execution, costs=costs)
            found.append(
                Compared(
                    scenario=scenario.name,
                    size_bytes=size_bytes,
                    asked=name,
                    plan=plan.name,
                    predicted_s=prediction.time_s,
                    simulated_s=time_s,
                    limit_s=lower_bound(bounding, collective, size_bytes).time_s,
                    bottleneck=f"{link.name} at {format_rate(link.capacity_Bps)}" if link is not None else "no link",
                    busiest=busiest,
                    blame=tuple(each.sentence for each in blamed),
                    several_paths=_has_several_paths(plan, held, free, collective),
                )
            )
        least_s = min((each.simulated_s for each in found), default=0.0)
        yield from (replace(each, best=each.simulated_s == least_s > 0) for each in found)


def _has_several_paths(plan: Plan, scenario: Scenario, cluster: Cluster, collective: Collective) -> bool:
    """Whether a flow leaves its rack (edge switch) where more than one link leads up."""
    ways = scenario.racks.spines if scenario.racks is not None else scenario.fat_tree.k // 2 if scenario.fat_tree else 1
    pairs = pair_loads(plan, collective)
    rack_of = [cluster.hosts[host].rack for host in cluster.host_of]
    return ways > 1 and any(rack_of[a] != rack_of[b] for a, b in zip(pairs.src, pairs.dst, strict=True))


def simulated(
    scenario: Scenario,
    plan: Plan,
    collective: Collective,
    size_bytes: int,
    *,
    execution: Execution,
    costs: CostModel,
) -> tuple[float, str]:
    """Time of one operation over all hosts, from the instant at which the scenario's events begin; the busiest link."""
    network = Network(Loop(), fabric_of(scenario))
    background = Background(network, scenario, lambda record: None)
    background.start()
    ends_s: list[float] = []

    def done(ranks_s: Sequence[float]) -> None:
        ends_s.append(max(ranks_s))
        network.loop.stop()

    hosts = range(len(scenario.host_names))
    collectives.start(
        network, plan, collective, size_bytes, hosts=hosts, execution=execution, costs=costs, on_done=done
    )
    network.loop.run()
    return ends_s[0], _busiest(network, ends_s[0])


def _busiest(network: Network, time_s: float) -> str:
    links = range(len(network.fabric.links))
    could = {link: network.capacity_Bps(link) * time_s for link in links}
    used = {link: network.carried_bytes(link) / could[link] for link in links if could[link] > 0}
    most = max(used, key=lambda link: used[link], default=0)
    if not used.get(most):
        return "no link"
    return f"{network.fabric.links[most].name}, {used[most]:.0%} in use"


def plan_called(
    name: str, free: Cluster, now: Cluster, collective: Collective, size_bytes: int, costs: CostModel
) -> Plan | None:
    """One of `PLANS` for a cluster that has the capacities `free` without events and `now` with them.

    None: the network has no such plan.
    """
    idle = idle_plan(free, collective, size_bytes, costs=costs)
    if name == "idle":
        return idle
    if name == "packing":
        return candidates(now, collective, size_bytes, "packing", idle, idle, costs=costs, baseline=free)[0].plan
    if name == "react":
        plan = idle_plan(free, collective, size_bytes, "react", costs=costs)
        options = [plan, *(moved for moved, _ in react.moves(plan, now, free, collective, size_bytes))]
        return min(options, key=lambda each: predict(each, now, collective, size_bytes, costs=costs).time_s)
    if name == "recursive-doubling":
        return families.recursive_doubling(range(free.world_size))
    if name == "two-level":
        layout = Layout(free)
        if len(layout.racks) < 2:
            return None
        return layout.expand(families.two_level(layout.racks), collective)
    return PlanBook(free, "off", bitwise=False, pinned=name).idle(collective, size_bytes)


def _held(event: Event) -> Event:
    always: dict[str, object] = {"start": 0.0, "duration": None}
    if isinstance(event, LoadEvent):
        always |= {"on": None, "off": None, "move": None}
    return event.model_copy(update=always)


def _certain(effects: Sequence[Effect]) -> tuple[Effect, ...]:
    return tuple(e for e in effects if not (isinstance(e.event, LoadEvent) and e.event.tcp is not None))
