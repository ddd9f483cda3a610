"""Plans from known capacities: at once, as good as it gets, and around links between switches that lost theirs."""

from __future__ import annotations

import pytest

from headway.cluster.model import Cluster, star
from headway.collectives.agreement import LARGE_BYTES
from headway.collectives.candidates import idle_plan
from headway.collectives.plan import Collective
from headway.collectives.plan_book import PlanBook
from headway.collectives.predict import predict
from headway.collectives.verify import check
from headway.decide.journal import DecisionRecord, MemoryJournal, OperationRecord
from headway.lab.files import load_scenario
from headway.lab.scenario import Scenario
from headway.sim.engine.loop import Loop
from headway.sim.engine.network import Network
from headway.sim.execution.collective import Execution
from headway.sim.execution.connections import pair_key
from headway.sim.jobs.clairvoyant import ClairvoyantPlans, Ways
from headway.sim.result import Result
from headway.sim.run import Simulation, with_default_job
from headway.sim.topologies import fabric_of

SIZE_BYTES = 8_000_000
CLUSTER = star(8, 25e6)
SLOW = CLUSTER.with_host(3, downlink_Bps=8e6)


def source(now: list[Cluster]) -> tuple[ClairvoyantPlans, MemoryJournal]:
    journal = MemoryJournal()
    book = PlanBook(CLUSTER, "packing", bitwise=False)
    return ClairvoyantPlans(book, lambda: now[-1], group="g", clock=lambda: 2.0, journal=journal), journal


@pytest.mark.parametrize("collective", [Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.BROADCAST])
def test_each_operation_gets_the_best_plan_for_its_moment(collective: Collective) -> None:
    now = [CLUSTER]
    plans, _ = source(now)
    idle = idle_plan(CLUSTER, collective, SIZE_BYTES)
    for cluster in (CLUSTER, SLOW, CLUSTER):
        now.append(cluster)
        plan = plans.plan_for(len(now), collective, SIZE_BYTES, 0)
        check(plan, collective)
        times_s = [predict(each, cluster, collective, SIZE_BYTES).time_s for each in (plan, idle)]
        assert times_s[0] <= times_s[1]


def test_changes_of_plan_are_told_and_only_those() -> None:
    now = [CLUSTER]
    plans, journal = source(now)
    for number, cluster in enumerate((CLUSTER, SLOW, SLOW, CLUSTER)):
        now.append(cluster)
        plans.plan_for(number, Collective.ALL_REDUCE, SIZE_BYTES, 0)
    told = [record for record in journal.records if isinstance(record, DecisionRecord)]
    assert [(each.from_operation, each.action) for each in told] == [(1, "keep"), (3, "keep")]
    assert told[0].predicted_s is not None
    assert told[0].limit_s is not None
    assert told[0].limit_s <= told[0].predicted_s


def test_small_operations_keep_their_plan() -> None:
    plans, _ = source([SLOW])
    small = LARGE_BYTES - 1
    assert plans.plan_for(0, Collective.ALL_REDUCE, small, 0) == idle_plan(CLUSTER, Collective.ALL_REDUCE, small)


def timed(name: str, policy: str, seed: int = 0) -> Result:
    case = with_default_job(load_scenario(name), size_bytes=SIZE_BYTES, iterations=12, policy=policy)
    simulation = Simulation(case, execution=Execution.STREAMS, seed=seed)
    simulation.run()
    return simulation.result()


@pytest.mark.parametrize("name", ["star8-udp50-down", "star8-udp75-up", "star8-udp75-both"])
def test_it_is_ahead_of_the_tuner_from_the_first_operation(name: str) -> None:
    known, tuned = timed(name, "clairvoyant"), timed(name, "packing")
    assert known.end_s < tuned.end_s
    first, limits = known.jobs["all"].operations[0], [r for r in known.records if isinstance(r, OperationRecord)]
    assert first.duration_s < 0.7 * tuned.jobs["all"].operations[0].duration_s
    assert limits[0].limit_s is not None
    assert limits[0].limit_s <= first.duration_s


def racked() -> Scenario:
    return Scenario.model_validate(
        {"name": "racked", "hosts": 8, "access": "1Gbit", "racks": {"racks": 2, "spines": 2, "uplink": "2Gbit"}}
    )


def test_connections_leave_a_link_between_switches_that_lost_capacity() -> None:
    fabric = fabric_of(racked())
    network = Network(Loop(), fabric)
    hosts, key = range(8), 77
    ways = Ways(network, hosts, key)
    assert ways.clear() == {}
    bad = fabric.link_index["uplink of rack0 by spine 1"]
    network.set_capacity(bad, fabric.links[bad].capacity_Bps / 2)
    again = ways.clear()
    assert again
    for src in hosts:
        for dst in hosts:
            if src != dst:
                times = again.get((src, dst), 0)
                assert bad not in fabric.router.route(src, dst, pair_key(key, src, dst, times))
    network.set_capacity(bad, fabric.links[bad].capacity_Bps)
    assert ways.clear() == {}


def test_links_of_hosts_leave_no_choice() -> None:
    fabric = fabric_of(racked())
    network = Network(Loop(), fabric)
    network.set_capacity(fabric.link_index["uplink of host3"], 1.0)
    assert Ways(network, range(8), 5).clear() == {}
