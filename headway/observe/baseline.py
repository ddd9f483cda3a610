"""What a link carries when it is free: the yardstick of the detector.

The cluster's nominal rates are a scale, not the truth: protocol headers, the host's CPU and a user's guess all keep
flows off them. So every link has a factor x = (rate it was seen to carry) / (its nominal rate), learned in epochs
without findings. Until a link has a history of its own, the median over all links stands in for it, which is right
even when a job starts in the midst of congestion on fewer than half of its links; where the nominal rates are known
to be true, they bound it from below.
"""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Mapping

OWN_AFTER = 4
"""Clean epochs after which a link is measured against itself and no longer against the others (count). Ours: enough
for the slow-start of the first operations to fade."""

FORGET = 0.1
"""Weight of one clean epoch in a link's average (1). Ours: follows a change within some 20 epochs."""

RISE = 0.25
"""Weight of an epoch that shows more than the average (1). What was carried once can be carried: a link's capacity
is the most that it shows, so the average climbs fast and sinks slowly."""


TRUSTED = 0.85
"""Least factor of a free link whose nominal rate is true (1). TCP over Ethernet carries 0.94 to 0.97 of a link; clean
runs on 8 emulated hosts read 0.81 and up."""


SAME_KIND = 0.2
"""Links within this part of the typical factor count as equal (1). Ours: clean runs read 0.81 of the median and up."""


class Baseline:
    """Factors of links over their nominal rates, learned in clean epochs.

    Args:
        trust_nominal: whether the nominal rates are the true ones.
    """

    def __init__(self, *, trust_nominal: bool = True) -> None:
        self._trust_nominal = trust_nominal
        self._factor: dict[Hashable, float] = {}
        self._epochs: dict[Hashable, int] = {}
        self._typical: float | None = None
        self._peers: float | None = None

    def factor(self, link: Hashable, peers: float | None) -> float | None:
        """The factor that `link` is held against; None while nothing is known.

        Args:
            link: any key.
            peers: median factor of all links in this epoch, None where too few carried anything.
        """
        self._peers = self._peers if peers is None else peers
        if self._epochs.get(link, 0) >= OWN_AFTER:
            return self._factor[link]
        known = peers if self._typical is None else self._typical
        if self._trust_nominal:
            return TRUSTED if known is None else min(1.0, max(TRUSTED, known))
        return known

    def usual(self, link: Hashable) -> float:
        """The factor by which planners scale `link`: what all links have in common, unless this one is of another
        kind. Small differences are noise, and would make equal hosts look unequal. 1 while nothing is known."""
        typical = self._typical if self._typical is not None else self._peers
        if typical is None:
            return 1.0
        own = self._factor[link] if self._epochs.get(link, 0) >= OWN_AFTER else typical
        return typical if abs(own - typical) <= SAME_KIND * typical else own

    def learn(self, shown: Mapping[Hashable, float]) -> None:
        """Take in an epoch in which nothing was congested."""
        if not shown:
            return
        middle = statistics.median(shown.values())
        self._typical = middle if self._typical is None else _moved(self._typical, middle)
        for link, value in shown.items():
            self._factor[link] = _moved(self._factor[link], value) if link in self._factor else value
            self._epochs[link] = self._epochs.get(link, 0) + 1


def _moved(average: float, value: float) -> float:
    return average + (RISE if value > average else FORGET) * (value - average)
