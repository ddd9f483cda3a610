"""ASTRA-sim's network and system files: read, refused where wrong, and the results that its own tests expect."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import UsageError
from headway.sim.engine.fabric import Fabric
from headway.sim.engine.loop import Loop
from headway.sim.engine.network import Network
from headway.sim.formats.astra_network import AstraNetwork, Block, Dimension, fabric_of, parse_network, read_network
from headway.sim.formats.astra_system import (
    Algorithm,
    AstraSystem,
    Implementation,
    Policy,
    parse_system,
    read_system,
)
from headway.sim.formats.chakra import CommKind, NodeKind, Trace, TraceNode
from headway.sim.traces.astra import run_astra
from headway.sim.traces.messages import CutThrough, Forwarding, Messenger, StoreAndForward

MIB = 2**20
RINGS: dict[str, object] = {
    "scheduling-policy": "LIFO",
    "endpoint-delay": 10,
    "active-chunks-per-dimension": 1,
    "preferred-dataset-splits": 4,
    "all-reduce-implementation": ["ring"],
    "all-gather-implementation": ["ring"],
    "reduce-scatter-implementation": ["ring"],
    "all-to-all-implementation": ["ring"],
    "collective-optimization": "localBWAware",
    "local-mem-bw": 1600,
    "boost-mode": 0,
}


def network(*dimensions: tuple[str, int], GBps: float = 50.0, ns: float = 500.0) -> AstraNetwork:
    blocks, counts = zip(*dimensions, strict=True)
    return parse_network(
        f"topology: [{', '.join(blocks)}]\nnpus_count: {list(counts)}\n"
        f"bandwidth: {[GBps] * len(counts)}\nlatency: {[ns] * len(counts)}\n",
        where="net.yml",
    )


def system(**changes: object) -> AstraSystem:
    data = RINGS | {name.replace("_", "-"): value for name, value in changes.items()}
    return parse_system(json.dumps({name: value for name, value in data.items() if value is not None}), where="sys")


def collective(comm: CommKind, npus: int, size_bytes: int = MIB, **fields: object) -> list[Trace]:
    node = replace(TraceNode(1, "it", NodeKind.COMM_COLL, comm=comm, size_bytes=size_bytes), **fields)  # type: ignore[arg-type]
    return [Trace(f"trace.{npu}.et", (node,)) for npu in range(npus)]


def end_ns(
    comm: CommKind,
    on: AstraNetwork,
    how: AstraSystem | None = None,
    *,
    forwarding: Forwarding = Forwarding.CUT_THROUGH,
    size_bytes: int = MIB,
    rates_Bps: Mapping[str, float] | None = None,
    **fields: object,
) -> float:
    traces = collective(comm, on.npus, size_bytes, **fields)
    return run_astra(traces, on, how or system(), forwarding=forwarding, rates_Bps=rates_Bps).end_s * 1e9


def messenger(fabric: Fabric, forwarding: Forwarding) -> tuple[Loop, Messenger]:
    loop = Loop()
    return loop, StoreAndForward(loop, fabric) if forwarding is Forwarding.STORE else CutThrough(Network(loop, fabric))


@pytest.mark.parametrize(
    ("block", "forwarding", "expected_ns"),
    [
        ("Ring", Forwarding.STORE, 60_093),
        ("FullyConnected", Forwarding.STORE, 20_031),
        ("Switch", Forwarding.STORE, 40_062),
        ("Ring", Forwarding.CUT_THROUGH, 21_031),
        ("FullyConnected", Forwarding.CUT_THROUGH, 20_031),
        ("Switch", Forwarding.CUT_THROUGH, 20_531),
    ],
)
def test_one_message_takes_what_the_backends_own_tests_expect(
    block: str, forwarding: Forwarding, expected_ns: int
) -> None:
    """test_congestion_aware.cpp (stored) and test_congestion_unaware.cpp (cut through): 1 MiB from NPU 1 to 4 of 16."""
    loop, sender = messenger(fabric_of(network((block, 16))), forwarding)
    ends: list[float] = []
    sender.send(1, 4, MIB, lambda: ends.append(loop.now_s))
    loop.run()
    assert int(ends[0] * 1e9 + 1e-6) == expected_ns


def test_all_gather_on_a_ring_takes_what_the_backends_own_test_expects() -> None:
    loop, sender = messenger(fabric_of(network(("Ring", 16))), Forwarding.STORE)
    ends: list[float] = []
    for src in range(16):
        for dst in range(16):
            if src != dst:
                sender.send(src, dst, MIB, lambda: ends.append(loop.now_s))
    loop.run()
    assert max(ends) * 1e9 == pytest.approx(704_116)


def test_its_regression_test_and_examples_to_the_nanosecond() -> None:
    """tests/rt_template/refs/stdout.txt; the others as measured with its backend from its example inputs."""
    stored = Forwarding.STORE
    ring8 = network(("Ring", 8))
    assert end_ns(CommKind.ALL_REDUCE, ring8, system(local_mem_bw=50), forwarding=stored) == pytest.approx(117_780)
    assert end_ns(CommKind.ALL_GATHER, network(("Ring", 16)), forwarding=stored) == pytest.approx(323_560)
    hgx = network(("Switch", 8), GBps=400.0, ns=936.25)
    how = system(local_mem_bw=3350, active_chunks_per_dimension=2)
    assert end_ns(CommKind.ALL_REDUCE, hgx, how, forwarding=stored) == pytest.approx(57_426)


@pytest.mark.parametrize(
    ("block", "npus", "algorithm", "comm", "expected_ns"),
    [
        ("Ring", 8, "direct", CommKind.ALL_REDUCE, 57_160),
        ("Ring", 16, "direct", CommKind.ALL_GATHER, 707_088),
        ("Switch", 8, "direct", CommKind.ALL_TO_ALL, 23_600),
        ("Switch", 16, "halvingDoubling", CommKind.REDUCE_SCATTER, 53_648),
        ("FullyConnected", 16, "halvingDoubling", CommKind.ALL_REDUCE, 53_808),
        ("FullyConnected", 8, "doubleBinaryTree", CommKind.ALL_REDUCE, 137_668),
        ("Ring", 4, "doubleBinaryTree", CommKind.ALL_REDUCE, 133_676),
        ("Ring", 4, "ring", CommKind.ALL_TO_ALL, 41_560),
        ("FullyConnected", 8, "ring", CommKind.REDUCE_SCATTER, 33_080),
    ],
)
def test_each_algorithm_to_the_nanosecond(
    block: str, npus: int, algorithm: str, comm: CommKind, expected_ns: int
) -> None:
    """As measured with its backend (see `python -m bench.astra` for all)."""
    name = {
        CommKind.ALL_REDUCE: "all-reduce",
        CommKind.ALL_GATHER: "all-gather",
        CommKind.REDUCE_SCATTER: "reduce-scatter",
    }.get(comm, "all-to-all")
    how = system(**{f"{name}-implementation": [algorithm]})
    assert end_ns(comm, network((block, npus)), how, forwarding=Forwarding.STORE) == pytest.approx(expected_ns)


def test_rates_count_gib_and_a_ring_goes_the_shorter_way() -> None:
    fabric = fabric_of(network(("Ring", 6)))
    assert fabric.links[0].capacity_Bps == 50 * 2**30
    assert fabric.links[0].latency_s == pytest.approx(500e-9)
    names = [[fabric.links[link].name for link in fabric.router.route(0, dst, 0)] for dst in (2, 3, 5)]
    assert names[0] == ["link from npu0 to npu1", "link from npu1 to npu2"]
    assert names[1][0] == "link from npu0 to npu1"  # both ways are equal: clockwise
    assert names[2] == ["link from npu0 to npu5"]
    assert len(fabric_of(network(("Ring", 2))).links) == 2


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([block.value for block in Block]), st.integers(2, 5)), min_size=1, max_size=3),
    st.data(),
)
def test_every_route_leads_from_one_npu_to_the_other(dimensions: list[tuple[str, int]], data: st.DataObject) -> None:
    on = network(*dimensions)
    fabric = fabric_of(on)
    src, dst = (data.draw(st.integers(0, on.npus - 1)) for _ in range(2))
    here = f"npu{src}"
    at_switch = False
    for link in fabric.router.route(src, dst, 0):
        words = fabric.links[link].name.split()
        if words[0] == "link":
            assert words[2] == here
            here = words[4]
        elif words[0] == "uplink":
            assert words[2] == here
            assert not at_switch
            at_switch = True
        else:
            assert at_switch
            here, at_switch = words[2], False
    assert here == f"npu{dst}"
    assert len({link.name for link in fabric.links}) == len(fabric.links)


def test_dimension_0_is_between_neighbouring_numbers() -> None:
    on = network(("Ring", 2), ("FullyConnected", 8), ("Switch", 4))
    assert on.npus == 64
    assert on.peers(37, 0) == (36, 37)
    assert on.peers(37, 1)[:3] == (33, 35, 37)
    fabric = fabric_of(on)
    assert [fabric.links[link].name for link in fabric.router.route(26, 42, 0)] == [
        "uplink of npu26 in dimension 2",
        "downlink of npu42 in dimension 2",
    ]


GOOD = "topology: [ Ring ]\nnpus_count: [ 4 ]\nbandwidth: [ 50.0 ]\nlatency: [ 500.0 ]\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "net.yml: is no mapping with topology, npus_count, bandwidth, latency"),
        ("topology: [", "net.yml: "),
        (GOOD.replace("Ring", "Torus"), "net.yml:1: topology: 'Torus' is no topology (one of Ring, Switch, FullyC"),
        (GOOD.replace("[ 4 ]", "[ 4.5 ]"), "net.yml:2: npus_count: '4.5' is no whole number"),
        (GOOD.replace("[ 4 ]", "[ 1 ]"), "net.yml:2: npus_count: must be 2 or more in each dimension"),
        (GOOD.replace("[ 4 ]", "[ 4, 4 ]"), "net.yml:2: npus_count: has 2 entries, and topology 1"),
        (GOOD.replace("[ 4 ]", "[ 9000000 ]"), "net.yml:2: npus_count: makes more than 2000000 links"),
        (GOOD.replace("50.0", "tbd"), "net.yml:3: bandwidth: 'tbd' is no number"),
        (GOOD.replace("50.0", "0"), "net.yml:3: bandwidth: must be above 0"),
        (GOOD.replace("50.0", "[1]"), "net.yml:3: bandwidth: a list or mapping is no number"),
        (GOOD.replace("500.0", "-1"), "net.yml:4: latency: must not be below 0"),
        (GOOD.replace("latency: [ 500.0 ]", "latency: 5"), "net.yml:4: latency: must be a list with one entry per"),
        (GOOD.replace("latency: [ 500.0 ]\n", ""), "net.yml: latency: is missing"),
        (GOOD + "jitter: [1]\n", "net.yml:5: jitter: there is no such field (the fields are topology,"),
        (GOOD + "latency: [1]\n", "net.yml:5: latency: is there twice"),
    ],
)
def test_a_wrong_network_file_is_one_line(text: str, line: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_network(text, where="net.yml")
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(
        st.text(max_size=60),
        st.tuples(st.integers(0, len(GOOD)), st.integers(0, 12), st.text(max_size=6)).map(
            lambda cut: GOOD[: cut[0]] + cut[2] + GOOD[cut[0] + cut[1] :]
        ),
    )
)
def test_no_text_gets_anything_else_out_of_the_network_reader(text: str) -> None:
    try:
        on = parse_network(text, where="net.yml")
    except UsageError as error:
        assert str(error).startswith("net.yml")  # noqa: PT017 - a file that is right is no failure
    else:
        assert on.npus >= 2


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    for reader in (read_network, read_system):
        for path in (tmp_path, tmp_path / "none", binary):
            with pytest.raises(UsageError, match=re.escape(str(path))):
                reader(path)
    (tmp_path / "good.yml").write_text(GOOD)
    assert read_network(tmp_path / "good.yml") == AstraNetwork(
        "good", (Dimension(Block.RING, 4, 50 * 2**30, 500 * 1e-9),)
    )


def test_a_system_file_in_our_words() -> None:
    how = system(
        all_reduce_implementation=["direct4", "doubleBinaryTree"],
        all_gather_implementation=["oneHalvingDoubling"],
        scheduling_policy="EXPLICIT",
        peak_perf=900,
        roofline_enabled=1,
    )
    assert how.implementations["all-reduce"] == (
        Implementation(Algorithm.DIRECT, 4),
        Implementation(Algorithm.DOUBLE_BINARY_TREE),
    )
    assert how.implementations["all-gather"] == (Implementation(Algorithm.HALVING_DOUBLING, flat=True),)
    assert (how.splits, how.active_chunks, how.policy, how.up_and_down) == (4, 1, Policy.EXPLICIT, True)
    assert (how.memory_Bps, how.peak_per_s, how.roofline) == (1.6e12, 9e14, True)
    assert how.endpoint_s == pytest.approx(10e-9)
    assert parse_system("{}", where="sys") == AstraSystem()


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"preferred_dataset_splits": 0}, "sys: preferred-dataset-splits: must be a whole number from 1"),
        ({"active_chunks_per_dimension": 1.5}, "sys: active-chunks-per-dimension: must be a whole number"),
        ({"endpoint_delay": "10"}, "sys: endpoint-delay: '10' must be a number, not below 0"),
        ({"local_mem_bw": -1}, "sys: local-mem-bw: -1 must be a number, not below 0"),
        ({"scheduling_policy": "lifo"}, "sys: scheduling-policy: 'lifo' is none of LIFO, FIFO, EXPLICIT"),
        ({"all_reduce_implementation": "ring"}, "sys: all-reduce-implementation: must be a list"),
        ({"all_reduce_implementation": ["ring4"]}, "sys: all-reduce-implementation: 'ring4' is no algorithm (ring,"),
        ({"all_reduce_implementation": [7]}, "sys: all-reduce-implementation: 7 is no algorithm"),
        ({"all_reduce_implementation_custom": ["x"]}, "sys: all-reduce-implementation-custom: custom collectives"),
        ({"model_shared_bus": 1}, "sys: model-shared-bus: the shared bus is not modelled (set it to 0)"),
        ({"roofline_enabled": 1}, "sys: roofline-enabled: needs peak-perf and local-mem-bw above 0"),
        ({"chunks": 4}, "sys: chunks: there is no such field"),
    ],
)
def test_a_wrong_system_file_is_one_line(changes: dict[str, object], line: str) -> None:
    with pytest.raises(UsageError) as error:
        system(**changes)
    assert str(error.value).startswith(line)


def test_broken_json_names_its_line() -> None:
    with pytest.raises(UsageError, match=r"^sys:2: "):
        parse_system('{"endpoint-delay": 1,\n}', where="sys")
    with pytest.raises(UsageError, match="no object"):
        parse_system("[]", where="sys")


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from([*RINGS, "model-shared-bus", "peak-perf", "replay-only"]), JSON), st.text())
def test_no_json_gets_anything_else_out_of_the_system_reader(changes: dict[str, object], text: str) -> None:
    for content in (json.dumps(RINGS | changes), text):
        try:
            how = parse_system(content, where="sys")
        except UsageError as error:
            assert str(error).startswith("sys")  # noqa: PT017 - a file that is right is no failure
        else:
            assert how.splits >= 1


@pytest.mark.parametrize(
    "changes",
    [
        {"preferred_dataset_splits": 8},
        {"active_chunks_per_dimension": 2},
        {"endpoint_delay": 100},
        {"local_mem_bw": 100},
        {"all_reduce_implementation": ["direct", "ring"]},
        {"all_reduce_implementation": ["direct1", "ring"]},
        {"all_reduce_implementation": ["oneRing"]},
        {"all_reduce_implementation": ["halvingDoubling", "ring"]},
        {"all_reduce_implementation": ["ring", "doubleBinaryTree"]},
        {"collective_optimization": "baseline"},
    ],
)
def test_every_field_of_a_system_file_changes_something(changes: dict[str, object]) -> None:
    on = network(("Ring", 4), ("Switch", 4))
    rings = system(all_reduce_implementation=["ring", "ring"])
    changed = system(**{"all_reduce_implementation": ["ring", "ring"]} | changes)
    assert end_ns(CommKind.ALL_REDUCE, on, changed) != pytest.approx(end_ns(CommKind.ALL_REDUCE, on, rings), rel=1e-3)


def test_a_window_of_direct_lies_between_one_and_all() -> None:
    on = network(("Switch", 8), ns=5000.0)
    times = [
        end_ns(CommKind.ALL_TO_ALL, on, system(all_to_all_implementation=[name]))
        for name in ("direct", "direct7", "direct3", "direct1")
    ]
    assert times[0] == times[1] < times[2] < times[3]


def test_too_few_algorithms_for_the_dimensions() -> None:
    with pytest.raises(UsageError, match="all-reduce-implementation: names 1 algorithms, and the network has 2"):
        end_ns(CommKind.ALL_REDUCE, network(("Ring", 2), ("Ring", 2)))


@pytest.mark.parametrize(("algorithm", "comm"), [("halvingDoubling", CommKind.ALL_TO_ALL), ("doubleBinaryTree", None)])
def test_what_an_algorithm_cannot_do_is_said(algorithm: str, comm: CommKind | None) -> None:
    how = system(all_to_all_implementation=[algorithm], all_reduce_implementation=[algorithm])
    with pytest.raises(UsageError, match=algorithm):
        end_ns(comm or CommKind.ALL_REDUCE, network(("Ring", 4 if comm else 6)), how)


def test_up_and_down_over_two_dimensions_in_closed_form() -> None:
    """Reduce-scatter in dimension 0, all-reduce of a quarter in dimension 1, all-gather in dimension 0."""
    on = network(("FullyConnected", 4), ("FullyConnected", 2), ns=0.0)
    how = system(
        all_reduce_implementation=["direct", "direct"], endpoint_delay=0, local_mem_bw=0, preferred_dataset_splits=1
    )
    byte_ns = 1e9 / (50 * 2**30)
    expected = (MIB / 4) * byte_ns * (1 + 2 / 2 + 1)
    assert end_ns(CommKind.ALL_REDUCE, on, how) == pytest.approx(expected)
    baseline = replace(how, up_and_down=False)
    assert end_ns(CommKind.ALL_REDUCE, on, baseline) == pytest.approx(MIB * byte_ns * (2 / 4 + 2 / 2))


def test_dimensions_that_take_no_part_cost_nothing() -> None:
    on = network(("FullyConnected", 4), ("FullyConnected", 4))
    how = system(all_gather_implementation=["direct", "direct"])
    one = end_ns(CommKind.ALL_GATHER, on, how, dimensions=(True, False))
    assert one == pytest.approx(
        end_ns(CommKind.ALL_GATHER, network(("FullyConnected", 4)), system(all_gather_implementation=["direct"]))
    )
    assert end_ns(CommKind.ALL_GATHER, on, how, dimensions=(False, False)) == 0


def test_the_same_cycles_whatever_the_topology_is_the_algorithm_not_the_network() -> None:
    """A complaint of ASTRA-sim's users: a ring uses the same links of a ring and of all-to-all wires."""
    ring, wires = network(("Ring", 8)), network(("FullyConnected", 8))
    stored = Forwarding.STORE
    assert end_ns(CommKind.ALL_REDUCE, ring, forwarding=stored) == end_ns(CommKind.ALL_REDUCE, wires, forwarding=stored)
    traces = collective(CommKind.ALL_REDUCE, 8)
    best = [run_astra(traces, on, system(), plan="") for on in (ring, wires)]
    assert best[1].end_s < best[0].end_s / 5
    assert best[0].plans != best[1].plans


