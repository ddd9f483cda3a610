"""How large a piece is sent, received and reduced at once.

A vector of S bytes goes over h hops one after the other (up, down or both), and a rank sends it to f peers at a
time, so f pieces share its link. While the first pieces travel, the links behind them are empty; while a piece is
handled, the link in front of it is. With b the bytes that a link carries in the time that handling one piece takes,
the time, in bytes, is about

    S + S/chunk * b + h * f * chunk

which is least at chunk = sqrt(S * b / (h * f)). The result is held between 16 KiB, below which Python's time per
piece exceeds that of copying it, and 512 KiB, above which a piece and its partner leave the cache before they are
added. In a flow-level model of 8 hosts at 200 Mbit/s, one at half rate, 8 MiB reach this part of the limit:

| chunk | 16 KiB | 32 KiB | 64 KiB | 128 KiB | 256 KiB |
| --- | --- | --- | --- | --- | --- |
| one chain, slow rank at its end | 0.97 | 0.95 | 0.91 | 0.83 | 0.71 |
| rotated chains, slow rank last | 0.96 | 0.95 | 0.93 | 0.88 | 0.78 |
| direct with shares | 0.91 | 0.90 | 0.88 | 0.84 | 0.78 |

and on loopback, 4 ranks, 16 MiB, a ring is 1.8 times as fast with 512 KiB as with 64 KiB. It loses where a rank's CPU
is much slower than `HANDLING_S` says: `Operation.chunk_bytes` overrides it.
"""

from __future__ import annotations

from functools import lru_cache
from math import sqrt

import numpy as np

from headway.cluster.model import Cluster
from headway.cluster.units import format_bytes, parse_bytes
from headway.collectives.plan import Collective, Plan
from headway.errors import UsageError

LEAST_BYTES = 16 * 1024
MOST_BYTES = 512 * 1024
ALIGNMENT_BYTES = 4096

HANDLING_S = 50e-6
"""Time to receive, add and send one piece, beside the copying: 20 us of Python and 4 system calls, and a wake-up."""

LOCAL_BPS = 4e9
"""What ranks of one machine reach between each other."""


SET_LEAST_BYTES = 4096
"""The least that a user may set: smaller pieces only cost time, and one below an element cannot be reduced."""


def chunk_from_setting(text: str) -> int | None:
    """HEADWAY_CHUNK in bytes; None when it is empty. UsageError when it is no size, or below `SET_LEAST_BYTES`."""
    if not text:
        return None
    size_bytes = parse_bytes(text, where="HEADWAY_CHUNK")
    if size_bytes < SET_LEAST_BYTES:
        hint = f"at least {format_bytes(SET_LEAST_BYTES)}"
        raise UsageError(f"{text!r} is too small", where="HEADWAY_CHUNK", hint=hint)
    return size_bytes


def link_rate_Bps(cluster: Cluster) -> float:
    """The rate that `chunk_bytes_for` takes: the fastest host's uplink; between ranks of one host `LOCAL_BPS`."""
    used = set(cluster.host_of)
    return max(cluster.hosts[host].uplink_Bps for host in used) if len(used) > 1 else LOCAL_BPS


@lru_cache(maxsize=256)
def chunk_bytes_for(
    plan: Plan, collective: Collective, size_bytes: int, element_bytes: int, link_Bps: float = LOCAL_BPS
) -> int:
    """The largest piece for a vector of `size_bytes` under `plan` on links of `link_Bps`: whole elements."""
    hops = plan.depth * (int(collective.reduces) + int(collective.spreads))
    best = sqrt(size_bytes * link_Bps * HANDLING_S / max(1, hops * _peers(plan)))
    chunk_bytes = int(min(MOST_BYTES, max(LEAST_BYTES, best))) // ALIGNMENT_BYTES * ALIGNMENT_BYTES
    return max(element_bytes, chunk_bytes // element_bytes * element_bytes)


def _peers(plan: Plan) -> int:
    """The most ranks that a rank sends to in one direction: as a child, or as a parent."""
    parents = plan.parents
    ranks = np.broadcast_to(np.arange(plan.size), parents.shape)
    below = parents >= 0
    edges = np.unique(ranks[below].astype(np.int64) * plan.size + parents[below])
    if not len(edges):
        return 1
    return int(max(np.bincount(edges // plan.size).max(), np.bincount(edges % plan.size).max()))
