"""Spanning trees as rows of parents: row[r] is the rank above r, and -1 at the root. Pure.

Paths, stars and binary trees, of which the families are made; and where leaves hang on a path, so that pairs of ranks
which shall not meet don't.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from headway.collectives.plan import PlanError

Parents = npt.NDArray[np.int32]
"""One row, shape (ranks,), or one for each tree, shape (trees, ranks)."""


def permutation(order: Sequence[int] | npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """`order` as an array. PlanError unless it names each of its ranks once, from 0 on."""
    ranks = np.asarray(order, dtype=np.int32)
    if len(ranks) == 0 or not np.array_equal(np.sort(ranks), np.arange(len(ranks))):
        raise PlanError(f"an order must name each of the ranks 0 to {len(ranks) - 1} once")
    return ranks


def rotated(ranks: npt.NDArray[np.int32], count: int) -> npt.NDArray[np.int32]:
    """`count` evenly spaced rotations, shape (count, len(ranks))."""
    m = len(ranks)
    shifts = np.arange(count) * m // count
    turned: npt.NDArray[np.int32] = ranks[(np.arange(m)[None, :] + shifts[:, None]) % m]
    return turned


def path_rows(spines: npt.NDArray[np.int32], root_at: int, size: int) -> Parents:
    """Each row of `spines` as a path rooted at its place `root_at`; ranks that are not on it stay without a parent."""
    rows = np.full((len(spines), size), -1, dtype=np.int32)
    tree = np.arange(len(spines))[:, None]
    rows[tree, spines[:, :root_at]] = spines[:, 1 : root_at + 1]
    rows[tree, spines[:, root_at + 1 :]] = spines[:, root_at:-1]
    return rows


def path_row(spine: npt.NDArray[np.int32], root_at: int, size: int) -> Parents:
    """One path: see `path_rows`."""
    row: Parents = path_rows(spine[None, :], root_at, size)[0]
    return row


def star_row(size: int, root: int) -> Parents:
    """All hang on the root. PlanError where it is none of the ranks."""
    if not 0 <= root < size:
        raise PlanError(f"root {root} is not one of {size} ranks")
    row = np.full(size, root, dtype=np.int32)
    row[root] = -1
    return row


def binary_row(places: npt.NDArray[np.int32], size: int) -> Parents:
    """A binary tree over the ranks at `places`, of which every other one, from the first on, is a leaf."""
    # In-order numbering from 1: place i has level ctz(i), odd places are leaves.
    m = len(places)
    row = np.full(size, -1, dtype=np.int32)
    for i in range(1, m + 1):
        low = i & -i
        up = (i ^ low) | (low << 1)
        if up > m:
            up = i ^ low
        if up:
            row[places[i - 1]] = places[up - 1]
    return row


def places_near(root_at: int, length: int) -> list[int]:
    """The places of a path, the nearest to its root first: a leaf there gets its result early, at the same load."""
    return sorted(range(length), key=lambda place: abs(place - root_at))


def holder(spine: Sequence[int], position: int, leaf: int, bad: Collection[frozenset[int]]) -> int:
    """The rank that holds a leaf: the one at `position`, or the next on the spine that makes no bad pair with it."""
    for step in range(len(spine) if bad else 1):
        candidate = spine[(position + step) % len(spine)]
        if frozenset((candidate, leaf)) not in bad:
            return candidate
    return spine[position]


def joined(core: list[int], turn: int, before: int | None, bad: Collection[frozenset[int]]) -> list[int]:
    """`core` turned so that it begins at place `turn`, or at the next that makes no bad pair with the rank before."""
    m = len(core)
    for step in range(m):
        at = (turn + step) % m
        if before is None or frozenset((before, core[at])) not in bad:
            return core[at:] + core[:at]
    return core[turn % m :] + core[: turn % m]
