"""The fabric's own parts: names, checks, the star, and the hash that spreads flows."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import UsageError
from headway.sim.engine.fabric import Fabric, FabricLink, mix, star


def test_a_star_has_an_uplink_and_a_downlink_each() -> None:
    fabric = star(3, 1e6, latency_s=1e-3)
    assert [link.name for link in fabric.links] == [f"{way}link of host{i}" for way in ("up", "down") for i in range(3)]
    assert {(link.capacity_Bps, link.latency_s) for link in fabric.links} == {(1e6, 1e-3)}
    assert fabric.router.route(0, 2, 7) == (0, 5)
    assert fabric.router.route(1, 1, 7) == ()


def test_hosts_and_links_are_found_by_name() -> None:
    fabric = star(2, 1.0, names=("a", "b"))
    assert fabric.host_index == {"a": 0, "b": 1}
    assert fabric.links[fabric.link_index["downlink of b"]].name == "downlink of b"


@pytest.mark.parametrize(
    ("capacity_Bps", "latency_s"), [(-1.0, 0.0), (float("inf"), 0.0), (1.0, -1.0), (1.0, float("nan"))]
)
def test_links_that_cannot_be_are_refused(capacity_Bps: float, latency_s: float) -> None:
    with pytest.raises(UsageError, match="uplink of x"):
        Fabric("f", ("x",), (FabricLink("uplink of x", capacity_Bps, latency_s),), star(1, 1.0).router)


def test_mix_is_the_same_forever() -> None:
    """Seeds and routes depend on it: another value is another result of every run."""
    assert (mix(), mix(0), mix(1, 2, 3)) == (mix(), mix(0), mix(1, 2, 3))
    assert mix(1, 2) != mix(2, 1)
    assert f"{mix(1, 2, 3):x}" == "a8f3134a766937dc"


@given(st.lists(st.integers(-(2**70), 2**70), max_size=5))
def test_mix_has_64_bits(values: list[int]) -> None:
    assert 0 <= mix(*values) < 2**64


@pytest.mark.parametrize("ways", [2, 3, 8, 64])
def test_mix_spreads_consecutive_keys_evenly(ways: int) -> None:
    """Chi-squared with ways - 1 degrees of freedom, far below what one value in a million exceeds."""
    keys = 1000 * ways
    counts = Counter(mix(3, 9, key) % ways for key in range(keys))
    chi = sum((counts[way] - 1000) ** 2 / 1000 for way in range(ways))
    assert chi < ways - 1 + 5 * (2 * ways) ** 0.5 + 10
