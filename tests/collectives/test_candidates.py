from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.cluster.model import Cluster, Host, LinkKind, Rack, star
from headway.collectives import families
from headway.collectives.candidates import candidates, findings_to_cluster, idle_plan
from headway.collectives.limits import lower_bound
from headway.collectives.loads import link_loads
from headway.collectives.plan import Collective
from headway.collectives.verify import check
from headway.observe.findings import Finding, Pattern
from tests.collectives.clusters import RATE_Bps, clusters, one_slow

S = 64_000_000
SUM = Collective.ALL_REDUCE
ROOTED = (Collective.BROADCAST, Collective.REDUCE)


def finding(kind: LinkKind, host: int, capacity_Bps: float, peer: int | None = None) -> Finding:
    return Finding(kind, host, peer, capacity_Bps, RATE_Bps, Pattern.STEADY, 0.0, 10)


@settings(max_examples=25, deadline=None)
@given(
    clusters(max_ranks=9),
    st.sampled_from(Collective),
    st.sampled_from(("packing", "react", "off")),
    st.sampled_from((8, 100_000, S)),
    st.booleans(),
    st.data(),
)
def test_candidates_compute_are_ranked_and_hold_what_runs(
    cluster: Cluster, collective: Collective, policy: str, size: int, bitwise: bool, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, cluster.world_size - 1))
    idle = idle_plan(cluster, collective, size, policy, bitwise=bitwise, root=root)
    ranked = candidates(cluster, collective, size, policy, idle, idle, bitwise=bitwise, root=root)
    assert any(candidate.plan == idle for candidate in ranked)
    times = [candidate.predicted_s for candidate in ranked]
    assert times == sorted(times)
    limit_s = lower_bound(cluster, collective, size, root=root).time_s
    for candidate in ranked:
        check(candidate.plan, collective, root=root if collective in ROOTED else None)
        assert candidate.limit_s == limit_s
        assert candidate.predicted_s >= limit_s * (1 - 1e-9)
        if bitwise and collective.reduces:
            assert candidate.plan.depth <= 1
    assert len({candidate.plan.trees for candidate in ranked}) == len(ranked)


@pytest.mark.parametrize("policy", ["packing", "react", "off"])
def test_large_vectors_start_with_the_ring(policy: str) -> None:
    assert idle_plan(star(8, RATE_Bps), SUM, S, policy).name.startswith("ring")


def test_small_vectors_start_with_few_steps() -> None:
    assert idle_plan(star(8, RATE_Bps), SUM, 8).depth == 1
    assert idle_plan(star(8, RATE_Bps), SUM, 8, "react").name == "double tree"


def test_a_slow_host_is_worked_around() -> None:
    cluster = one_slow(8, 3, 0.5)
    idle = idle_plan(star(8, RATE_Bps), SUM, S)
    ranked = candidates(cluster, SUM, S, "packing", idle, idle)
    assert ranked[0].predicted_s < 1.05 * ranked[0].limit_s
    assert ranked[0].bottleneck == "downlink of host 3"
    held = next(candidate for candidate in ranked if candidate.plan == idle)
    assert held.predicted_s > 1.6 * ranked[0].predicted_s


def test_candidates_are_of_several_families() -> None:
    cluster = one_slow(8, 3, 0.7)
    idle = idle_plan(star(8, RATE_Bps), SUM, S)
    names = " | ".join(candidate.plan.name for candidate in candidates(cluster, SUM, S, "packing", idle, idle))
    for family in ("packing", "chains over 7", "direct with shares", "double tree, rank 3 last", "star", "chain "):
        assert family in names + " "


