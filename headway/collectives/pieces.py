"""Which bytes each piece of an operation is, in the order in which pieces should move.

The trees of a plan cut the vector into ranges, and `chunk_bytes` cuts the ranges into pieces of whole elements.
Pieces are numbered by how far along their tree they are, so that all trees progress together and end together:
a rank that is the slow one sends the first piece of every tree before the second of any. A smaller number is more
urgent: it entered the pipeline earlier, and others wait for it.

All ranks compute the same pieces from the same plan and sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from headway.collectives.plan import Collective, Plan, PlanError, tree_ranges


@dataclass(frozen=True)
class Pieces:
    """The pieces of one collective of one size on one plan.

    Attributes:
        tree: piece -> index of the tree that carries it.
        index: piece -> its place along the tree, from 0.
        first: piece -> its first byte in the vector.
        last: piece -> one past its last byte.
        per_tree: tree -> number of its pieces.
    """

    tree: tuple[int, ...]
    index: tuple[int, ...]
    first: tuple[int, ...]
    last: tuple[int, ...]
    per_tree: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of pieces."""
        return len(self.tree)

    @cached_property
    def numbers(self) -> dict[tuple[int, int], int]:
        """(tree, place along it) -> piece."""
        return {pair: piece for piece, pair in enumerate(zip(self.tree, self.index, strict=True))}


def cut(plan: Plan, collective: Collective, size_bytes: int, element_bytes: int, chunk_bytes: int) -> Pieces:
    """Cut a vector of `size_bytes`. PlanError when it isn't made of whole elements or whole blocks."""
    if size_bytes % element_bytes:
        raise PlanError(f"{size_bytes} bytes are no whole number of elements of {element_bytes} bytes")
    ranges = tree_ranges(plan, collective, size_bytes // element_bytes)
    most = max(1, chunk_bytes // element_bytes)
    rows: list[tuple[float, int, int, int, int]] = []
    per_tree = []
    for tree, (begin, end) in enumerate(ranges):
        length = end - begin
        parts = -(-length // most)
        per_tree.append(parts)
        for part in range(parts):
            first = begin + length * part // parts
            last = begin + length * (part + 1) // parts
            rows.append((part / parts, tree, part, first * element_bytes, last * element_bytes))
    rows.sort()
    return Pieces(
        tree=tuple(row[1] for row in rows),
        index=tuple(row[2] for row in rows),
        first=tuple(row[3] for row in rows),
        last=tuple(row[4] for row in rows),
        per_tree=tuple(per_tree),
    )
