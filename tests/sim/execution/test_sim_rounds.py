"""Plans in rounds: closed forms."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.cluster import model
from headway.collectives import families
from headway.collectives.plan import Collective
from headway.collectives.predict import CostModel
from headway.collectives.step_cost import rounds_time
from headway.sim.engine.fabric import star
from headway.sim.execution.collective import Execution
from tests.sim.operations import RATE_Bps, fabric_of, run, uneven_star

BLOCK_BYTES = 1_000_000
ALPHA_S = 200e-6


@given(st.integers(2, 12), st.sampled_from((0.0, ALPHA_S)))
@settings(max_examples=30, deadline=None)
def test_ring(n: int, alpha_s: float) -> None:
    fabric, plan = star(n, RATE_Bps, latency_s=alpha_s / 2), families.ring(range(n))
    hop_s = alpha_s + BLOCK_BYTES / RATE_Bps
    both = run(fabric, plan, Collective.ALL_REDUCE, n * BLOCK_BYTES, Execution.ROUNDS, chunk_bytes=BLOCK_BYTES)
    assert both.time_s == pytest.approx(2 * (n - 1) * hop_s, rel=1e-9)
    for half in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER):
        one = run(fabric, plan, half, n * BLOCK_BYTES, Execution.ROUNDS, chunk_bytes=BLOCK_BYTES)
        assert one.time_s == pytest.approx((n - 1) * hop_s, rel=1e-9)


@given(st.integers(2, 12), st.sampled_from((0.5, 0.25)))
@settings(max_examples=20, deadline=None)
def test_ring_with_a_slow_downlink(n: int, slow: float) -> None:
    fabric = uneven_star([RATE_Bps] * n, [RATE_Bps * slow, *[RATE_Bps] * (n - 1)])
    took_s = run(
        fabric, families.ring(range(n)), Collective.ALL_REDUCE, n * BLOCK_BYTES, Execution.ROUNDS,
        chunk_bytes=BLOCK_BYTES,
    ).time_s  # fmt: skip
    assert took_s == pytest.approx(2 * (n - 1) * BLOCK_BYTES / (RATE_Bps * slow), rel=1e-9)


@given(st.integers(2, 9), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_chain(n: int, pieces: int) -> None:
    # A rank sends on without waiting for the latency of what it sent before.
    fabric, plan = star(n, RATE_Bps, latency_s=ALPHA_S / 2), families.chain(range(n))
    for what in (Collective.REDUCE, Collective.BROADCAST):
        took_s = run(fabric, plan, what, pieces * BLOCK_BYTES, Execution.ROUNDS, chunk_bytes=BLOCK_BYTES).time_s
        assert took_s == pytest.approx((n - 1) * ALPHA_S + (pieces + n - 2) * BLOCK_BYTES / RATE_Bps, rel=1e-9)


@given(st.integers(2, 9))
@settings(max_examples=10, deadline=None)
def test_star_and_direct(n: int) -> None:
    fabric = star(n, RATE_Bps, latency_s=ALPHA_S / 2)
    size_bytes = n * BLOCK_BYTES
    one = run(fabric, families.star(n, 1), Collective.ALL_REDUCE, size_bytes, Execution.ROUNDS, chunk_bytes=size_bytes)
    assert one.time_s == pytest.approx(2 * (ALPHA_S + (n - 1) * size_bytes / RATE_Bps), rel=1e-9)
    each = run(
        fabric, families.direct([1] * n), Collective.ALL_REDUCE, size_bytes, Execution.ROUNDS, chunk_bytes=BLOCK_BYTES
    )
    assert each.time_s == pytest.approx(2 * (ALPHA_S + (n - 1) * BLOCK_BYTES / RATE_Bps), rel=1e-9)


@given(st.sampled_from((2, 4, 8, 16)))
@settings(max_examples=10, deadline=None)
def test_recursive_doubling_in_steps(n: int) -> None:
    # Sum over steps of (alpha + 2^k blocks / rate), both ways.
    cluster = model.star(n, RATE_Bps, alpha_s=ALPHA_S)
    plan, size_bytes = families.recursive_doubling(range(n)), n * BLOCK_BYTES
    steps = [ALPHA_S + 2**k * BLOCK_BYTES / RATE_Bps for k in range(n.bit_length() - 1)]
    took_s = run(fabric_of(cluster), plan, Collective.ALL_REDUCE, size_bytes, Execution.ROUNDS).time_s
    assert took_s == pytest.approx(2 * sum(steps), rel=1e-9)
    assert took_s == pytest.approx(rounds_time(plan, cluster, Collective.ALL_REDUCE, size_bytes), rel=1e-9)


@given(st.integers(2, 16))
@settings(max_examples=10, deadline=None)
def test_doubling_of_any_number_is_near_the_steps_in_lock_step(n: int) -> None:
    # Without a power of two some ranks run ahead, and what they send shares links with the step before.
    cluster = model.star(n, RATE_Bps, alpha_s=ALPHA_S)
    plan, size_bytes = families.recursive_doubling(range(n)), n * BLOCK_BYTES
    took_s = run(fabric_of(cluster), plan, Collective.ALL_REDUCE, size_bytes, Execution.ROUNDS).time_s
    in_step_s = rounds_time(plan, cluster, Collective.ALL_REDUCE, size_bytes)
    assert 0.8 * in_step_s <= took_s <= 1.6 * in_step_s


def test_messages_cost_their_ranks_one_after_the_other() -> None:
    # In each of the two rounds the root of a star handles one message of each of three others.
    plan, fabric = families.star(4, 0), star(4, RATE_Bps)
    base_s = run(fabric, plan, Collective.ALL_REDUCE, BLOCK_BYTES, Execution.ROUNDS, chunk_bytes=BLOCK_BYTES).time_s
    costs = CostModel(local_alpha_s=0.0, per_message_s=1e-3, incast=0.0)
    took_s = run(
        fabric, plan, Collective.ALL_REDUCE, BLOCK_BYTES, Execution.ROUNDS, chunk_bytes=BLOCK_BYTES, costs=costs
    ).time_s
    assert took_s == pytest.approx(base_s + 1e-3 + 3e-3)


def test_a_rank_that_comes_late_takes_what_has_come() -> None:
    plan, fabric = families.chain(range(2)), star(2, RATE_Bps)
    late = run(
        fabric, plan, Collective.REDUCE, BLOCK_BYTES, Execution.ROUNDS, chunk_bytes=BLOCK_BYTES, ready=(0.0, 9.0)
    )
    assert late.ends_s == pytest.approx([BLOCK_BYTES / RATE_Bps, 9.0])


def test_ranks_of_one_host_are_a_local_hop_apart() -> None:
    plan, fabric = families.chain(range(2)), star(2, RATE_Bps)
    costs = CostModel(local_alpha_s=5e-4, per_message_s=0.0, incast=0.0)
    here = run(
        fabric,
        plan,
        Collective.REDUCE,
        BLOCK_BYTES,
        Execution.ROUNDS,
        hosts=(0, 0),
        chunk_bytes=BLOCK_BYTES,
        costs=costs,
    )
    assert here.time_s == pytest.approx(5e-4)


def test_a_slower_link_makes_no_rank_earlier() -> None:
    plan = replace(families.double_tree(range(6)), name="pair of trees")
    before = run(star(6, RATE_Bps), plan, Collective.ALL_REDUCE, 6 * BLOCK_BYTES, Execution.ROUNDS)
    for link in range(12):
        rates = [RATE_Bps * (0.5 if each == link else 1.0) for each in range(12)]
        after = run(uneven_star(rates[:6], rates[6:]), plan, Collective.ALL_REDUCE, 6 * BLOCK_BYTES, Execution.ROUNDS)
        assert after.time_s >= before.time_s * (1 - 1e-9)