def test_a_link_of_its_own_rate_is_felt() -> None:
    on = network(("Switch", 8))
    slow = {"uplink of npu3": 5 * 2**30}
    for forwarding in Forwarding:
        free_ns = end_ns(CommKind.ALL_REDUCE, on, forwarding=forwarding)
        assert end_ns(CommKind.ALL_REDUCE, on, forwarding=forwarding, rates_Bps=slow) > 1.5 * free_ns
    with pytest.raises(UsageError, match=r"--rate: there is no 'npu3' \(links are called like 'uplink of npu0'\)"):
        end_ns(CommKind.ALL_REDUCE, on, rates_Bps={"npu3": 1.0})


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([block.value for block in Block]),
    st.sampled_from(["ring", "direct", "halvingDoubling", "doubleBinaryTree"]),
    st.sampled_from(list(Forwarding)),
    st.integers(0, 7),
    st.data(),
)
def test_nothing_gets_faster_by_a_slower_link_or_more_bytes(
    block: str, algorithm: str, forwarding: Forwarding, link: int, data: st.DataObject
) -> None:
    on = network((block, 4))
    how = system(all_reduce_implementation=[algorithm])
    free_ns = end_ns(CommKind.ALL_REDUCE, on, how, forwarding=forwarding)
    name = fabric_of(on).links[link].name
    factor = data.draw(st.floats(0.1, 1.0))
    slower_ns = end_ns(CommKind.ALL_REDUCE, on, how, forwarding=forwarding, rates_Bps={name: factor * 50 * 2**30})
    more_ns = end_ns(CommKind.ALL_REDUCE, on, how, forwarding=forwarding, size_bytes=int(MIB / factor))
    assert slower_ns >= free_ns * (1 - 1e-9)
    assert more_ns >= free_ns * (1 - 1e-9)
