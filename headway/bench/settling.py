"""How jobs that share a link fare, from when their iterations began: times, settling, offsets. Pure.

An iteration's time is from its begin to the next one's begin, so that waiting for a held period counts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from headway.bench.measures import percentile
from headway.interleave.aggressiveness import Aggressiveness, shift_s

NEAR = 0.05
"""Part of the isolated time by which an iteration may be longer and still counts as undisturbed."""
LEAST = 5
"""So many undisturbed iterations of every job in sequence are settled."""


@dataclass(frozen=True, slots=True)
class Lap:
    """One iteration: when it began, seconds, and its time over the isolated one."""

    begin_s: float
    over: float


def laps(begins_s: Sequence[float], isolated_s: float) -> list[Lap]:
    """All iterations but the last, whose successor is not known."""
    return [Lap(begin_s, (next_s - begin_s) / isolated_s) for begin_s, next_s in pairwise(begins_s)]


@dataclass(frozen=True, slots=True)
class Settled:
    """When jobs came to rest.

    Attributes:
        after: iterations before, of the job that had most.
        kept: part of all later iterations that are undisturbed.
    """

    after: int
    kept: float


def settled(
    jobs: Sequence[Sequence[Lap]], *, since_s: float = 0.0, near: float = NEAR, least: int = LEAST
) -> Settled | None:
    """The first moment from which every job's next `least` iterations take at most 1 + `near`; None: never.

    Args:
        jobs: each job's iterations in order.
        since_s: iterations that begin before are left out.
    """
    counted = [[lap for lap in mine if lap.begin_s >= since_s] for mine in jobs]
    if not counted:
        return None
    for moment_s in sorted(lap.begin_s for mine in counted for lap in mine):
        later = [[lap for lap in mine if lap.begin_s >= moment_s] for mine in counted]
        if min(map(len, later)) < least:
            return None
        if all(lap.over <= 1 + near for mine in later for lap in mine[:least]):
            rest = [lap.over <= 1 + near for mine in later for lap in mine]
            after = max(len(mine) - len(left) for mine, left in zip(counted, later, strict=True))
            return Settled(after, sum(rest) / len(rest))
    return None


def mean(jobs: Sequence[Sequence[Lap]]) -> float:
    """Mean over jobs of each job's mean; jobs without iterations are left out. NaN: there are none."""
    means = [statistics.fmean(lap.over for lap in mine) for mine in jobs if mine]
    return statistics.fmean(means) if means else float("nan")


def p99(jobs: Sequence[Sequence[Lap]]) -> float:
    """99th percentile over the iterations of all jobs (nearest rank). NaN: there are none."""
    every = [lap.over for mine in jobs for lap in mine]
    return percentile(every, 99) if every else float("nan")


def from_iteration(jobs: Sequence[Sequence[Lap]], first: int) -> list[Sequence[Lap]]:
    """Without each job's first iterations."""
    return [mine[first:] for mine in jobs]


def between(jobs: Sequence[Sequence[Lap]], since_s: float, until_s: float = float("inf")) -> list[Sequence[Lap]]:
    """What begins in that time."""
    return [[lap for lap in mine if since_s <= lap.begin_s < until_s] for mine in jobs]


def offsets_s(first_begins_s: Sequence[float], second_begins_s: Sequence[float]) -> list[float]:
    """How much later the second job began each iteration than the first job did."""
    return [second - first for first, second in zip(first_begins_s, second_begins_s, strict=False)]


def formula_offsets_s(f: Aggressiveness, offset_s: float, count: int, *, period_s: float, share: float) -> list[float]:
    """So many offsets by the paper's shift, of which the first is given. Below 0: the second job is the earlier one."""
    found = [offset_s]
    while len(found) < count:
        found.append(found[-1] + _shift_s(f, found[-1], period_s=period_s, share=share))
    return found[:count]


def _shift_s(f: Aggressiveness, offset_s: float, *, period_s: float, share: float) -> float:
    apart_s = min(abs(offset_s), share * period_s)
    return math.copysign(shift_s(f, apart_s, period_s=period_s, share=share), offset_s)


@dataclass(frozen=True, slots=True)
class Step:
    """One iteration's shift, away from each other.

    Attributes:
        apart_s: the jobs' distance before.
        measured_s: what it grew by.
        formula_s: what the formula says that it grows by.
    """

    apart_s: float
    measured_s: float
    formula_s: float


def steps(f: Aggressiveness, offsets: Sequence[float], *, period_s: float, share: float) -> list[Step]:
    """Of each two offsets in sequence while the jobs meet, whichever of them is earlier."""
    busy_s = share * period_s
    return [
        Step(
            apart_s=abs(before),
            measured_s=math.copysign(1.0, before) * (after - before),
            formula_s=shift_s(f, abs(before), period_s=period_s, share=share),
        )
        for before, after in pairwise(offsets)
        if abs(before) < busy_s
    ]


def rate_Bps(
    size_bytes: int, begins_s: Sequence[float], ends_s: Sequence[float], *, until_s: float = math.inf
) -> float:
    """Of a job that sends so much again and again, from its first begin to its last end; 0 without any.

    Args:
        until_s: look no farther; a piece that ends later counts by the part of its time before.
    """
    pieces = [pair for pair in zip(begins_s, ends_s, strict=False) if pair[0] < until_s]
    if not pieces:
        return 0.0
    parts = sum(min(1.0, (until_s - begin_s) / (end_s - begin_s)) for begin_s, end_s in pieces)
    return size_bytes * parts / (min(until_s, pieces[-1][1]) - pieces[0][0])


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, least, most."""
    return statistics.median(values), min(values), max(values)
