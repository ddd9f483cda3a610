"""Whether instances fit on GPUs, whoever they are: whole GPUs in fast domains, and fractions in GPUs. Exact. Pure.

Fractions may lie on any GPU that no whole instance has, so the two questions are independent:

- whole instances of t GPUs each go into domains. Largest first into any domain with room is exact where each degree
  divides the next larger one (1, 2, 4, 8); otherwise a search decides;
- fractions go into what GPUs are left, a bin packing with few different sizes: best-fit decreasing, and where that
  needs more GPUs than there are, and the lower bounds do not rule it out, a search.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

from headway.serving.allocation.types import Share

DUAL_FEASIBLE = (1, 2, 3, 4)
"""k of the functions u_k of Fekete and Schepers (2001): bounds for bin packing that see that two pieces of more than a
half never share a GPU, and so on for thirds."""


def dual_weight(slices: int, slices_per_gpu: int, k: int) -> int:
    """u_k(slices / f) in units of 1 / (k f): whatever fits in one GPU has at most k f in sum."""
    if (k + 1) * slices % slices_per_gpu == 0:
        return k * slices
    return slices_per_gpu * ((k + 1) * slices // slices_per_gpu)


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
    if any(sum(dual_weight(size, capacity, k) for size in sizes) > most * capacity * k for k in DUAL_FEASIBLE):
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
    """Fills one GPU after the other, each with the largest piece that is left and every maximal choice beside it."""
    kinds = tuple(sorted(set(sizes), reverse=True))
    hopeless: set[tuple[tuple[int, ...], int]] = set()

    def fill(left: tuple[int, ...], gpus: int) -> tuple[tuple[int, ...], ...] | None:
        if not any(left):
            return ()
        total = sum(kind * count for kind, count in zip(kinds, left, strict=True))
        if gpus == 0 or math.ceil(total / capacity) > gpus or (left, gpus) in hopeless:
            return None
        first = next(at for at, count in enumerate(left) if count)
        start = tuple(count - (at == first) for at, count in enumerate(left))
        for taken in _maximal(kinds, start, capacity - kinds[first]):
            rest = fill(tuple(count - take for count, take in zip(start, taken, strict=True)), gpus - 1)
            if rest is not None:
                group = [kinds[first]]
                for kind, take in zip(kinds, taken, strict=True):
                    group += [kind] * take
                return (tuple(group), *rest)
        hopeless.add((left, gpus))
        return None

    return fill(tuple(sizes.count(kind) for kind in kinds), most)


def _maximal(kinds: tuple[int, ...], left: tuple[int, ...], room: int) -> list[tuple[int, ...]]:
    """All ways to fill `room` to which nothing of what is left can be added, fullest first."""
    found: list[tuple[int, tuple[int, ...]]] = []

    def take(at: int, room: int, taken: tuple[int, ...]) -> None:
        if at == len(kinds):
            if not any(count > take and kind <= room for kind, count, take in zip(kinds, left, taken, strict=True)):
                found.append((room, taken))
            return
        for count in range(min(left[at], room // kinds[at]), -1, -1):
            take(at + 1, room - count * kinds[at], (*taken, count))

    take(0, room, ())
    return [taken for _, taken in sorted(found, key=lambda each: each[0])]
