"""What the lab shows beyond fluids: bursts, pauses, lost UDP, foreign TCP. Each alone, and in closed forms."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest

from headway.collectives import families
from headway.collectives.plan import Collective
from headway.errors import UsageError
from headway.lab.files import load_scenario
from headway.sim.background import Background
from headway.sim.engine.fabric import star
from headway.sim.engine.loop import Loop
from headway.sim.engine.network import Network
from headway.sim.engine.realism import IDEAL, LAB, Realism
from headway.sim.execution import collective
from headway.sim.execution.collective import Execution
from headway.sim.execution.host_model import IDEAL_HOST, LAB_HOST, HostModel
from headway.sim.execution.pauses import Processor
from headway.sim.topologies import fabric_of
from tests.sim.operations import FREE, RATE_Bps


def chain_s(
    realism: Realism, *, pieces: int, host: HostModel = IDEAL_HOST, seed: int = 0, idle_s: float = 0.0
) -> float:
    """Pieces of 10 kB from one host to another, one operation after `idle_s`."""
    network = Network(Loop(), star(2, RATE_Bps), realism)
    ends: list[float] = []

    def begin() -> None:
        collective.start(
            network, families.chain(range(2)), Collective.REDUCE, pieces * 10_000, hosts=range(2), seed=seed,
            execution=Execution.PIECES, chunk_bytes=10_000, costs=FREE, host=host, on_done=ends.extend,
        )  # fmt: skip

    network.loop.at(idle_s, begin)
    network.loop.run()
    return max(ends) - idle_s


def test_a_full_bucket_lets_its_bytes_pass_at_once() -> None:
    bucket = replace(IDEAL, burst_bytes=30_000)
    assert chain_s(bucket, pieces=3) == pytest.approx(0.0, abs=1e-12)
    # Both links spend their tokens on the same bytes.
    assert chain_s(bucket, pieces=10) == pytest.approx(70_000 / RATE_Bps, rel=1e-9)
    assert chain_s(bucket, pieces=10, idle_s=9.0) == pytest.approx(70_000 / RATE_Bps, rel=1e-9)


def test_a_bucket_fills_while_the_link_is_idle() -> None:
    network = Network(Loop(), star(2, RATE_Bps), replace(IDEAL, burst_bytes=30_000))
    times_s: list[float] = []

    def once(begin_s: float) -> None:
        def done(ends_s: Sequence[float]) -> None:
            times_s.append(max(ends_s) - begin_s)

        collective.start(
            network, families.chain(range(2)), Collective.REDUCE, 100_000, hosts=range(2), costs=FREE, host=IDEAL_HOST,
            execution=Execution.PIECES, chunk_bytes=10_000, on_done=done,
        )  # fmt: skip

    for begin_s in (0.0, 70_000 / RATE_Bps + 0.4e-3, 9.0):
        network.loop.at(begin_s, partial(once, begin_s))
    network.loop.run()
    left = [70_000 / RATE_Bps, (100_000 - 0.4e-3 * RATE_Bps) / RATE_Bps, 70_000 / RATE_Bps]
    assert times_s == pytest.approx(left, rel=1e-6)


def test_a_processor_without_pauses_does_one_thing_after_the_other() -> None:
    processor = Processor(pauses_per_s=0, pause_s=0, draw=random.Random(0), now_s=0.0)
    assert [processor.done_s(0.0, 1.0), processor.done_s(0.5, 1.0), processor.done_s(7.0, 1.0)] == [1.0, 2.0, 8.0]


def test_pauses_take_their_part_of_the_time() -> None:
    processor = Processor(pauses_per_s=50, pause_s=3e-3, draw=random.Random(1), now_s=0.0)
    end_s = 0.0
    for _ in range(200_000):
        end_s = processor.done_s(end_s, 1e-4)
    assert end_s == pytest.approx(20 * (1 + 50 * 3e-3), rel=0.03)


def test_a_small_send_buffer_runs_dry_in_a_pause_and_a_large_one_does_not() -> None:
    away = HostModel(header_bytes=0, kernel_bytes=100_000, pauses_per_s=50, pause_s=5e-3)
    ideal_s = 400 * 10_000 / RATE_Bps
    small_s, large_s = (chain_s(IDEAL, pieces=400, host=replace(away, kernel_bytes=size)) for size in (1e5, 1e6))
    assert small_s > 1.01 * ideal_s
    assert large_s < small_s
    assert chain_s(IDEAL, pieces=400, host=away) == small_s
    assert chain_s(IDEAL, pieces=400, host=away, seed=1) != small_s


def ring_s(scenario: str, realism: Realism) -> float:
    """An all-reduce of 4 MB by a ring in one of the lab's scenarios."""
    played = load_scenario(scenario)
    network = Network(Loop(), fabric_of(played), realism)
    background = Background(network, played, lambda record: None)
    background.start()
    ends: list[float] = []

    def done(ends_s: object) -> None:
        ends.append(network.loop.now_s)
        network.loop.stop()

    collective.start(
        network, families.ring(range(8)), Collective.ALL_REDUCE, 4_000_000, hosts=range(8), costs=FREE, on_done=done,
        execution=Execution.STREAMS, chunk_bytes=0,
    )  # fmt: skip
    network.loop.run(60.0)
    return ends[0]


