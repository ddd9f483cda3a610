"""htsim's files: what they describe, what they take to run, and one line for whatever is wrong with them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import HeadwayError, UsageError
from headway.sim.engine.fabric import Fabric, star
from headway.sim.engine.loop import Loop
from headway.sim.engine.network import Network
from headway.sim.formats.htsim import UEC_PAYLOAD_SHARE, Failure, FatTreeFile, parse_topology, read_topology
from headway.sim.formats.htsim_cm import TriggerKind, parse_connections, read_connections
from headway.sim.formats.htsim_run import ConnectionTime, run_connections

LEAF_SPINE = """# 16 hosts, 2 to 1
Nodes 16
Tiers 2
Podsize 16

Tier 0
Downlink_speed_Gbps 100
Radix_Down 4
Radix_Up 2
Oversubscribed 2
Downlink_Latency_ns 1000
Switch_Latency_ns 300
Queue_Up 100000

Tier 1
Downlink_speed_Gbps 100
Radix_Down 4
Downlink_Latency_ns 2000
Switch_Latency_ns 500
"""
THREE = """Nodes 16
Tiers 3
Podsize 8
Tier 0
Downlink_speed_Gbps 100
Radix_Down 4
Radix_Up 4
Downlink_Latency_ns 1000
Switch_Latency_ns 10
Tier 1
Downlink_speed_Gbps 100
Radix_Down 4
Radix_Up 4
Bundle 2
Downlink_Latency_ns 2000
Switch_Latency_ns 20
Tier 2
Downlink_speed_Gbps 100
Radix_Down 4
Bundle 2
Downlink_Latency_ns 4000
Switch_Latency_ns 40
"""
GBPS = 1e9 / 8
T = TypeVar("T")


def topology(text: str) -> FatTreeFile:
    return parse_topology(text, where="f.topo")


def names(fabric: Fabric, src: int, dst: int, key: int = 0) -> list[str]:
    return [fabric.links[link].name for link in fabric.router.route(src, dst, key)]


def latency_s(fabric: Fabric, src: int, dst: int) -> float:
    return sum(fabric.links[link].latency_s for link in fabric.router.route(src, dst, 0))


def test_two_tiers_are_racks_and_spines() -> None:
    file = topology(LEAF_SPINE)
    assert (file.hosts, file.pods, file.edges, file.pod_aggs, file.cores) == (16, 1, 4, 2, 0)
    fabric = file.fabric()
    assert len(fabric.links) == file.link_count == 2 * (16 + 4 * 2)
    ways = {tuple(names(fabric, 0, 15, key)) for key in range(50)}
    assert ways == {
        (
            "uplink of host0", f"uplink of rack0 by spine {spine}",
            f"downlink of rack3 by spine {spine}", "downlink of host15",
        )
        for spine in range(2)
    }  # fmt: skip
    assert names(fabric, 0, 3) == ["uplink of host0", "downlink of host3"]
    assert {link.capacity_Bps for link in fabric.links} == {100 * GBPS * UEC_PAYLOAD_SHARE}


def test_latencies_are_those_of_links_and_switches_on_the_way() -> None:
    two, three = topology(LEAF_SPINE).fabric(), topology(THREE).fabric()
    assert latency_s(two, 0, 3) == pytest.approx((2 * 1000 + 300) * 1e-9)
    assert latency_s(two, 0, 15) == pytest.approx((2 * 1000 + 2 * 2000 + 2 * 300 + 500) * 1e-9)
    assert latency_s(three, 0, 15) == pytest.approx((2 * (1000 + 2000 + 4000) + 2 * (10 + 20) + 40) * 1e-9)


def test_three_tiers_with_bundles() -> None:
    file = topology(THREE)
    assert (file.pods, file.edges, file.pod_aggs, file.cores) == (2, 4, 2, 4)
    fabric = file.fabric(payload_share=1.0)
    assert len(fabric.links) == file.link_count
    assert {link.capacity_Bps for link in fabric.links} == {100 * GBPS}
    # 2 aggregation switches by 2 links up and 2 down, each with 2 core switches by 2 links up and 2 down
    ways = Counter(tuple(names(fabric, 0, 15, key)) for key in range(20_000))
    assert len(ways) == 2 * 2 * 2 * 2 * 2 * 2
    assert max(ways.values()) < 1.5 * min(ways.values())
    assert len({tuple(names(fabric, 0, 7, key)) for key in range(500)}) == 2 * 2 * 2
    for way in ways:
        _, up, over, back, down, _ = way
        agg = int(re.findall(r"agg (\d)", up)[0])
        assert (agg, int(re.findall(r"core (\d)", over)[0]) % 2) == (agg, agg)
        assert re.findall(r"core (\d)", over) == re.findall(r"core (\d)", back)
        assert f"agg {2 + agg} " in back
        assert f"agg {agg}" in down


def test_speeds_may_differ_by_tier() -> None:
    fast = LEAF_SPINE.replace("Tier 1\nDownlink_speed_Gbps 100", "Tier 1\nDownlink_speed_Gbps 200")
    fabric = topology(fast.replace("Oversubscribed 2", "Oversubscribed 1")).fabric(payload_share=1.0)
    assert fabric.links[fabric.link_index["uplink of rack0 by spine 1"]].capacity_Bps == 200 * GBPS
    assert fabric.links[fabric.link_index["uplink of host0"]].capacity_Bps == 100 * GBPS


def test_a_failed_link_is_gone_in_both_directions_and_routes_go_round_it() -> None:
    file = topology(THREE)
    whole, broken = file.fabric(), file.fabric(failures=[Failure(1, 0)])
    gone = {link.name for link in whole.links} - {link.name for link in broken.links}
    assert gone == {"uplink of agg 1 by core 1 link 0", "downlink of agg 1 by core 1 link 0"}
    used = {name for key in range(500) for name in names(broken, 0, 15, key)}
    assert "uplink of agg 1 by core 1 link 1" in used


def test_a_failed_link_that_is_not_there_is_refused() -> None:
    for file, failure in ((THREE, Failure(4, 0)), (THREE, Failure(0, 2)), (LEAF_SPINE, Failure(0, 0))):
        with pytest.raises(UsageError, match=r"x\.cm:3: f has no link . up from aggregation switch"):
            topology(file).fabric(failures=[Failure(failure.switch, failure.link, "x.cm:3")])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Nodes 16", "", r"f\.topo: there is no Nodes"),
        ("Nodes 16", "Nodes 0", r"f\.topo:2: Nodes: 0 hosts; from 1 to 65536 can be"),
        ("Nodes 16", "Nodes 17", r"f\.topo:4: Podsize: pods of 16 hosts don't make up 17"),
        ("Nodes 16", "Nodes 16 16", r"f\.topo:2: Nodes: 2 values, one is needed"),
        ("Nodes 16", "Hosts 16", r"f\.topo:2: 'Hosts' is no field of the header \(known: nodes, tiers, "),
        ("Tiers 2", "Tiers 4", r"f\.topo:3: Tiers: 4 tiers; 2 and 3 can be"),
        ("Tiers 2", "Tiers 3", r"f\.topo: there is no Tier 2"),
        ("Tiers 2", "Tiers two", r"f\.topo:3: Tiers: 'two' is not a whole number"),
        ("Podsize 16", "Podsize 8", r"f\.topo:4: Podsize: a pod has 8 hosts, and there are 16 \(with 2 tiers"),
        ("Podsize 16", "Podsize 0", r"f\.topo:4: Podsize: pods of 0 hosts"),
        ("Radix_Down 4\nRadix_Up 2", "Radix_Up 2", r"f\.topo:6: Tier: tier 0 has no radix_down"),
        ("Radix_Down 4\nRadix_Up 2", "Radix_Down 4", r"f\.topo:6: Tier: tier 0 has no radix_up"),
        ("Radix_Down 4\nRadix_Up 2", "Radix_Down 3\nRadix_Up 2", r"f\.topo:8: radix_down: switches with 3 hosts each"),
        ("Radix_Up 2", "Radix_Up 0", r"f\.topo:9: radix_up: must be above 0"),
        ("Radix_Up 2", "Radix_Up 2\nRadix_Up 2", r"f\.topo:10: Radix_Up: is there already, in line 9"),
        ("Radix_Up 2", "Radix_Up -2", r"f\.topo:9: Radix_Up: '-2' is not a whole number"),
        ("Radix_Up 2", "Radix_Upp 2", r"f\.topo:9: 'Radix_Upp' is no field of tier 0"),
        ("Oversubscribed 2", "Oversubscribed 1", r"f\.topo:10: oversubscribed: is 1, but a switch has 2 times"),
        ("Oversubscribed 2", "", r"f\.topo:6: oversubscribed: is 1, but a switch has 2 times"),
        ("Oversubscribed 2", "Bundle 2", r"f\.topo:10: bundle: a host has one link"),
        ("Tier 1", "Tier 0", r"f\.topo:15: Tier: tier 0 is there already"),
        ("Tier 1", "Tier 3", r"f\.topo:15: Tier: tier 3 can't be"),
        ("Tier 1\n", "Tier 1\nRadix_Up 2\n", r"f\.topo:16: radix_up: the highest tier has no links up"),
        ("Tier 1\n", "Tier 1\nBundle 3\n", r"f\.topo:9: radix_up: 2 links up can't be bundles of 3"),
        ("Tier 1\n", "Tier 1\nBundle 2\n", r"f\.topo:18: radix_down: is 4, but there are 4 switches below each, by 2"),
        ("_Latency_ns 2000", "_Latency_ns", r"f\.topo:18: Downlink_Latency_ns: 0 values"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_topology_is_one_line(old: str, new: str, message: str) -> None:
    assert old in LEAF_SPINE
    with pytest.raises(UsageError, match=message) as caught:
        topology(LEAF_SPINE.replace(old, new, 1))
    assert "\n" not in str(caught.value)


def test_a_topology_too_large_is_refused_before_it_is_built() -> None:
    huge = LEAF_SPINE.replace("Radix_Up 2", "Radix_Up 2000000").replace(
        "Downlink_speed_Gbps 100", "Downlink_speed_Gbps 1"
    )
    huge = huge.replace(
        "Downlink_speed_Gbps 1\nRadix_Down 4\nRadix", "Downlink_speed_Gbps 1000000\nRadix_Down 4\nRadix"
    )
    with pytest.raises(UsageError, match=r"f\.topo: 16000032 links; at most 4000000 can be"):
        topology(huge)


MATRIX = """# comment
Nodes 4
Connections 3
Triggers 1

