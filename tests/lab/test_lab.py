"""Labs of real namespaces: they are what the scenario says, and nothing is left of them."""

from __future__ import annotations

import time

import pytest

from headway.cluster.model import LinkKind
from headway.errors import UsageError
from headway.lab import state
from headway.lab.files import load_scenario, parse_event, parse_scenario
from headway.lab.lab import Lab
from headway.lab.scenario import Scenario
from headway.lab.topology import LinkId
from tests.lab.programs import round_trip_s, throughput_Bps
from tests.lab.remains import remains

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("privileged")]

RATE = 12.5e6
PAYLOAD = 1448 / 1514


def small(**fields: object) -> Scenario:
    return parse_scenario({"name": "small", "hosts": 3, "access": "100Mbit", **fields}, where="test")


def test_a_lab_comes_and_goes_without_a_trace() -> None:
    with Lab.up(load_scenario("star8"), impair_all=True) as lab:
        prefix = lab.record.prefix
        assert [host.name for host in lab.hosts] == [f"host{i}" for i in range(8)]
        assert remains(prefix)
    assert remains(prefix) == []
    lab.close()


def test_what_cannot_be_built_leaves_nothing() -> None:
    with pytest.raises(UsageError, match="congestion control 'tardis'"):
        Lab.up(small(congestion_control="tardis"))
    assert not [record for record in state.labs() if record.scenario == "small"]


def test_two_labs_do_not_meet() -> None:
    with Lab.up(small()) as one, Lab.up(small()) as two:
        assert one.hosts[0].address == two.hosts[0].address
        throughput_Bps(one, one.hosts[0], one.hosts[1], duration_s=0.3)
        assert one.counters()[LinkId("host0", "up")].bytes > 1e6
        assert two.counters()[LinkId("host0", "up")].bytes < 1e5
        one.close()
        assert throughput_Bps(two, two.hosts[0], two.hosts[1], duration_s=0.3) > 0


def test_commands_see_their_host() -> None:
    lines = []
    with Lab.up(small()) as lab:
        control = "cat /proc/sys/net/ipv4/tcp_congestion_control"
        script = f"hostname; getent hosts 10.0.1.3 | awk '{{print $2}}'; ls /sys/class/net; {control}"
        result = lab.run_ranks(
            ["sh", "-c", f"({script}; echo $GLOO_SOCKET_IFNAME $HEADWAY_INTERFACE) | xargs"],
            on_line=lambda host, line: lines.append(f"{host}: {line}"),
        )
    assert result.ok
    assert sorted(lines) == [f"host{i}: host{i} host2 eth0 lo cubic eth0 eth0" for i in range(3)]


@pytest.mark.parametrize("ipv6", [False, True])
def test_tcp_gets_the_shaped_rate_in_each_direction(ipv6: bool) -> None:
    with Lab.up(small(access={"up": "50Mbit", "down": "100Mbit"})) as lab:
        a, b, _ = lab.hosts
        rate = throughput_Bps(lab, a, b, ipv6=ipv6)
        assert 0.7 * RATE / 2 < rate < 1.05 * RATE / 2


def test_a_rate_event_holds_and_is_undone() -> None:
    event = parse_event({"id": "slow", "type": "bw", "target": "host1", "direction": "down", "rate": "20%"})
    with Lab.up(small()) as lab:
        a, b, _ = lab.hosts
        lab.apply(event)
        with pytest.raises(UsageError, match="in force already"):
            lab.apply(event)
        assert lab.cluster(with_events=True).hosts[1].downlink_Bps == RATE / 5
        assert throughput_Bps(lab, a, b) < 1.2 * RATE / 5
        lab.undo("slow")
        with pytest.raises(UsageError, match="not in force"):
            lab.undo("slow")
        assert throughput_Bps(lab, a, b) > 0.6 * RATE


@pytest.mark.parametrize("direction", ["up", "down"])
def test_udp_load_takes_its_share_of_one_link_and_ends(direction: str) -> None:
    event = parse_event({"id": "l", "type": "load", "target": "host1", "direction": direction, "udp": "60%"})
    link = LinkId("host1", "up" if direction == "up" else "down")
    with Lab.up(small()) as lab:
        lab.warm_up()
        lab.apply(event)
        begun, before = time.monotonic(), lab.counters()
        time.sleep(1.0)
        span, after = time.monotonic() - begun, lab.counters()
        rates = {key: (after[key].bytes - before[key].bytes) / span for key in after}
        assert 0.45 * RATE < rates.pop(link) < 0.75 * RATE
        assert max(rates.values()) < 0.01 * RATE
        ends = lab.hosts[:2] if direction == "down" else lab.hosts[1::-1]
        assert throughput_Bps(lab, *ends) < 0.6 * RATE
        lab.undo(event)
        before = lab.counters()
        time.sleep(0.2)
        assert lab.counters()[link].bytes - before[link].bytes < 0.02 * RATE


