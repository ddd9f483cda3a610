"""What the detector says of one link of the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headway.cluster.model import LinkKind


class Pattern(Enum):
    """The two classes of congestion (REACT): lasting, or coming and going."""

    STEADY = "steady"
    INTERMITTENT = "intermittent"


@dataclass(frozen=True, slots=True)
class Finding:
    """One link has less capacity than its baseline.

    Attributes:
        kind: UPLINK or DOWNLINK of one host, or PATH between two.
        host: the host (index in the cluster), or the path's source host.
        peer: the path's destination host; None for an uplink or a downlink.
        capacity_Bps: what this job gets of the link now, bytes per second.
        baseline_Bps: what it got when the link was free.
        pattern: steady or intermittent.
        since_s: when it was first seen, on the clock of the rank that decides.
        samples: how many flow samples stand behind it.
        certain: False when another link explains the same slow flow as well (a ring's flow is the only one on its
            sender's uplink and on its receiver's downlink), so that only one of the two need be slow.
        current: whether the latest epoch itself showed it; False while it is only not yet over.
    """

    kind: LinkKind
    host: int
    peer: int | None
    capacity_Bps: float
    baseline_Bps: float
    pattern: Pattern
    since_s: float
    samples: int
    certain: bool = True
    current: bool = True

    @property
    def ratio(self) -> float:
        """Capacity now over baseline: 0.5 when half is gone."""
        return self.capacity_Bps / self.baseline_Bps
