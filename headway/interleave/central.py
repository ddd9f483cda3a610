"""The central optimum that jobs without a coordinator are compared with: shifts, periods, and their limit. Pure.

Shifts only last while all periods stay in whole ratios. So a plan also holds each job's period, at or above what it
needs alone: job i takes turns_i * base. Among such plans in which no link is ever asked for more than it has, the one
with the least mean of period over isolated time is chosen. Turns come from each job's own period divided by 1 to
`MOST_TURNS`; for each choice of turns the base is the least at which the shifts fit: the lower bound where that
fits, else by bisection, which can miss a shorter one where what fits at some base does not at a longer one.

The limit of any schedule, periodic or not, in which jobs' iterations take P_i on average: P_i is no less than the
isolated time, and no link carries more than it can, sum over jobs of bytes_i / P_i <= capacity. The P_i with the least
mean of P_i over isolated time are a convex problem, solved by its dual.

Where it loses: to schedules whose iterations are not all alike (a job of half the other's period that waits only every
second time), and wherever noise makes the iterations longer than the held period (`slack` makes room).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headway.errors import UsageError
from headway.interleave.shifts import Circle, Rotation, excess, fitting, groups, rotate, shared_links

MOST_TURNS = 12
NEAR = 0.01
"""Periods are taken to be in whole ratios when that makes none longer by more than this part of it."""
_ROUNDS = 200
_BISECTIONS = 24


@dataclass(frozen=True)
class CentralPlan:
    """What to do, and what comes of it. All mappings are by job, but for links'.

    Attributes:
        shifts_s: by which each job's iterations begin later, 0 to its period.
        periods_s: of each job's iterations, held.
        isolated_s: of each job alone.
        limit_s: no schedule has a smaller mean of these over the isolated times.
        scores: link -> CASSINI's score of the best shifts at the jobs' own periods.
        unshifted: link -> the same as the jobs begin now.
        fits: whether the jobs fit at their own periods.
        exact: whether no other shifts have better scores, by exhaustion.
    """

    shifts_s: Mapping[str, float]
    periods_s: Mapping[str, float]
    isolated_s: Mapping[str, float]
    limit_s: Mapping[str, float]
    scores: Mapping[str, float]
    unshifted: Mapping[str, float]
    fits: bool
    exact: bool

    @property
    def stretch(self) -> float:
        """Mean over jobs of the held period over the isolated time."""
        return _mean(self.periods_s, self.isolated_s)

    @property
    def limit(self) -> float:
        """The same of the limit."""
        return _mean(self.limit_s, self.isolated_s)


def _mean(times_s: Mapping[str, float], isolated_s: Mapping[str, float]) -> float:
    return sum(times_s[name] / isolated_s[name] for name in isolated_s) / len(isolated_s)


def plan(
    circles: Sequence[Circle],
    capacity_Bps: Mapping[str, float],
    *,
    starts_s: Mapping[str, float] | None = None,
    slack: float = 0.0,
) -> CentralPlan:
    """Shifts and periods of these jobs.

    Args:
        circles: each job alone.
        capacity_Bps: of every link that a job uses.
        starts_s: when each job begins now, for `unshifted`; default: all at once.
        slack: part of its isolated time by which each held period is at least longer, so that noise can be made up.

    Raises:
        UsageError: there are no jobs, two have one name, or the slack is below 0.
    """
    names = [circle.name for circle in circles]
    if not circles or len(set(names)) < len(names):
        raise UsageError("needs jobs of different names")
    if not 0 <= slack < math.inf:
        raise UsageError(f"a slack of {slack} cannot be", hint="use 0 or more, like 0.02")
    shifts_s: dict[str, float] = {}
    periods_s: dict[str, float] = {}
    scores: dict[str, float] = {}
    unshifted: dict[str, float] = {}
    exact = fits = True
    for group in groups(circles):
        members = [circles[index] for index in group]
        turns, base_s = whole_ratios([circle.period_s for circle in members])
        own = rotate(members, turns, base_s, capacity_Bps)
        scores |= {link: 1 - part for link, part in own.excess.items()}
        now_s = [(starts_s or {}).get(circle.name, 0.0) for circle in members]
        unshifted |= {link: 1 - part for link, part in excess(members, turns, base_s, now_s, capacity_Bps).items()}
        held = _held(members, capacity_Bps, slack)
        for circle, turn, shift_s in zip(members, held.turns, held.rotation.shifts_s, strict=True):
            periods_s[circle.name] = turn * held.base_s
            shifts_s[circle.name] = shift_s
        fits = fits and own.fits
        exact = exact and own.exact and held.rotation.exact
    return CentralPlan(
        shifts_s={name: shifts_s[name] for name in names},
        periods_s={name: periods_s[name] for name in names},
        isolated_s={circle.name: circle.period_s for circle in circles},
        limit_s=limit_s(circles, capacity_Bps),
        scores=scores,
        unshifted=unshifted,
        fits=fits,
        exact=exact,
    )


def whole_ratios(periods_s: Sequence[float]) -> tuple[list[int], float]:
    """(turns of each job, base): turns * base is its period, or longer by at most `NEAR`, with the fewest turns.

    The base is one job's period divided by a whole number; the first within `NEAR` up to a hundred, or the nearest.
    """
    best: tuple[float, list[int], float] | None = None
    for parts in range(1, 101):
        for period_s in periods_s:
            base_s = period_s / parts
            turns = _turns(periods_s, base_s)
            longer = max(t * base_s / p for t, p in zip(turns, periods_s, strict=True)) - 1
            if best is None or longer < best[0] - 1e-12:
                best = longer, turns, base_s
        assert best is not None
        if best[0] <= NEAR:
            break
    assert best is not None
    return best[1], best[2]


def _turns(periods_s: Sequence[float], base_s: float) -> list[int]:
    """Each period in whole bases, rounded up."""
    return [max(1, math.ceil(period_s / base_s * (1 - 1e-9))) for period_s in periods_s]


@dataclass(frozen=True)
class _Held:
    turns: Sequence[int]
    base_s: float
    rotation: Rotation


def _held(circles: Sequence[Circle], capacity_Bps: Mapping[str, float], slack: float) -> _Held:
    """The best plan of one group with periods held; see the module."""
    least_s = [circle.period_s * (1 + slack) for circle in circles]
    choices: dict[tuple[int, ...], float] = {}
    for parts in range(1, MOST_TURNS + 1):
        for period_s in least_s:
            asked = _turns(least_s, period_s / parts)
            common = math.gcd(*asked)
            reduced = tuple(turn // common for turn in asked)
            choices[reduced] = _least_base_s(circles, reduced, least_s, capacity_Bps)

    def stretch(turns: Sequence[int], base_s: float) -> float:
        return sum(t * base_s / c.period_s for t, c in zip(turns, circles, strict=True))

    best: _Held | None = None
    for turns, base_s in sorted(choices.items(), key=lambda each: (stretch(*each), sum(each[0]))):
        if best is not None and stretch(turns, base_s) >= stretch(best.turns, best.base_s) * (1 - 1e-9):
            break
        found = _fitting(circles, turns, base_s, capacity_Bps)
        if best is None or stretch(turns, found.base_s) < stretch(best.turns, best.base_s) * (1 - 1e-9):
            best = found
    assert best is not None
    return best


def _least_base_s(
    circles: Sequence[Circle], turns: Sequence[int], least_s: Sequence[float], capacity_Bps: Mapping[str, float]
) -> float:
    """No shorter base gives each job its time and each link its bytes."""
    base_s = max(period_s / turn for period_s, turn in zip(least_s, turns, strict=True))
    for link in shared_links(circles):
        per_base = sum(circle.bytes_on(link) / turn for circle, turn in zip(circles, turns, strict=True))
        base_s = max(base_s, per_base / capacity_Bps[link])
    return base_s


def _fitting(
    circles: Sequence[Circle], turns: Sequence[int], least_s: float, capacity_Bps: Mapping[str, float]
) -> _Held:
    """The least base found at which some shifts leave no excess."""
    found = fitting(circles, turns, least_s, capacity_Bps)
    if found is not None:
        return _Held(turns, least_s, found)
    low_s, high_s = least_s, max(least_s, sum(circle.span_s for circle in circles)) * (1 + 1e-9)
    best = _one_after_the_other(circles, turns, high_s, capacity_Bps)
    for _ in range(_BISECTIONS):
        if high_s - low_s < 1e-7 * high_s:
            break
        base_s = (low_s + high_s) / 2
        found = fitting(circles, turns, base_s, capacity_Bps)
        if found is not None:
            high_s, best = base_s, _Held(turns, base_s, found)
        else:
            low_s = base_s
    return best


def _one_after_the_other(
    circles: Sequence[Circle], turns: Sequence[int], base_s: float, capacity_Bps: Mapping[str, float]
) -> _Held:
    """All bursts of a job, then all of the next, within one base: this always fits."""
    shifts_s, begin_s = [], 0.0
    for circle, turn in zip(circles, turns, strict=True):
        first_s = min((arc.offset_s for arcs in circle.arcs.values() for arc in arcs), default=0.0)
        shifts_s.append((begin_s - first_s) % (turn * base_s))
        begin_s += circle.span_s
    left = excess(circles, turns, base_s, shifts_s, capacity_Bps)
    return _Held(turns, base_s, Rotation(shifts_s, left, exact=True))


def limit_s(circles: Sequence[Circle], capacity_Bps: Mapping[str, float]) -> dict[str, float]:
    """Average iteration times with the least mean over isolated times that the links allow; see the module.

    By the dual: P_i = max(T_i, sqrt(T_i * sum over links of price * bytes)), and each link's price in turn is made such
    that it is not asked for more than it has.
    """
    links = shared_links(circles)
    price = dict.fromkeys(links, 0.0)

    def period_s(circle: Circle) -> float:
        cost = sum(price[link] * circle.bytes_on(link) for link in links)
        return max(circle.period_s, math.sqrt(circle.period_s * cost))

    def asked_Bps(link: str) -> float:
        return sum(circle.bytes_on(link) / period_s(circle) for circle in circles if circle.bytes_on(link))

    for _ in range(_ROUNDS):
        before = dict(price)
        for link in links:
            price[link] = 0.0
            if asked_Bps(link) <= capacity_Bps[link] * (1 + 1e-12):
                continue
            low, high = 0.0, 1.0 / capacity_Bps[link]
            price[link] = high
            while asked_Bps(link) > capacity_Bps[link]:
                low, high = high, 2 * high
                price[link] = high
            for _ in range(60):
                price[link] = (low + high) / 2
                if asked_Bps(link) > capacity_Bps[link]:
                    low = price[link]
                else:
                    high = price[link]
            price[link] = high
        if all(abs(price[link] - before[link]) <= 1e-9 * price[link] for link in links):
            break
    return {circle.name: period_s(circle) for circle in circles}