def test_tcp_load_fills_a_link_and_ends() -> None:
    event = parse_event({"id": "l", "type": "load", "target": "host1", "direction": "both", "tcp": 2})
    with Lab.up(small()) as lab:
        lab.apply(event)
        before = lab.counters()
        time.sleep(1.0)
        after = lab.counters()
        for way in (LinkId("host1", "up"), LinkId("host1", "down")):
            assert after[way].bytes - before[way].bytes > 0.5 * RATE
        lab.undo(event)
        time.sleep(0.3)
        before = lab.counters()
        time.sleep(0.2)
        assert lab.counters()[LinkId("host1", "down")].bytes - before[LinkId("host1", "down")].bytes < 0.02 * RATE


def test_latency_adds_up_and_a_delay_event_adds_to_it() -> None:
    event = parse_event({"id": "far", "type": "delay", "target": "host1", "delay": "15ms", "direction": "up"})
    with Lab.up(small(latency="5ms")) as lab:
        a, b, _ = lab.hosts
        assert 0.020 < round_trip_s(lab, a, b) < 0.030
        lab.apply(event)
        assert 0.035 < round_trip_s(lab, a, b) < 0.045
        lab.undo(event)
        assert round_trip_s(lab, a, b) < 0.030


def test_wan4_is_40_ms_around_and_carries_its_rate() -> None:
    with Lab.up(load_scenario("wan4")) as lab:
        a, b = lab.hosts[1:3]
        assert 0.040 < round_trip_s(lab, a, b) < 0.050
        assert 0.5 * 6.25e6 < throughput_Bps(lab, a, b, duration_s=4) < 1.1 * 6.25e6


def test_loss_loses_packets_and_only_where_it_was_prepared() -> None:
    event = parse_event({"id": "bad", "type": "loss", "target": "host1", "direction": "down", "loss": "20%"})
    with Lab.up(small()) as plain, pytest.raises(UsageError, match="not built for delay or loss"):
        plain.apply(event)
    with Lab.up(small(), impair_all=True) as lab:
        a, b, _ = lab.hosts
        good = throughput_Bps(lab, a, b)
        lab.apply(event)
        assert throughput_Bps(lab, a, b) < 0.5 * good
        lab.undo(event)


def test_racks_are_joined_by_both_spines_and_a_slow_path_is_slow() -> None:
    racks = {"racks": 2, "spines": 2, "uplink": "100Mbit"}
    with Lab.up(small(hosts=4, racks=racks)) as lab:
        a, b, c, d = lab.hosts
        for source, sink in ((a, c), (c, a), (a, b)):
            assert throughput_Bps(lab, source, sink, duration_s=0.7) > 0.5 * RATE
        assert throughput_Bps(lab, b, d, duration_s=0.7, ipv6=True) > 0.5 * RATE
        for _ in range(8):
            throughput_Bps(lab, a, c, duration_s=0.02)
        counters = lab.counters()
        assert counters[LinkId("host0", "up")].bytes > 1e6
        assert all(counters[LinkId("rack0", "up", path)].bytes > 30_000 for path in (0, 1))
        idle = lab.cluster()
        assert [link.capacity_Bps for link in idle.links if link.kind is LinkKind.RACK_UPLINK] == [2 * RATE] * 2
        lab.apply(parse_event({"id": "s", "type": "bw", "target": "rack0", "rate": "10%"}))
        assert throughput_Bps(lab, a, c) < 0.2 * RATE


def test_load_on_a_rack_s_uplink_stays_on_it() -> None:
    racks = {"racks": 2, "spines": 2, "uplink": "100Mbit"}
    event = parse_event({"id": "r", "type": "load", "target": "rack0", "direction": "both", "udp": "50%"})
    with Lab.up(small(hosts=4, racks=racks)) as lab:
        lab.warm_up()
        lab.apply(event)
        begun, before = time.monotonic(), lab.counters()
        time.sleep(0.7)
        span, after = time.monotonic() - begun, lab.counters()
        for link, now in after.items():
            rate = (now.bytes - before[link].bytes) / span
            if link.owner == "rack0":
                assert 0.35 * RATE < rate < 0.65 * RATE
            else:
                assert rate < 0.01 * RATE
