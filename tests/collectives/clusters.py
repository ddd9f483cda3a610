"""Clusters and orders that hypothesis draws, and a few fixed ones."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from headway.cluster.model import Cluster, Host, Rack, star

RATE_Bps = 25e6
FACTORS = (1.0, 1.0, 1.0, 0.75, 0.5, 0.25)


def one_slow(ranks: int, host: int, factor: float) -> Cluster:
    """Equal hosts but for one downlink."""
    return star(ranks, RATE_Bps).with_host(host, downlink_Bps=RATE_Bps * factor)


@st.composite
def clusters(draw: st.DrawFn, *, max_ranks: int = 10, plain: bool = False) -> Cluster:
    """One to `max_ranks` ranks; some links slow; unless `plain`, several ranks per host, racks and slow paths."""
    ranks = draw(st.integers(1, max_ranks))
    per_host = 1 if plain else draw(st.sampled_from((1, 1, 1, 2, 3)))
    count = -(-ranks // per_host)
    rack_count = 0 if plain else draw(st.sampled_from((0, 0, 2, 3)))
    factor = st.sampled_from(FACTORS)
    hosts = tuple(
        Host(f"host {i}", RATE_Bps * draw(factor), RATE_Bps * draw(factor), i % rack_count if rack_count else None)
        for i in range(count)
    )
    racks = tuple(
        Rack(f"rack {k}", 2 * RATE_Bps * draw(factor), 2 * RATE_Bps * draw(factor)) for k in range(rack_count)
    )
    cluster = Cluster(hosts=hosts, host_of=tuple(r // per_host for r in range(ranks)), racks=racks)
    if not plain and count > 1 and draw(st.booleans()):
        pair = draw(st.permutations(range(count)))[:2]
        cluster = replace(cluster, paths={(pair[0], pair[1]): RATE_Bps * draw(st.sampled_from((0.1, 0.5)))})
    return cluster


@st.composite
def splits(draw: st.DrawFn, *, max_ranks: int = 20) -> tuple[list[int], list[int]]:
    """A shuffled order of ranks in two parts: (core, last), the core not empty."""
    order = list(draw(st.permutations(range(draw(st.integers(1, max_ranks))))))
    cut = draw(st.integers(0, len(order) - 1))
    return order[cut:], order[:cut]
