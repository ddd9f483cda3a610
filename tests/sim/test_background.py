"""Events on a simulated network: what each kind does to each kind of target, in step with the lab's sequence."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.decide.journal import EventRecord
from headway.errors import UsageError
from headway.lab.effects import effects_of, rates_left
from headway.lab.files import load_scenario, parse_scenario, shipped
from headway.lab.scenario import Scenario
from headway.lab.steps import steps
from headway.sim.background import Background
from headway.sim.engine.fabric import star
from headway.sim.engine.loop import Loop
from headway.sim.engine.loss import tcp_limit_Bps
from headway.sim.engine.network import Network
from headway.sim.topologies import PAYLOAD_SHARE, cluster_of, fabric_of, wires_of

RATE = 25e6 * PAYLOAD_SHARE  # 200 Mbit/s


def scenario(*events: dict[str, Any], **fields: Any) -> Scenario:
    return parse_scenario(
        {"name": "s", "hosts": 4, "access": "200Mbit", "events": list(events), **fields}, where="test"
    )


def racks(*events: dict[str, Any]) -> Scenario:
    return scenario(*events, racks={"racks": 2, "spines": 2, "uplink": "200Mbit", "latency": "1ms"})


class Played:
    """A scenario's events on a network of their own."""

    def __init__(self, made: Scenario) -> None:
        self.loop = Loop()
        self.network = Network(self.loop, fabric_of(made))
        self.records: list[EventRecord] = []
        self.background = Background(self.network, made, self.records.append)
        self.background.start()

    def capacity_Bps(self, link: str) -> float:
        return self.network.capacity_Bps(self.network.fabric.link_index[link])

    def latency_s(self, src: int, dst: int) -> float:
        """Of an empty message that begins now."""
        begin_s, end_s = self.loop.now_s, list[float]()
        self.network.start(src, dst, 0, on_done=lambda: end_s.append(self.loop.now_s))
        self.loop.run(begin_s + 0.5)
        return end_s[0] - begin_s

    def rates_Bps(self, *pairs: tuple[int, int]) -> list[float]:
        """Of endless flows that begin now."""
        flows = [self.network.start(src, dst, math.inf) for src, dst in pairs]
        self.loop.run(self.loop.now_s + 1e-3)
        rates = [self.network.rate_Bps(flow) for flow in flows]
        for flow in flows:
            self.network.stop(flow)
        return rates


def test_without_events_nothing_changes() -> None:
    played = Played(scenario())
    assert played.capacity_Bps("uplink of host1") == RATE
    assert played.records == []


def test_bw_on_a_host_is_a_share_or_a_rate_of_the_wire_and_the_least_counts() -> None:
    played = Played(
        scenario(
            {"id": "a", "type": "bw", "target": "host1", "rate": "50%", "direction": "up", "duration": "2s"},
            {"id": "b", "type": "bw", "target": "host1", "rate": "100Mbit", "direction": "down"},
            {"id": "c", "type": "bw", "target": "host1", "rate": "25%", "direction": "up", "duration": "1s"},
        )
    )
    assert played.capacity_Bps("uplink of host1") == pytest.approx(RATE / 4)
    assert played.capacity_Bps("downlink of host1") == pytest.approx(RATE / 2)
    assert played.capacity_Bps("uplink of host0") == RATE
    played.loop.run(1.5)
    assert played.capacity_Bps("uplink of host1") == pytest.approx(RATE / 2)
    played.loop.run(2.5)
    assert played.capacity_Bps("uplink of host1") == RATE


def test_bw_on_a_rack_is_on_all_its_links_or_on_one_path() -> None:
    every = Played(racks({"id": "a", "type": "bw", "target": "rack0", "rate": "50%"}))
    one = Played(racks({"id": "a", "type": "bw", "target": "rack0", "rate": "50%", "path": 1}))
    for way, spine in itertools.product(("up", "down"), range(2)):
        assert every.capacity_Bps(f"{way}link of rack0 by spine {spine}") == RATE / 2
        assert one.capacity_Bps(f"{way}link of rack0 by spine {spine}") == RATE / (1 + spine)
        assert every.capacity_Bps(f"{way}link of rack1 by spine {spine}") == RATE


