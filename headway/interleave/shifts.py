"""One time shift per job, so that their bursts meet as little as possible: CASSINI's geometry. Pure.

A job is a circle whose perimeter is its iteration time, with an arc for every burst (CASSINI, NSDI 2024, arXiv
2308.00852, section 4). Jobs that share a link are rolled onto a common circle, whose perimeter is the least common
multiple of theirs; rotating a job is shifting it in time. Demand above the link's capacity is excess:

    score of a link = 1 - mean over the circle of max(0, sum of demands - capacity) / capacity

CASSINI finds the rotations of each link by itself and carries them over an affinity graph of jobs and links, which must
not have loops. Here all links of jobs that are joined by shared links are searched at once, so loops need no care.

The search is exact. Between two instants at which an edge of one job's arc meets an edge of another's, the excess is
linear in the shifts; so some best choice of shifts is a vertex, where such meetings join all jobs. The vertices are
enumerated job by job, and a branch ends when its excess, which more jobs never lessen, is no better than the best so
far. After `EVALUATIONS` the search stops, improves the best by moving one job at a time, and says that it is not exact.

Cost: an evaluation sorts the arcs of one common circle. Loses to interleaving: shifts are as good as the periods are
known and steady, and somebody must know all jobs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headway.errors import UsageError

EVALUATIONS = 10_000
_SAME = 1e-9
"""Parts of a circle, and of a capacity, that count as nothing."""


@dataclass(frozen=True, slots=True)
class Arc:
    """One burst: it begins `offset_s` after the iteration, and takes so many bytes per second of a link."""

    offset_s: float
    duration_s: float
    demand_Bps: float


@dataclass(frozen=True)
class Circle:
    """One job alone on the network.

    Attributes:
        name: of the job.
        period_s: one iteration.
        arcs: link -> bursts on it, none longer than the iteration.
    """

    name: str
    period_s: float
    arcs: Mapping[str, Sequence[Arc]]

    def __post_init__(self) -> None:
        if not 0 < self.period_s < math.inf:
            raise UsageError(f"a period of {self.period_s} s cannot be", where=f"job {self.name}")
        for arc in self._all():
            if not 0 <= arc.duration_s <= self.period_s * (1 + _SAME) or not arc.demand_Bps >= 0:
                raise UsageError(f"a burst of {arc.duration_s} s does not fit", where=f"job {self.name}")

    def _all(self) -> Iterator[Arc]:
        for arcs in self.arcs.values():
            yield from arcs

    def bytes_on(self, link: str) -> float:
        """Per iteration."""
        return sum(arc.duration_s * arc.demand_Bps for arc in self.arcs.get(link, ()))

    @property
    def span_s(self) -> float:
        """From the begin of its first burst to the end of its last."""
        begins = [arc.offset_s for arc in self._all()]
        return max((arc.offset_s + arc.duration_s for arc in self._all()), default=0.0) - min(begins, default=0.0)


@dataclass(frozen=True)
class Rotation:
    """The shifts found.

    Attributes:
        shifts_s: by which each job's iterations begin later, 0 to its period; the first job's is 0.
        excess: link -> mean excess over capacity.
        exact: whether no other shifts have less in all.
    """

    shifts_s: Sequence[float]
    excess: Mapping[str, float]
    exact: bool

    @property
    def total(self) -> float:
        """Excess of all links."""
        return sum(self.excess.values())

    @property
    def fits(self) -> bool:
        """Whether no link is ever asked for more than it has."""
        return self.total <= _SAME


def excess(
    circles: Sequence[Circle],
    turns: Sequence[int],
    base_s: float,
    shifts_s: Sequence[float],
    capacity_Bps: Mapping[str, float],
) -> dict[str, float]:
    """Link -> mean excess over capacity, for links that two or more of the jobs use.

    Args:
        circles: the jobs; their bursts are used, and for their periods:
        turns: job i has the period turns[i] * base_s, at least as long as its bursts.
        shifts_s: of each job.
        capacity_Bps: of each link.
    """
    around = math.lcm(*turns) if turns else 1
    found = {}
    for link in shared_links(circles):
        parts = [
            (arc, turn, shift_s)
            for circle, turn, shift_s in zip(circles, turns, shifts_s, strict=True)
            for arc in circle.arcs.get(link, ())
        ]
        found[link] = _mean_excess(parts, around, base_s, capacity_Bps[link]) / capacity_Bps[link]
    return found


def _mean_excess(parts: Sequence[tuple[Arc, int, float]], around: int, base_s: float, capacity_Bps: float) -> float:
    """Over the common circle, bytes per second; `parts`: (arc, turns of its job, shift of its job)."""
    whole_s = around * base_s
    starts, ends, demands, below_Bps = [], [], [], 0.0
    for arc, turn, shift_s in parts:
        repeated = np.arange(0, around, turn) * base_s
        start = np.mod(repeated + arc.offset_s + shift_s, whole_s)
        end = start + arc.duration_s
        below_Bps += float((end > whole_s).sum()) * arc.demand_Bps  # these lie over the circle's zero
        starts.append(start)
        ends.append(np.where(end > whole_s, end - whole_s, end))
        demands.append(np.full(len(start), arc.demand_Bps))
    if not parts:
        return 0.0
    demand = np.concatenate(demands)
    at_s = np.concatenate((*starts, *ends))
    change = np.concatenate((demand, -demand))
    order = np.argsort(at_s, kind="stable")
    edges_s = np.concatenate(([0.0], at_s[order], [whole_s]))
    load_Bps = below_Bps + np.concatenate(([0.0], np.cumsum(change[order])))
    return float(np.sum(np.maximum(0.0, load_Bps - capacity_Bps) * np.diff(edges_s))) / whole_s


def shared_links(circles: Sequence[Circle]) -> list[str]:
    """Links with bursts of at least two jobs, in order of their first."""
    users: dict[str, int] = {}
    for circle in circles:
        for link, arcs in circle.arcs.items():
            if arcs:
                users[link] = users.get(link, 0) + 1
    return [link for link, count in users.items() if count > 1]


def groups(circles: Sequence[Circle]) -> list[list[int]]:
    """Indices of jobs that are joined by shared links, directly or over others; each group in order."""
    group_of = list(range(len(circles)))
    for link in shared_links(circles):
        users = [index for index, circle in enumerate(circles) if circle.arcs.get(link)]
        joined = {group_of[user] for user in users}
        first = min(joined)
        group_of = [first if group in joined else group for group in group_of]
    return [[i for i, group in enumerate(group_of) if group == first] for first in sorted(set(group_of))]


def rotate(
    circles: Sequence[Circle],
    turns: Sequence[int],
    base_s: float,
    capacity_Bps: Mapping[str, float],
    *,
    evaluations: int = EVALUATIONS,
) -> Rotation:
    """The shifts with the least excess, summed over links, for jobs of one group. See the module and `excess`."""
    search = _Search(circles, turns, base_s, capacity_Bps, evaluations)
    search.place()
    exact = search.ended
    if not exact:
        search.improve()
    shifts_s = search.shifts_s()
    return Rotation(shifts_s, excess(circles, turns, base_s, shifts_s, capacity_Bps), exact or search.reached)


def fitting(
    circles: Sequence[Circle],
    turns: Sequence[int],
    base_s: float,
    capacity_Bps: Mapping[str, float],
    *,
    evaluations: int = EVALUATIONS,
) -> Rotation | None:
    """Shifts without any excess; None if there are none, or none was found in time. Much faster than `rotate`."""
    search = _Search(circles, turns, base_s, capacity_Bps, evaluations, below=2 * _SAME)
    search.place()
    if not search.found:
        return None
    shifts_s = search.shifts_s()
    return Rotation(shifts_s, excess(circles, turns, base_s, shifts_s, capacity_Bps), exact=True)


class _Search:
    """One search; see `rotate`. What has `below` or more is not looked for."""

    def __init__(
        self,
        circles: Sequence[Circle],
        turns: Sequence[int],
        base_s: float,
        capacity_Bps: Mapping[str, float],
        most: int,
        below: float = math.inf,
    ) -> None:
        self._evaluations = 0
        self._circles, self._turns, self._base_s = circles, turns, base_s
        self._capacity_Bps, self._most = capacity_Bps, most
        self._links = shared_links(circles)
        # No shifts have less excess than what a link is asked for beyond its capacity on average.
        self._bound = sum(
            max(0.0, sum(c.bytes_on(link) / (t * base_s) for c, t in self._pairs()) / capacity_Bps[link] - 1)
            for link in self._links
        )
        self._best = below
        self._best_s: dict[int, float] = {}
        self._seen: set[frozenset[tuple[int, int]]] = set()

    def _pairs(self) -> Iterator[tuple[Circle, int]]:
        return zip(self._circles, self._turns, strict=True)

    @property
    def found(self) -> bool:
        """Whether there are shifts."""
        return len(self._best_s) == len(self._circles)

    @property
    def reached(self) -> bool:
        """Whether nothing can be better."""
        return self._best <= self._bound + _SAME

    @property
    def ended(self) -> bool:
        """Whether everything has been looked at that may be better."""
        return not self._out_of_time or self.reached

    @property
    def _out_of_time(self) -> bool:
        return self._evaluations >= self._most and (self.found or self._best < math.inf)

    def shifts_s(self) -> list[float]:
        """The best ones."""
        return [self._best_s[index] for index in range(len(self._circles))]

    def place(self) -> None:
        """Look at all vertices."""
        if self._bound < self._best:
            self._place({0: 0.0})

    def _cost(self, placed_s: Mapping[int, float]) -> float:
        self._evaluations += 1
        chosen = sorted(placed_s)
        found = excess(
            [self._circles[i] for i in chosen],
            [self._turns[i] for i in chosen],
            self._base_s,
            [placed_s[i] for i in chosen],
            self._capacity_Bps,
        )
        return sum(found.values())

    def _place(self, placed_s: dict[int, float]) -> None:
        """Try all ways to go on from these jobs, the best ones first."""
        if len(placed_s) == len(self._circles):
            cost = self._cost(placed_s)
            if cost < self._best:
                self._best, self._best_s = cost, dict(placed_s)
            return
        options = []
        for index in range(len(self._circles)):
            if index in placed_s:
                continue
            for shift_s in self._meetings(index, placed_s):
                after_s = {**placed_s, index: shift_s}
                key = frozenset((i, round(s / (self._base_s * _SAME))) for i, s in after_s.items())
                if key not in self._seen:
                    self._seen.add(key)
                    options.append((self._cost(after_s), index, shift_s))
                if self._out_of_time:
                    return
        for cost, index, shift_s in sorted(options):
            if cost >= self._best or self.reached or self._out_of_time:
                return
            self._place({**placed_s, index: shift_s})

    def _meetings(self, index: int, placed_s: Mapping[int, float]) -> list[float]:
        """Shifts of a job with which an edge of its arcs meets one of a job that has its place."""
        period_s = self._turns[index] * self._base_s
        found: dict[int, float] = {}
        for link in self._links:
            for mine_s in self._edges(index, link):
                for other, shift_s in placed_s.items():
                    step = math.gcd(self._turns[other], self._turns[index])
                    for k in range(0, self._turns[index], step):  # where the other's turns fall on this one's circle
                        for edge_s in self._edges(other, link):
                            meets_s = (edge_s + shift_s + k * self._base_s - mine_s) % period_s
                            found.setdefault(round(meets_s / (period_s * _SAME)), meets_s)
        return list(found.values())

    def _edges(self, index: int, link: str) -> list[float]:
        arcs = self._circles[index].arcs.get(link, ())
        return [edge for arc in arcs for edge in (arc.offset_s, arc.offset_s + arc.duration_s)]

    def improve(self) -> None:
        """Move one job at a time to its best place among the others, until none gains."""
        better = True
        while better and not self.reached:
            better = False
            for index in range(1, len(self._circles)):
                others_s = {i: s for i, s in self._best_s.items() if i != index}
                for shift_s in self._meetings(index, others_s):
                    cost = self._cost({**others_s, index: shift_s})
                    if cost < self._best - _SAME:
                        self._best, self._best_s = cost, {**others_s, index: shift_s}
                        better = True
