"""Named corrections to the fluid model, for what packets do and fluids don't. Each is off unless asked for.

`incast`: a link into a host that k > 2 sources send to at once gives 1 / (1 + incast * (1 - 2/k)) of its capacity, as
`collectives.predict.CostModel` has it: many windows that arrive together overflow a short queue, and the losses cost
time (Chen et al., Understanding TCP Incast, WREN 2009). Limits: one number for all rates and queues; the collapse by
timeouts that the paper shows is far steeper; sources count while their flows run, whatever they send.

`slow_start`: a new flow's cap is a window of `segments` full segments for each round trip, and doubles every round
trip (RFC 5681, 3.1; window of 10 segments after RFC 6928) until it no longer holds the flow back; then the flow is on
its own. The round trip is twice the route's latency and `base_rtt_s` for the hosts' own part. Limits: queues on the way
don't lengthen it; every flow begins anew, though a real connection may have kept its window; nothing is lost when the
window overshoots.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from headway.errors import UsageError
from headway.sim.loss import MSS_BYTES


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
        slow_start: how new flows begin; None: at their fair rate.
        burst_bytes: of each link's token bucket, payload; see `buckets`. Seen by plans that are carried out in pieces.
    """

    incast: float = 0.0
    slow_start: SlowStart | None = None
    burst_bytes: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.incast < float("inf"):
            raise UsageError(f"an incast loss of {self.incast} cannot be", hint="use 0 or more, like 0.03")
        if not 0 <= self.burst_bytes < float("inf"):
            raise UsageError(f"a burst of {self.burst_bytes} bytes cannot be", hint="use 0 or more")

    def incast_part(self, sources: int) -> float:
        """Part of a link's capacity that is there when flows of so many hosts end on it."""
        return 1 / (1 + self.incast * (1 - 2 / sources)) if sources > 2 else 1.0


IDEAL = Realism()


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