def test_delays_add_and_jitter_counts_half() -> None:
    played = Played(
        scenario(
            {"id": "a", "type": "delay", "target": "host1", "delay": "3ms", "direction": "up"},
            {"id": "b", "type": "delay", "target": "hosts", "delay": "1ms", "jitter": "4ms", "direction": "up"},
        )
    )
    assert played.latency_s(1, 0) == pytest.approx(100e-6 + 3e-3 + 1e-3 + 2e-3)
    assert played.latency_s(0, 1) == pytest.approx(100e-6 + 1e-3 + 2e-3)


def test_delay_on_a_rack() -> None:
    played = Played(racks({"id": "a", "type": "delay", "target": "rack0", "delay": "5ms", "direction": "up"}))
    assert played.latency_s(0, 3) == pytest.approx(100e-6 + 2e-3 + 5e-3)
    assert played.latency_s(3, 0) == pytest.approx(100e-6 + 2e-3)


def test_loss_caps_the_flows_that_cross() -> None:
    event = {"id": "a", "type": "loss", "target": "host1", "loss": "1%", "direction": "down", "duration": "1s"}
    played = Played(scenario(event, {**event, "id": "b"}, latency="10ms"))
    across, beside = played.rates_Bps((0, 1), (2, 3))
    assert across == pytest.approx(tcp_limit_Bps(1 - 0.99**2, 0.0201))
    assert beside == RATE
    played.loop.run(2)
    assert played.rates_Bps((0, 1)) == [RATE]


def test_udp_takes_its_rates_from_the_link_first_and_leaves_a_little() -> None:
    load = {"id": "a", "type": "load", "target": "host1", "direction": "down", "udp": "75%"}
    assert Played(scenario(load)).rates_Bps((0, 1), (2, 1)) == [pytest.approx(RATE / 8)] * 2
    both = Played(scenario(load, {**load, "id": "b", "udp": "30Mbit"}))
    assert both.capacity_Bps("downlink of host1") == pytest.approx(RATE * 0.1)
    flood = Played(scenario(load, {**load, "id": "b", "udp": "200Mbit"}))
    assert flood.capacity_Bps("downlink of host1") == pytest.approx(RATE * 0.02)
    slowed = Played(scenario({**load, "udp": "25%"}, {"id": "b", "type": "bw", "target": "host1", "rate": "50%"}))
    assert slowed.capacity_Bps("downlink of host1") == pytest.approx(RATE * 0.25)


def test_udp_on_a_rack_is_on_each_of_its_links() -> None:
    played = Played(racks({"id": "a", "type": "load", "target": "rack0", "direction": "up", "udp": "50%"}))
    assert [played.capacity_Bps(f"uplink of rack0 by spine {spine}") for spine in range(2)] == [RATE / 2] * 2


def test_tcp_load_shares_the_link_with_each_flow() -> None:
    load = {"id": "a", "type": "load", "target": "host1", "direction": "down", "tcp": 3, "duration": "1s"}
    played = Played(scenario(load))
    assert played.rates_Bps((0, 1)) == [pytest.approx(RATE / 4)]
    assert played.rates_Bps((0, 1), (2, 1)) == [pytest.approx(RATE / 5)] * 2
    assert played.rates_Bps((1, 0)) == [RATE]
    assert played.capacity_Bps("downlink of host1") == RATE
    played.loop.run(1.5)
    assert played.rates_Bps((0, 1)) == [RATE]


def test_tcp_load_takes_what_a_slower_flow_leaves() -> None:
    load = {"id": "a", "type": "load", "target": "host1", "direction": "down", "tcp": 1}
    played = Played(scenario(load, {"id": "b", "type": "bw", "target": "host0", "rate": "10%", "direction": "up"}))
    assert played.rates_Bps((0, 1)) == [pytest.approx(RATE / 10)]
    carried = played.network.carried_bytes(played.network.fabric.link_index["downlink of host1"])
    assert carried == pytest.approx(RATE * played.loop.now_s)


