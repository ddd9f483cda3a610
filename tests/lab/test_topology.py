"""The plan of what to build: consistent for every scenario, and shaped where the scenario says so."""

from __future__ import annotations

from ipaddress import ip_interface

from hypothesis import given
from hypothesis import strategies as st

from headway.lab.effects import cluster, effects_of, link_settings, load_legs
from headway.lab.files import load_scenario, parse_event
from headway.lab.scenario import Racks, Rates, Scenario
from headway.lab.topology import LinkId, Topology, impaired, plan

RATE = 25e6


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    hosts = draw(st.integers(1, 20))
    racks = None
    if draw(st.booleans()):
        racks = Racks(
            racks=draw(st.integers(1, min(5, hosts))), spines=draw(st.integers(1, 3)), uplink=Rates(up=RATE, down=RATE)
        )
    latency = draw(st.sampled_from([0.0, 0.01]))
    return Scenario(name="s", hosts=hosts, access=Rates(up=RATE, down=2 * RATE), racks=racks, latency=latency)


def ends(topology: Topology) -> list[tuple[str, str]]:
    cables = [(e.namespace, e.interface) for c in topology.cables for e in (c.a, c.b)]
    return cables + [(bridge.end.namespace, bridge.end.interface) for bridge in topology.bridges]


@given(scenarios(), st.booleans())
def test_every_part_refers_to_parts_that_exist(scenario: Scenario, relay: bool) -> None:
    topology = plan(scenario, relay=relay)
    names = [namespace.name for namespace in topology.namespaces]
    made = ends(topology)
    assert len(set(names)) == len(names)
    assert len(set(made)) == len(made)
    assert all(len(interface) < 16 for _, interface in made)
    assert {namespace for namespace, _ in made} <= set(names)
    for bridge in topology.bridges:
        assert all((bridge.end.namespace, port) in made for port in bridge.ports)
    for link in topology.links:
        assert (link.end.namespace, link.end.interface) in made
    for address in topology.addresses:
        assert (address.end.namespace, address.end.interface) in made
    for route in topology.routes:
        assert all((route.namespace, device) in made for _, device in route.hops)
    assert relay or not any(cable.relayed for cable in topology.cables)


@given(scenarios())
def test_addresses_are_unique_and_gateways_are_on_the_link(scenario: Scenario) -> None:
    topology = plan(scenario, relay=True)
    texts = [address.address for address in topology.addresses]
    assert len(set(texts)) == len(texts)
    for route in topology.routes:
        for gateway, device in route.hops:
            nets = [
                ip_interface(f"{a.address}/{a.prefix}").network
                for a in topology.addresses
                if (a.end.namespace, a.end.interface) == (route.namespace, device)
            ]
            assert any(ip_interface(gateway).ip in net for net in nets)


@given(scenarios())
def test_each_host_has_one_link_per_direction_and_each_rack_one_per_spine(scenario: Scenario) -> None:
    topology = plan(scenario, relay=True)
    ids = [link.id for link in topology.links]
    expected = {LinkId(name, way) for name in scenario.host_names for way in ("up", "down")}
    if scenario.racks is not None:
        spines = range(scenario.racks.spines)
        expected |= {LinkId(name, way, s) for name in scenario.rack_names for way in ("up", "down") for s in spines}
    assert len(ids) == len(expected)
    assert set(ids) == expected
    assert [host.name for host in topology.hosts] == list(scenario.host_names)
    assert topology.link(LinkId(scenario.host_names[0], "down")).rate_Bps == 2 * RATE


@given(scenarios())
def test_hosts_are_dealt_out_evenly(scenario: Scenario) -> None:
    if scenario.racks is None:
        return
    sizes = [0] * len(scenario.rack_names)
    for index in range(len(scenario.host_names)):
        sizes[scenario.rack_of(index) or 0] += 1
    assert max(sizes) - min(sizes) <= 1


@given(scenarios())
def test_the_default_queue_holds_the_largest_packets(scenario: Scenario) -> None:
    for link in plan(scenario, relay=True).links:
        assert link.queue_bytes >= 2 * link.burst_bytes
        assert link.burst_bytes > 70_000


