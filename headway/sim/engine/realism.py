"""Named corrections to the fluid model, for what packets do and fluids don't. Each is off unless asked for.

`incast`: a link into a host that k > 2 sources send to at once gives 1 / (1 + incast * (1 - 2/k)) of its capacity, as
`collectives.predict.CostModel` has it; in place of 2, `incast_sources`: as many windows as the queue holds. Many
windows that arrive together overflow a short queue, and the losses cost time (Chen et al., Understanding TCP Incast,
WREN 2009). Limits: one number for all rates and queues; the collapse by timeouts that the paper shows is far steeper;
sources count while their flows run, whatever they send; where another link decides, the losses cost nothing, and this
still counts them.

`slow_start`: a new flow's cap is a window of `segments` full segments for each round trip, and doubles every round
trip (RFC 5681, 3.1; window of 10 segments after RFC 6928) until it no longer holds the flow back; then the flow is on
its own. The round trip is twice the route's latency and `base_rtt_s` for the hosts' own part. Limits: queues on the way
don't lengthen it; every flow begins anew, though a real connection may have kept its window; nothing is lost when the
window overshoots.

`udp_loss`: part of open-loop load that is lost in the full queue in front of a link, and which TCP then has. Limits: it
grows with the windows that share the queue, and is one number here.

`tcp_weight`, `tcp_queue`: a greedy TCP flow of somebody else keeps a link's queue full. A queue that serves first come
first served gives each flow its part of what waits, so that flows with bounded windows get less than an equal share:
the foreign flow weighs `tcp_weight` times as much. And whatever crosses the link waits as long as the queue takes,
which `tcp_queue` adds to its latency. Limits: the weight falls with the number of our flows there; small operations
also wait for windows that losses have cut, which is not modelled.

`LAB` is all of it as measured on the emulated cluster, once for all plans, sizes and loads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from headway.errors import UsageError
from headway.sim.engine.loss import MSS_BYTES


@dataclass(frozen=True, slots=True)
class SlowStart:
    """How new flows begin.

    Attributes:
        segments: first window, full TCP segments of payload.
        base_rtt_s: round trip without the links' latency; must be above 0 where links have none.
    """

    segments: int = 10
    base_rtt_s: float = 100e-6

    def __post_init__(self) -> None:
        if self.segments < 1 or not 0 < self.base_rtt_s < float("inf"):
            raise UsageError(
                f"slow start with {self.segments} segments and a base round trip of {self.base_rtt_s} s cannot be",
                hint="use at least 1 segment, and a time above 0",
            )

    def rtt_s(self, latency_s: float) -> float:
        """Round trip of a route."""
        return 2 * latency_s + self.base_rtt_s

    def first_cap_Bps(self, latency_s: float) -> float:
        """What a flow may send in its first round trip, as a rate."""
        return self.segments * MSS_BYTES / self.rtt_s(latency_s)


@dataclass(frozen=True, slots=True)
class Realism:
    """Which corrections a network makes.

    Attributes:
        incast: part of its time that a link into a host loses when very many hosts send to it at once; 0: none.
        incast_sources: how many sources' windows the queue in front of such a link holds.
        slow_start: how new flows begin; None: at their fair rate.
        udp_loss: part of background UDP that is lost. tcp_weight: of a background TCP flow against one of a job.
        tcp_queue: whether background TCP keeps the link's queue full.
        burst_bytes: of each link's token bucket, payload; see `buckets`. Seen by plans that are carried out in pieces.
    """

    incast: float = 0.0
    incast_sources: int = 2
    slow_start: SlowStart | None = None
    burst_bytes: float = 0.0
    udp_loss: float = 0.0
    tcp_weight: float = 1.0
    tcp_queue: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.incast <= 1:
            raise UsageError(f"an incast loss of {self.incast} cannot be", hint="a part from 0 to 1, like 0.03")
        if self.incast_sources < 2:
            raise UsageError(f"incast from {self.incast_sources} sources on cannot be", hint="use 2 or more")
        if not 0 <= self.udp_loss < 1 or not 0 < self.tcp_weight < float("inf"):
            raise UsageError(
                f"a UDP loss of {self.udp_loss} and a TCP weight of {self.tcp_weight} cannot be",
                hint="use a loss from 0 to 1, and a weight above 0",
            )
        if not 0 <= self.burst_bytes < float("inf"):
            raise UsageError(f"a burst of {self.burst_bytes} bytes cannot be", hint="use 0 or more")

    def incast_part(self, sources: int) -> float:
        """Part of a link's capacity that is there when flows of so many hosts end on it."""
        least = self.incast_sources
        return 1 / (1 + self.incast * (1 - least / sources)) if sources > least else 1.0


IDEAL = Realism()

LAB = Realism(
    incast=0.3,
    incast_sources=4,
    burst_bytes=72 * 1024 * MSS_BYTES / 1514,
    udp_loss=0.05,
    tcp_weight=2.5,
    tcp_queue=True,
)
"""The emulated cluster (docs/lab.md), all-reduces of 1 to 16 MB on 8 hosts at 200 Mbit/s, medians of 5.

incast: 7 sources into one downlink took 1.11 (direct) to 1.2 times (star) as long as the rest of the model says; 4 of
the send buffers with which connections begin (`HostModel.kernel_bytes`) fill the queue of 512 KB. burst_bytes: the
shaper's (scenario field `burst`). udp_loss: a ring beside UDP at 50 and 75 % of a link had 51 and 28.5 % of it.
tcp_weight: beside one greedy CUBIC flow a ring's two flows had 0.465 of a downlink, where equal shares were 0.67; a
direct exchange's seven 0.68, not 0.875. tcp_queue: 20 ms at the link's rate, the lab's queue.
"""


class Sources:
    """Which hosts send to each link at once."""

    def __init__(self) -> None:
        self._flows: Mapping[int, dict[int, int]] = defaultdict(dict)

    def count(self, link: int) -> int:
        """How many."""
        return len(self._flows[link])

    def add(self, link: int, src: int) -> None:
        """A flow from host `src` begins."""
        flows = self._flows[link]
        flows[src] = flows.get(src, 0) + 1

    def remove(self, link: int, src: int) -> None:
        """A flow from host `src` is over."""
        flows = self._flows[link]
        flows[src] -= 1
        if not flows[src]:
            del flows[src]
