"""Fabrics of scenarios: every route is a way from the one host to the other, spread evenly, at the right rates."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import UsageError
from headway.lab.effects import WIRE_ALPHA_S, cluster, effects_of
from headway.lab.files import load_scenario, parse_event, parse_scenario, shipped
from headway.lab.scenario import Scenario
from headway.lab.topology import MOST_HOSTS, LinkId, plan
from headway.sim.engine.fabric import Fabric
from headway.sim.engine.loop import Loop
from headway.sim.engine.network import Network
from headway.sim.topologies import PAYLOAD_SHARE, GraphRouter, cluster_of, fabric_of, wires_of

RATE = 25e6  # 200 Mbit/s


def scenario(**fields: Any) -> Scenario:
    return parse_scenario({"name": "s", "hosts": 8, "access": "200Mbit", **fields}, where="test")


def fat_tree(k: int, **fields: Any) -> Scenario:
    return scenario(**{"hosts": k**3 // 4, "fat_tree": {"k": k}, **fields})


def ends_of(fabric: Fabric, k: int | None) -> list[tuple[str, str]]:
    """From the links' names alone: (from, to) of each link. `k`: of a fat tree."""
    ends = []
    for link in fabric.links:
        direction, _, rest = link.name.partition(" of ")
        owner, _, by = rest.partition(" by ")
        if by:
            above = by
            kind, number = owner.rsplit(" ", 1) if " " in owner else (owner, "0")
            if k is not None and kind == "edge":
                above = f"agg {int(number) // (k // 2) * (k // 2) + int(by.split()[1])}"
            elif k is not None:
                above = f"core {int(number) % (k // 2) * (k // 2) + int(by.split()[1])}"
        else:
            above = "switch of " + owner
        ends.append((owner, above) if direction == "uplink" else (above, owner))
    return ends