def test_racks_bring_two_level_plans() -> None:
    hosts = tuple(Host(f"host {i}", RATE_Bps, RATE_Bps, i // 4) for i in range(8))
    cluster = Cluster(hosts=hosts, host_of=tuple(range(8)), racks=(Rack("rack 0", 5e7, 5e7), Rack("rack 1", 1e7, 1e7)))
    idle = families.ring(range(8))
    ranked = candidates(cluster, SUM, S, "packing", idle, idle)
    assert "two-level over 2 groups" in [candidate.plan.name for candidate in ranked]
    assert ranked[0].predicted_s < 1.05 * ranked[0].limit_s


def test_react_moves_only_in_nccl_patterns() -> None:
    usual = star(8, RATE_Bps)
    idle = idle_plan(usual, SUM, S, "react")
    ranked = candidates(one_slow(8, 3, 0.5), SUM, S, "react", idle, idle, baseline=usual)
    assert {candidate.plan.name.split(",")[0] for candidate in ranked} == {"ring", "double tree"}


def test_off_considers_nothing_new() -> None:
    ring, tree = families.ring(range(8)), families.double_tree(range(8))
    ranked = candidates(one_slow(8, 3, 0.5), SUM, S, "off", tree, ring)
    assert {candidate.plan.name for candidate in ranked} == {"ring", "double tree"}


def test_bitwise_mode_shifts_shares_of_stars() -> None:
    cluster = one_slow(8, 3, 0.5)
    idle = idle_plan(star(8, RATE_Bps), SUM, S, bitwise=True)
    assert idle.name == "direct"
    best = candidates(cluster, SUM, S, "packing", idle, idle, bitwise=True)[0]
    assert best.plan.name == "direct with shares"
    assert best.predicted_s < 1.1 * best.limit_s


def test_findings_lower_capacities_and_the_least_counts() -> None:
    usual = star(4, RATE_Bps)
    cluster = findings_to_cluster(
        usual,
        [
            finding(LinkKind.UPLINK, 1, 1e6),
            finding(LinkKind.UPLINK, 1, 2e6),
            finding(LinkKind.DOWNLINK, 2, 3e6),
            finding(LinkKind.PATH, 0, 4e6, peer=3),
            finding(LinkKind.PATH, 0, 5e6, peer=3),
            finding(LinkKind.DOWNLINK, 3, 2 * RATE_Bps),
        ],
    )
    assert cluster.hosts[1].uplink_Bps == 1e6
    assert cluster.hosts[2].downlink_Bps == 3e6
    assert dict(cluster.paths) == {(0, 3): 4e6}
    assert cluster.hosts[3] == usual.hosts[3]
    assert findings_to_cluster(usual, []) == usual


def test_findings_about_racks_name_the_rack() -> None:
    hosts = tuple(Host(f"host {i}", RATE_Bps, RATE_Bps, i) for i in range(2))
    usual = Cluster(hosts=hosts, host_of=(0, 1), racks=(Rack("a", 1e7, 1e7), Rack("b", 1e7, 1e7)))
    cluster = findings_to_cluster(
        usual, [finding(LinkKind.RACK_UPLINK, 1, 2e6), finding(LinkKind.RACK_DOWNLINK, 0, 3e6)]
    )
    assert cluster.racks == (replace(usual.racks[0], downlink_Bps=3e6), replace(usual.racks[1], uplink_Bps=2e6))


def test_a_finding_about_a_path_needs_a_peer() -> None:
    with pytest.raises(ValueError, match="no peer"):
        findings_to_cluster(star(2, 1.0), [finding(LinkKind.PATH, 0, 0.5)])


def test_a_slow_rank_among_many_sits_where_a_double_tree_is_light() -> None:
    cluster = star(64, 1e9, alpha_s=5e-6).with_host(32, uplink_Bps=5e8)
    ring = families.ring(range(64))
    ranked = candidates(cluster, Collective.ALL_REDUCE, 2**27, "packing", ring, ring)
    light = next(each for each in ranked if each.plan.name == "double tree, rank 32 lightest")
    loads = link_loads(light.plan, cluster, Collective.ALL_REDUCE)
    assert loads[32] == pytest.approx(1.0)
    assert loads.max() <= 2.0
    check(light.plan, Collective.ALL_REDUCE)
    assert light.predicted_s <= 1.01 * ranked[0].predicted_s
