from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.cluster.model import Cluster, star
from headway.collectives import families
from headway.collectives.chunking import chunk_bytes_for, link_rate_Bps
from headway.collectives.columns import bundles
from headway.collectives.limits import lower_bound
from headway.collectives.plan import Collective, Plan, PlanError
from headway.collectives.predict import CostModel, predict
from headway.collectives.step_cost import rounds_time
from tests.collectives.clusters import RATE_Bps, clusters, one_slow

S = 64_000_000
SUM = Collective.ALL_REDUCE
FAST = settings(max_examples=30, deadline=None)


def ratio(cluster: Cluster, ranks: int) -> float:
    ring = families.ring(range(ranks))
    return predict(ring, cluster, SUM, 10**9).time_s / lower_bound(cluster, SUM, 10**9).time_s


@pytest.mark.parametrize(("ranks", "times"), [(4, 1.5), (8, 1.75), (64, 1.97)])
def test_a_ring_with_one_host_at_half_is_that_much_slower_than_the_limit(ranks: int, times: float) -> None:
    assert ratio(one_slow(ranks, 1, 0.5), ranks) == pytest.approx(times, rel=0.01)


def test_a_ring_is_optimal_when_idle() -> None:
    assert ratio(star(8, RATE_Bps), 8) == pytest.approx(1.0, abs=0.01)


def test_chains_with_the_slow_host_as_a_leaf_come_near_the_limit() -> None:
    cluster = one_slow(8, 3, 0.5)
    plan = families.chains([0, 1, 2, 4, 5, 6, 7], last=[3])
    prediction = predict(plan, cluster, SUM, S)
    assert prediction.time_s < 1.05 * lower_bound(cluster, SUM, S).time_s
    assert prediction.bottleneck_name == "downlink of host 3"
    assert prediction.transfer_s == pytest.approx(S / (RATE_Bps / 2))


def test_a_small_vector_prefers_few_steps() -> None:
    cluster = star(8, RATE_Bps)
    star_s = predict(families.star(8, 0), cluster, SUM, 8).time_s
    assert star_s < predict(families.double_tree(range(8)), cluster, SUM, 8).time_s
    assert star_s < predict(families.ring(range(8)), cluster, SUM, 8).time_s
    assert (
        predict(families.ring(range(8)), cluster, SUM, S).time_s < predict(families.star(8, 0), cluster, SUM, S).time_s
    )


def test_a_chain_fills_over_its_length_and_a_ring_does_not() -> None:
    cluster = star(8, RATE_Bps)
    chain = predict(families.chain(range(8)), cluster, SUM, S)
    ring = predict(families.ring(range(8)), cluster, SUM, S)
    assert chain.fill_s > 10 * ring.fill_s
    assert predict(families.chain(range(8)), cluster, SUM, S, 4096).fill_s < chain.fill_s


def test_every_cost_knob_changes_something() -> None:
    hosts = star(4, RATE_Bps).hosts
    cluster = Cluster(hosts=hosts, host_of=(0, 0, 1, 1, 2, 2, 3, 3))
    plan = families.direct([1.0] * 8)
    usual = predict(plan, cluster, SUM, 8).time_s
    assert predict(plan, replace(cluster, alpha_s=1e-3), SUM, 8).time_s > usual
    assert predict(plan, cluster, SUM, 8, costs=CostModel(per_message_s=1e-3)).time_s > usual
    assert predict(families.chain(range(8)), cluster, SUM, 8, costs=CostModel(local_alpha_s=1.0)).time_s > 1.0
    assert predict(plan, cluster, SUM, S, costs=CostModel(incast=1.0)).time_s > predict(plan, cluster, SUM, S).time_s


