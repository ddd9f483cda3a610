"""Fluid plans: closed forms, and `predict`'s time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.cluster.model import Cluster
from headway.collectives import families
from headway.collectives.loads import link_loads
from headway.collectives.plan import Collective
from headway.collectives.predict import CostModel, predict
from headway.sim.engine.fabric import star
from headway.sim.execution.collective import Execution
from tests.collectives.clusters import clusters
from tests.sim.operations import COLLECTIVES, FREE, NAMES, RATE_Bps, fabric_of, plan_for, run

SIZE_BYTES = 8_000_000


@given(clusters(plain=True), NAMES, st.sampled_from(COLLECTIVES), st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_alone_it_takes_what_its_busiest_link_takes(cluster: Cluster, name: str, what: Collective, seed: int) -> None:
    plan = plan_for(cluster.world_size, name, seed, what)
    cluster = replace(cluster, alpha_s=0.0)
    busy_s = [
        load * SIZE_BYTES / link.capacity_Bps
        for load, link in zip(link_loads(plan, cluster, what), cluster.links, strict=True)
    ]
    took_s = run(fabric_of(cluster), plan, what, SIZE_BYTES, Execution.STREAMS, chunk_bytes=0).time_s
    assert took_s == pytest.approx(max(busy_s, default=0.0), rel=1e-9, abs=1e-15)


@given(clusters(plain=True), NAMES, st.sampled_from(COLLECTIVES), st.integers(0, 99), st.sampled_from((16384, 524288)))
@settings(max_examples=150, deadline=None)
def test_pieces_take_what_is_predicted_where_messages_cost_nothing(
    cluster: Cluster, name: str, what: Collective, seed: int, chunk_bytes: int
) -> None:
    plan = plan_for(cluster.world_size, name, seed, what)
    costs = CostModel(incast=0.0, per_message_s=0.0)  # `predict` adds processors up, here they overlap
    predicted = predict(plan, cluster, what, SIZE_BYTES, chunk_bytes, costs=costs)
    took_s = run(
        fabric_of(cluster), plan, what, SIZE_BYTES, Execution.STREAMS, chunk_bytes=chunk_bytes, costs=costs
    ).time_s
    assert took_s == pytest.approx(predicted.time_s, rel=1e-9)


def test_against_a_foreign_flow_its_heaviest_pair_counts_as_one() -> None:
    plan = families.ring(range(4))
    alone_s = run(star(4, RATE_Bps), plan, Collective.ALL_REDUCE, SIZE_BYTES, Execution.STREAMS, chunk_bytes=0).time_s
    shared = run(
        star(5, RATE_Bps),
        plan,
        Collective.ALL_REDUCE,
        SIZE_BYTES,
        Execution.STREAMS,
        chunk_bytes=0,
        background=[(4, 0)],
    )
    # Two equal flows of the ring end at host 0, so that the foreign one takes a third of it.
    assert shared.time_s == pytest.approx(alone_s * 1.5)
    heavier = run(
        star(5, RATE_Bps), plan, Collective.ALL_REDUCE, SIZE_BYTES, Execution.STREAMS, chunk_bytes=0,
        background=[(4, 0)], weight=2.0,
    )  # fmt: skip
    assert heavier.time_s == pytest.approx(alone_s * 1.25)


def test_a_late_rank_holds_up_only_its_own_pairs() -> None:
    plan = families.ring(range(4))
    late = run(
        star(4, RATE_Bps), plan, Collective.ALL_REDUCE, SIZE_BYTES, Execution.STREAMS, chunk_bytes=0,
        ready=(0.0, 0.0, 0.0, 1.0),
    )  # fmt: skip
    alone_s = 1.5 * SIZE_BYTES / RATE_Bps
    assert late.time_s == pytest.approx(1.0 + alone_s)
    assert {(src, dst) for src, dst, flow in late.flows if flow.began_s == 0} == {(0, 1), (1, 0), (1, 2), (2, 1)}


def test_each_cost_counts() -> None:
    plan = families.double_tree(range(8))
    fabric = star(8, RATE_Bps, latency_s=1e-3)
    base_s = run(star(8, RATE_Bps), plan, Collective.ALL_REDUCE, SIZE_BYTES, Execution.STREAMS, chunk_bytes=0).time_s
    for chunk_bytes, costs, over in ((65536, FREE, star(8, RATE_Bps)), (0, FREE, fabric)):
        took_s = run(
            over, plan, Collective.ALL_REDUCE, SIZE_BYTES, Execution.STREAMS, chunk_bytes=chunk_bytes, costs=costs
        ).time_s
        assert took_s > base_s
    free_s = run(
        star(8, RATE_Bps), plan, Collective.ALL_REDUCE, SIZE_BYTES, Execution.STREAMS, chunk_bytes=65536
    ).time_s
    costly = CostModel(per_message_s=1e-4)
    dear_s = run(
        star(8, RATE_Bps), plan, Collective.ALL_REDUCE, SIZE_BYTES, Execution.STREAMS, chunk_bytes=65536, costs=costly
    ).time_s
    assert dear_s > free_s


def _ring_s(gbit: float, size_bytes: int, execution: Execution, costs: CostModel) -> float:
    fabric = star(8, gbit * 1e9 / 8, latency_s=50e-6)
    return run(fabric, families.ring(range(8)), Collective.ALL_REDUCE, size_bytes, execution, costs=costs).time_s


def test_processors_work_while_the_network_does() -> None:
    free_s, costly_s = (
        _ring_s(1, 64_000_000, Execution.STREAMS, CostModel(per_message_s=each)) for each in (0.0, 10e-6)
    )
    assert free_s < costly_s < free_s + 0.001  # 4000 messages at each rank would add 0.04 s


def test_processors_that_need_longer_than_the_network_decide() -> None:
    fabric, plan = star(8, 1e15), families.ring(range(8))
    took_s = run(
        fabric, plan, Collective.REDUCE_SCATTER, 8_000_000, Execution.STREAMS,
        chunk_bytes=10_000, costs=CostModel(per_message_s=1e-3),
    ).time_s  # fmt: skip
    messages = 2 * 7 * 100  # it sends and receives each block but its own in 100 pieces
    assert messages * 1e-3 <= took_s < (messages + 20) * 1e-3


@pytest.mark.parametrize("size_bytes", [16_000_000, 64_000_000])
def test_fast_links_take_as_long_as_in_pieces(size_bytes: int) -> None:
    pieces_s, streams_s = (
        _ring_s(100, size_bytes, execution, CostModel()) for execution in (Execution.PIECES, Execution.STREAMS)
    )
    assert streams_s == pytest.approx(pieces_s, rel=0.06)
