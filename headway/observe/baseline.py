"""What a link carries when it is free: the yardstick of the detector.

The cluster's nominal rates are a scale, not the truth: protocol headers, the host's CPU and a user's guess all keep
flows off them. So every link has a factor x = (rate it was seen to carry) / (its nominal rate), learned in epochs
without findings. Until a link has a history of its own, the median over all links stands in for it, which is right
even when a job starts in the midst of congestion on fewer than half of its links.
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


class Baseline:
    """Factors of links over their nominal rates, learned in clean epochs.

    Args:
        trust_nominal: take the nominal rates for true until the links have shown what they carry; otherwise nothing
            is said about the first epoch of fewer than three links.
    """

    def __init__(self, *, trust_nominal: bool = True) -> None:
        self._trust_nominal = trust_nominal
        self._factor: dict[Hashable, float] = {}
        self._epochs: dict[Hashable, int] = {}
        self._typical: float | None = None

    def factor(self, link: Hashable, shown: Mapping[Hashable, float]) -> float | None:
        """The factor that `link` is held against; None while nothing is known.

        Args:
            link: any key.
            shown: link -> factor that each link showed in this epoch, those without evidence left out.
        """
        if self._epochs.get(link, 0) >= OWN_AFTER:
            return self._factor[link]
        if self._typical is not None:
            return self._typical
        if len(shown) >= 3:
            return statistics.median(shown.values())
        return 1.0 if self._trust_nominal else None

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
