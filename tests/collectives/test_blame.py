from __future__ import annotations

from dataclasses import replace

import pytest

from headway.cluster.model import Cluster, Host, LinkKind, Rack, star
from headway.collectives import families
from headway.collectives.blame import MAX_SUSPECTS, blame
from headway.collectives.packing import pack
from headway.collectives.plan import Collective
from tests.collectives.clusters import RATE_Bps

S = 8_000_000
SUM = Collective.ALL_REDUCE


def test_the_slow_uplink_is_named_with_what_it_costs() -> None:
    usual = star(8, RATE_Bps)
    cluster = usual.with_host(3, uplink_Bps=RATE_Bps / 2)
    (found,) = blame(families.ring(range(8)), cluster, usual, SUM, S)
    assert (found.link.kind, found.link.name) == (LinkKind.UPLINK, "uplink of host 3")
    assert found.cost == pytest.approx(0.5, abs=0.01)
    assert found.limit_s == pytest.approx(0.64)
    assert found.healed_limit_s == pytest.approx(0.56)
    assert found.price is None
    assert found.sentence == (
        "uplink of host 3 holds the all-reduce back: down to 100 Mbit/s of 200 Mbit/s, "
        f"it costs {found.cost:.0%} of the time with ring (limit 640.0 ms, without it 560.0 ms)"
    )


def test_an_undisturbed_cluster_has_nobody_to_blame() -> None:
    assert blame(families.ring(range(4)), star(4, RATE_Bps), star(4, RATE_Bps), SUM, S) == ()


def test_a_link_that_does_not_matter_is_said_not_to() -> None:
    usual = star(4, RATE_Bps)
    cluster = usual.with_host(2, uplink_Bps=RATE_Bps * 0.9)
    plan = families.chain([0, 1, 2, 3])
    (found,) = blame(plan, cluster, usual, Collective.BROADCAST, S, root=3)
    assert found.cost > 0.05
    unused = replace(usual, paths={(0, 3): RATE_Bps / 10})
    (found,) = blame(plan, unused, usual, SUM, S)
    assert found.cost == 0.0
    assert "costs the all-reduce nothing" in found.sentence


def test_two_slow_links_are_ranked_and_prices_come_from_the_program() -> None:
    usual = star(8, RATE_Bps)
    cluster = usual.with_host(1, uplink_Bps=RATE_Bps * 0.8).with_host(5, downlink_Bps=RATE_Bps / 4)
    packed = pack(cluster, SUM, S)
    first, second = blame(packed.plan, cluster, usual, SUM, S, tight=packed.tight)
    assert first.link.name == "downlink of host 5"
    assert first.price == pytest.approx(1.0, abs=0.01)
    assert second.price == pytest.approx(0.0, abs=0.01)
    assert first.cost > second.cost


def test_racks_and_paths_are_suspects_too() -> None:
    hosts = tuple(Host(f"host {i}", RATE_Bps, RATE_Bps, i // 2) for i in range(4))
    usual = Cluster(hosts=hosts, host_of=(0, 1, 2, 3), racks=(Rack("rack 0", 5e7, 5e7), Rack("rack 1", 5e7, 5e7)))
    slow_racks = (replace(usual.racks[0], uplink_Bps=5e6), replace(usual.racks[1], downlink_Bps=8e6))
    cluster = replace(usual, racks=slow_racks, paths={(0, 2): 1e6})
    names = [found.link.name for found in blame(families.ring(range(4)), cluster, usual, SUM, S)]
    assert sorted(names) == ["downlink of rack 1", "path host 0 to host 2", "uplink of rack 0"]
    assert names[0] == "uplink of rack 0"


def test_the_number_of_suspects_is_bounded() -> None:
    usual = star(20, RATE_Bps)
    cluster = star(20, RATE_Bps / 2)
    assert len(blame(families.ring(range(20)), cluster, usual, SUM, S)) == MAX_SUSPECTS
