"""A deterministic model of a plan's flows on links whose capacity changes: operation times and flow samples.

Every tree edge sends evenly over the operation, as a pipelined executor makes it. At each instant the operation
advances at the speed that its most loaded link allows. A flow on that link is network-limited all the time; another
one waits for data, and is limited only while its last piece is on the wire. A full link delays every flow that uses
it, and every acknowledgement that comes back through it; it drops a segment now and then.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headway.cluster.model import Cluster
from headway.collectives.plan import Collective, Plan
from headway.observe.samples import FlowSample
from headway.observe.summary import OperationSpan

QUEUE_S = 0.02
ALPHA_S = 0.002

Load = Callable[[float], Mapping[int, float]]
"""Time -> {index into Cluster.links: part of the capacity that is left}; absent links are free."""


def flows_of(plan: Plan, collective: Collective) -> dict[tuple[int, int], float]:
    """Bytes per byte of vector on each ordered pair of ranks."""
    flows: dict[tuple[int, int], float] = defaultdict(float)
    for tree in plan.trees:
        for rank, parent in enumerate(tree.parents):
            if parent >= 0:
                if collective.reduces:
                    flows[rank, int(parent)] += tree.share
                if collective.spreads:
                    flows[int(parent), rank] += tree.share
    return dict(flows)


@dataclass
class FakeNetwork:
    """Links of `cluster`, each at a part of its capacity that `left` gives.

    Attributes:
        left: what others leave of the links.
        seed: of the noise.
        noise: standard deviation of the relative error of times and bytes.
        efficiency: part of a link's rate that TCP reaches.
        pause_share: probability that an operation is held up by a host's pause.
        knows_rtt: whether samples carry round-trip times.
        sample_s: time between samples, and resolution of the model.
        used: what the last operation took of each link, as a part of its capacity.
    """

    cluster: Cluster
    left: Load = lambda now_s: {}
    seed: int = 0
    noise: float = 0.03
    efficiency: float = 0.94
    pause_share: float = 0.0
    knows_rtt: bool = True
    sample_s: float = 0.04
    used: dict[int, float] = field(default_factory=dict, init=False)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def run(
        self, plan: Plan, collective: Collective, size_bytes: int, *, number: int, start_s: float
    ) -> tuple[OperationSpan, list[FlowSample]]:
        """One operation: when it ran, and what its flows did."""
        flows = {
            pair: share * size_bytes for pair, share in flows_of(plan, collective).items() if self.cluster.route(*pair)
        }
        routes = {pair: self.cluster.route(*pair) for pair in flows}
        backs = {pair: self.cluster.route(pair[1], pair[0]) for pair in flows}
        loads: dict[int, float] = defaultdict(float)
        users: dict[int, int] = defaultdict(int)
        for pair, load in flows.items():
            for link in routes[pair]:
                loads[link] += load
                users[link] += 1
        now_s, done = start_s + plan.depth * ALPHA_S, 0.0
        if self._random.random() < self.pause_share:
            now_s += 0.2 + 0.2 * self._random.random()
        samples: list[FlowSample] = []
        since_s = start_s
        gathered: dict[tuple[int, int], list[float]] = {pair: [0.0, 0.0, 0.0] for pair in flows}
        while done < 1.0:
            left = self.left(now_s)
            rate = {
                link: self.cluster.links[link].capacity_Bps * self.efficiency * left.get(link, 1.0) for link in loads
            }
            busy_s = {link: loads[link] / rate[link] for link in loads}
            whole_s = max(busy_s.values()) * max(0.5, self._random.gauss(1.0, self.noise))
            step_s = min(self.sample_s, (1.0 - done) * whole_s)
            full = {link for link in loads if busy_s[link] >= 0.97 * max(busy_s.values())}
            for pair, load in flows.items():
                route = routes[pair]
                if full & set(route):
                    share = 0.97
                else:
                    alone_s = max(load * users[link] / rate[link] for link in route)
                    share = min(0.95, alone_s / whole_s + 0.05)
                entry = gathered[pair]
                entry[0] += load * step_s / whole_s
                entry[1] += share * step_s
                entry[2] = QUEUE_S * (len(full & set(route)) + len(full & set(backs[pair])))
            done += step_s / whole_s
            now_s += step_s
            if now_s - since_s >= self.sample_s or done >= 1.0:
                for (src, dst), entry in gathered.items():
                    samples.append(
                        FlowSample(
                            src=src,
                            dst=dst,
                            start_s=since_s,
                            end_s=now_s,
                            acked_bytes=round(entry[0] * max(0.0, self._random.gauss(1.0, 2 * self.noise))),
                            busy_s=min(entry[1], now_s - since_s),
                            rwnd_limited_s=0.0,
                            sndbuf_limited_s=0.0,
                            rtt_s=0.0005 + entry[2] * self._random.uniform(0.7, 1.3) if self.knows_rtt else None,
                            min_rtt_s=0.0004 if self.knows_rtt else None,
                            retransmits=self._random.randrange(3) if full & set(routes[src, dst]) else 0,
                            operation=number,
                        )
                    )
                    entry[0] = entry[1] = 0.0
                since_s = now_s
        self.used = {
            link: load / (now_s - start_s) / self.cluster.links[link].capacity_Bps for link, load in loads.items()
        }
        return OperationSpan(number, start_s, now_s), samples