def test_only_links_that_need_it_are_relayed() -> None:
    scenario = load_scenario("wan4-congested")
    assert impaired(scenario) == set(scenario.host_names)
    star = load_scenario("star8")
    assert not impaired(star)
    assert not any(cable.relayed for cable in plan(star, relay=True).cables)
    shaped = [cable for cable in plan(star, relay=True, impair_all=True).cables if cable.relayed]
    assert len(shaped) == 8


def test_settings_fold_and_come_back() -> None:
    star = load_scenario("star8")
    topology = plan(star, relay=True, impair_all=True)
    base = link_settings(topology, ())
    half = parse_event({"id": "a", "type": "bw", "target": "host1", "rate": "50%", "direction": "up"})
    quarter = parse_event({"id": "b", "type": "bw", "target": "host1", "rate": "25%"})
    slow = parse_event({"id": "c", "type": "delay", "target": "host1", "delay": "5ms", "jitter": "1ms"})
    lossy = parse_event({"id": "d", "type": "loss", "target": "hosts", "loss": "10%", "direction": "down"})
    groups = [effects_of(event, star.targets_of(event)) for event in (half, quarter, slow, lossy, slow, lossy)]
    now = link_settings(topology, groups)
    up, down = now[LinkId("host1", "up")], now[LinkId("host1", "down")]
    assert (up.rate_Bps, up.loss, up.delay_s, up.jitter_s) == (RATE / 4, 0.0, 0.01, 0.002)
    assert down.rate_Bps == RATE / 4
    assert abs(down.loss - 0.19) < 1e-12
    assert now[LinkId("host2", "up")] == base[LinkId("host2", "up")]
    assert link_settings(topology, groups[:1])[LinkId("host1", "down")] == base[LinkId("host1", "down")]


def test_load_goes_between_the_neighbour_and_an_unshaped_port() -> None:
    star = load_scenario("star8-udp50-both")
    topology = plan(star, relay=True)
    (effect,) = effects_of(star.events[0], star.targets_of(star.events[0]))
    legs = load_legs(topology, "x-", effect)
    assert {(leg.source, leg.sink) for leg in legs} == {("x-nb.3", "x-out.0"), ("x-out.0", "x-nb.3")}
    assert {leg.rate_Bps for leg in legs} == {RATE / 2}


def test_load_on_a_rack_is_split_over_its_uplinks() -> None:
    racks = load_scenario("rack2x4-udp50-uplink")
    topology = plan(racks, relay=True)
    (effect,) = effects_of(racks.events[0], racks.targets_of(racks.events[0]))
    legs = load_legs(topology, "", effect)
    assert [leg.sink_address for leg in legs] == list(topology.core_addresses)
    assert {leg.source for leg in legs} == {"out.0"}


def test_the_cluster_has_the_scenario_s_capacities_and_loses_those_that_events_take() -> None:
    racks = load_scenario("rack2x4")
    topology = plan(racks, relay=True)
    idle = cluster(racks, topology, ())
    assert [host.rack for host in idle.hosts] == [0] * 4 + [1] * 4
    assert idle.racks[0].uplink_Bps == 2 * RATE
    slow = load_scenario("rack2x4-slow-uplink").events[0]
    flow = parse_event({"id": "f", "type": "load", "target": "host0", "tcp": 3, "direction": "down"})
    udp = parse_event({"id": "u", "type": "load", "target": "host1", "udp": "75%", "direction": "up"})
    groups = [effects_of(event, racks.targets_of(event)) for event in (slow, flow, udp)]
    now = cluster(racks, topology, groups)
    assert now.racks[0].uplink_Bps == 1.25 * RATE
    assert now.racks[1].uplink_Bps == 2 * RATE
    assert (now.hosts[0].uplink_Bps, now.hosts[0].downlink_Bps) == (RATE, RATE / 4)
    assert now.hosts[1].uplink_Bps == RATE / 4
    assert cluster(load_scenario("wan4"), plan(load_scenario("wan4"), relay=True), ()).alpha_s > 0.02
    assert {name for group in groups for effect in group for name in effect.link_names} <= {
        link.name for link in now.links
    }
