"""Every field of a scenario's jobs and networks changes something. A field that is added needs a case here."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pydantic import BaseModel

from headway.collectives.predict import DEFAULT_COSTS
from headway.lab.costs import Costs
from headway.lab.jobs import Interleave, Job, Phase
from headway.lab.scenario import FatTree, HostEntry, Racks, Rates, Scenario
from headway.report.sim_summary import result_json
from headway.sim.execution.collective import Execution
from headway.sim.run import simulate
from headway.sim.studies.event_limits import free_limits_s
from headway.sim.topologies import costs_of
from tests.sim.scenarios import Fields, job, scenario_of

RACKS = {"racks": 2, "spines": 2, "uplink": "100Mbit", "latency": "1ms"}
TREE = {"k": 4, "uplink": "100Mbit", "latency": "1ms"}
SEND = {"send": "1MB", "src": 0, "dst": 1}
TRAIN = {"compute": "20ms", "noise": "10%"}, {"all_reduce": "1MB"}
UNEVEN = [{"name": f"host{index}", "access": "50Mbit" if index == 3 else "200Mbit"} for index in range(8)]
BUSY = [{"id": "busy", "type": "load", "target": "host1", "udp": "75%"}]


def _run(*jobs: Fields, **fields: object) -> str:
    """The run's answer, with the names that the scenario gives left out."""
    result = simulate(scenario_of(*jobs, **fields), execution=Execution.STREAMS)
    return result_json(result, free_limits_s(result)).replace(f'"scenario": "{result.scenario}"', "")


Case = tuple[tuple[list[Fields], Fields], tuple[list[Fields], Fields]]
"""Two runs: (jobs, the scenario's other fields) each."""


def _job(before: Fields, after: Fields, *phases: Fields, beside: list[Fields] | None = None, **fields: object) -> Case:
    """A job with some fields, and with others."""
    loop = phases or TRAIN
    more = beside or []
    return ([job("a", *loop, **before), *more], fields), ([job("a", *loop, **after), *more], fields)


def _phase(before: Fields, after: Fields, **fields: object) -> Case:
    return ([job("a", before)], fields), ([job("a", after)], fields)


def _network(before: Fields, after: Fields) -> Case:
    jobs = [job("a", *TRAIN, hosts=8, plan="direct")]
    return (jobs, before), (jobs, after)


def _costs(before: Fields, after: Fields, **fields: object) -> Case:
    jobs = [job("a", *TRAIN, **fields)]
    return (jobs, {"costs": before}), (jobs, {"costs": after})


def _dealt(*racks: str) -> list[Fields]:
    """Hosts in turns, where the default is blocks."""
    return [{"name": f"host{index}", "rack": racks[index % len(racks)]} for index in range(8)]


PAIR = {"hosts": ["host0", "host1"]}
SENDS = [job("b", {"send": "9MB", "src": 0, "dst": 1}, **PAIR)]


def _interleaved(before: Fields | None, after: Fields) -> Case:
    """Two jobs into one host, with and without other fields of `interleave`."""
    loop = ({"send": "5MB", "src": 0, "dst": 1}, {"compute": "300ms"})
    beside = job("b", *loop, hosts=["host2", "host1"], iterations=5, start="20ms")
    return _job(
        {"interleave": before, **PAIR, "iterations": 5},
        {"interleave": after, **PAIR, "iterations": 5},
        *loop,
        beside=[beside],
    )


