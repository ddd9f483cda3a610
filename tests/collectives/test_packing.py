from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from headway.cluster.model import Cluster, Host, Rack, star
from headway.collectives import families
from headway.collectives.columns import bundles, direct_shares, slow_sets
from headway.collectives.limits import lower_bound
from headway.collectives.loads import link_loads
from headway.collectives.packing import distance_to_limit, pack
from headway.collectives.plan import Collective, Plan
from headway.collectives.predict import predict
from headway.collectives.verify import check
from tests.collectives.clusters import RATE_Bps, clusters, one_slow

S = 64_000_000
SUM = Collective.ALL_REDUCE
FAST = settings(max_examples=30, deadline=None)


def busiest_s(plan: Plan, cluster: Cluster, collective: Collective) -> float:
    capacities = np.array([link.capacity_Bps for link in cluster.links])
    return float((link_loads(plan, cluster, collective) * S / capacities).max())


@FAST
@given(clusters(), st.sampled_from(Collective))
def test_the_program_is_never_worse_than_a_family_and_its_plan_computes(
    cluster: Cluster, collective: Collective
) -> None:
    packed = pack(cluster, collective, S)
    check(packed.plan, collective)
    bound = lower_bound(cluster, collective, S).time_s
    assert packed.transfer_s >= bound * (1 - 1e-9)
    for plan in bundles(cluster, collective):
        assert packed.transfer_s <= busiest_s(plan, cluster, collective) * (1 + 1e-3), plan.name
    assert sum(share for _, share in packed.shares) == pytest.approx(1.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1.0, 100.0), min_size=3, max_size=24))
def test_closed_form_shares_are_the_optimum_of_the_linear_program(rates: list[float]) -> None:
    n = len(rates)
    shares = np.array(direct_shares(rates))
    assert shares.sum() == pytest.approx(1.0)
    closed = float(((1 + shares * (n - 2)) / np.array(rates)).max())
    # minimise z subject to (1 + w_i (n-2)) / c_i <= z, sum w = 1, w >= 0
    rows = np.hstack([np.diag((n - 2) / np.array(rates)), -np.ones((n, 1))])
    result = linprog(
        [0.0] * n + [1.0],
        A_ub=rows,
        b_ub=-1 / np.array(rates),
        A_eq=[[1.0] * n + [0.0]],
        b_eq=[1.0],
        bounds=(0, None),
    )
    assert closed == pytest.approx(result.fun, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1.0, 100.0), min_size=2, max_size=24))
def test_direct_with_shares_meets_the_limit_on_a_single_switch(rates: list[float]) -> None:
    hosts = tuple(Host(f"host {i}", rate, rate) for i, rate in enumerate(rates))
    cluster = Cluster(hosts=hosts, host_of=tuple(range(len(rates))))
    plan = families.direct(direct_shares(rates))
    assert busiest_s(plan, cluster, SUM) == pytest.approx(lower_bound(cluster, SUM, S).time_s, rel=1e-6)


def test_equal_rates_give_equal_shares_and_two_ranks_half_each() -> None:
    assert direct_shares([5.0] * 4) == pytest.approx([0.25] * 4)
    assert direct_shares([1.0, 100.0]) == (0.5, 0.5)
    assert direct_shares([3.0]) == (1.0,)


def test_an_equal_cluster_gets_the_ring_without_a_program() -> None:
    packed = pack(star(8, RATE_Bps), SUM, S)
    assert packed.plan.name.startswith("ring")
    assert packed.shares == ((packed.plan.name, 1.0),)
    assert packed.tight[0].count == 16


@pytest.mark.parametrize("factor", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("ranks", [4, 8, 16])
def test_one_slow_host_costs_what_the_limit_says(factor: float, ranks: int) -> None:
    cluster = one_slow(ranks, ranks // 2, factor)
    packed = pack(cluster, SUM, S)
    assert packed.transfer_s == pytest.approx(lower_bound(cluster, SUM, S).time_s, rel=0.02)
    assert distance_to_limit(packed, cluster, SUM, S) < 1.1
    if factor <= 0.5:
        assert packed.tight[0].link.name == f"downlink of host {ranks // 2}"
        assert packed.tight[0].price > 0.9


def test_prices_add_up_to_one() -> None:
    cluster = star(8, RATE_Bps).with_host(1, uplink_Bps=RATE_Bps * 0.7).with_host(5, downlink_Bps=RATE_Bps * 0.8)
    packed = pack(cluster, SUM, S)
    assert sum(row.price for row in packed.tight) == pytest.approx(1.0, abs=0.02)


def test_a_slow_rack_uplink_is_crossed_once_per_direction() -> None:
    hosts = tuple(Host(f"host {i}", RATE_Bps, RATE_Bps, i // 4) for i in range(8))
    cluster = Cluster(
        hosts=hosts,
        host_of=tuple(range(8)),
        racks=(Rack("rack 0", 50e6, 50e6), Rack("rack 1", 10e6, 50e6)),
    )
    packed = pack(cluster, SUM, S)
    assert packed.transfer_s == pytest.approx(lower_bound(cluster, SUM, S).time_s)
    assert packed.tight[0].link.name == "uplink of rack 1"
    assert distance_to_limit(packed, cluster, SUM, S) < 1.1


def test_a_slow_path_is_left_out() -> None:
    cluster = replace(star(8, RATE_Bps), paths={(2, 3): RATE_Bps / 20})
    packed = pack(cluster, SUM, S)
    assert distance_to_limit(packed, cluster, SUM, S) < 1.05


def test_a_gathering_keeps_the_slow_uplink_to_its_own_block() -> None:
    cluster = star(8, RATE_Bps).with_host(3, uplink_Bps=RATE_Bps / 4)
    packed = pack(cluster, Collective.ALL_GATHER, S)
    ring = predict(families.ring(range(8)), cluster, Collective.ALL_GATHER, S)
    assert packed.prediction.time_s < 0.35 * ring.time_s


def test_columns_may_be_given() -> None:
    cluster = one_slow(4, 1, 0.5)
    packed = pack(cluster, SUM, S, columns=[families.ring(range(4))])
    assert packed.plan == families.ring(range(4))


def test_slow_sets_are_nested_classes_below_the_median() -> None:
    assert slow_sets([1.0, 1.0, 1.0, 1.0]) == []
    assert slow_sets([1.0, 0.5, 1.0, 0.51, 0.25, 1.0, 1.0]) == [(4,), (1, 3, 4)]
    many = slow_sets([1.0] * 20 + [0.9 / (k + 1) for k in range(10)])
    assert len(many) == 4
    assert len(many[-1]) == 10
