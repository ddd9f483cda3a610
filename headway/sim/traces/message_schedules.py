"""ASTRA-sim's collective algorithms as messages: who sends what to whom, after having received what. Pure.

Read in astra-sim/astra-sim at c459ab6 (system/collective_algorithm). Sizes are parts of the data that a phase begins
with, D: the whole vector of an all-reduce, reduce-scatter or all-to-all, one rank's block of an all-gather.

| algorithm | messages of a rank, n ranks | sizes |
| --- | --- | --- |
| ring | 2(n-1) all-reduce, n-1 gather or scatter, n(n-1)/2 all-to-all, to its right neighbour, one after the other | D/n; D in an all-gather |
| direct | n-1 (all-reduce: twice), to everybody from the right neighbour on, `window` of them at once | the same |
| halving-doubling | log2 n (all-reduce: twice), to the rank at distance 1, 2, 4, ...; gathers the other way | D/2, D/4, ...; D, 2D, ... |
| double binary tree | to the parent and back; all-reduce only, every second chunk takes the mirrored tree | D |
"""  # noqa: E501 - a table

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from headway.errors import UsageError


class Exchange(Enum):
    """What a phase computes."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"


@dataclass(frozen=True, slots=True)
class Message:
    """One message between two ranks of a phase.

    Attributes:
        src, dst: ranks.
        part: of D.
        after: indices of the messages to `src` that it must have received, and have done with, before it sends.
        reduced: part of D that `dst` reduces when it has received this.
    """

    src: int
    dst: int
    part: float
    after: tuple[int, ...] = ()
    reduced: float = 0.0


Messages = tuple[Message, ...]


@lru_cache(maxsize=64)
def ring(exchange: Exchange, size: int, step: int = 1) -> Messages:
    """Message k of rank r at index k * size + r; `step` -1: the other way round."""
    count = {
        Exchange.ALL_REDUCE: 2 * (size - 1),
        Exchange.ALL_TO_ALL: size * (size - 1) // 2,
    }.get(exchange, size - 1)
    part = 1.0 if exchange is Exchange.ALL_GATHER else 1 / size
    reductions = size - 1 if exchange in (Exchange.ALL_REDUCE, Exchange.REDUCE_SCATTER) else 0
    return tuple(
        Message(
            rank,
            (rank + step) % size,
            part,
            ((k - 1) * size + (rank - step) % size,) if k else (),
            part if k < reductions else 0.0,
        )
        for k in range(count)
        for rank in range(size)
    )


@lru_cache(maxsize=64)
def direct(exchange: Exchange, size: int, window: int = 0) -> Messages:
    """Message k of rank r at index k * size + r, to rank r + 1 + k mod (size - 1); window 0: all at once."""
    peers = size - 1
    at_once = min(window, peers) if window else peers
    part = 1.0 if exchange is Exchange.ALL_GATHER else 1 / size
    twice = exchange is Exchange.ALL_REDUCE
    reductions = peers if twice or exchange is Exchange.REDUCE_SCATTER else 0

    def received(rank: int, k: int) -> int:
        """Index of the k-th message to `rank`."""
        return k * size + (rank - 1 - k % peers) % size

    def after(rank: int, k: int) -> tuple[int, ...]:
        if k < peers:
            return (received(rank, k - at_once),) if k >= at_once else ()
        first = tuple(received(rank, each) for each in range(peers))  # the scatter is over before the gather begins
        return first + ((received(rank, k - at_once),) if k - peers >= at_once else ())

    return tuple(
        Message(rank, (rank + 1 + k % peers) % size, part, after(rank, k), part if k < reductions else 0.0)
        for k in range(peers * (2 if twice else 1))
        for rank in range(size)
    )


@lru_cache(maxsize=64)
def halving_doubling(exchange: Exchange, size: int) -> Messages:
    """Message k of rank r at index k * size + r. Raises UsageError unless `size` is a power of two.

    ASTRA-sim charges log2(n) - 1 reductions, each with the bytes of the message sent after it; so does this.
    """
    steps = _power_of_two(size, "halvingDoubling")
    if exchange is Exchange.ALL_TO_ALL:
        raise UsageError("halvingDoubling does no all-to-all", where="all-to-all-implementation")
    distances = [1 << k for k in range(steps)]
    parts = [1 / (2 << k) for k in range(steps)]
    if exchange is Exchange.ALL_GATHER:
        distances, parts = distances[::-1], [float(1 << k) for k in range(steps)]
    elif exchange is Exchange.ALL_REDUCE:
        distances, parts = distances + distances[::-1], parts + parts[::-1]
    reductions = 0 if exchange is Exchange.ALL_GATHER else steps - 1
    return tuple(
        Message(
            rank,
            rank ^ distances[k],
            parts[k],
            ((k - 1) * size + (rank ^ distances[k - 1]),) if k else (),
            parts[k + 1] if k < reductions else 0.0,
        )
        for k in range(len(parts))
        for rank in range(size)
    )


@lru_cache(maxsize=64)
def double_binary_tree(exchange: Exchange, size: int, mirrored: bool = False) -> Messages:
    """One of the two trees. Raises UsageError unless `size` is a power of two and it is an all-reduce.

    The root has one child, the top of a full binary tree over the other ranks in order. Rank size - 1 is the root, in
    the mirrored tree rank 0. ASTRA-sim charges inner ranks a reduction for the result too; so does this.
    """
    _power_of_two(size, "doubleBinaryTree")
    if exchange is not Exchange.ALL_REDUCE:
        raise UsageError("doubleBinaryTree does all-reduce only", where=f"{exchange.value}-implementation")
    first = 1 if mirrored else 0
    parents = [-1] * size
    root = 0 if mirrored else size - 1

    def hang(low: int, high: int, above: int) -> None:
        if low < high:
            middle = (low + high) // 2
            parents[middle] = above
            hang(low, middle, middle)
            hang(middle + 1, high, middle)

    hang(first, first + size - 1, root)
    below = [rank for rank in range(size) if rank != root]
    up = {rank: index for index, rank in enumerate(below)}  # the message of `rank` to its parent
    down = {rank: len(below) + index for index, rank in enumerate(below)}
    children: list[list[int]] = [[] for _ in range(size)]
    for rank in below:
        children[parents[rank]].append(rank)
    upward = tuple(Message(rank, parents[rank], 1.0, tuple(up[c] for c in children[rank]), 1.0) for rank in below)
    downward = tuple(
        Message(
            parents[rank],
            rank,
            1.0,
            tuple(up[c] for c in children[root]) if parents[rank] == root else (down[parents[rank]],),
            1.0 if children[rank] else 0.0,
        )
        for rank in below
    )
    return upward + downward


def _power_of_two(size: int, name: str) -> int:
    if size & (size - 1):
        raise UsageError(f"{name} needs a power of two, not {size} NPUs", where="system file")
    return size.bit_length() - 1
