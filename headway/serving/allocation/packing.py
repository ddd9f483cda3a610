"""Whether instances fit on GPUs, whoever they are: whole GPUs in fast domains, and fractions in GPUs. Exact. Pure.

Fractions may lie on any GPU that no whole instance has, so the two questions are independent:

- whole instances of t GPUs each go into domains. Largest first into any domain with room is exact where each degree
  divides the next larger one (1, 2, 4, 8); otherwise a search decides;
- fractions go into what GPUs are left, a bin packing with few different sizes: best-fit decreasing, and where that
  needs more GPUs than there are, and the bounds (`dual_feasible`) do not rule it out, an integer program (Gilmore and
  Gomory 1961) over the ways to fill a GPU, of which there are at most 42 for tenths.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp

from headway.serving.allocation.types import Share

ALL_UP_TO = 10
"""Parts of a GPU up to which all dual feasible functions are found (count): 0.1 s for tenths."""
SOME = range(1, 10)
"""k of those that are used for more parts: u_k of Fekete and Schepers (2001)."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A dual feasible function: whatever fits in one GPU weighs no more than the GPU. A bound for bin packing.

    Attributes:
        of: weight of a piece by its slices, from 0 to f.
        gpu: weight of a GPU, which is that of f slices.
    """

    of: tuple[int, ...]
    gpu: int


@lru_cache(maxsize=16)
def dual_feasible(slices_per_gpu: int) -> tuple[Weights, ...]:
    """Functions that together are as good a bound as the linear program of bin packing, or nearly.

    A maximal one is superadditive, v(i) + v(j) <= v(i + j), and symmetric, v(i) + v(f - i) = 1; the corners of that
    polytope are enough. With more than ALL_UP_TO parts there are too many, and only u_k are taken, which see for
    instance that two pieces of more than a half never share a GPU.
    """
    f = slices_per_gpu
    if f > ALL_UP_TO:
        return tuple(
            Weights(
                tuple(k * size if (k + 1) * size % f == 0 else f * ((k + 1) * size // f) for size in range(f + 1)),
                k * f,
            )
            for k in SOME
        )
    free = (f - 1) // 2  # v of the others follows from symmetry
    corners: set[tuple[Fraction, ...]] = set() if free else {()}
    if free:
        rows, limits = _superadditive(f, free)
        active = np.array(list(itertools.combinations(range(len(rows)), free)))
        active = active[np.abs(np.linalg.det(rows[active])) > 1e-9]
        points = np.linalg.solve(rows[active], limits[active][..., None])[..., 0]
        for point in points[np.all(points @ rows.T <= limits + 1e-9, axis=1)]:
            corners.add(tuple(Fraction(float(value)).limit_denominator(1000) for value in point))
    weights = []
    for exact in sorted(corners):
        values = [Fraction(0), *exact, *([Fraction(1, 2)] if f % 2 == 0 else [])]
        values += [1 - values[f - size] for size in range(len(values), f + 1)]
        gpu = math.lcm(*(value.denominator for value in values))
        weights.append(Weights(tuple(int(value * gpu) for value in values), gpu))
    return tuple(weights)


def _superadditive(f: int, free: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """rows @ v <= limits for v(1) to v(free)."""

    def linear(size: int) -> tuple[NDArray[np.float64], float]:
        """v(size) as coefficients and a constant."""
        unit = np.zeros(free)
        if 2 * size == f:
            return unit, 0.5
        if size <= free:
            unit[size - 1] = 1.0
            return unit, 0.0
        unit[f - size - 1] = -1.0
        return unit, 1.0

    rows, limits = [-row for row in np.eye(free)], [0.0] * free
    for a in range(1, f):
        for b in range(a, f - a):
            (left, left_at), (right, right_at), (both, both_at) = linear(a), linear(b), linear(a + b)
            rows.append(left + right - both)
            limits.append(both_at - left_at - right_at)
    return np.array(rows).reshape(-1, free), np.array(limits)


def domain_sizes(gpus: int, domain_gpus: int) -> tuple[int, ...]:
    """Sizes of the fast domains where `gpus` are in domains of `domain_gpus`, the last of what is left."""
    rest = gpus % domain_gpus
    return (domain_gpus,) * (gpus // domain_gpus) + ((rest,) if rest else ())


def fits(whole: Sequence[int], fractions: Sequence[int], *, domains: tuple[int, ...], slices_per_gpu: int) -> bool:
    """Whether all go on the GPUs at once.

    Args:
        whole: GPUs of each instance that takes whole ones.
        fractions: slices of each instance that takes a part of one.
        domains: sizes of the fast domains, in GPUs.
        slices_per_gpu: f.
    """
    free = sum(domains) - sum(whole)
    if free < 0 or not _whole_fit(tuple(sorted(whole, reverse=True)), domains):
        return False
    return not fractions or bins(tuple(sorted(fractions, reverse=True)), slices_per_gpu, free) is not None


def shares_fit(shares: Iterable[Share], domains: tuple[int, ...], slices_per_gpu: int) -> bool:
    """`fits` for all instances of some models."""
    whole: list[int] = []
    fractions: list[int] = []
    for share in shares:
        if share.shape.slices == slices_per_gpu:
            whole += [share.shape.tensor_parallel] * share.replicas
        else:
            fractions += [share.shape.slices] * share.replicas
    return fits(whole, fractions, domains=domains, slices_per_gpu=slices_per_gpu)


@lru_cache(maxsize=65536)
def _whole_fit(whole: tuple[int, ...], domains: tuple[int, ...]) -> bool:
    return spread_whole(whole, domains) is not None


def spread_whole(whole: tuple[int, ...], domains: Sequence[int]) -> tuple[int, ...] | None:
    """For each of `whole` (descending) the domain that it goes to, best fit first; None where they cannot all be."""
    free = list(domains)
    greedy = []
    for size in whole:
        where = min((at for at, room in enumerate(free) if room >= size), key=lambda at: (free[at], at), default=None)
        if where is None:
            break
        free[where] -= size
        greedy.append(where)
    else:
        return tuple(greedy)
    sizes = sorted(set(whole))
    if all(large % small == 0 for small, large in itertools.pairwise(sizes)) or sum(whole) > sum(domains):
        return None
    return _search_whole(whole, tuple(domains))


def _search_whole(whole: tuple[int, ...], domains: tuple[int, ...]) -> tuple[int, ...] | None:
    hopeless: set[tuple[int, tuple[int, ...]]] = set()

    def put(at: int, free: tuple[int, ...]) -> tuple[int, ...] | None:
        if at == len(whole):
            return ()
        state = (at, tuple(sorted(free)))
        if state in hopeless:
            return None
        tried: set[int] = set()
        for domain, room in enumerate(free):
            if room < whole[at] or room in tried:
                continue
            tried.add(room)
            rest = put(at + 1, (*free[:domain], room - whole[at], *free[domain + 1 :]))
            if rest is not None:
                return (domain, *rest)
        hopeless.add(state)
        return None

    return put(0, domains)


@lru_cache(maxsize=65536)
def bins(sizes: tuple[int, ...], capacity: int, most: int) -> tuple[tuple[int, ...], ...] | None:
    """At most `most` groups of at most `capacity` each that hold all of `sizes` (descending); None: there are none."""
    if not sizes:
        return ()
    if sizes[0] > capacity or sum(sizes) > most * capacity:
        return None
    if any(sum(each.of[size] for size in sizes) > most * each.gpu for each in dual_feasible(capacity)):
        return None
    groups: list[list[int]] = []
    room: list[int] = []
    for size in sizes:
        where = min((at for at, left in enumerate(room) if left >= size), key=lambda at: (room[at], at), default=None)
        if where is None:
            groups.append([size])
            room.append(capacity - size)
        else:
            groups[where].append(size)
            room[where] -= size
    if len(groups) <= most:
        return tuple(tuple(group) for group in groups)
    return _search_bins(sizes, capacity, most)


def _search_bins(sizes: tuple[int, ...], capacity: int, most: int) -> tuple[tuple[int, ...], ...] | None:
    """The fewest GPUs, as a covering problem: how often to fill a GPU in each of the ways in which it is full."""
    kinds = tuple(sorted(set(sizes), reverse=True))
    counts = np.array([sizes.count(kind) for kind in kinds])
    patterns = np.array(_full(kinds, capacity))
    solved = milp(
        np.ones(len(patterns)),
        integrality=np.ones(len(patterns), dtype=np.int64),
        bounds=Bounds(0, most),
        constraints=LinearConstraint(patterns.T, lb=counts),
    )
    if not solved.success:
        return None  # not even `most` of each
    times = np.rint(solved.x).astype(int)
    if times.sum() > most:
        return None
    left = counts.copy()
    groups = []
    for pattern in np.repeat(patterns, times, axis=0):
        taken = np.minimum(pattern, left)
        left -= taken
        groups.append(tuple(int(kind) for kind, count in zip(kinds, taken, strict=True) for _ in range(count)))
    return tuple(group for group in groups if group)


@lru_cache(maxsize=4096)
def _full(kinds: tuple[int, ...], room: int) -> list[tuple[int, ...]]:
    """All ways to fill `room` with pieces of these kinds (descending) to which no piece can be added."""
    if len(kinds) == 1:
        return [(room // kinds[0],)]
    found = []
    for count in range(room // kinds[0], -1, -1):
        rest = room - count * kinds[0]
        found += [
            (count, *others)
            for others in _full(kinds[1:], rest)
            if rest - sum(kind * each for kind, each in zip(kinds[1:], others, strict=True)) < kinds[0]
        ]
    return found
