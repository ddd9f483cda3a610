"""Samples of simulated connections: bytes, busy time and queues as a live transport would tell them."""

from __future__ import annotations

from collections import defaultdict
from functools import partial

import pytest

from headway.collectives import families
from headway.collectives.plan import Collective
from headway.sim.engine.fabric import Fabric, star
from headway.sim.engine.loop import Loop
from headway.sim.engine.network import Network
from headway.sim.execution import collective
from headway.sim.execution.collective import Execution
from headway.sim.execution.samples import LEAST_ROUND_TRIP_S, STRETCH_S, FlowSampler
from tests.sim.operations import FREE, RATE_Bps, uneven_star

SIZE_BYTES = 4_000_000


def sampled(
    fabric: Fabric, execution: Execution, *, hosts: tuple[int, ...] = (0, 1, 2, 3)
) -> tuple[FlowSampler, Network]:
    """A ring of 4 ranks that has run once, as operation 7."""
    network = Network(Loop(), fabric)
    sampler = FlowSampler(network, hosts)
    collective.start(
        network, families.ring(range(4)), Collective.ALL_REDUCE, SIZE_BYTES, hosts=hosts, execution=execution,
        costs=FREE, on_flow=partial(sampler.flow_started, 7),
    )  # fmt: skip
    network.loop.run()
    return sampler, network


@pytest.mark.parametrize("execution", list(Execution))
def test_all_bytes_are_told_in_short_stretches(execution: Execution) -> None:
    sampler, _ = sampled(star(4, RATE_Bps), execution)
    samples = sampler.take(7)
    per_pair: dict[tuple[int, int], int] = defaultdict(int)
    for sample in samples:
        assert sample.operation == 7
        assert 0 < sample.end_s - sample.start_s <= STRETCH_S * (1 + 1e-9)
        assert sample.busy_s is not None
        assert sample.busy_s <= (sample.end_s - sample.start_s) * (1 + 1e-9)
        per_pair[sample.src, sample.dst] += sample.acked_bytes
    assert set(per_pair) == {(r, (r + d) % 4) for r in range(4) for d in (1, 3)}
    for told_bytes in per_pair.values():
        assert told_bytes == pytest.approx(0.75 * SIZE_BYTES, rel=0.01)
    assert sampler.take(7) == []


@pytest.mark.parametrize("execution", [Execution.PIECES, Execution.STREAMS])
def test_the_rate_of_a_slow_link_shows_and_so_does_its_queue(execution: Execution) -> None:
    slow = uneven_star([RATE_Bps] * 4, [RATE_Bps / 4, *[RATE_Bps] * 3])
    samples = sampled(slow, execution)[0].take(7)
    into = [sample for sample in samples if sample.dst == 0 and sample.acked_bytes > 10_000]
    rates = sorted(sample.rate_Bps or 0.0 for sample in into)
    # Two connections share the slow downlink.
    assert rates[len(rates) // 2] == pytest.approx(RATE_Bps / 8, rel=0.2)
    queued = [sample for sample in into if sample.queued]
    assert len(queued) > 0.8 * len(into)


def test_a_way_without_load_has_the_least_round_trip() -> None:
    network = Network(Loop(), star(2, RATE_Bps, latency_s=1e-3))
    sampler = FlowSampler(network, (0, 1))
    flow = network.start(0, 1, 1_000_000, cap_Bps=RATE_Bps / 10)
    sampler.flow_started(0, 0, 1, flow)
    network.loop.run()
    for sample in sampler.take(0):
        assert sample.min_rtt_s == pytest.approx(LEAST_ROUND_TRIP_S + 4e-3)
        assert sample.rtt_s == sample.min_rtt_s
        assert sample.acked_bytes < 1000 or sample.rate_Bps == pytest.approx(RATE_Bps / 10, rel=0.01)


def test_ranks_of_one_host_are_not_told_of() -> None:
    sampler, _ = sampled(star(2, RATE_Bps), Execution.STREAMS, hosts=(0, 0, 1, 1))
    assert {(sample.src, sample.dst) for sample in sampler.take(7)} == {(1, 2), (2, 1), (3, 0), (0, 3)}


def test_a_flow_that_is_stuck_keeps_no_clock_going() -> None:
    network = Network(Loop(), star(2, RATE_Bps))
    sampler = FlowSampler(network, (0, 1))
    network.set_capacity(0, 0.0)
    sampler.flow_started(0, 0, 1, network.start(0, 1, 1e6))
    network.loop.run()
    assert network.loop.now_s == STRETCH_S
