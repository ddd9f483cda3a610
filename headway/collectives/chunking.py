"""How large a piece is sent, received and reduced at once.

A tree of share w carries m = w*S/chunk pieces over h hops one after the other (up, down or both). While the first
piece travels, the links behind it are empty; while each piece is handled, the link in front of it is. With b the
bytes that a link could have carried in the time that handling one piece costs, the time in bytes is

    (m + h - 1) * (chunk + b)    with m = w*S / chunk

which is least at chunk = sqrt(w*S * b / (h - 1)). The result is held between 16 KiB, below which Python's time per
piece exceeds the copying itself, and 512 KiB, above which a piece and its partner leave the cache before they are
added. It loses where handling a piece costs very differently from b: `Operation.chunk_bytes` overrides it.
"""

from __future__ import annotations

from math import sqrt

from headway.collectives.plan import Collective, Plan

LEAST_BYTES = 16 * 1024
MOST_BYTES = 512 * 1024
ALIGNMENT_BYTES = 4096

HANDLING_BYTES = 32 * 1024
"""b above: 30 us a piece on a link of 1 GB/s. A slow link's b is smaller, but its CPUs are as slow as others."""


def chunk_bytes_for(plan: Plan, collective: Collective, size_bytes: int, element_bytes: int) -> int:
    """The largest piece for a vector of `size_bytes` under `plan`: whole elements, between the two limits."""
    share = max((tree.share for tree in plan.trees), default=1.0)
    hops = plan.depth * (int(collective.reduces) + int(collective.spreads))
    best = sqrt(share * size_bytes * HANDLING_BYTES / max(1, hops - 1))
    chunk_bytes = int(min(MOST_BYTES, max(LEAST_BYTES, best))) // ALIGNMENT_BYTES * ALIGNMENT_BYTES
    return max(element_bytes, chunk_bytes // element_bytes * element_bytes)