def follow(scenario: Scenario, fabric: Fabric, src: int, dst: int, key: int) -> Sequence[int]:
    """A route, checked: it begins and ends at the hosts, and each link begins where the last one ended."""
    tree = scenario.fat_tree
    route = fabric.router.route(src, dst, key)
    ends = ends_of(fabric, None if tree is None else tree.k)

    def switch(host: int) -> str:
        if tree is not None:
            return f"edge {host // (tree.k // 2)}"
        rack = scenario.rack_of(host)
        return "switch" if rack is None else scenario.rack_names[rack]

    if src == dst:
        assert not route
        return route
    at = scenario.host_names[src]
    for index in route:
        begin, end = ends[index]
        names = {f"switch of {scenario.host_names[h]}": switch(h) for h in (src, dst)}
        assert names.get(begin, begin) == at
        at = names.get(end, end)
    assert at == scenario.host_names[dst]
    return route


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_route_leads_from_its_source_to_its_destination(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["star", "racks", "tree"]))
    hosts = data.draw(st.integers(1, 30))
    if kind == "tree":
        k = data.draw(st.sampled_from([2, 4, 6]))
        made = scenario(hosts=min(hosts, k**3 // 4), fat_tree={"k": k})
    elif kind == "racks":
        racks = {"racks": data.draw(st.integers(1, hosts)), "spines": data.draw(st.integers(1, 4)), "uplink": "1Gbit"}
        made = scenario(hosts=hosts, racks=racks)
    else:
        made = scenario(hosts=hosts)
    fabric = fabric_of(made)
    assert len(fabric.link_index) == len(fabric.links)
    pair = st.integers(0, len(fabric.hosts) - 1)
    for _ in range(10):
        src, dst, key = data.draw(pair), data.draw(pair), data.draw(st.integers(0, 2**40))
        assert follow(made, fabric, src, dst, key) == fabric.router.route(src, dst, key)


LABS = [
    name
    for name, made in ((name, load_scenario(name)) for name in shipped())
    if made.fat_tree is None and len(made.host_names) <= MOST_HOSTS
]


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_scenario_has_a_fabric_whose_routes_lead_somewhere(name: str) -> None:
    fabric = fabric_of(load_scenario(name))
    count = len(fabric.hosts)
    for src in range(0, count, max(1, count // 16)):
        dst = (src + count // 2) % count
        route = [fabric.links[link].name for link in fabric.router.route(src, dst, 0)]
        assert (route[0], route[-1]) == (f"uplink of {fabric.hosts[src]}", f"downlink of {fabric.hosts[dst]}")


@pytest.mark.parametrize("name", LABS)
def test_every_shipped_lab_has_the_lab_s_links(name: str) -> None:
    made = load_scenario(name)
    fabric, lab = fabric_of(made), plan(made, relay=True)
    assert {link.name for link in fabric.links} == {str(link.id) for link in lab.links}
    for link in lab.links:
        ours = fabric.links[fabric.link_index[str(link.id)]]
        assert ours.capacity_Bps == link.rate_Bps * 1448 / 1514
        assert ours.latency_s == link.delay_s + (WIRE_ALPHA_S / 2 if link.id.path is None else 0)
    for src, dst in itertools.product(range(len(fabric.hosts)), repeat=2):
        follow(made, fabric, src, dst, 1)


@pytest.mark.parametrize("name", LABS)
def test_planners_know_what_the_lab_tells_them_in_payload(name: str) -> None:
    made = load_scenario(name)
    groups = [effects_of(event, made.targets_of(event)) for event in made.events]
    lab = cluster(made, plan(made, relay=True), groups)
    ours = cluster_of(made, in_force=groups)
    assert [link.name for link in ours.links] == [link.name for link in lab.links]
    assert [link.capacity_Bps for link in ours.links] == pytest.approx(
        [c.capacity_Bps * PAYLOAD_SHARE for c in lab.links]
    )
    assert ours.alpha_s == lab.alpha_s
    assert [host.rack for host in ours.hosts] == [host.rack for host in lab.hosts]


def test_a_hop_takes_what_planners_think_it_takes() -> None:
    for made in (
        scenario(latency="3ms"),
        scenario(latency="1ms", racks={"racks": 2, "uplink": "1Gbit", "latency": "2ms"}),
        fat_tree(4, latency="1ms"),
        scenario(hosts=16, fat_tree={"k": 4, "latency": "2ms"}),
    ):
        fabric = fabric_of(made, wire_alpha_s=7e-6)
        latency_s = sum(fabric.links[i].latency_s for i in fabric.router.route(0, len(fabric.hosts) - 1, 0))
        assert latency_s == pytest.approx(cluster_of(made, wire_alpha_s=7e-6).alpha_s, rel=1e-12)


def test_the_wire_s_own_time_is_a_knob() -> None:
    slow, fast = (fabric_of(scenario(), wire_alpha_s=alpha_s) for alpha_s in (1e-3, 0.0))
    assert slow.links[0].latency_s == 5e-4
    assert fast.links[0].latency_s == 0.0


def test_entries_of_hosts_count() -> None:
    made = scenario(hosts=[{"name": "a", "access": {"up": "1Gbit", "down": "2Gbit"}, "latency": "1s"}, {"name": "b"}])
    rates = {wire.name: (wire.rate_Bps, wire.delay_s) for wire in wires_of(made).links}
    assert rates["uplink of a"] == (125e6, 1.0)
    assert rates["downlink of a"] == (250e6, 1.0)
    assert rates["uplink of b"] == (RATE, 0.0)


def spread(fabric: Fabric, src: int, dst: int, keys: int) -> Counter[Sequence[int]]:
    return Counter(tuple(fabric.router.route(src, dst, key)) for key in range(keys))


def test_ecmp_uses_every_spine_about_equally() -> None:
    fabric = fabric_of(scenario(racks={"racks": 2, "spines": 5, "uplink": "1Gbit"}))
    counts = spread(fabric, 0, 7, 5000)
    assert len(counts) == 5
    assert all(880 < count < 1120 for count in counts.values())


def test_ecmp_uses_every_way_of_a_fat_tree_about_equally() -> None:
    fabric = fabric_of(fat_tree(6))
    counts = spread(fabric, 0, 53, 9000)
    assert len(counts) == 9
    assert all(850 < count < 1150 for count in counts.values())
    assert len(spread(fabric, 0, 3, 300)) == 3  # in the pod: one way for each aggregation switch
    assert len(spread(fabric, 0, 1, 300)) == 1  # on one edge switch


def test_ways_of_different_pairs_are_independent() -> None:
    fabric = fabric_of(scenario(hosts=200, racks={"racks": 2, "spines": 4, "uplink": "1Gbit"}))
    counts = Counter(fabric.router.route(i, 100 + i, 0)[1] for i in range(100))
    assert len(counts) == 4
    assert max(counts.values()) < 45


def test_a_fat_tree_has_full_bisection() -> None:
    """Every host of the left half sends to one of the right half, on ways chosen by hand: all at full rate."""
    made = fat_tree(4)
    fabric = fabric_of(made)
    core = [link for link in fabric.links if link.name.startswith("uplink of agg")]
    access = fabric.links[0].capacity_Bps
    assert sum(link.capacity_Bps for link in core) == pytest.approx(len(fabric.hosts) * access)
    network = Network(Loop(), fabric)
    used: set[int] = set()
    flows = []
    for src in range(8):
        for key in itertools.count():
            route = fabric.router.route(src, src + 8, key)
            if not used & set(route):
                break
            assert key < 1000
        used |= set(route)
        flows.append(network.start(src, src + 8, float("inf"), key=key))
    network.loop.run(1.0)
    assert [network.rate_Bps(flow) for flow in flows] == pytest.approx([access] * 8)


def test_uplinks_of_a_fat_tree_are_a_knob() -> None:
    thin = cluster_of(scenario(hosts=16, fat_tree={"k": 4, "uplink": {"up": "100Mbit", "down": "50Mbit"}}))
    assert thin.racks[0].uplink_Bps == pytest.approx(RATE * PAYLOAD_SHARE)
    assert thin.racks[0].downlink_Bps == pytest.approx(RATE / 2 * PAYLOAD_SHARE)
    assert [host.rack for host in thin.hosts] == [i // 2 for i in range(16)]


def test_a_cluster_of_some_hosts_has_those_and_their_racks() -> None:
    made = scenario(racks={"racks": 4, "uplink": "1Gbit"})
    part = cluster_of(made, host_of=[6, 6, 2, 7])
    assert [host.name for host in part.hosts] == ["host6", "host2", "host7"]
    assert part.host_of == (0, 0, 1, 2)
    assert [rack.name for rack in part.racks] == ["rack3", "rack1"]
    assert [host.rack for host in part.hosts] == [0, 1, 0]


def test_a_thousand_hosts_are_no_effort() -> None:
    made = fat_tree(16)
    fabric = fabric_of(made)
    assert len(fabric.hosts) == 1024
    assert len(fabric.links) == 6 * 1024
    for src in range(0, 1024, 17):
        assert len(fabric.router.route(src, (src * 7 + 3) % 1024, src)) in (0, 2, 4, 6)


def test_events_take_their_part_of_what_planners_know() -> None:
    made = scenario(racks={"racks": 2, "spines": 2, "uplink": "200Mbit"})
    slow = parse_event({"id": "a", "type": "bw", "target": "rack0", "path": 1, "rate": "25%", "direction": "up"})
    busy = parse_event({"id": "b", "type": "load", "target": "host1", "udp": "75%", "direction": "down"})
    groups = [effects_of(event, made.targets_of(event)) for event in (slow, busy)]
    now = cluster_of(made, in_force=groups)
    assert now.racks[0].uplink_Bps == pytest.approx(1.25 * RATE * PAYLOAD_SHARE)
    assert now.hosts[1].downlink_Bps == pytest.approx(0.25 * RATE * PAYLOAD_SHARE)
    assert now.hosts[1].uplink_Bps == pytest.approx(RATE * PAYLOAD_SHARE)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    nodes = draw(st.integers(1, 8))
    node = st.integers(0, nodes - 1)
    return nodes, draw(st.lists(st.tuples(node, node), max_size=30))


def distances(nodes: int, ends: Sequence[tuple[int, int]], goal: int) -> Mapping[int, int]:
    """By relaxing until nothing changes."""
    found = {goal: 0}
    for _ in range(nodes):
        for a, b in ends:
            if b in found:
                found[a] = min(found.get(a, nodes), found[b] + 1)
    return found


@settings(deadline=None)
@given(graphs(), st.integers(0, 100))
def test_any_graph_is_crossed_by_a_shortest_way_or_said_to_have_none(
    graph: tuple[int, list[tuple[int, int]]], key: int
) -> None:
    nodes, ends = graph
    router = GraphRouter(nodes, ends)
    for src, dst in itertools.product(range(nodes), repeat=2):
        known = distances(nodes, ends, dst)
        if src not in known:
            with pytest.raises(UsageError, match=f"no way from host {src} to host {dst}"):
                router.route(src, dst, key)
            continue
        route = router.route(src, dst, key)
        at = src
        for link in route:
            assert ends[link][0] == at
            at = ends[link][1]
        assert at == dst
        assert len(route) == known[src]
        assert route == router.route(src, dst, key) == GraphRouter(nodes, ends).route(src, dst, key)


def test_parallel_links_and_equal_ways_are_all_used() -> None:
    # 0 - switch 2 or 3 - 1, with two links from 0 to 2
    router = GraphRouter(4, [(0, 2), (0, 2), (0, 3), (2, 1), (3, 1)], hosts=[0, 1])
    counts = Counter(tuple(router.route(0, 1, key)) for key in range(3000))
    assert set(counts) == {(0, 3), (1, 3), (2, 4)}
    assert all(850 < count < 1150 for count in counts.values())


def test_hosts_are_the_nodes_that_the_router_is_told() -> None:
    router = GraphRouter(3, [(2, 1), (1, 0)], hosts=[2, 0])
    assert router.route(0, 1, 0) == (0, 1)


def test_links_have_names_that_events_can_name() -> None:
    names = {link.name for link in fabric_of(fat_tree(4)).links}
    assert {"uplink of edge 7 by agg 1", "downlink of agg 7 by core 1", str(LinkId("host15", "up"))} <= names
