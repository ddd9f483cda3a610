"""A plan unrolled into rounds: for executors without tags, for the verifier's eyes and for simulators. Pure.

Piece c of a tree moves up one edge per round as soon as its rank can have it: rank r sends it to its parent in
round c + height(r), where height counts the hops to the farthest rank below; the root has it complete before round
c + height(root), and it reaches a rank of depth d in round c + height(root) + d - 1. So the first pieces of all
trees start together, each edge carries at most one piece per tree and direction in a round, and on rotated chains
every rank sends in every round. A round's transfers are independent of each other.

Communication steps: pieces + depth - 1 rounds for one half of an operation, pieces + 2*depth - 1 for an all-reduce.
Bytes are the plan's. Loses to the pipelined executor where ranks or links differ in speed: a round is as slow as
its slowest transfer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headway.collectives.plan import Collective, Phase, Plan, Tree


class Transfer(NamedTuple):
    """One piece over one edge. `piece` counts within the tree from 0. The order of fields is the order in a round."""

    tree: int
    phase: Phase
    piece: int
    src: int
    dst: int


def heights(tree: Tree) -> tuple[int, ...]:
    """Hops from each rank down to the farthest rank below it; 0 for a leaf."""
    height = [0] * len(tree.parents)
    for rank in sorted(range(len(tree.parents)), key=lambda rank: -tree.depths[rank]):
        parent = tree.parents[rank]
        if parent >= 0:
            height[parent] = max(height[parent], height[rank] + 1)
    return tuple(height)


def rounds(plan: Plan, collective: Collective, pieces: Sequence[int]) -> list[tuple[Transfer, ...]]:
    """All transfers of `collective`, tree t cut into pieces[t] pieces, round by round; no round is empty.

    Every rank computes the same list; within a round the order is that of Transfer's fields, so the messages of an
    ordered pair of ranks have one order that both ends know.
    """
    table: dict[int, list[Transfer]] = {}
    for index, tree in enumerate(plan.trees):
        up = heights(tree) if collective.reduces else (0,) * plan.size
        complete = up[tree.root]
        for rank, parent in enumerate(tree.parents):
            if parent < 0:
                continue
            for piece in range(pieces[index]):
                if collective.reduces:
                    table.setdefault(piece + up[rank], []).append(Transfer(index, Phase.UP, piece, rank, parent))
                if collective.spreads:
                    at = piece + complete + tree.depths[rank] - 1
                    table.setdefault(at, []).append(Transfer(index, Phase.DOWN, piece, parent, rank))
    return [tuple(sorted(table[at], key=_order)) for at in sorted(table)]


def _order(transfer: Transfer) -> tuple[int, int, int, int, int]:
    return (transfer.tree, transfer.phase.value, transfer.piece, transfer.src, transfer.dst)
