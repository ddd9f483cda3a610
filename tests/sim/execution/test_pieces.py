"""Plans in pieces: closed forms, the fluid limit, dependencies, and what each part of the model costs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.cluster.model import Cluster
from headway.collectives import families
from headway.collectives.plan import Collective
from headway.collectives.predict import CostModel
from headway.sim.engine.fabric import star
from headway.sim.engine.loop import Loop
from headway.sim.engine.network import Network
from headway.sim.execution import collective
from headway.sim.execution.collective import Execution
from headway.sim.execution.host_model import HostModel
from tests.collectives.clusters import clusters
from tests.sim.operations import COLLECTIVES, FREE, NAMES, RATE_Bps, fabric_of, plan_for, run, uneven_star

PIECE_BYTES = 16384
ALPHA_S = 200e-6
PIECES = Execution.PIECES
BARE = HostModel(header_bytes=0)


@given(st.integers(2, 9), st.integers(1, 12), st.sampled_from((1.0, 0.5)))
@settings(max_examples=40, deadline=None)
def test_chain(n: int, pieces: int, slow: float) -> None:
    # The pipeline of a chain: every hop passes a piece on while it takes the next; the slowest hop sets the pace.
    fabric = uneven_star([RATE_Bps * slow, *[RATE_Bps] * (n - 1)], [RATE_Bps] * n, latency_s=ALPHA_S / 2)
    fast_s, slow_s = PIECE_BYTES / RATE_Bps, PIECE_BYTES / (RATE_Bps * slow)
    took_s = run(
        fabric, families.chain(range(n)), Collective.REDUCE, pieces * PIECE_BYTES, PIECES, chunk_bytes=PIECE_BYTES
    ).time_s
    assert took_s == pytest.approx((n - 1) * ALPHA_S + pieces * slow_s + (n - 2) * fast_s, rel=1e-9)


@given(st.integers(2, 9), st.integers(1, 12))
@settings(max_examples=30, deadline=None)
def test_star(n: int, pieces: int) -> None:
    # Piece k of all children is there together, and goes down while the next comes up.
    took_s = run(
        star(n, RATE_Bps, latency_s=ALPHA_S / 2), families.star(n, 0), Collective.ALL_REDUCE, pieces * PIECE_BYTES,
        PIECES, chunk_bytes=PIECE_BYTES,
    ).time_s  # fmt: skip
    assert took_s == pytest.approx(2 * ALPHA_S + (n - 1) * (pieces + 1) * PIECE_BYTES / RATE_Bps, rel=1e-9)


@given(st.integers(2, 9), st.sampled_from((Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_GATHER)))
@settings(max_examples=20, deadline=None)
def test_ring_and_direct_of_one_piece_per_tree(n: int, what: Collective) -> None:
    fabric, size_bytes = star(n, RATE_Bps, latency_s=ALPHA_S / 2), n * PIECE_BYTES
    halves = 2 if what is Collective.ALL_REDUCE else 1
    block_s = PIECE_BYTES / RATE_Bps
    ring = run(fabric, families.ring(range(n)), what, size_bytes, PIECES, chunk_bytes=PIECE_BYTES)
    assert ring.time_s == pytest.approx(halves * (n - 1) * (ALPHA_S + block_s), rel=1e-9)
    direct = run(fabric, families.direct([1] * n), what, size_bytes, PIECES, chunk_bytes=PIECE_BYTES)
    assert direct.time_s == pytest.approx(halves * (ALPHA_S + (n - 1) * block_s), rel=1e-9)


@given(clusters(max_ranks=6, plain=True), NAMES, st.sampled_from(COLLECTIVES), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_it_is_never_faster_than_the_fluid_and_near_it_with_small_pieces(
    cluster: Cluster, name: str, what: Collective, seed: int
) -> None:
    # What stays with small pieces: links are shared equally, not in step, so that pairs with little to send finish
    # early. That costs where a rank's pairs carry unlike loads: double trees, binary trees, and uneven hosts.
    n, size_bytes = cluster.world_size, cluster.world_size * 64 * 1024
    plan, fabric = plan_for(n, name, seed, what), fabric_of(cluster)
    hops = plan.depth * (int(what.reduces) + int(what.spreads))
    fluid_s = run(fabric, plan, what, size_bytes, Execution.STREAMS, chunk_bytes=0).time_s
    latency_s = hops * cluster.alpha_s
    slowest_Bps = min(link.capacity_Bps for link in fabric.links)
    times_s = [
        run(fabric, plan, what, size_bytes, PIECES, chunk_bytes=chunk_bytes).time_s for chunk_bytes in (32768, 4096)
    ]
    assert min(times_s) >= (fluid_s - latency_s) * (1 - 1e-9)
    assert times_s[1] <= 1.3 * fluid_s + latency_s + hops * (n - 1) * 4096 / slowest_Bps


def test_ring_chain_and_star_converge_to_the_fluid() -> None:
    for plan in (families.ring(range(6)), families.chain(range(6)), families.star(6, 0), families.direct([1] * 6)):
        fluid_s = run(
            star(6, RATE_Bps), plan, Collective.ALL_REDUCE, 1_200_000, Execution.STREAMS, chunk_bytes=0
        ).time_s
        over = [
            run(star(6, RATE_Bps), plan, Collective.ALL_REDUCE, 1_200_000, PIECES, chunk_bytes=chunk_bytes).time_s
            - fluid_s
            for chunk_bytes in (32000, 8000, 2000)
        ]
        assert over[2] <= over[1] <= over[0] or over[2] == pytest.approx(0, abs=1e-9 * fluid_s)
        assert over[2] <= 0.01 * fluid_s


@given(st.integers(0, 11), st.sampled_from(("ring", "double tree", "direct", "star")))
@settings(max_examples=40, deadline=None)
def test_a_slower_link_ends_no_operation_earlier(link: int, name: str) -> None:
    plan = plan_for(6, name, 3, Collective.ALL_REDUCE)
    rates = [RATE_Bps * (0.5 if each == link else 1.0) for each in range(12)]
    host = HostModel()
    before = run(star(6, RATE_Bps), plan, Collective.ALL_REDUCE, 600_000, PIECES, host=host)
    after = run(uneven_star(rates[:6], rates[6:]), plan, Collective.ALL_REDUCE, 600_000, PIECES, host=host)
    assert after.time_s >= before.time_s * (1 - 1e-9)


@given(st.permutations(range(8)), st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_names_of_hosts_do_not_matter(hosts: Sequence[int], seed: int) -> None:
    draw = random.Random(seed)
    up, down = ([RATE_Bps * draw.choice((1.0, 0.5, 0.25)) for _ in range(8)] for _ in range(2))
    plan = families.double_tree(range(8))
    first = run(uneven_star(up, down), plan, Collective.ALL_REDUCE, 800_000, PIECES)
    up2, down2 = [0.0] * 8, [0.0] * 8
    for rank, host in enumerate(hosts):
        up2[host], down2[host] = up[rank], down[rank]
    again = run(uneven_star(up2, down2), plan, Collective.ALL_REDUCE, 800_000, PIECES, hosts=hosts)
    assert again.ends_s == pytest.approx(first.ends_s, rel=1e-9)


def test_more_bytes_take_longer() -> None:
    plan = families.double_tree(range(8))
    times_s = [
        run(star(8, RATE_Bps), plan, Collective.ALL_REDUCE, size, PIECES, chunk_bytes=PIECE_BYTES).time_s
        for size in (200_000, 400_000, 800_000, 1_600_000)
    ]
    assert times_s == sorted(times_s)


def test_every_knob_changes_something() -> None:
    plan, size_bytes = families.double_tree(range(8)), 2_000_000

    def time_s(*, costs: CostModel = FREE, host: HostModel = BARE, latency_s: float = 0.0) -> float:
        fabric = star(8, RATE_Bps, latency_s=latency_s)
        return run(fabric, plan, Collective.ALL_REDUCE, size_bytes, PIECES, costs=costs, host=host).time_s

    base_s = time_s()
    assert time_s(costs=CostModel(local_alpha_s=0, per_message_s=2e-4, incast=0)) > base_s
    assert time_s(host=HostModel(header_bytes=500)) > base_s
    assert time_s(host=replace(BARE, copy_Bps=50e6)) > base_s
    assert time_s(host=replace(BARE, kernel_bytes=1e9)) != base_s
    assert time_s(latency_s=1e-3) > base_s


def test_links_with_queues_are_not_idle_while_something_waits() -> None:
    # The case for which connections have stages: with one flow over both links at once it was 1.18 times the load.
    plan = families.recursive_doubling(range(8))
    took_s = run(star(8, RATE_Bps), plan, Collective.ALL_REDUCE, 4_000_000, PIECES, host=HostModel()).time_s
    assert took_s <= 1.02 * 1.75 * 4_000_000 / RATE_Bps


def test_messages_longer_than_the_kernels_buffer() -> None:
    host = HostModel(kernel_bytes=100_000, header_bytes=0)
    took_s = run(
        star(2, RATE_Bps),
        families.chain(range(2)),
        Collective.REDUCE,
        1_000_000,
        PIECES,
        chunk_bytes=500_000,
        host=host,
    ).time_s
    assert took_s == pytest.approx(1_000_000 / RATE_Bps, rel=0.05)


def test_ranks_of_one_host_need_no_link() -> None:
    costs = CostModel(local_alpha_s=1e-4, per_message_s=0.0, incast=0.0)
    took_s = run(
        star(1, RATE_Bps),
        families.chain(range(3)),
        Collective.ALL_REDUCE,
        300_000,
        PIECES,
        hosts=(0, 0, 0),
        costs=costs,
    ).time_s
    assert took_s == pytest.approx(4e-4)


def test_a_rank_alone_ends_at_once() -> None:
    for execution in Execution:
        assert run(star(1, RATE_Bps), families.ring([0]), Collective.ALL_REDUCE, 100, execution).ends_s == [0.0]


def test_an_empty_vector_ends_at_once() -> None:
    for execution in (Execution.PIECES, Execution.STREAMS):
        ended = run(star(3, RATE_Bps), families.ring(range(3)), Collective.ALL_REDUCE, 0, execution)
        assert ended.time_s == pytest.approx(0.0)


@pytest.mark.parametrize("execution", list(Execution))
def test_held_ranks_begin_when_told(execution: Execution) -> None:
    network = Network(Loop(), star(3, RATE_Bps))
    ends: list[float] = []
    running = collective.start(
        network, families.ring(range(3)), Collective.ALL_REDUCE, 300_000, hosts=range(3), execution=execution,
        ready=(0.0, 0.0, float("inf")), costs=FREE, on_done=ends.extend,
    )  # fmt: skip
    network.loop.run()
    assert not ends
    network.loop.at(5.0, lambda: running.begin(2))
    network.loop.run()
    assert max(ends) > 5.0
    assert running.ended


@pytest.mark.parametrize("execution", list(Execution))
def test_a_stopped_operation_ends_its_flows_and_says_nothing(execution: Execution) -> None:
    network = Network(Loop(), star(3, RATE_Bps))
    ends: list[float] = []
    running = collective.start(
        network, families.ring(range(3)), Collective.ALL_REDUCE, 30_000_000, hosts=range(3), execution=execution,
        on_done=ends.extend,
    )  # fmt: skip
    network.loop.run(0.1)
    sent_bytes = running.sent_bytes()
    assert 0 < sent_bytes < 4 * 30_000_000
    running.stop()
    network.loop.run()
    assert not ends
    assert not running.ended


@pytest.mark.parametrize("execution", list(Execution))
def test_weights_change_live(execution: Execution) -> None:
    def time_s(weight: float, later: float | None) -> float:
        network = Network(Loop(), star(3, RATE_Bps))
        network.start(2, 1, float("inf"))
        ends: list[float] = []

        def done(ends_s: Sequence[float]) -> None:
            ends.extend(ends_s)
            network.loop.stop()

        running = collective.start(
            network, families.chain(range(2)), Collective.REDUCE, 10_000_000, hosts=range(2), execution=execution,
            weight=weight, costs=FREE, on_done=done,
        )  # fmt: skip
        if later is not None:
            network.loop.at(0.01, lambda: running.set_weight(later))
        network.loop.run()
        return max(ends)

    assert time_s(1.0, None) == pytest.approx(0.8, rel=0.03)
    assert time_s(3.0, None) == pytest.approx(0.4 * 4 / 3, rel=0.03)
    assert time_s(1.0, 3.0) == pytest.approx(0.4 * 4 / 3, rel=0.05)


def test_a_rank_tells_when_its_part_has_ended() -> None:
    # Down a chain each rank ends a piece's hop after the one before it, and may go on.
    network = Network(Loop(), star(3, RATE_Bps))
    ended: list[tuple[int, float]] = []
    collective.start(
        network, families.chain([2, 1, 0]), Collective.BROADCAST, 160_000, hosts=range(3), execution=PIECES, costs=FREE,
        chunk_bytes=20_000, host=HostModel(kernel_bytes=40_000, header_bytes=0),
        on_rank=lambda rank, end_s: ended.append((rank, end_s)),
    )  # fmt: skip
    network.loop.run()
    assert [rank for rank, _ in ended] == [0, 1, 2]
    assert [end_s for _, end_s in ended] == sorted(end_s for _, end_s in ended)
    assert ended[0][1] < 0.8 * ended[2][1]


def test_the_same_bits_every_time() -> None:
    def once() -> list[float]:
        plan = families.double_tree(range(8))
        return run(
            star(8, RATE_Bps, latency_s=1e-4), plan, Collective.ALL_REDUCE, 999_999, PIECES, costs=CostModel()
        ).ends_s

    assert once() == once()
