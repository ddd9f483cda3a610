"""A plan as a fluid: one flow per ordered pair of ranks with all that the pair carries. Pure.

The pairs of a pipeline advance in step, because each waits for what the others bring. So a flow's weight is its load
over the largest one: then the busiest link is full until the end, and alone on the network the operation takes

    max over links  load / capacity,   and the fill (see `filling`);   and no less than the processors need.

Processors handle messages while others are on their way, as in PIECES, so their time counts where it is the longer one.
(`predict` adds it up: without a time per message both say the same.)

A pair's flow begins when both its ranks have. All ranks end together. It loses to PIECES where few pieces make a
pipeline, and where a network that changes during the operation lets some pairs run ahead of what they depend on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from headway.collectives.plan import Plan
from headway.sim.engine.fabric import Fabric
from headway.sim.engine.network import Flow
from headway.sim.execution.filling import Fill, Floats, Routes, fill_of
from headway.sim.execution.pair_loads import PairLoads, pair_loads
from headway.sim.execution.running import Call, Running

KEPT = 64


@dataclass(frozen=True)
class _Part:
    """What does not depend on the moment: of one plan on one set of hosts, for one size.

    Attributes:
        load_bytes: of each pair. weight: of its flow.
        at_rank: rank -> indices of its pairs.
        links: that it uses, ascending; link_bytes: load of each of the fabric's links.
        fill: capacities of `links`, latencies of the pairs and time of a message -> fill.
    """

    plan: Plan
    fabric: Fabric
    pairs: PairLoads
    src: list[int]
    dst: list[int]
    load_bytes: list[float]
    weight: list[float]
    at_rank: list[list[int]]
    routes: Routes
    links: list[int]
    link_bytes: Floats
    fill: dict[tuple[tuple[float, ...], tuple[float, ...], float], Fill]


_kept: dict[tuple[object, ...], _Part] = {}


def _part(call: Call) -> _Part:
    key = (
        id(call.network.fabric), id(call.plan), call.collective, call.size_bytes, call.chunk_bytes, call.hosts,
        call.key,
    )  # fmt: skip
    part = _kept.get(key)
    if part is None:
        if len(_kept) >= KEPT:
            del _kept[next(iter(_kept))]
        part = _kept[key] = _make_part(call)
    return part


def _make_part(call: Call) -> _Part:
    fabric, pairs, plan = call.network.fabric, pair_loads(call.plan, call.collective), call.plan
    src, dst = pairs.src.tolist(), pairs.dst.tolist()
    ways = [
        fabric.router.route(call.hosts[a], call.hosts[b], call.flow_key(a, b)) for a, b in zip(src, dst, strict=True)
    ]
    routes = Routes(plan.size, pairs.src, pairs.dst, ways)
    load_bytes = pairs.share * call.size_bytes
    at_rank: list[list[int]] = [[] for _ in range(plan.size)]
    for pair, (a, b) in enumerate(zip(src, dst, strict=True)):
        at_rank[a].append(pair)
        at_rank[b].append(pair)
    return _Part(
        plan=plan,
        fabric=fabric,
        pairs=pairs,
        src=src,
        dst=dst,
        load_bytes=load_bytes.tolist(),
        weight=(pairs.share / pairs.share.max(initial=1e-300)).tolist(),
        at_rank=at_rank,
        routes=routes,
        links=routes.used().tolist() if len(src) else [],
        link_bytes=routes.loads(load_bytes, len(fabric.links)),
        fill={},
    )


class StreamRun(Running):
    """One operation as a fluid."""

    def __init__(self, call: Call, ready: Sequence[float] | None) -> None:
        super().__init__(call, ready)
        self._part = _part(call)
        self._flows: dict[int, Flow] = {}
        self._sent_bytes = 0.0
        self._to_come = len(self._part.src)
        self._latency_s = [call.costs.local_alpha_s] * self._to_come
        self._begun_s = self.loop.now_s

    def weighted_flows(self) -> Iterable[tuple[Flow, float]]:
        """See `Running`."""
        return [(flow, self._part.weight[pair]) for pair, flow in self._flows.items()]

    def sent_bytes(self) -> float:
        """See `Running`."""
        return self._sent_bytes + sum(map(self.call.network.sent_bytes, self._flows.values()))

    def begun(self, ranks: Sequence[int]) -> None:
        """See `Running`."""
        part = self._part
        self._begun_s = self.loop.now_s
        pairs = range(len(part.src)) if len(ranks) == part.plan.size else self._pairs_of(ranks)
        for pair in pairs:
            src, dst, weight = part.src[pair], part.dst[pair], self.weight * part.weight[pair]
            flow = self.call.flow(src, dst, part.load_bytes[pair], weight, on_sent=partial(self._sent, pair))
            self._flows[pair] = flow
            if self.call.hosts[src] != self.call.hosts[dst]:
                self._latency_s[pair] = flow.latency_s
        if not part.src and self.all_begun:
            self._end()

    def _pairs_of(self, ranks: Sequence[int]) -> list[int]:
        """The pairs that can begin now that these ranks have."""
        part, found = self._part, set[int]()
        for rank in ranks:
            for pair in part.at_rank[rank]:
                if self.has_begun(part.src[pair]) and self.has_begun(part.dst[pair]):
                    found.add(pair)
        return sorted(found)

    def _sent(self, pair: int) -> None:
        del self._flows[pair]
        self._sent_bytes += self._part.load_bytes[pair]
        self._to_come -= 1
        if not self._to_come:
            self.loop.after(self._rest_s(), self._end)

    def _rest_s(self) -> float:
        """Until the end, when the last pair has sent all. Processors have worked since the last rank began."""
        fill = self._fill()
        return max(fill.network_s, fill.processors_s - (self.loop.now_s - self._begun_s))

    def _fill(self) -> Fill:
        part, network = self._part, self.call.network
        rates = tuple(network.capacity_Bps(link) for link in part.links)
        state = rates, tuple(self._latency_s), self.call.costs.per_message_s
        fill = part.fill.get(state)
        if fill is None:
            # A link without capacity counts as built: whatever had to cross it has.
            capacity_Bps = np.array([link.capacity_Bps for link in part.fabric.links])
            for link, rate in zip(part.links, rates, strict=True):
                capacity_Bps[link] = rate if rate > 0 else capacity_Bps[link]
            if len(part.fill) >= KEPT:
                part.fill.clear()
            fill = part.fill[state] = fill_of(
                part.plan,
                self.call.collective,
                self.call.size_bytes,
                self.call.chunk_bytes,
                part.routes,
                np.array(self._latency_s),
                part.link_bytes,
                capacity_Bps,
                self.call.costs.per_message_s,
            )
        return fill

    def _end(self) -> None:
        for rank in range(self._part.plan.size):
            self.rank_ended(rank, self.loop.now_s)
