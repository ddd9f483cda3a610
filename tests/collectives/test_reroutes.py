"""A slow path gets new connections a few times, and again after a calm."""

from __future__ import annotations

from headway.cluster.model import Cluster, Host
from headway.collectives.reroutes import Reroutes

TWO_RANKS_A_HOST = Cluster(hosts=tuple(Host(f"h{i}", 1e9, 1e9) for i in range(3)), host_of=(0, 0, 1, 1, 2, 2))


def test_all_flows_between_two_hosts_at_most_so_often() -> None:
    reroutes = Reroutes(TWO_RANKS_A_HOST, most=2)
    assert reroutes.take([(0, 2)]) == ((0, 4), (0, 5), (1, 4), (1, 5))
    assert len(reroutes.take([(0, 2), (2, 0)])) == 8
    assert reroutes.take([(0, 2)]) == ()
    assert len(reroutes.take([(2, 0)])) == 4
    reroutes.forget()
    assert len(reroutes.take([(0, 2)])) == 4


def test_nothing_for_nothing() -> None:
    assert Reroutes(TWO_RANKS_A_HOST, most=2).take([]) == ()
