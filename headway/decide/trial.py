"""An option on trial: measured against the incumbent, kept only when it is better (REACT's rule). Pure.

Measurements carry a key (what was measured), and only like is compared with like. The ratio of challenger to
incumbent is the challenger's time for the operations that it ran over the incumbent's time for the same ones:

    ratio = sum over keys of n_k * median(challenger_k)  /  sum over keys of n_k * median(incumbent_k)

with n_k the challenger's measurements of key k. Medians, because one pause of a host must not decide.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """What a trial says so far."""

    UNDECIDED = "undecided"
    ACCEPTED = "accepted"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class TrialRules:
    """When a trial ends.

    Attributes:
        accept_ratio: the challenger's time over the incumbent's, at or below which it is accepted (1). REACT keeps
            what is at least 5 % better.
        warm_up: first measurements that are left out (count): new connections start slowly. Ours.
        least: measurements without which nothing is accepted (count). Ours.
        most: measurements after which a trial is decided either way (count). Ours.
        clear_margin: between `least` and `most`, decide only when the ratio is this far from `accept_ratio` (1), and
            reject only when the best measurements say so too: of two, one may be a pause. Ours.
        hopeless_ratio: reject at the first measurement, the warm-up included, from this ratio on (1). Ours: a slow
            start costs some round trips, not twice the time.
        patience: measurements without a comparable key after which the challenger is rejected (count). Ours.
    """

    accept_ratio: float = 0.95
    warm_up: int = 1
    least: int = 2
    most: int = 4
    clear_margin: float = 0.05
    hopeless_ratio: float = 2.0
    patience: int = 64


class Trial:
    """One challenger against one incumbent.

    Args:
        reference: key -> the incumbent's recent measurements of it, smaller is better.
        rules: when it ends.
    """

    def __init__(self, reference: Mapping[Hashable, Sequence[float]], rules: TrialRules | None = None) -> None:
        self._reference = {key: statistics.median(values) for key, values in reference.items() if values}
        self._rules = rules or TrialRules()
        self._measured: dict[Hashable, list[float]] = defaultdict(list)
        self._seen = 0
        self._first: tuple[Hashable, float] | None = None

    def add(self, measurements: Iterable[tuple[Hashable, float]]) -> None:
        """Measurements of the challenger, in order."""
        for key, value in measurements:
            self._seen += 1
            if key not in self._reference:
                continue
            if self._first is None:
                self._first = (key, value)
            if self._seen > self._rules.warm_up:
                self._measured[key].append(value)

    @property
    def ratio(self) -> float | None:
        """Challenger over incumbent; None before the first measurement that counts."""
        return self._ratio(statistics.median)

    @property
    def outcome(self) -> Outcome:
        """What the measurements so far say."""
        rules = self._rules
        counted = sum(len(values) for values in self._measured.values())
        ratio = self.ratio
        if ratio is None or counted < rules.least:
            return Outcome.REJECTED if self._hopeless(ratio) or self._seen >= rules.patience else Outcome.UNDECIDED
        if counted < rules.most:
            best = self._ratio(min)
            if abs(ratio - rules.accept_ratio) < rules.clear_margin:
                return Outcome.UNDECIDED
            if best is not None and best <= rules.accept_ratio < ratio:
                return Outcome.UNDECIDED
        return Outcome.ACCEPTED if ratio <= rules.accept_ratio else Outcome.REJECTED

    def _ratio(self, typical: Callable[[Sequence[float]], float]) -> float | None:
        counted = {key: values for key, values in self._measured.items() if values}
        challenger = sum(len(values) * typical(values) for values in counted.values())
        incumbent = sum(len(values) * self._reference[key] for key, values in counted.items())
        return challenger / incumbent if incumbent > 0 else None

    def _hopeless(self, ratio: float | None) -> bool:
        if ratio is not None:
            return ratio >= self._rules.hopeless_ratio
        if self._first is None:
            return False
        key, value = self._first
        return value >= self._rules.hopeless_ratio * self._reference[key]
