"""A plan is a weighted set of spanning trees (see the module docstring of `families` for what that covers)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from headway.errors import HeadwayError


class Collective(Enum):
    """What is computed. An all-reduce goes up and down each tree, the others use one half."""

    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    BROADCAST = "broadcast"
    REDUCE = "reduce"

    @property
    def reduces(self) -> bool:
        """Whether data travels up the trees."""
        return self in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE)

    @property
    def spreads(self) -> bool:
        """Whether data travels down the trees."""
        return self in (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.BROADCAST)


class Phase(Enum):
    """Up: towards the root, reducing. Down: from the root, spreading."""

    UP = 0
    DOWN = 1


class PlanError(HeadwayError):
    """A set of trees that would compute something wrong."""


@dataclass(frozen=True)
class Tree:
    """One spanning tree over all ranks.

    Attributes:
        parents: parents[r] is the rank above r; parents[root] == -1.
        share: fraction of the vector that this tree carries, > 0. In a reduce-scatter or an all-gather it is the
            fraction of the whole vector too: the shares of the trees rooted at r add up to r's block.
    """

    parents: tuple[int, ...]
    share: float

    @cached_property
    def root(self) -> int:
        """The rank without a parent."""
        return self.parents.index(-1)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """children[r]: the ranks below r, ascending. A sum is made in this order: own value, then these."""
        below: list[list[int]] = [[] for _ in self.parents]
        for rank, parent in enumerate(self.parents):
            if parent >= 0:
                below[parent].append(rank)
        return tuple(tuple(ranks) for ranks in below)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Hops from each rank to the root; -1 for a rank that does not reach it (a broken tree)."""
        depths = [-1] * len(self.parents)
        frontier = [self.root]
        depths[self.root] = 0
        while frontier:
            following = [child for rank in frontier for child in self.children[rank] if depths[child] < 0]
            for child in following:
                depths[child] = depths[self.parents[child]] + 1
            frontier = following
        return tuple(depths)

    @property
    def depth(self) -> int:
        """The longest way from a rank to the root, in hops."""
        return max(self.depths)


@dataclass(frozen=True)
class Plan:
    """Who sends what to whom.

    Attributes:
        name: what people call it, with its parameters: "ring", "chains over 7, host 3 last".
        size: number of ranks.
        trees: the trees; their shares add up to 1.
        order: the order of ranks that a family with places (ring, double tree, recursive doubling) was laid out in;
            empty for others. It only helps to find the moves from one order to another: nothing is computed from it.
    """

    name: str
    size: int
    trees: tuple[Tree, ...]
    order: tuple[int, ...] = field(default=(), compare=False)

    def __hash__(self) -> int:
        # Equality compares every tree; a hash over all of them would cost milliseconds at 1024 ranks.
        return hash((self.name, self.size, len(self.trees)))

    @property
    def depth(self) -> int:
        """The deepest tree's depth."""
        return int(self.hops.max(initial=0))

    @cached_property
    def parents(self) -> npt.NDArray[np.int32]:
        """The trees' parents as one array of shape (trees, size); read only."""
        rows = [tree.parents for tree in self.trees]
        array: npt.NDArray[np.int32] = np.array(rows, dtype=np.int32).reshape(len(rows), -1)
        array.setflags(write=False)
        return array

    @cached_property
    def hops(self) -> npt.NDArray[np.int32]:
        """Hops from each rank to its tree's root, shape (trees, size); -1 for a rank that does not reach it.

        By pointer doubling, in log2(size) passes over the array. Parents must be in range, one root per tree.
        """
        parents = self.parents
        roots = np.argmax(parents == -1, axis=1)[:, None]
        above = np.where(parents == -1, roots, parents)
        hops: npt.NDArray[np.int32] = (parents != -1).astype(np.int32)
        for _ in range(max(1, (self.size - 1).bit_length())):
            hops = hops + np.take_along_axis(hops, above, axis=1)
            above = np.take_along_axis(above, above, axis=1)
        hops[above != roots] = -1
        hops.setflags(write=False)
        return hops

    @cached_property
    def shares(self) -> npt.NDArray[np.float64]:
        """The trees' shares, shape (trees,); read only."""
        array = np.array([tree.share for tree in self.trees], dtype=np.float64)
        array.setflags(write=False)
        return array


def plan_of(
    name: str,
    parents: npt.ArrayLike,
    shares: Sequence[float] | npt.NDArray[np.float64],
    *,
    order: Sequence[int] | npt.NDArray[np.int32] = (),
) -> Plan:
    """A plan from parents of shape (trees, size) and one share per tree; nothing is checked (see `verify`)."""
    rows = np.asarray(parents, dtype=np.int32)
    weights = np.asarray(shares, dtype=np.float64).tolist()
    trees = tuple(Tree(tuple(row), share) for row, share in zip(rows.tolist(), weights, strict=True))
    return Plan(name, rows.shape[1], trees, tuple(int(rank) for rank in order))


def tree_ranges(plan: Plan, collective: Collective, count: int) -> tuple[tuple[int, int], ...]:
    """Which elements of a vector of `count` each tree carries: (first, one past last) per tree, by integers only.

    All-reduce, broadcast, reduce: the vector is cut in the order of the trees. Reduce-scatter, all-gather: `count`
    is the whole vector, block r is elements [r*count/size, (r+1)*count/size) (count must divide by size), and
    the trees rooted at r cut block r in their order. Every rank computes the same cuts; they cover every element once.
    """
    if collective in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER):
        if count % plan.size:
            raise PlanError(f"{collective.value}: {count} elements do not divide into {plan.size} blocks")
        block = count // plan.size
        ranges: list[tuple[int, int]] = [(0, 0)] * len(plan.trees)
        rooted: list[list[int]] = [[] for _ in range(plan.size)]
        for index, tree in enumerate(plan.trees):
            rooted[tree.root].append(index)
        for root, mine in enumerate(rooted):
            if not mine and block:
                raise PlanError(f"plan {plan.name}: no tree is rooted at rank {root}, whose block nobody would carry")
            cuts = _cuts([plan.trees[index].share for index in mine], block)
            for index, (first, last) in zip(mine, cuts, strict=True):
                ranges[index] = (root * block + first, root * block + last)
        return tuple(ranges)
    return tuple(_cuts([tree.share for tree in plan.trees], count))


def _cuts(shares: list[float], count: int) -> list[tuple[int, int]]:
    total = sum(shares)
    edges = [0]
    running = 0.0
    for share in shares:
        running += share
        edges.append(min(count, round(count * running / total)) if total > 0 else 0)
    if shares:
        edges[-1] = count
    return list(itertools.pairwise(edges))
