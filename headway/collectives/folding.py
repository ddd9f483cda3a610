"""Adding the contributions to a piece in an order that never depends on when they arrive."""

from __future__ import annotations

from collections.abc import Sequence

from headway.collectives.operation import Reducer
from headway.collectives.pieces import Pieces
from headway.collectives.plan import Plan
from headway.collectives.scratch import ScratchPool
from headway.errors import TransportError


class Fold:
    """The sums of one operation on one rank.

    Usual order: the rank's own value, then its children ascending; the rank's own region of the vector is the
    accumulator. In rank order (stars): children and own value by rank, so that the bits don't depend on who is the
    root; the first child's buffer is the accumulator until the own value's turn. A contribution that comes before
    its turn waits in its scratch buffer.

    Args:
        rank: this rank.
        buffer: the whole vector.
        in_rank_order: see above.
    """

    __slots__ = ("_below", "_buffer", "_due", "_early", "_first", "_held", "_last", "_lower", "_place", "_pool",
                 "_reduce", "_tree")  # fmt: skip

    def __init__(
        self, plan: Plan, pieces: Pieces, rank: int, buffer: memoryview, reducer: Reducer, pool: ScratchPool,
        *, in_rank_order: bool,
    ) -> None:  # fmt: skip
        children = [tree.children[rank] for tree in plan.trees]
        self._below: Sequence[int] = [len(below) for below in children]
        self._place = [{child: place for place, child in enumerate(below)} for below in children]
        self._lower = [sum(child < rank for child in below) if in_rank_order else 0 for below in children]
        self._tree, self._first, self._last = pieces.tree, pieces.first, pieces.last
        self._buffer = buffer
        self._reduce = reducer.reduce
        self._pool = pool
        self._due = [0] * pieces.count
        self._early: dict[tuple[int, int], memoryview] = {}
        self._held: dict[int, memoryview] = {}

    def expects(self, piece: int, src: int) -> bool:
        """Whether a contribution of `src` to `piece` is still missing."""
        place = self._place[self._tree[piece]].get(src)
        return place is not None and place >= self._due[piece] and (piece, place) not in self._early

    def missing(self, piece: int) -> list[int]:
        """The children whose contribution to `piece` has not come."""
        return [child for child in self._place[self._tree[piece]] if self.expects(piece, child)]

    def add(self, piece: int, src: int, contribution: memoryview) -> bool:
        """Take over a scratch buffer; True when the piece is complete. TransportError for one that isn't expected."""
        tree = self._tree[piece]
        place = self._place[tree].get(src)
        due = self._due[piece]
        if place != due:
            if place is None or place < due or (piece, place) in self._early:
                raise TransportError(f"rank {src} sent a contribution twice, or one that it doesn't owe", rank=src)
            self._early[piece, place] = contribution
            return False
        region = self._buffer[self._first[piece] : self._last[piece]]
        lower = self._lower[tree]
        waiting: memoryview | None = contribution
        while waiting is not None:
            if due >= lower:
                self._reduce(region, waiting)
                self._pool.give(waiting)
            else:
                self._add_lower(piece, due, lower, region, waiting)
            due += 1
            waiting = self._early.pop((piece, due), None) if self._early else None
        self._due[piece] = due
        return due == self._below[tree]

    def _add_lower(self, piece: int, due: int, lower: int, region: memoryview, contribution: memoryview) -> None:
        if due == 0:
            self._held[piece] = contribution
        else:
            self._reduce(self._held[piece], contribution)
            self._pool.give(contribution)
        if due == lower - 1:
            held = self._held.pop(piece)
            self._reduce(held, region)
            region[:] = held
            self._pool.give(held)

    def drop(self) -> None:
        """Give back what waits: the operation has failed."""
        for view in (*self._early.values(), *self._held.values()):
            self._pool.give(view)
        self._early.clear()
        self._held.clear()
