"""Proof by simulation that a plan computes what it should; every plan passes here before it runs.

After REACT: each rank starts with a mask that has its own bit set. A reduce step joins two masks, which must be
disjoint (nothing is added twice); at the end every (rank, piece) must hold all bits. In an all-gather or a
reduce-scatter the piece of block j must belong to trees rooted at j, so that block j ends in slot j.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from headway.collectives.plan import Collective, Plan, PlanError

SHARE_TOLERANCE = 1e-9

_passed: WeakKeyDictionary[Plan, set[tuple[Collective, int | None]]] = WeakKeyDictionary()


def check(plan: Plan, collective: Collective, *, root: int | None = None) -> None:
    """Raise PlanError in words unless `plan` computes `collective`; remembers plans that passed.

    Args:
        plan: the plan; up to 1024 ranks x 1024 trees take about a second, once.
        collective: what it is to compute.
        root: for broadcast and reduce, the rank all trees must be rooted at; None: any one rank.
    """
    done = _passed.setdefault(plan, set())
    if (collective, root) in done:
        return
    check_trees(plan)
    _check_roots(plan, collective, root)
    _simulate(plan, collective)
    done.add((collective, root))


def check_trees(plan: Plan) -> None:
    """Raise PlanError unless every tree spans all ranks without a cycle and the shares are above 0 with sum 1."""
    _check_shape(plan)
    _check_reach(plan)


def _check_shape(plan: Plan) -> None:
    if plan.size < 1 or not plan.trees:
        raise PlanError(f"plan {plan.name}: it needs at least one rank and one tree")
    for index, tree in enumerate(plan.trees):
        if len(tree.parents) != plan.size:
            raise PlanError(
                f"plan {plan.name}, tree {index}: it has {len(tree.parents)} ranks, the plan has {plan.size}"
            )
        if not (np.isfinite(tree.share) and tree.share > 0):
            raise PlanError(f"plan {plan.name}, tree {index}: share {tree.share} is not above 0")
    total = float(plan.shares.sum())
    if abs(total - 1) > SHARE_TOLERANCE:
        raise PlanError(f"plan {plan.name}: the shares add up to {total:.9g}, not to 1")
    parents = plan.parents
    outside = (parents < -1) | (parents >= plan.size) | (parents == np.arange(plan.size))
    if outside.any():
        index, rank = (int(k) for k in np.argwhere(outside)[0])
        raise PlanError(f"plan {plan.name}, tree {index}: rank {rank} has parent {parents[index, rank]}")
    roots = (parents == -1).sum(axis=1)
    if (roots != 1).any():
        index = int(np.flatnonzero(roots != 1)[0])
        raise PlanError(f"plan {plan.name}, tree {index}: it has {roots[index]} roots, not one")


def _check_reach(plan: Plan) -> None:
    lost = plan.hops < 0
    if lost.any():
        index, rank = (int(k) for k in np.argwhere(lost)[0])
        raise PlanError(f"plan {plan.name}, tree {index}: rank {rank} never reaches the root (a cycle)")


def _check_roots(plan: Plan, collective: Collective, root: int | None) -> None:
    roots = np.argmax(plan.parents == -1, axis=1)
    if collective in (Collective.BROADCAST, Collective.REDUCE):
        wanted = int(roots[0]) if root is None else root
        if (roots != wanted).any():
            index = int(np.flatnonzero(roots != wanted)[0])
            raise PlanError(
                f"plan {plan.name}, tree {index}: {collective.value} from rank {wanted}, but rooted at {roots[index]}"
            )
    elif collective in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER):
        held = np.bincount(roots, weights=plan.shares, minlength=plan.size)
        wrong = np.abs(held - 1 / plan.size) > SHARE_TOLERANCE
        if wrong.any():
            rank = int(np.flatnonzero(wrong)[0])
            raise PlanError(
                f"plan {plan.name}: the trees rooted at rank {rank} carry {held[rank]:.9g} of the vector, "
                f"its block in {collective.value} is 1/{plan.size}"
            )


def _simulate(plan: Plan, collective: Collective) -> None:
    """Masks as Python integers: bit r is rank r's contribution."""
    everything = (1 << plan.size) - 1
    own = [1 << rank for rank in range(plan.size)]
    orders = np.argsort(-plan.hops, axis=1, kind="stable").tolist()
    for index, (tree, order) in enumerate(zip(plan.trees, orders, strict=True)):
        parents = tree.parents
        root = order[-1]
        held = list(own)
        if collective.reduces:
            for rank in order[:-1]:
                into = parents[rank]
                if held[into] & held[rank]:
                    raise PlanError(f"plan {plan.name}, tree {index}: rank {into} would add rank {rank}'s part twice")
                held[into] |= held[rank]
            if held[root] != everything:
                raise PlanError(f"plan {plan.name}, tree {index}: the root misses some ranks' contributions")
        if collective.spreads:
            result = held[root]
            for rank in reversed(order[:-1]):
                held[rank] = held[parents[rank]]
            if any(mask != result for mask in held):
                raise PlanError(f"plan {plan.name}, tree {index}: some ranks miss the result")
