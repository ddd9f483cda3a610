"""How long a plan's pipeline takes to fill and to drain on a fabric: nearly `predict`'s model, on routes. Pure.

A link cannot begin before the first piece reaches it, and after its last piece that piece still has to travel on.
With busy_l = load_l / c_l,

    T = max over links  head_l + latency + busy_l + tail_l

and the fill is T - busy of the link that decides. A hop takes the route's latency and, for the piece, the slowest of
its links, the sender's first and the receiver's last one shared by the flows that the tree has there at once, and the
time of two processors for a message.

Processors work while the network does, so unlike in `predict`, which adds up, a rank's processor is one more thing that
can be busy longest: with M messages at a rank, sent and received, T_cpu = head + M * time of a message + tail. The
operation takes the larger of T and T_cpu.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headway.collectives.loads import edges_of
from headway.collectives.plan import Collective, Plan

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Routes:
    """The ways of a plan's ordered pairs as arrays.

    Args:
        size: ranks.
        src, dst: the pairs.
        links: of each pair, in order.
    """

    def __init__(self, size: int, src: Ints, dst: Ints, links: Sequence[Sequence[int]]) -> None:
        self.hops = np.array([len(route) for route in links], dtype=np.int64)
        self.links = np.zeros((len(links), max(1, int(self.hops.max(initial=0)))), dtype=np.int64)
        for pair, route in enumerate(links):
            self.links[pair, : len(route)] = route
        self._pair_of = np.full(size * size, -1, dtype=np.int64)
        self._pair_of[src * size + dst] = np.arange(len(src))
        self._size = size

    def pair_of(self, src: Ints, dst: Ints) -> Ints:
        """Index of each message's pair."""
        pair: Ints = self._pair_of[src * self._size + dst]
        return pair

    def used(self) -> Ints:
        """The links that any pair uses, ascending."""
        return np.unique(self.links[self._valid])

    @property
    def _valid(self) -> npt.NDArray[np.bool_]:
        valid: npt.NDArray[np.bool_] = np.arange(self.links.shape[1]) < self.hops[:, None]
        return valid

    def loads(self, per_pair: Floats, links: int) -> Floats:
        """What each link carries when each pair carries `per_pair`."""
        spread = np.broadcast_to(per_pair[:, None], self.links.shape)
        total: Floats = np.zeros(links)
        np.add.at(total, self.links[self._valid], spread[self._valid])
        return total


@dataclass(frozen=True, slots=True)
class Fill:
    """Beside the load of the busiest link.

    Attributes:
        network_s: time beyond that link's.
        processors_s: of the whole operation, if only processors and latency counted.
    """

    network_s: float
    processors_s: float


