from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.collectives import families
from headway.collectives.plan import Collective, Plan, PlanError, Tree, plan_of, tree_ranges


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=20), st.integers(0, 10_000))
def test_ranges_cover_every_element_once_in_order(shares: list[float], count: int) -> None:
    plan = plan_of("any", [[-1]] * len(shares), [share / sum(shares) for share in shares])
    ranges = tree_ranges(plan, Collective.ALL_REDUCE, count)
    assert ranges[0][0] == 0
    assert ranges[-1][1] == count
    assert all(first <= last for first, last in ranges)
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ranges))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 12), st.integers(0, 50), st.floats(0.1, 0.9))
def test_block_ranges_cover_every_block_by_trees_of_its_rank(n: int, block: int, part: float) -> None:
    rings, stars = families.ring(range(n)), families.direct([1.0] * n)
    weights = np.concatenate([rings.shares * part, stars.shares * (1 - part)])
    plan = plan_of("mix", np.concatenate([rings.parents, stars.parents]), weights)
    for collective in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER):
        owner = [-1] * (n * block)
        for tree, (first, last) in zip(plan.trees, tree_ranges(plan, collective, n * block), strict=True):
            for element in range(first, last):
                assert owner[element] == -1
                owner[element] = tree.root
        assert owner == [element // block for element in range(n * block)]


def test_blocks_must_divide() -> None:
    with pytest.raises(PlanError, match="do not divide"):
        tree_ranges(families.ring(range(3)), Collective.ALL_GATHER, 10)


def test_a_block_without_a_tree_is_an_error() -> None:
    with pytest.raises(PlanError, match="no tree is rooted at rank 0"):
        tree_ranges(families.star(2, 1), Collective.REDUCE_SCATTER, 10)


def test_depths_children_and_root() -> None:
    tree = Tree((1, -1, 1, 2), 1.0)
    assert (tree.root, tree.depth, tree.depths) == (1, 2, (1, 0, 1, 2))
    assert tree.children == ((), (0, 2), (3,), ())


def test_hops_agree_with_depths_and_mark_cycles() -> None:
    plan = families.recursive_doubling(range(11))
    assert [tuple(row) for row in plan.hops.tolist()] == [tree.depths for tree in plan.trees]
    broken = Plan("broken", 3, (Tree((-1, 2, 1), 1.0),))
    assert broken.hops.tolist() == [[0, -1, -1]]


def test_plans_with_equal_trees_are_equal_whatever_their_order_hint() -> None:
    one = plan_of("a", [[-1, 0]], [1.0], order=(0, 1))
    other = plan_of("a", [[-1, 0]], [1.0])
    assert one == other
    assert hash(one) == hash(other)


def test_arrays_are_read_only() -> None:
    plan = families.ring(range(3))
    with pytest.raises(ValueError, match="read-only"):
        plan.parents[0, 0] = 1