def test_tcp_load_on_a_rack_is_on_each_of_its_links() -> None:
    played = Played(racks({"id": "a", "type": "load", "target": "rack0", "direction": "up", "tcp": 1}))
    played.loop.run(1.0)
    index = played.network.fabric.link_index
    assert [played.network.carried_bytes(index[f"uplink of rack0 by spine {i}"]) for i in range(2)] == [RATE, RATE]


@pytest.mark.parametrize(
    "pattern",
    [
        {"on": "300ms", "off": "200ms"},
        {"on": "300ms", "off": "200ms", "seed": 4},
        {"target": "hosts", "move": "700ms"},
        {"target": "hosts", "move": "700ms", "seed": 4},
        {"start": "1s", "duration": "2s"},
    ],
)
def test_patterns_are_in_step_with_the_lab_s(pattern: dict[str, Any]) -> None:
    made = scenario({"id": "a", "type": "load", "target": "host1", "udp": "50%", **pattern})
    played = Played(made)
    played.loop.run(5.0)
    due = list(itertools.takewhile(lambda step: step.at_s <= 5.0, itertools.islice(steps(made), 1000)))
    assert played.records == [step.record(step.at_s) for step in due]
    assert len(played.records) >= 2


def test_another_seed_is_another_course() -> None:
    def course(seed: int) -> list[EventRecord]:
        played = Played(
            scenario(
                {"id": "a", "type": "load", "target": "host1", "udp": "50%", "on": "1s", "off": "1s", "seed": seed}
            )
        )
        played.loop.run(20.0)
        return played.records

    assert course(1) == course(1) != course(2)


def test_the_timeline_s_zero_is_its_start() -> None:
    made = scenario({"id": "a", "type": "bw", "target": "host1", "rate": "50%", "start": "1s"})
    loop = Loop()
    network, records = Network(loop, fabric_of(made)), list[EventRecord]()
    background = Background(network, made, records.append)
    loop.at(3.0, background.start)
    loop.run(10.0)
    assert [record.t_s for record in records] == [4.0]


def test_records_have_the_lab_s_words() -> None:
    played = Played(
        scenario({"id": "a", "type": "load", "target": ["host1", "host2"], "udp": "50%", "direction": "up"})
    )
    (record,) = played.records
    assert (record.event, record.phase, record.t_s) == ("a", "begin", 0.0)
    assert record.what == "uplink of host1 loaded with UDP at 50 %; uplink of host2 loaded with UDP at 50 %"
    assert record.links == ["uplink of host1", "uplink of host2"]


def test_stop_takes_back_what_is_in_force_and_says_so() -> None:
    played = Played(load_scenario("star8-tcp-down"))
    assert played.rates_Bps((0, 3)) == [pytest.approx(RATE / 2)]
    played.background.stop()
    played.background.stop()
    assert played.rates_Bps((0, 3)) == [RATE]
    assert [record.phase for record in played.records] == ["begin", "end"]
    assert played.background.in_force == ()


def test_after_stop_nothing_begins() -> None:
    played = Played(load_scenario("star8-demo"))
    played.background.stop()
    played.loop.run(100.0)
    assert played.records == []


def test_an_event_on_a_link_that_the_fabric_lacks_is_refused() -> None:
    made = racks({"id": "a", "type": "bw", "target": "rack0", "rate": "50%"})
    with pytest.raises(UsageError, match=r"s: event 'a': star of 4 has no uplink of rack0 by spine 0"):
        Background(Network(Loop(), star(4, 1.0)), made, lambda record: None)


