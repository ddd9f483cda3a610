"""What must follow when something of a whole run is changed.

What never gets faster, and where (see docs/sim.md, "Anomalies"):
- one job without noise, as fluids, whatever it computes and whichever plans it has: every iteration, when a link is
  halved, bytes are added, or load is added;
- several jobs that each send once over one and the same link: every job, when a job is added;
- a job of class 0 is not changed at all by jobs of later classes.
Beyond that it is not so: with several links or several iterations a job that is slowed makes way for another. What
holds always: no operation is faster than its limit, and no link carries more than it can.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.lab.scenario import Scenario
from headway.report.sim_summary import result_json
from headway.sim.execution.collective import Execution
from headway.sim.result import Result
from headway.sim.run import simulate
from headway.sim.studies.event_limits import free_limits_s
from tests.sim.scenarios import Fields, durations, job, scenario_of, streams

SAME = 1 + 1e-9
ROUNDING_S = 1e-12
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce")
FAMILIES = ("ring", "direct", "double-tree", "star")
small = settings(max_examples=20, deadline=None)

hosts_at = st.lists(st.sampled_from(("50Mbit", "100Mbit", "200Mbit", "400Mbit")), min_size=8, max_size=8)
collective_phases = st.builds(lambda kind, kb: {kind: f"{kb}kB"}, st.sampled_from(COLLECTIVES), st.integers(100, 900))
all_reduces = st.builds(lambda kb: {"all_reduce": f"{kb}kB"}, st.integers(100, 9000))
compute_phases = st.builds(lambda ms: {"compute": f"{ms}ms"}, st.integers(1, 200))
loops = st.builds(
    lambda phases, last: [*phases, last],
    st.lists(st.one_of(collective_phases, compute_phases), max_size=2),
    collective_phases,
)
held = st.builds(
    lambda phases, last: [*phases, last], st.lists(st.one_of(all_reduces, compute_phases), max_size=2), all_reduces
)
"""Loops of which every plan can be held: where none is, half a link leads to another plan by another prediction."""
networks = st.sampled_from(
    (
        {},
        {"racks": {"racks": 2, "spines": 2, "uplink": "200Mbit", "latency": "1ms"}},
        {"fat_tree": {"k": 4, "uplink": "100Mbit"}},
    )
)


def _hosts(rates: Sequence[str]) -> list[Fields]:
    return [{"name": f"host{index}", "access": rate} for index, rate in enumerate(rates)]


def _halved(rate: str) -> str:
    return f"{int(rate.removesuffix('Mbit')) // 2}Mbit"


def _not_faster(before: Sequence[float], after: Sequence[float]) -> None:
    assert len(before) == len(after)
    for was_s, is_s in zip(before, after, strict=True):
        assert is_s * SAME + ROUNDING_S >= was_s


@small
@given(hosts_at, networks, held, st.sampled_from(FAMILIES), st.integers(0, 7))
def test_halving_a_link_makes_nothing_of_one_job_faster(
    rates: list[str], network: Fields, loop: list[Fields], plan: str, host: int
) -> None:
    slower = [_halved(rate) if index == host else rate for index, rate in enumerate(rates)]
    pair = [
        streams(scenario_of(job("a", *loop, hosts=8, plan=plan, iterations=2), hosts=_hosts(each), **network))
        for each in (rates, slower)
    ]
    _not_faster(durations(pair[0]), durations(pair[1]))


@small
@given(hosts_at, networks, held, st.sampled_from(FAMILIES), st.data())
def test_more_bytes_make_nothing_of_one_job_faster(
    rates: list[str], network: Fields, loop: list[Fields], plan: str, data: st.DataObject
) -> None:
    index = data.draw(st.sampled_from([i for i, phase in enumerate(loop) if "compute" not in phase]))
    more_kb = int(str(loop[index]["all_reduce"]).removesuffix("kB")) + data.draw(st.integers(1, 1000))
    more: list[Fields] = [*loop[:index], {"all_reduce": f"{more_kb}kB"}, *loop[index + 1 :]]
    pair = [
        streams(scenario_of(job("a", *each, hosts=8, plan=plan, iterations=2), hosts=_hosts(rates), **network))
        for each in (loop, more)
    ]
    _not_faster(durations(pair[0]), durations(pair[1]))


@small
@given(hosts_at, networks, held, st.sampled_from(FAMILIES), st.integers(0, 7), st.booleans())
def test_load_makes_nothing_of_one_job_faster(
    rates: list[str], network: Fields, loop: list[Fields], plan: str, host: int, udp: bool
) -> None:
    load = {"udp": "60%"} if udp else {"tcp": 2}
    event = {"id": "load", "type": "load", "target": f"host{host}", **load}
    pair = [
        streams(
            scenario_of(
                job("a", *loop, hosts=8, plan=plan, iterations=2), hosts=_hosts(rates), events=events, **network
            )
        )
        for events in ([], [event])
    ]
    _not_faster(durations(pair[0]), durations(pair[1]))


@small
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 300), st.integers(1, 3)), min_size=1, max_size=5))
def test_adding_a_job_makes_no_other_faster_on_one_link(jobs: list[tuple[int, int, int]]) -> None:
    fields = [
        job(f"a{index}", {"send": f"{size}MB", "src": 0, "dst": 1}, hosts=["host0", "host1"], iterations=1,
            start=f"{start}ms", weight=weight)
        for index, (size, start, weight) in enumerate(jobs)
    ]  # fmt: skip
    added = job("b", {"send": "5MB", "src": 0, "dst": 1}, hosts=["host0", "host1"], iterations=1, start="100ms")
    alone, beside = streams(scenario_of(*fields)), streams(scenario_of(*fields, added))
    for name in alone.jobs:
        _not_faster(durations(alone, name), durations(beside, name))


@small
@given(networks, loops, loops, st.integers(1, 7))
def test_later_classes_change_nothing_for_class_0(
    network: Fields, loop: list[Fields], other: list[Fields], priority: int
) -> None:
    noisy = [{"compute": "50ms", "noise": "10%"}, *loop]
    first = job("a", *noisy, hosts=8)
    alone = streams(scenario_of(first, **network))
    beside = streams(scenario_of(job("b", *other, hosts=8, priority=priority), first, **network))
    assert durations(beside) == pytest.approx(durations(alone), rel=1e-9)


@settings(max_examples=12, deadline=None)
@given(
    networks,
    st.lists(st.tuples(collective_phases, st.integers(2, 8), st.sampled_from(("", *FAMILIES))), min_size=1, max_size=3),
    st.sampled_from(Execution),
)
def test_nothing_beats_its_limit_and_no_link_its_capacity(
    network: Fields, jobs: list[tuple[Fields, int, str]], execution: Execution
) -> None:
    """One operation each: a root may begin its next while others still wait for the last."""
    fields = [job(f"j{i}", each, hosts=hosts, plan=plan, iterations=1) for i, (each, hosts, plan) in enumerate(jobs)]
    result = simulate(scenario_of(*fields, **network), execution=execution)
    for each in result.jobs.values():
        assert all(operation.duration_s * SAME >= operation.free_limit_s for operation in each.operations)
    for link, carried in result.carried_bytes.items():
        assert carried <= result.capacity_Bps[link] * result.end_s * SAME


def _anomaly(*more: Fields) -> Result:
    first = job("a", {"send": "10MB", "src": 0, "dst": 1}, hosts=["host0", "host1"], iterations=1)
    other = job("b", {"send": "10MB", "src": 0, "dst": 1}, hosts=["host2", "host1"], iterations=1)
    return streams(scenario_of(first, other, *more))


def test_a_job_that_is_slowed_makes_way_for_another() -> None:
    """The smallest anomaly: c takes from a on host0's uplink, so b gets more of host1's downlink."""
    without = _anomaly()
    with_c = _anomaly(job("c", {"send": "40MB", "src": 0, "dst": 1}, hosts=["host0", "host3"], iterations=1, weight=3))
    assert durations(without, "b") == pytest.approx(durations(without, "a"))
    assert durations(with_c, "b")[0] < 0.8 * durations(without, "b")[0]
    assert durations(with_c, "a")[0] > 1.1 * durations(without, "a")[0]


def test_jobs_that_are_pushed_apart_take_turns() -> None:
    """An anomaly in time: a class makes the later job wait once, and from then on both have the link to themselves."""
    loop = ({"compute": "1s"}, {"send": "10MB", "src": 0, "dst": 1})
    hosts = {"hosts": ["host0", "host1"], "iterations": 20}
    equal = streams(scenario_of(job("a", *loop, **hosts), job("b", *loop, **hosts)))
    apart = streams(scenario_of(job("a", *loop, **hosts), job("b", *loop, **hosts, priority=1)))
    assert apart.end_s < 0.85 * equal.end_s


def test_renamed_hosts_give_the_same_answer() -> None:
    jobs = [job("a", {"all_reduce": "3MB"}, hosts=6), job("b", {"broadcast": "2MB"}, hosts=8)]
    names = [f"node-{index}" for index in range(8)]
    numbers = [_numbers(streams(scenario_of(*jobs, hosts=each))) for each in (8, [{"name": name} for name in names])]
    assert numbers[0] == numbers[1]


@small
@given(hosts_at, st.permutations(range(8)), loops)
def test_hosts_in_another_order_give_the_same_answer(rates: list[str], order: list[int], loop: list[Fields]) -> None:
    """On one switch: elsewhere the hosts' places decide their ways."""
    names = [f"host{index}" for index in range(8)]
    jobs = [job("a", *loop, hosts=names[:5]), job("b", {"all_reduce": "2MB"}, hosts=names[3:])]
    entries = _hosts(rates)
    pair = [streams(scenario_of(*jobs, hosts=each)) for each in (entries, [entries[index] for index in order])]
    for name in "ab":
        assert durations(pair[1], name) == pytest.approx(durations(pair[0], name), rel=1e-9)


