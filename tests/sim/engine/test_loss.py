"""Loss as a cap on the flows that cross a link."""

from __future__ import annotations

import math

import pytest

from headway.errors import HeadwayError
from headway.sim.engine.fabric import star
from headway.sim.engine.loop import Loop
from headway.sim.engine.loss import either, tcp_limit_Bps
from headway.sim.engine.network import Network


def test_the_limit_is_mathis_formula() -> None:
    assert tcp_limit_Bps(0.005, 0.02) == pytest.approx(1448 / 0.04 * math.sqrt(1.5) / math.sqrt(0.005))
    assert tcp_limit_Bps(0.02, 0.02) == tcp_limit_Bps(0.005, 0.02) / 2
    assert tcp_limit_Bps(0.005, 0.04) == tcp_limit_Bps(0.005, 0.02) / 2


def test_without_loss_or_latency_there_is_none() -> None:
    assert tcp_limit_Bps(0.0, 0.02) == math.inf
    assert tcp_limit_Bps(0.1, 0.0) == math.inf


def test_losses_on_a_way_are_independent() -> None:
    assert either([]) == 0
    assert either([0.1, 0.0, 0.1]) == pytest.approx(0.19)


def test_loss_caps_flows_that_run_and_flows_that_begin_and_is_taken_back() -> None:
    network = Network(Loop(), star(3, 10e6, latency_s=0.01))
    running = network.start(0, 1, math.inf)
    network.set_loss(0, 0.01)
    begun = network.start(0, 1, math.inf)
    other = network.start(2, 1, math.inf)
    network.loop.run(1)
    limit_Bps = tcp_limit_Bps(0.01, 0.02)
    assert network.rate_Bps(running) == network.rate_Bps(begun) == pytest.approx(limit_Bps)
    assert network.rate_Bps(other) == pytest.approx(10e6 - 2 * limit_Bps)
    network.set_loss(0, 0.0)
    network.loop.run(2)
    assert network.rate_Bps(running) == network.rate_Bps(other) == pytest.approx(10e6 / 3)


def test_a_flow_keeps_its_own_cap_beside_that_of_loss() -> None:
    network = Network(Loop(), star(2, 10e6, latency_s=0.01))
    flow = network.start(0, 1, math.inf, cap_Bps=1e5)
    network.set_loss(0, 0.01)
    network.loop.run(1)
    assert network.rate_Bps(flow) == 1e5
    network.set_cap(flow, 1e9)
    network.loop.run(2)
    assert network.rate_Bps(flow) == pytest.approx(tcp_limit_Bps(0.01, 0.02))
    network.set_loss(0, 0.0)
    network.loop.run(3)
    assert network.rate_Bps(flow) == 10e6


def test_a_link_cannot_lose_everything() -> None:
    with pytest.raises(HeadwayError, match="uplink of host0: a loss of 1"):
        Network(Loop(), star(2, 1.0)).set_loss(0, 1.0)
