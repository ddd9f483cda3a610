from __future__ import annotations

from dataclasses import replace

import pytest

from headway.cluster.model import Cluster, Host, Rack, star
from headway.collectives.limits import lower_bound
from headway.collectives.plan import Collective
from tests.collectives.clusters import RATE_Bps, one_slow

S = 8_000_000
SUM = Collective.ALL_REDUCE


@pytest.mark.parametrize(
    ("factor", "algbw_MBps", "what"),
    [(1.0, 14.2857, "all uplinks together"), (0.5, 12.5, "downlink of host 3"), (0.25, 6.25, "downlink of host 3")],
)
def test_the_limits_of_eight_hosts_at_200_mbit(factor: float, algbw_MBps: float, what: str) -> None:
    bound = lower_bound(one_slow(8, 3, factor), SUM, S)
    assert S / bound.time_s / 1e6 == pytest.approx(algbw_MBps, rel=1e-4)
    assert bound.what == what


@pytest.mark.parametrize(
    ("collective", "seconds"),
    [
        (Collective.ALL_REDUCE, 2 * 7 / 8),
        (Collective.REDUCE_SCATTER, 7 / 8),
        (Collective.ALL_GATHER, 7 / 8),
        (Collective.BROADCAST, 1.0),
        (Collective.REDUCE, 1.0),
    ],
)
def test_idle_limits_of_each_collective(collective: Collective, seconds: float) -> None:
    bound = lower_bound(star(8, 1e6), collective, 1_000_000)
    assert bound.time_s == pytest.approx(seconds)


def test_a_slow_uplink_hurts_a_gathering_little_and_a_scattering_much() -> None:
    cluster = star(8, 1e6).with_host(2, uplink_Bps=1e5)
    assert lower_bound(cluster, Collective.ALL_GATHER, 1_000_000).time_s == pytest.approx(10 / 8)
    scatter = lower_bound(cluster, Collective.REDUCE_SCATTER, 1_000_000)
    assert scatter.time_s == pytest.approx(10 * 7 / 8)
    assert scatter.what == "uplink of host 2"


@pytest.mark.parametrize(("root", "seconds"), [(2, 10.0), (0, 1.0)])
def test_only_the_root_must_send_a_broadcast(root: int, seconds: float) -> None:
    cluster = star(4, 1e6).with_host(2, uplink_Bps=1e5)
    assert lower_bound(cluster, Collective.BROADCAST, 1_000_000, root=root).time_s == pytest.approx(seconds)


def test_ranks_of_one_host_need_no_link() -> None:
    cluster = Cluster(hosts=(Host("a", 1.0, 1.0),), host_of=(0, 0, 0))
    assert lower_bound(cluster, SUM, 100).time_s == 0.0


def test_several_ranks_count_as_their_host() -> None:
    hosts = tuple(Host(f"host {i}", 1e6, 1e6) for i in range(4))
    cluster = Cluster(hosts=hosts, host_of=(0, 0, 1, 1, 2, 2, 3, 3))
    assert lower_bound(cluster, SUM, 1_000_000).time_s == pytest.approx(2 * 3 / 4)
    assert lower_bound(cluster, Collective.ALL_GATHER, 1_000_000).time_s == pytest.approx(6 / 8)


def test_a_slow_rack_uplink_is_a_cut() -> None:
    hosts = tuple(Host(f"host {i}", RATE_Bps, RATE_Bps, i // 4) for i in range(8))
    racks = (Rack("rack 0", 50e6, 50e6), Rack("rack 1", 10e6, 50e6))
    cluster = Cluster(hosts=hosts, host_of=tuple(range(8)), racks=racks)
    bound = lower_bound(cluster, SUM, S)
    assert bound.time_s == pytest.approx(0.8)
    assert bound.what == "uplink of rack 1"


def test_a_host_whose_paths_are_all_slow_is_as_slow_as_their_sum() -> None:
    cluster = replace(star(3, 1e6), paths={(0, 1): 1e5, (0, 2): 2e5})
    assert lower_bound(cluster, SUM, 1_000_000).time_s == pytest.approx(10 / 3)
    one = replace(star(3, 1e6), paths={(0, 1): 1e5})
    assert lower_bound(one, SUM, 1_000_000).time_s == pytest.approx(4 / 3)