@small
@given(networks, st.permutations(range(4)), loops)
def test_jobs_in_another_order_give_the_same_answer(network: Fields, order: list[int], loop: list[Fields]) -> None:
    names = [f"host{index}" for index in range(8)]
    jobs = [job(f"j{i}", {"compute": "40ms", "noise": "5%"}, *loop, hosts=names[i : i + 5]) for i in range(4)]
    pair = [streams(scenario_of(*each, **network)) for each in (jobs, [jobs[index] for index in order])]
    for name in pair[0].jobs:
        assert durations(pair[1], name) == pytest.approx(durations(pair[0], name), rel=1e-9)


def _everything() -> Scenario:
    return scenario_of(
        job("a", {"compute": "50ms", "noise": "10%"}, {"all_reduce": "1MB"}, hosts=6, placement="random"),
        job("b", {"compute": "20ms", "noise": "5%"}, {"reduce": "300kB"}, {"send": "1MB"}, placement="spread"),
        job("c", {"all_gather": "400kB"}, hosts=8, policy="packing", iterations=9),
        racks={"racks": 4, "spines": 2, "uplink": "200Mbit"},
        events=[
            {"id": "load", "type": "load", "target": "host1", "udp": "50%", "on": "0.2s", "off": "0.3s", "seed": 1},
            {"id": "tcp", "type": "load", "target": "rack1", "tcp": 2, "start": "0.1s"},
        ],
    )


def written(result: Result) -> str:
    """All of it but the journal, as text."""
    return result_json(result, free_limits_s(result))


@pytest.mark.parametrize("execution", Execution)
def test_the_same_seed_gives_the_same_bits(execution: Execution) -> None:
    pair = [simulate(_everything(), execution=execution, seed=5) for _ in range(2)]
    assert written(pair[0]) == written(pair[1])
    assert pair[0].records == pair[1].records
    other = simulate(_everything(), execution=execution, seed=6)
    assert written(other) != written(pair[0])


def test_processes_give_the_same_bits() -> None:
    program = (
        "from tests.sim.test_metamorphic import _everything, written; from tests.sim.scenarios import streams;"
        "print(written(streams(_everything())))"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        ).stdout
        for seed in ("1", "2")
    }
    assert told == {written(streams(_everything())) + "\n"}


def _numbers(result: Result) -> Mapping[str, Sequence[object]]:
    return {
        name: [(operation.start_s, operation.end_s, operation.free_limit_s) for operation in each.operations]
        for name, each in result.jobs.items()
    }
