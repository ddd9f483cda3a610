"""A point on a latency curve, from calls that came at a steady rate; whether the engine kept up with them. Pure.

    warm-up | measured | cool-down      calls come all the time, so that the measured ones meet a steady engine

An engine that takes fewer calls than come grows a queue: fewer end than come, and each takes longer than the one
before. Either alone also happens by chance, and near saturation: both together, clearly, are taken for an overload.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headway.serving.profiling.crowd import Span

FEWER = 0.1
"""Part of the calls that come by which those that end are fewer under an overload (1): a saturation that is too high by
less shows in nothing but chance."""
CHANCE = 1.5
"""Square roots of the calls by which they are fewer besides (1)."""
LONGER = 1.25
"""Under an overload the last third of the calls takes so many times as long as the first third (1)."""


@dataclass(frozen=True, slots=True)
class Phases:
    """Calls before the measured ones, the measured ones, and calls after them (counts)."""

    warm_up: int
    measured: int
    cool_down: int

    @property
    def calls(self) -> int:
        """In all."""
        return self.warm_up + self.measured + self.cool_down


@dataclass(frozen=True, slots=True)
class Point:
    """What came of the measured calls.

    Attributes:
        mean_s, p99_s: how long they took.
        ended_per_s: calls per second that ended while they came.
        overloaded: whether the engine did not keep up.
    """

    mean_s: float
    p99_s: float
    ended_per_s: float
    overloaded: bool


def phases(rate: float, held_s: float, *, least_calls: int, warm_up: float, call_s: float) -> Phases:
    """How many calls come before, within and after what is measured.

    Args:
        rate: calls per second.
        held_s: for how long they are measured.
        least_calls: to measure, whatever `held_s` says (count).
        warm_up: calls before those, as a part of them (1); and for as long as two calls take.
        call_s: how long a call takes, about: calls go on to come for so long after those that are measured.
    """
    measured = max(round(rate * held_s), least_calls)
    return Phases(
        warm_up=math.ceil(max(warm_up * measured, 2 * call_s * rate)),
        measured=measured,
        cool_down=math.ceil(call_s * rate),
    )


def judged(spans: Sequence[Span], parts: Phases) -> Point:
    """The point that calls make.

    Args:
        spans: of all calls, in order of the times that they came at.
        parts: how many of them are what.
    """
    measured = spans[parts.warm_up : parts.warm_up + parts.measured]
    after = spans[parts.warm_up + parts.measured :]
    begin_s, end_s = measured[0][0], after[0][0] if after else measured[-1][0]
    took_s = [ended_s - sent_s for sent_s, ended_s in measured]
    ended = sum(begin_s < ended_s <= end_s for _, ended_s in spans)
    missing = len(measured) - ended
    third = max(1, len(measured) // 3)
    longer = float(np.mean(took_s[-third:]) / np.mean(took_s[:third]))
    return Point(
        mean_s=float(np.mean(took_s)),
        p99_s=float(np.quantile(took_s, 0.99)),
        ended_per_s=ended / (end_s - begin_s) if end_s > begin_s else 0.0,
        overloaded=missing > FEWER * len(measured) + CHANCE * math.sqrt(len(measured)) and longer > LONGER,
    )
