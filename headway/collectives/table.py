"""What an executor needs to know of an operation that doesn't depend on its data: made once, used again."""

from __future__ import annotations

from array import array
from zlib import crc32

from headway.collectives.operation import Operation
from headway.collectives.pieces import Pieces
from headway.collectives.plan import Collective, Plan, PlanError
from headway.errors import UsageError

DOWN, UP = 0, 1
"""Lowest bit of a tag. A tag is 2 * piece + phase, so tags sort by urgency: older pieces first, results first."""

WINDOW_BYTES = 64 * 1024
"""Per peer, queued in the transport and not yet sent, at least two pieces, so that a socket never runs dry. What lies
there can't be overtaken: with one rank of 8 at half rate, 8 MiB on rotated chains reach 0.96 of the limit with
64 KiB here and 64 KiB unsent in the kernel, 0.92 with 256 KiB here, 0.87 with 256 KiB in both (flow-level model)."""

MARK_SHIFT, MARK_BITS = 32, 28
"""Where a tag carries its operation's mark on the wire. 60 bits in all: two digits of a Python int."""


def window_messages(chunk_bytes: int) -> int:
    """How many messages of at most `chunk_bytes` a peer may have in the transport: see `WINDOW_BYTES`."""
    return max(2, WINDOW_BYTES // chunk_bytes)


class Table:
    """One rank's part in a collective of one size on one plan.

    Attributes:
        pieces: the pieces.
        parent: tree -> the rank above, -1 at its root.
        children: tree -> the ranks below, ascending.
        ready: rank -> tags that can be sent to it from the start, sorted; the keys are all ranks sent to, beginning
            with the next rank, so that not everyone sends to the same one first.
        messages: messages that this rank sends and receives in all.
        checksum: of collective, sizes, trees and pieces: the same on every rank that called the same.
    """

    def __init__(
        self, plan: Plan, rank: int, collective: Collective, pieces: Pieces, *, element_bytes: int = 1
    ) -> None:
        self.plan = plan
        self.pieces = pieces
        self.parent = tuple(tree.parents[rank] for tree in plan.trees)
        self.children = tuple(tree.children[rank] for tree in plan.trees)
        size = plan.size
        ready: dict[int, list[int]] = {}
        edges = 0
        for tree, parts in enumerate(pieces.per_tree):
            if parts:
                above = (self.parent[tree],) if self.parent[tree] >= 0 else ()
                for peer in (*above, *self.children[tree]):
                    ready.setdefault(peer, [])
                edges += parts * (len(above) + len(self.children[tree]))
        for piece, tree in enumerate(pieces.tree):
            if collective.reduces:
                if not self.children[tree] and self.parent[tree] >= 0:
                    ready[self.parent[tree]].append(2 * piece + UP)
            elif self.parent[tree] < 0:
                for child in self.children[tree]:
                    ready[child].append(2 * piece + DOWN)
        self.ready = {peer: tuple(ready[peer]) for peer in sorted(ready, key=lambda peer: (peer - rank) % size)}
        self.messages = edges * (int(collective.reduces) + int(collective.spreads))
        self.checksum = crc32(f"{collective.value} {element_bytes} {size}".encode())
        for numbers in (pieces.tree, pieces.last, *(tree.parents for tree in plan.trees)):
            self.checksum = crc32(array("q", numbers).tobytes(), self.checksum)

    def mark(self, what: str) -> int:
        """The bits that the tags of an operation carry, in their place; `what`: see `Operation`."""
        return (crc32(what.encode(), self.checksum) & ((1 << MARK_BITS) - 1)) << MARK_SHIFT


def check(operation: Operation, *, size: int) -> None:
    """Raise for an operation that no executor can run on a group of `size` ranks: PlanError, UsageError."""
    plan = operation.plan
    if plan.size != size:
        raise PlanError(f"{operation.label}: plan {plan.name} is for {plan.size} ranks, the group has {size}")
    if operation.collective.reduces and operation.reducer is None:
        raise UsageError("nothing says how to reduce", where=operation.label)
    if operation.in_rank_order and any(tree.depth > 1 for tree in plan.trees):
        raise PlanError(f"{operation.label}: adding in rank order takes stars, which plan {plan.name} is not")
    if operation.buffer.nbytes and (operation.buffer.readonly or not operation.buffer.c_contiguous):
        raise UsageError("the buffer must be writable and contiguous", where=operation.label)
