from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.cluster.model import Cluster, star
from headway.collectives import families, react
from headway.collectives.plan import Collective
from headway.collectives.react import congested, moves
from headway.collectives.step_cost import rounds_time
from headway.collectives.verify import check
from tests.collectives.clusters import RATE_Bps, clusters, one_slow

S = 64_000_000
SUM = Collective.ALL_REDUCE


def slow_pair(ranks: int, a: int, b: int) -> Cluster:
    return replace(star(ranks, RATE_Bps), paths={(a, b): RATE_Bps / 10})


@settings(max_examples=25, deadline=None)
@given(clusters(), st.sampled_from((SUM, Collective.REDUCE_SCATTER, Collective.ALL_GATHER)))
def test_every_move_computes_the_same_and_the_best_is_no_worse_than_staying(
    cluster: Cluster, collective: Collective
) -> None:
    start = families.ring(range(cluster.world_size))
    ranked = moves(start, cluster, star(1, RATE_Bps) if cluster.world_size == 1 else cluster, collective, S)
    for plan, _ in ranked:
        check(plan, collective)
    times = [time_s for _, time_s in ranked]
    assert times == sorted(times)
    if ranked:
        assert times[0] <= rounds_time(start, cluster, collective, S) * (1 + 1e-9)


@pytest.mark.parametrize("ranks", [5, 8, 12, 20])
def test_a_ring_goes_round_a_slow_path(ranks: int) -> None:
    cluster = slow_pair(ranks, 2, 3)
    ring = next(
        p for p, _ in moves(families.ring(range(ranks)), cluster, star(ranks, RATE_Bps), SUM, S) if p.name == "ring"
    )
    place = {rank: at for at, rank in enumerate(ring.order)}
    assert abs(place[2] - place[3]) not in (1, ranks - 1)


@pytest.mark.parametrize("ranks", [5, 8, 9, 16])
def test_a_congested_rank_gets_a_light_place_in_the_double_tree(ranks: int) -> None:
    cluster = one_slow(ranks, 2, 0.25)
    idle = families.double_tree(range(ranks))
    ranked = moves(idle, cluster, star(ranks, RATE_Bps), SUM, S)
    plan, time_s = ranked[0]
    assert plan.name.startswith("double tree")
    assert time_s < 0.8 * rounds_time(idle, cluster, SUM, S)
    inner = [tree.share for tree in plan.trees if len(tree.children[2]) > 1]
    assert inner == []


def test_recursive_doubling_puts_a_slow_pair_into_an_early_step() -> None:
    cluster = slow_pair(8, 0, 4)
    idle = families.recursive_doubling(range(8))
    ranked = moves(idle, cluster, star(8, RATE_Bps), Collective.ALL_GATHER, S)
    plan = next(plan for plan, _ in ranked if plan.name == "recursive doubling")
    place = {rank: at for at, rank in enumerate(plan.order)}
    assert place[0] ^ place[4] != 4
    assert rounds_time(plan, cluster, Collective.ALL_GATHER, S) < rounds_time(idle, cluster, Collective.ALL_GATHER, S)


def test_the_search_starts_from_the_order_that_runs() -> None:
    order = (3, 0, 2, 1)
    plans = [plan for plan, _ in moves(families.ring(order), star(4, RATE_Bps), star(4, RATE_Bps), SUM, S)]
    assert order in [plan.order for plan in plans]


@pytest.mark.parametrize("collective", [Collective.BROADCAST, Collective.REDUCE])
def test_rooted_collectives_have_no_moves(collective: Collective) -> None:
    assert moves(families.chain(range(4)), star(4, 1.0), star(4, 1.0), collective, S) == []


def test_congestion_is_told_against_the_baseline_or_else_the_median() -> None:
    usual = star(4, RATE_Bps).with_host(0, uplink_Bps=RATE_Bps / 2)
    assert congested(usual.with_host(3, downlink_Bps=RATE_Bps / 2), usual) == ([3], [])
    assert congested(usual, usual) == ([0], [])
    assert congested(slow_pair(4, 1, 2), star(4, RATE_Bps)) == ([], [(1, 2)])


def test_among_many_ranks_one_place_of_each_kind_is_as_good_as_all(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = star(40, 1e9)
    slow = cluster.with_host(7, uplink_Bps=4e8).with_host(20, downlink_Bps=5e8)
    current = families.double_tree(range(40))

    def best_s() -> float:
        return moves(current, slow, cluster, Collective.ALL_REDUCE, 2**24)[0][1]

    by_kind_s = best_s()
    monkeypatch.setattr(react, "ALL_PLACES_UP_TO", 64)
    assert by_kind_s == pytest.approx(best_s())