def fill_of(
    plan: Plan,
    collective: Collective,
    size_bytes: int,
    chunk_bytes: int,
    routes: Routes,
    latency_s: Floats,
    loads_bytes: Floats,
    capacity_Bps: Floats,
    per_message_s: float,
) -> Fill:
    """What filling and draining take, and processors.

    Args:
        latency_s: of each pair of `routes`.
        loads_bytes, capacity_Bps: of each link of the fabric; capacities above 0 where there is a load.
        per_message_s: processor time of a rank for one message sent or received. Pieces without size cost nothing.
    """
    edges, n = edges_of(plan), plan.size
    if not len(edges.tree):
        return Fill(0.0, 0.0)
    per_message_s = per_message_s if chunk_bytes else 0.0
    below, above = edges.tree * n + edges.rank, edges.tree * n + edges.parent
    piece = np.minimum(float(chunk_bytes), plan.shares * size_bytes)[edges.tree]
    nodes = len(plan.trees) * n
    up_pair = routes.pair_of(edges.rank, edges.parent) if collective.reduces else None
    down_pair = routes.pair_of(edges.parent, edges.rank) if collective.spreads else None
    up_s = down_s = np.zeros(len(edges.tree))
    if up_pair is not None:
        into = _meeting(edges.tree, routes, up_pair, routes.hops[up_pair] - 1)
        up_s = (
            latency_s[up_pair]
            + 2 * per_message_s
            + piece * _slowness(routes, up_pair, np.ones(len(into)), into, capacity_Bps)
        )
    if down_pair is not None:
        out = _meeting(edges.tree, routes, down_pair, np.zeros_like(down_pair))
        down_s = (
            latency_s[down_pair]
            + 2 * per_message_s
            + piece * _slowness(routes, down_pair, out, np.ones(len(out)), capacity_Bps)
        )

    depth = plan.hops[edges.tree, edges.rank]
    order = np.argsort(depth, kind="stable")
    levels = np.split(order, np.flatnonzero(np.diff(depth[order])) + 1)
    gathered, spread = np.zeros(nodes), np.zeros(nodes)
    for level in reversed(levels):
        np.maximum.at(gathered, above[level], gathered[below[level]] + up_s[level])
        np.maximum.at(spread, above[level], spread[below[level]] + down_s[level])
    roots = np.flatnonzero(plan.parents.reshape(-1) < 0)
    arrival, rest = np.zeros(nodes), np.zeros(nodes)
    arrival[roots], rest[roots] = gathered[roots], spread[roots]
    for level in levels:
        arrival[below[level]] = arrival[above[level]] + down_s[level]
        rest[below[level]] = rest[above[level]] + up_s[level]

    head, tail = np.full(len(capacity_Bps), np.inf), np.full(len(capacity_Bps), np.inf)
    processors = _Processors(n, per_message_s)
    pieces = np.maximum(1.0, np.ceil(plan.shares * size_bytes / chunk_bytes))[edges.tree] if chunk_bytes else piece
    for pair, src, dst, hop_s, before, after in (
        (up_pair, edges.rank, edges.parent, up_s, gathered[below], rest[above]),
        (down_pair, edges.parent, edges.rank, down_s, arrival[above], spread[below]),
    ):
        if pair is None:
            continue
        processors.add(src, dst, pieces, hop_s, before, after)
        # The hop's own latency comes after the link; the largest among the edges of a link is not the deciding one.
        for hop in range(routes.links.shape[1]):
            has = np.flatnonzero(routes.hops[pair] > hop)
            link = routes.links[pair[has], hop]
            np.minimum.at(head, link, before[has])
            np.minimum.at(tail, link, after[has] + latency_s[pair[has]])
    busy_s = np.zeros(len(capacity_Bps))
    used = np.flatnonzero(loads_bytes > 0)
    busy_s[used] = loads_bytes[used] / capacity_Bps[used]
    path_s = float((gathered[roots] + spread[roots]).max())
    if not len(used):
        return Fill(path_s, processors.time_s())
    # The last message of the deciding link costs both its ranks their time too.
    longest_s = float((head[used] + busy_s[used] + tail[used]).max()) + 2 * per_message_s
    return Fill(max(longest_s, path_s) - float(busy_s[used].max()), processors.time_s())


class _Processors:
    """When the ranks' processors could begin, how much they have to do, and what comes after their last message."""

    def __init__(self, ranks: int, per_message_s: float) -> None:
        self._per_message_s = per_message_s
        self._head, self._tail = np.full(ranks, np.inf), np.full(ranks, np.inf)
        self._messages = np.zeros(ranks)

    def add(self, src: Ints, dst: Ints, pieces: Floats, hop_s: Floats, before: Floats, after: Floats) -> None:
        """Messages, `pieces` on each edge; what is before the hop and after it. The hop has both ends' time in it."""
        ranks, between_s = len(self._head), hop_s - self._per_message_s
        self._messages += np.bincount(src, weights=pieces, minlength=ranks)
        self._messages += np.bincount(dst, weights=pieces, minlength=ranks)
        np.minimum.at(self._head, src, before)
        np.minimum.at(self._head, dst, before + between_s)
        np.minimum.at(self._tail, src, after + between_s)
        np.minimum.at(self._tail, dst, after)

    def time_s(self) -> float:
        """Of the operation, if only they counted."""
        if not self._per_message_s:
            return 0.0
        busy = self._messages > 0
        return float((self._head + self._messages * self._per_message_s + self._tail)[busy].max(initial=0.0))


def _meeting(tree: Ints, routes: Routes, pair: Ints, hop: Ints) -> Floats:
    """How many edges of each edge's tree use the link that it has at `hop`: they meet there with one piece each."""
    has = np.flatnonzero(routes.hops[pair] > 0)
    link = routes.links[pair[has], hop[has]]
    _, which, counts = np.unique(tree[has] * (link.max(initial=0) + 1) + link, return_inverse=True, return_counts=True)
    met = np.ones(len(pair))
    met[has] = counts[which]
    return met


def _slowness(routes: Routes, pair: Ints, out: Floats, into: Floats, capacity_Bps: Floats) -> Floats:
    """Seconds per byte of one message over each edge, on its slowest link."""
    slow = np.zeros(len(pair))
    last = routes.hops[pair] - 1
    for hop in range(routes.links.shape[1]):
        has = np.flatnonzero(last >= hop)
        here = 1.0 / capacity_Bps[routes.links[pair[has], hop]]
        sharing = np.where(hop == 0, out[has], np.where(last[has] == hop, into[has], 1.0))
        slow[has] = np.maximum(slow[has], here * sharing)
    return slow