@pytest.mark.parametrize("name", shipped())
def test_what_is_in_force_is_what_planners_are_told(name: str) -> None:
    """At all times the capacities agree with the lab's fold, and the clairvoyant's cluster with both."""
    made = load_scenario(name)
    played = Played(made)
    fabric = played.network.fabric
    for until_s in (0.0, 15.0, 30.5, 61.0):
        played.loop.run(until_s)
        left = rates_left(wires_of(made), played.background.in_force)
        for wire in wires_of(made).links:
            index = fabric.link_index[wire.name]
            flows = sum(
                effect.event.tcp or 0
                for effects in played.background.in_force
                for effect in effects
                if effect.event.type == "load" and effect.concerns(wire.id)
            )
            assert played.network.capacity_Bps(index) / (flows + 1) == pytest.approx(left[wire.id] * PAYLOAD_SHARE)
        if len(made.host_names) > 8:
            break
        clairvoyant = cluster_of(made, in_force=played.background.in_force)
        assert clairvoyant.hosts[3].downlink_Bps == pytest.approx(
            left[next(w.id for w in wires_of(made).links if w.name == f"downlink of {made.host_names[3]}")]
            * PAYLOAD_SHARE
        )


EVENTS = st.one_of(
    st.fixed_dictionaries({"type": st.just("bw"), "rate": st.sampled_from(["10%", "50%", "80Mbit"])}),
    st.fixed_dictionaries(
        {"type": st.just("delay"), "delay": st.just("1ms"), "jitter": st.sampled_from(["0ms", "1ms"])}
    ),
    st.fixed_dictionaries({"type": st.just("loss"), "loss": st.sampled_from(["1%", "20%"])}),
    st.fixed_dictionaries({"type": st.just("load"), "udp": st.sampled_from(["50%", "150Mbit"])}),
    st.fixed_dictionaries({"type": st.just("load"), "tcp": st.integers(1, 4)}),
    st.fixed_dictionaries(
        {"type": st.just("load"), "tcp": st.just(2), "move": st.just("2s"), "seed": st.integers(0, 3)}
    ),
    st.fixed_dictionaries({"type": st.just("load"), "udp": st.just("50%"), "on": st.just("1s"), "off": st.just("2s")}),
)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            EVENTS,
            st.integers(0, 9),
            st.integers(1, 20),
            st.sampled_from(["host0", "hosts", "rack1", "racks"]),
            st.sampled_from(["up", "down", "both"]),
        ),
        max_size=6,
    )
)
def test_whatever_was_in_force_everything_is_as_before_in_the_end(drawn: list[tuple[Any, int, int, str, str]]) -> None:
    made = racks(
        *(
            {
                "id": f"e{number}",
                "start": f"{start}s",
                "duration": f"{lasts}s",
                "target": target,
                "direction": way,
                **kind,
            }
            for number, (kind, start, lasts, target, way) in enumerate(drawn)
        )
    )
    played = Played(made)
    flow = played.network.start(0, 3, math.inf)
    played.loop.run(5.0)
    folded = rates_left(wires_of(made), played.background.in_force)
    assert played.background.in_force or all(folded[wire.id] == wire.rate_Bps for wire in wires_of(made).links)
    played.loop.run(40.0)
    assert [played.network.capacity_Bps(i) for i in range(len(played.network.fabric.links))] == [RATE] * 16
    assert played.network.rate_Bps(flow) == pytest.approx(RATE)
    assert played.latency_s(0, 3) == pytest.approx(100e-6 + 2e-3)
    assert [record.phase for record in played.records].count("begin") * 2 == len(played.records)


def test_effects_of_one_event_at_several_targets_are_apart() -> None:
    made = scenario({"id": "a", "type": "load", "target": ["host1", "host2"], "tcp": 1, "direction": "down"})
    played = Played(made)
    assert played.background.in_force == (effects_of(made.events[0], ("host1", "host2")),)
    assert played.rates_Bps((0, 1), (3, 2)) == [pytest.approx(RATE / 2)] * 2


def test_rates_of_events_are_on_the_wire_whatever_the_fabric_keeps_for_payload() -> None:
    made = scenario({"id": "a", "type": "load", "target": "host1", "udp": "100Mbit"})
    network = Network(Loop(), star(4, 20e6))  # 25 MB/s on the wire where four fifths are payload
    Background(network, made, lambda record: None, payload_share=0.8).start()
    assert network.capacity_Bps(1) == pytest.approx(10e6)
    other = Network(Loop(), star(4, 20e6))
    Background(other, made, lambda record: None, payload_share=1.0).start()
    assert other.capacity_Bps(1) == pytest.approx(7.5e6)
