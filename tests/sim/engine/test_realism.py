"""Corrections to the fluid model: each changes what it says, and nothing when off."""

from __future__ import annotations

import pytest

from headway.errors import UsageError
from headway.sim.engine.fabric import star
from headway.sim.engine.loop import Loop
from headway.sim.engine.loss import MSS_BYTES
from headway.sim.engine.network import Network
from headway.sim.engine.realism import Realism, SlowStart


def fan_in(senders: int, realism: Realism, *, flows_each: int = 1) -> Network:
    """`senders` hosts send to one, endlessly, for a second."""
    loop = Loop()
    network = Network(loop, star(senders + 1, 10.0), realism)
    for sender in range(1, senders + 1):
        for _ in range(flows_each):
            network.start(sender, 0, float("inf"))
    loop.run(until_s=1.0)
    return network


@pytest.mark.parametrize("senders", [1, 2, 3, 8])
def test_incast_costs_what_the_planners_model_says(senders: int) -> None:
    downlink = senders + 1
    part = 1 / (1 + 0.3 * (1 - 2 / senders)) if senders > 2 else 1.0
    for flows_each in (1, 3):
        network = fan_in(senders, Realism(incast=0.3), flows_each=flows_each)
        assert network.carried_bytes(downlink) == pytest.approx(10.0 * part, rel=1e-9)
        assert network.full(downlink)
        assert network.capacity_Bps(downlink) == 10.0
    assert fan_in(senders, Realism()).carried_bytes(downlink) == pytest.approx(10.0, rel=1e-9)


def test_incast_ends_with_its_senders_and_follows_the_capacity() -> None:
    loop = Loop()
    network = Network(loop, star(5, 10.0), Realism(incast=1.0))
    flows = [network.start(sender, 0, float("inf")) for sender in (1, 2, 3, 4)]
    loop.run(until_s=1.0)
    assert sum(network.rate_Bps(flow) for flow in flows) == pytest.approx(10 / 1.5)
    network.set_capacity(5, 20.0)
    loop.run(until_s=2.0)
    assert sum(network.rate_Bps(flow) for flow in flows) == pytest.approx(20 / 1.5)
    network.stop(flows[0])
    network.stop(flows[1])
    loop.run(until_s=3.0)
    assert sum(network.rate_Bps(flow) for flow in flows[2:]) == pytest.approx(20.0)


def time_of(
    size_bytes: float, rate_Bps: float, slow_start: SlowStart | None, *, cap_Bps: float = float("inf")
) -> float:
    """One flow between two hosts, 1 ms apart."""
    loop = Loop()
    network = Network(loop, star(2, rate_Bps, latency_s=0.5e-3), Realism(slow_start=slow_start))
    ends: list[float] = []
    network.start(0, 1, size_bytes, cap_Bps=cap_Bps, on_sent=lambda: ends.append(loop.now_s))
    loop.run()
    return ends[0]


def test_slow_start_doubles_each_round_trip_until_it_no_longer_binds() -> None:
    slow = SlowStart(segments=10, base_rtt_s=1e-3)
    rtt_s, window = 3e-3, 10 * MSS_BYTES
    rate_Bps = 6 * window / rtt_s
    assert time_of(window / 2, rate_Bps, slow) == pytest.approx(rtt_s / 2, rel=1e-9)
    assert time_of(5 * window, rate_Bps, slow) == pytest.approx((2 + 2 / 4) * rtt_s, rel=1e-9)
    # 1, 2, 4 windows; then 8 would fit but the link gives 6, for good.
    assert time_of(100 * window, rate_Bps, slow) == pytest.approx((3 + 93 / 6) * rtt_s, rel=1e-9)
    assert time_of(100 * window, rate_Bps, None) == pytest.approx(100 / 6 * rtt_s, rel=1e-9)
    assert time_of(window / 2, rate_Bps, SlowStart(segments=1, base_rtt_s=1e-3)) > rtt_s


def test_slow_start_leaves_a_flows_own_cap() -> None:
    slow = SlowStart(segments=10, base_rtt_s=1e-3)
    rtt_s, window = 3e-3, 10 * MSS_BYTES
    found_s = time_of(10 * window, 100 * window / rtt_s, slow, cap_Bps=1.5 * window / rtt_s)
    assert found_s == pytest.approx((1 + 9 / 1.5) * rtt_s, rel=1e-9)


def test_flow_on_one_host_starts_at_once() -> None:
    loop = Loop()
    network = Network(loop, star(2, 1.0), Realism(slow_start=SlowStart()))
    network.start(0, 0, 1e12)
    loop.run()
    assert loop.now_s == 0.0


@pytest.mark.parametrize(
    "make", [lambda: Realism(incast=-0.1), lambda: SlowStart(segments=0), lambda: SlowStart(10, 0.0)]
)
def test_impossible_settings_are_the_users_mistake(make: type) -> None:
    with pytest.raises(UsageError, match="cannot be"):
        make()
