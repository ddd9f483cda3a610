"""How much slower a replica is than the model thinks: what tells equal replicas apart when one of them is not. Pure.

The model knows no names, so a replica that is slowed down (a hot chip, a neighbour, another gateway) looks like its
peers until its queue has grown. Here each replica keeps the mean of its own newest log(measured / predicted), drawn
towards nothing by as many samples that say "as predicted", and forgotten with time: a replica that is avoided gets no
samples, and must be tried again some day. Not in Lodestar.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

DOUBT = 10.0
"""Samples that say "as predicted" which each replica begins with."""

MEMORY = 20.0
"""Newest samples that count: each one's weight falls by a factor e over so many."""

NOISE = 0.2
"""Taken off the size of the mean: equal replicas differ by so much by chance, and following that would send requests
away from their caches for nothing."""

HALF_LIFE_S = 60.0
"""Time over which what is known counts half, seconds."""

MOST_REPLICAS = 1000
"""Replicas remembered; beyond that those measured longest ago are forgotten, as names come and go."""

_LEAST_S = 1e-4


@dataclass(slots=True)
class _Record:
    weight: float = 0.0
    total: float = 0.0
    at_s: float = 0.0


class Corrections:
    """A factor on the predictions of each replica, from its own measurements."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def factor(self, replica: str, now_s: float) -> float:
        """Measured over predicted TTFT, as far as is known (1); 1 of a replica that has not been seen."""
        record = self._records.get(replica)
        if record is None:
            return 1.0
        kept = 0.5 ** ((now_s - record.at_s) / HALF_LIFE_S)
        mean = kept * record.total / (kept * record.weight + DOUBT)
        return math.exp(math.copysign(max(0.0, abs(mean) - NOISE), mean))

    def measured(self, replica: str, ttft_s: float, predicted_s: float, now_s: float) -> None:
        """One measurement, and what the model had predicted without a factor."""
        record = self._records.pop(replica, None) or _Record(at_s=now_s)
        self._records[replica] = record
        if len(self._records) > MOST_REPLICAS:
            del self._records[next(iter(self._records))]
        kept = 0.5 ** ((now_s - record.at_s) / HALF_LIFE_S) * math.exp(-1 / MEMORY)
        ratio = math.log(max(ttft_s, _LEAST_S) / max(predicted_s, _LEAST_S))
        record.weight = kept * record.weight + 1
        record.total = kept * record.total + ratio
        record.at_s = now_s