0->1 id 1 start 0 size 1000000 send_done_trigger 1
2->3 id 2 start 5000000 size 500000
1->0 id 3 trigger 1 size 1000000
trigger id 1 oneshot
"""
CAPACITY = 1e9  # bytes per second: a megabyte takes a millisecond
LATENCY = 1e-5


def run(text: str, *, subflows: int = 1, unit: str = "ps") -> tuple[ConnectionTime, ...]:
    matrix = parse_connections(text, where="f.cm", start_unit="us" if unit == "us" else "ps")
    return run_connections(Network(Loop(), star(4, CAPACITY, latency_s=LATENCY)), matrix, subflows=subflows)


def ends(text: str, *, subflows: int = 1) -> list[float | None]:
    return [time.end_s for time in run(text, subflows=subflows)]


def header(connections: int, triggers: int = 0) -> str:
    return f"Nodes 4\nConnections {connections}\nTriggers {triggers}\n"


def test_a_matrix_is_read() -> None:
    matrix = parse_connections(MATRIX, where="f.cm")
    first, second, third = matrix.connections
    assert (first.src, first.dst, first.id, first.start_s, first.size_bytes) == (0, 1, 1, 0.0, 1e6)
    assert second.start_s == 5e-6
    assert (first.send_done, third.trigger, third.start_s) == (1, 1, None)
    assert matrix.triggers[1].kind is TriggerKind.ONESHOT
    assert (first.line, third.line) == (6, 8)


def test_starts_are_picoseconds_unless_microseconds_are_asked_for() -> None:
    text = header(1) + "0->1 start 2.5 size 1"
    assert parse_connections(text, where="f.cm").connections[0].start_s == 2.5e-12
    assert parse_connections(text, where="f.cm", start_unit="us").connections[0].start_s == 2.5e-6


def test_each_connection_s_time_is_told() -> None:
    first, second, third = run(MATRIX)
    done = 1e-3 + 2 * LATENCY
    assert first.end_s == first.duration_s == pytest.approx(done)
    assert second.start_s == 5e-6
    assert second.duration_s == pytest.approx(5e-4 + 2 * LATENCY)
    # the sender of the first knows one latency after its end
    assert third.start_s == pytest.approx(done + 2 * LATENCY)
    assert third.end_s == pytest.approx(2 * done + 2 * LATENCY)


def test_recv_done_is_set_off_when_the_last_byte_arrives() -> None:
    times = run(MATRIX.replace("send_done_trigger", "recv_done_trigger"))
    assert times[2].start_s == times[0].end_s


def test_the_matrix_s_zero_is_the_network_s_now() -> None:
    network = Network(Loop(), star(4, CAPACITY, latency_s=LATENCY))
    network.loop.run(7.0)
    times = run_connections(network, parse_connections(MATRIX, where="f.cm"))
    assert times[1].start_s == 7.000005


def test_a_oneshot_trigger_starts_all_that_wait_and_a_multishot_one_after_the_other() -> None:
    lines = ["0->1 id 1 start 0 size 1000000 recv_done_trigger 9", "2->3 id 2 start 0 size 2000000 recv_done_trigger 8"]
    waiting = ["1->2 id 3 trigger 9 size 1", "1->3 id 4 trigger 9 size 1"]
    both = header(4, 2) + "\n".join([*lines, *waiting, "trigger id 9 oneshot", "trigger id 8 oneshot"])
    assert [time.start_s for time in run(both)][2:] == [pytest.approx(1e-3 + 2 * LATENCY)] * 2
    turns = header(4, 1) + "\n".join([*lines, *waiting, "trigger id 9 multishot"]).replace("trigger 8", "trigger 9")
    assert [time.start_s for time in run(turns)][2:] == [
        pytest.approx(1e-3 + 2 * LATENCY), pytest.approx(2e-3 + 2 * LATENCY),
    ]  # fmt: skip


def test_a_barrier_waits_for_all() -> None:
    text = header(3, 1) + (
        "0->1 id 1 start 0 size 1000000 recv_done_trigger 9\n2->3 id 2 start 0 size 2000000 recv_done_trigger 9\n"
        "1->2 id 3 trigger 9 size 1\ntrigger id 9 barrier count 2\n"
    )
    assert run(text)[2].start_s == pytest.approx(2e-3 + 2 * LATENCY)


def test_messages_of_one_connection_follow_each_other() -> None:
    text = header(4) + (
        "0->1 id 1 msg start 0 size 1000000\n0->1 id 1 msg 2 start 0 size 1000000\n"
        "0->2 id 4 start 4000000000 size 1\n0->1 id 1 msg 3 start 5000000000 size 1000000\n"
    )
    times = run(text)
    assert [time.start_s for time in times] == pytest.approx([0.0, 1e-3, 4e-3, 5e-3])
    assert times[1].end_s == pytest.approx(2e-3 + 2 * LATENCY)


def test_a_message_sets_its_trigger_off_when_it_has_left() -> None:
    text = (
        header(2, 1)
        + "0->1 id 1 msg start 0 size 1000000 send_done_trigger 1\n1->2 id 2 trigger 1 size 1\ntrigger id 1 oneshot"
    )
    assert run(text)[1].start_s == pytest.approx(1e-3)


def test_size_0_never_ends_but_takes_its_share() -> None:
    assert ends(header(2) + "0->1 start 0 size 0\n2->1 start 0 size 1000000\n") == [
        None,
        pytest.approx(2e-3 + 2 * LATENCY),
    ]


def test_an_incast_shares_the_downlink() -> None:
    text = header(3) + "".join(f"{src}->0 start 0 size 1000000\n" for src in (1, 2, 3))
    assert ends(text) == [pytest.approx(3e-3 + 2 * LATENCY)] * 3


def test_a_connection_in_many_subflows_uses_many_ways_and_has_the_weight_of_one() -> None:
    text = "Nodes 16\nConnections 4\n" + "".join(f"{src}->{12 + src} start 0 size 100000000\n" for src in range(4))
    matrix = parse_connections(text, where="f.cm")
    fabric = topology(LEAF_SPINE).fabric(payload_share=1.0)
    carried = {}
    for subflows in (1, 64):
        network = Network(Loop(), fabric)
        run_connections(network, matrix, subflows=subflows)
        carried[subflows] = [
            network.carried_bytes(fabric.link_index[f"uplink of rack0 by spine {spine}"]) for spine in range(2)
        ]
        assert sum(carried[subflows]) == pytest.approx(4e8)
    assert max(carried[64]) / min(carried[64]) < 1.3
    shared = header(2) + "0->1 start 0 size 1000000\n2->1 start 0 size 1000000\n"
    assert ends(shared, subflows=5) == pytest.approx(ends(shared))


def test_nothing_to_run_takes_no_time() -> None:
    assert run("Nodes 4\nConnections 0\n") == ()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Nodes 4", "", r"f\.cm: there is no Nodes"),
        ("Connections 3", "", r"f\.cm: there is no Connections"),
        ("Connections 3", "Connections 4", r"f\.cm: Connections: the header says 4, there are 3"),
        ("Triggers 1", "", r"f\.cm: Triggers: the header says 0, there are 1"),
        ("Triggers 1", "Triggers 1\nFailures 1", r"f\.cm: Failures: the header says 1, there are 0"),
        ("Nodes 4", "Nodes 4\nNodes 4", r"f\.cm:3: Nodes: is there twice"),
        ("Nodes 4", "Nodes", r"f\.cm:2: Nodes: 0 values, one is needed"),
        ("Nodes 4", "Nodes 3", r"f\.cm:7: src->dst: host 3 does not exist: there are 3 Nodes"),
        ("Nodes 4", "Knots 4", r"f\.cm:2: 'Knots' begins no line"),
        ("0->1 id", "0-1 id", r"f\.cm:6: '0-1' begins no line"),
        ("0->1 id", "0->1->2 id", r"f\.cm:6: '0->1->2' is no connection \(write for example 0->1\)"),
        ("0->1 id", "0->0 id", r"f\.cm:6: host 0 sends to itself"),
        ("0->1 id", "a->1 id", r"f\.cm:6: src->dst: 'a' is not a whole number"),
        ("id 1 start", "id 0 start", r"f\.cm:6: id: 0 is not allowed"),
        ("id 2", "id 1", r"f\.cm:7: id: connection 1 is there already, in line 6"),
        ("id 2", "id 1 msg", r"f\.cm:7: src->dst: connection 1 goes from 0 to 1, see line 6"),
        ("id 2", "msg", r"f\.cm:7: msg needs an id"),
        ("start 0", "start now", r"f\.cm:6: start: 'now' is not a number"),
        ("start 0", "start -1", r"f\.cm:6: start: '-1' is not a number"),
        ("start 0", "start nan", r"f\.cm:6: start: 'nan' is not a number"),
        ("start 0", "", r"f\.cm:6: there is neither start nor trigger"),
        ("start 0", "start 0 trigger 1", r"f\.cm:6: start and trigger are both there"),
        ("start 0", "start 0 start 0", r"f\.cm:6: start: is there twice"),
        ("start 0", "start 0 addon", r"f\.cm:6: 'addon' is no field here \(known: id, start, size"),
        (" size 500000", "", r"f\.cm:7: there is no size"),
        (" size 500000", " size", r"f\.cm:7: size: has no value"),
        (" size 500000", " size 5e5", r"f\.cm:7: size: '5e5' is not a whole number"),
        ("3 trigger 1", "3 trigger 2", r"f\.cm:8: trigger: there is no trigger 2 \(a line for it is needed\)"),
        ("send_done_trigger 1", "send_done_trigger 7", r"f\.cm:6: send_done_trigger: there is no trigger 7"),
        ("size 500000", "size 500000 send_done_trigger 1", r"f\.cm:9: trigger 1: is set off by 2 connections"),
        ("oneshot", "", r"f\.cm:9: give one of oneshot, multishot, barrier, not 0"),
        ("oneshot", "oneshot barrier", r"f\.cm:9: give one of oneshot, multishot, barrier, not 2"),
        ("oneshot", "barrier", r"f\.cm:9: a barrier needs a count above 0"),
        ("oneshot", "barrier count 2", r"f\.cm:9: trigger 1: waits for 2 connections, and 1 set it off"),
        ("oneshot", "oneshot\ntrigger id 1 oneshot", r"f\.cm:10: id: trigger 1 is there already, in line 9"),
        ("trigger id 1", "trigger", r"f\.cm:9: a trigger needs an id above 0"),
        ("oneshot", "oneshot\nfailure switch_type TOR switch_id 0 link_id 0", r"f\.cm:10: switch_type: links up from"),
        ("oneshot", "oneshot\nfailure switch_type AGG switch_id 0", r"f\.cm:10: there is no link_id"),
        ("oneshot", "oneshot\nNodes 4", r"f\.cm:10: 'Nodes' begins no line"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_matrix_is_one_line(old: str, new: str, message: str) -> None:
    assert old in MATRIX
    with pytest.raises(UsageError, match=message) as caught:
        parse_connections(MATRIX.replace(old, new, 1), where="f.cm")
    assert "\n" not in str(caught.value)


def test_a_matrix_in_which_nothing_ends_is_refused() -> None:
    with pytest.raises(UsageError, match=r"f\.cm: every size is 0"):
        run(header(1) + "0->1 start 0 size 0")


def test_failures_of_a_matrix_are_for_the_topology() -> None:
    text = "Nodes 16\nConnections 0\nFailures 1\nfailure switch_type AGG switch_id 1 link_id 0\n"
    (failure,) = parse_connections(text, where="f.cm").failures
    assert (failure.switch, failure.link, failure.where) == (1, 0, "f.cm:4")
    assert len(topology(THREE).fabric(failures=[failure]).links) == topology(THREE).link_count - 2


def test_connections_that_wait_for_each_other_are_named() -> None:
    text = header(3, 2) + (
        "0->1 start 0 size 1\n0->1 id 1 trigger 1 size 1 send_done_trigger 2\n"
        "0->1 id 2 trigger 2 size 1 send_done_trigger 1\ntrigger id 1 oneshot\ntrigger id 2 oneshot\n"
    )
    with pytest.raises(UsageError, match=r"f\.cm:5: trigger: never starts: trigger 1 is never set off, or waits"):
        run(text)


def test_a_connection_over_a_dead_link_is_named() -> None:
    network = Network(Loop(), star(4, CAPACITY))
    network.set_capacity(0, 0.0)
    with pytest.raises(HeadwayError, match=r"f\.cm: the connection in line 6 never ends"):
        run_connections(network, parse_connections(MATRIX, where="f.cm"))


def test_a_network_too_small_is_refused() -> None:
    network = Network(Loop(), star(3, CAPACITY))
    with pytest.raises(UsageError, match=r"f\.cm: has 4 Nodes, the network 3 hosts"):
        run_connections(network, parse_connections(MATRIX, where="f.cm"))
    with pytest.raises(UsageError, match="0 subflows"):
        run(MATRIX, subflows=0)


def test_files_are_read_and_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.topo").write_text(LEAF_SPINE)
    (tmp_path / "a.cm").write_text(MATRIX)
    (tmp_path / "b.cm").write_bytes(b"\xff\xfe\x00")
    assert read_topology(tmp_path / "a.topo").name == "a"
    assert len(read_connections(tmp_path / "a.cm").connections) == 3
    assert read_connections(tmp_path / "a.cm", start_unit="us").connections[1].start_s == 5.0
    for name, message in (("b.cm", "is not a text file"), ("c.cm", "No such file"), ("", "Is a directory")):
        with pytest.raises(UsageError, match=message):
            read_connections(tmp_path / name)
    with pytest.raises(UsageError, match="is not a text file"):
        read_topology("\0")


WORDS = st.one_of(
    st.sampled_from(["0", "1", "2", "3", "4", "8", "16", "999999999999", "-1", "1.5", "1e9", "nan", "9" * 5000, "²"]),
    st.sampled_from(["0->1", "1->0", "->", "0->", "9->1", "a->b", "x", "#", "\x85", "\x00"]),
    st.sampled_from(sorted({word for text in (LEAF_SPINE, THREE, MATRIX) for word in text.split()})),
    st.sampled_from(["msg", "prio", "multishot", "barrier", "count", "failure", "switch_type", "AGG", "Failures"]),
)


@st.composite
def mangled(draw: st.DrawFn, text: str) -> str:
    """A good file with some words or lines exchanged, dropped or put in."""
    lines = [line.split(" ") for line in text.split("\n")]
    for _ in range(draw(st.integers(1, 4))):
        line = draw(st.integers(0, len(lines) - 1))
        at = draw(st.integers(0, len(lines[line])))
        match draw(st.integers(0, 3)):
            case 0:
                lines[line][at : at + 1] = [draw(WORDS)]
            case 1:
                lines[line].insert(at, draw(WORDS))
            case 2:
                del lines[line][at : at + 1]
            case _:
                lines.insert(line, list(lines[draw(st.integers(0, len(lines) - 1))]))
    return "\n".join(" ".join(words) for words in lines)


def told_in_one_line(call: Callable[[], T]) -> T | None:
    """What a call returns, or None where it raises a UsageError of one line."""
    try:
        return call()
    except UsageError as error:
        if "\n" in str(error):
            raise
        return None


@settings(max_examples=300, deadline=None)
@given(st.one_of(mangled(LEAF_SPINE), mangled(THREE), st.text(max_size=80), st.lists(WORDS, max_size=30).map(" ".join)))
def test_whatever_a_topology_holds_only_a_usage_error_comes_out(text: str) -> None:
    file = told_in_one_line(lambda: topology(text))
    if file is None:
        return
    if file.link_count < 10_000:
        fabric = file.fabric()
        assert len(fabric.links) == file.link_count
        assert bool(fabric.router.route(0, file.hosts - 1, 0)) == (file.hosts > 1)


@settings(max_examples=300, deadline=None)
@given(st.one_of(mangled(MATRIX), st.text(max_size=80), st.lists(WORDS, max_size=30).map(" ".join)))
def test_whatever_a_matrix_holds_only_a_usage_error_comes_out(text: str) -> None:
    times = told_in_one_line(lambda: run(text)) or ()
    assert all(time.end_s is not None or time.connection.size_bytes == float("inf") for time in times)