def test_one_rank_takes_no_time_and_one_host_no_link() -> None:
    assert predict(families.ring([0]), star(1, 1.0), SUM, S).time_s == 0.0
    local = Cluster(hosts=star(1, 1.0).hosts, host_of=(0, 0))
    prediction = predict(families.ring([0, 1]), local, SUM, S)
    assert prediction.bottleneck is None
    assert prediction.bottleneck_name == "no link"
    assert max(prediction.loads_bytes) == 0.0


def test_plan_and_cluster_must_agree_on_the_ranks() -> None:
    with pytest.raises(PlanError, match="for 3 ranks, the cluster has 4"):
        predict(families.ring(range(3)), star(4, 1.0), SUM, 8)
    with pytest.raises(PlanError, match="for 3 ranks, the cluster has 4"):
        rounds_time(families.ring(range(3)), star(4, 1.0), SUM, 8)


@FAST
@given(clusters(), st.sampled_from(Collective), st.sampled_from((8, 10_000, S)))
def test_no_prediction_beats_the_lower_bound(cluster: Cluster, collective: Collective, size: int) -> None:
    bound = lower_bound(cluster, collective, size).time_s
    for plan in bundles(cluster, collective):
        assert predict(plan, cluster, collective, size).time_s >= bound * (1 - 1e-9), plan.name


@FAST
@given(clusters(), st.sampled_from(Collective), st.sampled_from((8, 10_000, S)), st.data())
def test_halving_a_link_makes_nothing_faster(
    cluster: Cluster, collective: Collective, size: int, data: st.DataObject
) -> None:
    """With pieces of the same size: the executor cuts them smaller on a slower link, which may gain a little (1e-5)."""
    host = data.draw(st.integers(0, len(cluster.hosts) - 1))
    slower = [
        cluster.with_host(host, uplink_Bps=cluster.hosts[host].uplink_Bps / 2),
        cluster.with_host(host, downlink_Bps=cluster.hosts[host].downlink_Bps / 2),
        replace(cluster, paths={pair: rate / 2 for pair, rate in cluster.paths.items()}),
        replace(cluster, racks=tuple(replace(rack, uplink_Bps=rack.uplink_Bps / 2) for rack in cluster.racks)),
    ]
    for plan in bundles(cluster, collective):
        chunk_bytes = chunk_bytes_for(plan, collective, size, 1, link_rate_Bps(cluster))
        usual_s, rounds_s = (of(plan, cluster, collective, size, chunk_bytes) for of in (predicted_s, rounds_time))
        for other in slower:
            assert predicted_s(plan, other, collective, size, chunk_bytes) >= usual_s * (1 - 1e-9), plan.name
            assert rounds_time(plan, other, collective, size, chunk_bytes) >= rounds_s * (1 - 1e-9), plan.name


def predicted_s(plan: Plan, cluster: Cluster, collective: Collective, size: int, chunk_bytes: int) -> float:
    return predict(plan, cluster, collective, size, chunk_bytes).time_s


def test_rounds_of_a_ring_are_its_steps() -> None:
    cluster = star(8, RATE_Bps, alpha_s=1e-3)
    size = 80_000
    expected = 2 * 7 * (1e-3 + size / 8 / RATE_Bps)
    assert rounds_time(families.ring(range(8)), cluster, SUM, size) == pytest.approx(expected)


def test_rounds_of_recursive_doubling_are_its_steps() -> None:
    cluster = star(8, RATE_Bps, alpha_s=1e-3)
    size = 800_000
    expected = sum(1e-3 + blocks * size / 8 / RATE_Bps for blocks in (1, 2, 4))
    plan = families.recursive_doubling(range(8))
    assert rounds_time(plan, cluster, Collective.ALL_GATHER, size) == pytest.approx(expected)
    assert rounds_time(plan, cluster, Collective.REDUCE_SCATTER, size) == pytest.approx(expected)
    assert rounds_time(families.recursive_doubling(range(11)), cluster_of(11), Collective.ALL_GATHER, size) > 0


def cluster_of(ranks: int) -> Cluster:
    return star(ranks, RATE_Bps)