CASES: Mapping[type[BaseModel], Mapping[str, Case]] = {
    Job: {
        "name": (([job("a", *TRAIN)], {}), ([job("b", *TRAIN)], {})),
        "hosts": _job({"hosts": 4}, {"hosts": 5}),
        "placement": _job({}, {"placement": "spread"}, racks=RACKS),
        "ranks_per_host": _job({}, {"ranks_per_host": 2}),
        "start": _job({}, {"start": "1ms"}),
        "iterations": _job({}, {"iterations": 4}),
        "loop": _phase({"compute": "1ms"}, {"compute": "2ms"}),
        "policy": _job({}, {"policy": "clairvoyant"}, {"all_reduce": "4MB"}, events=BUSY),
        "plan": _job({"plan": "ring"}, {"plan": "star"}),
        "weight": _job(PAIR, {**PAIR, "weight": 3}, SEND, beside=SENDS),
        "priority": _job(PAIR, {**PAIR, "priority": 1}, SEND, beside=SENDS),
        "period": _job({}, {"period": "1s"}),
        "seed": _job({}, {"seed": 1}),
        "interleave": _interleaved(None, {}),
    },
    Interleave: {
        "slope": _interleaved({}, {"slope": 1}),
        "intercept": _interleaved({}, {"intercept": 0.5}),
        "most": _interleaved({}, {"most": 1}),
    },
    Phase: {
        "compute": _phase({"compute": "1ms"}, {"compute": "2ms"}),
        "noise": _phase({"compute": "1ms"}, {"compute": "1ms", "noise": "1%"}),
        "all_reduce": _phase({"all_reduce": "1MB"}, {"all_reduce": "2MB"}),
        "reduce_scatter": _phase({"reduce_scatter": "1MB"}, {"reduce_scatter": "2MB"}),
        "all_gather": _phase({"all_gather": "1MB"}, {"all_gather": "2MB"}),
        "broadcast": _phase({"broadcast": "1MB"}, {"broadcast": "2MB"}),
        "reduce": _phase({"reduce": "1MB"}, {"reduce": "2MB"}),
        "root": _phase({"broadcast": "1MB"}, {"broadcast": "1MB", "root": 3}),
        "send": _phase(SEND, {**SEND, "send": "2MB"}),
        "src": _phase(SEND, {**SEND, "src": 2}),
        "dst": _phase(SEND, {**SEND, "dst": 2}),
    },
    Racks: {
        "racks": _network({"racks": RACKS}, {"racks": {**RACKS, "racks": 4}}),
        "spines": _network({"racks": RACKS}, {"racks": {**RACKS, "spines": 1}}),
        "uplink": _network({"racks": RACKS}, {"racks": {**RACKS, "uplink": {"up": "100Mbit", "down": "50Mbit"}}}),
        "latency": _network({"racks": RACKS}, {"racks": {**RACKS, "latency": "2ms"}}),
    },
    FatTree: {
        "k": _network({"fat_tree": TREE}, {"fat_tree": {**TREE, "k": 6}}),
        "uplink": _network({"fat_tree": TREE}, {"fat_tree": {**TREE, "uplink": "50Mbit"}}),
        "latency": _network({"fat_tree": TREE}, {"fat_tree": {**TREE, "latency": "2ms"}}),
    },
    Costs: {
        "hop": _network({}, {"costs": {"hop": "200us"}}),
        "message": _network({"access": "100Gbit"}, {"access": "100Gbit", "costs": {"message": "1us"}}),
        "local": _costs({"local": "20us"}, {"local": "200us"}, hosts=1, ranks_per_host=4),
    },
    Rates: {
        "up": _network({}, {"access": {"up": "100Mbit", "down": "200Mbit"}}),
        "down": _network({}, {"access": {"up": "200Mbit", "down": "100Mbit"}}),
    },
    HostEntry: {
        "name": _network({}, {"hosts": [{"name": f"node{index}"} for index in range(8)]}),
        "access": _network({}, {"hosts": UNEVEN}),
        "latency": _network({}, {"hosts": [{"name": f"host{index}", "latency": f"{index}ms"} for index in range(8)]}),
        "rack": _network({"racks": RACKS}, {"hosts": _dealt("rack0", "rack1"), "racks": RACKS}),
    },
    Scenario: {
        "hosts": (
            ([job("a", *TRAIN, placement="random")], {}),
            ([job("a", *TRAIN, placement="random")], {"hosts": 99}),
        ),
        "access": _network({}, {"access": "100Mbit"}),
        "latency": _network({}, {"latency": "1ms"}),
        "racks": _network({}, {"racks": RACKS}),
        "fat_tree": _network({}, {"fat_tree": TREE}),
        "costs": _network({}, {"costs": {"hop": "5us"}}),
        "events": _network({}, {"events": BUSY}),
        "jobs": _job({}, {"iterations": 4}),
    },
}

NOT_OF_THE_SIMULATOR: Mapping[type[BaseModel], frozenset[str]] = {
    Job: frozenset({"congestion_control"}),
    Interleave: frozenset({"actuator"}),
    Scenario: frozenset({"name", "description", "queue", "burst", "congestion_control"}),
}
"""Names, and what packets do in the lab."""


@pytest.mark.parametrize(
    ("model", "field"), [(model, field) for model, cases in CASES.items() for field in cases], ids=str
)
def test_a_field_changes_something(model: type[BaseModel], field: str) -> None:
    (jobs, fields), (other_jobs, other_fields) = CASES[model][field]
    assert _run(*jobs, **fields) != _run(*other_jobs, **other_fields)


@pytest.mark.parametrize("execution", Execution)
@pytest.mark.parametrize("cost", ["hop", "message", "local"])
def test_a_cost_counts_however_plans_are_carried_out(execution: Execution, cost: str) -> None:
    jobs = [job("a", {"all_reduce": "1MB"}, ranks_per_host=2, plan="ring")]
    times = [
        simulate(scenario_of(*jobs, access="100Gbit", costs={cost: value}), execution=execution).end_s
        for value in ("1us", "300us")
    ]
    assert times[0] < times[1]


def test_costs_are_the_lab_s_by_default() -> None:
    assert costs_of(scenario_of(job("a", *TRAIN))) == DEFAULT_COSTS


@pytest.mark.parametrize("model", CASES, ids=lambda model: model.__name__)
def test_every_field_has_a_case(model: type[BaseModel]) -> None:
    assert set(CASES[model]) | NOT_OF_THE_SIMULATOR.get(model, frozenset()) == set(model.model_fields)