def test_lost_udp_is_tcps() -> None:
    lost = ring_s("star8-udp75-down", replace(IDEAL, udp_loss=0.2))
    # 0.25 of the link is left, and with a fifth of the 0.75 lost 0.4.
    latency_s = ring_s("star8", IDEAL) - 7e6 * 1514 / 1448 / 25e6
    assert lost - latency_s == pytest.approx((ring_s("star8-udp75-down", IDEAL) - latency_s) * 0.25 / 0.4, rel=1e-6)


def test_a_foreign_flow_may_weigh_more_and_keep_a_queue() -> None:
    plain_s = ring_s("star8-tcp-down", IDEAL)
    # Two flows of the ring end at the host: 2 of 3 parts of the link, and 2 of 4.
    assert ring_s("star8-tcp-down", replace(IDEAL, tcp_weight=2.0)) == pytest.approx(plain_s * 4 / 3, rel=0.01)
    assert ring_s("star8-tcp-down", replace(IDEAL, tcp_queue=True)) > plain_s + 0.019
    for realism in (replace(IDEAL, tcp_weight=2.0), replace(IDEAL, tcp_queue=True), replace(IDEAL, udp_loss=0.2)):
        assert ring_s("star8", realism) == ring_s("star8", IDEAL)


def test_incast_counts_from_as_many_sources_as_the_queue_holds() -> None:
    assert Realism(incast=0.5, incast_sources=4).incast_part(4) == 1.0
    assert Realism(incast=0.5, incast_sources=4).incast_part(8) == pytest.approx(1 / 1.25)


def test_the_labs_ring_of_16_mb_is_as_measured() -> None:
    # Median of 5 in the lab, idle: 1.227 s; 1.171 s is what the links' payload rate allows.
    network = Network(Loop(), fabric_of(load_scenario("star8")), LAB)
    ends: list[float] = []
    collective.start(
        network, families.ring(range(8)), Collective.ALL_REDUCE, 16_000_000, hosts=range(8), host=LAB_HOST,
        execution=Execution.PIECES, chunk_bytes=36864, on_done=ends.extend,
    )  # fmt: skip
    network.loop.run()
    assert max(ends) == pytest.approx(1.227, rel=0.05)


@pytest.mark.parametrize(
    "fields",
    [{"incast_sources": 1}, {"udp_loss": 1.0}, {"udp_loss": -0.1}, {"tcp_weight": 0.0}, {"burst_bytes": -1.0}],
)
def test_impossible_settings_are_the_users_mistake(fields: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="cannot be"):
        Realism(**fields)  # type: ignore[arg-type]
