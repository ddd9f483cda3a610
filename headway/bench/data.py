"""Data whose result is known in closed form, and the check of every element against it.

Rank r contributes vector x_r with x_r[i] = base_r[i mod P]. base_r holds P random integers seeded by (seed, r); P
is prime, so that a piece that lands in the wrong place (pieces are cut at round numbers) shows. All values and all
results are integers that every data type here represents exactly: a result is right or wrong, without tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.collectives.plan import Collective
from headway.errors import UsageError

PERIOD = 8191
"""Prime, so no multiple of a piece's length; 64 KiB of int64."""

_PROD_RANKS = 6
"""Ranks beyond these hold ones, so that a product of twos stays within int8."""

REDUCTIONS = ("sum", "prod", "min", "max", "avg")


@dataclass(frozen=True)
class DataType:
    """An element type by its nccl-tests name: bytes per element, and the largest integer below which all are exact."""

    name: str
    element_bytes: int
    exact: int


DATA_TYPES = {
    kind.name: kind
    for kind in (
        DataType("int8", 1, 127),
        DataType("uint8", 1, 255),
        DataType("int32", 4, 2**31 - 1),
        DataType("int64", 8, 2**53),
        DataType("half", 2, 2**11),
        DataType("bfloat16", 2, 2**8),
        DataType("float", 4, 2**24),
        DataType("double", 8, 2**53),
    )
}


@dataclass(frozen=True)
class Cell:
    """One thing to measure: what is computed, on how much of what.

    Attributes:
        collective: which one.
        count: elements as nccl-tests counts them (per rank for all-gather and reduce-scatter).
        kind: element type.
        redop: reduction; "none" where nothing is reduced.
        root: rank of the root; -1 where there is none.
        ranks: world size.
        seed: of the data.
    """

    collective: Collective
    count: int
    kind: DataType
    redop: str
    root: int
    ranks: int
    seed: int

    def __post_init__(self) -> None:
        if self.collective.reduces and self.redop == "avg" and self.kind.name in ("int8", "uint8", "int32", "int64"):
            raise UsageError(f"an average of {self.kind.name} is no integer", where="-o", hint="-d float")
        if self.collective in (Collective.BROADCAST, Collective.REDUCE) and not 0 <= self.root < self.ranks:
            raise UsageError(f"root {self.root} is no rank of {self.ranks}", where="--root")

    @property
    def blocks(self) -> int:
        """How many blocks of `count` elements the whole vector has."""
        return self.ranks if self.collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER) else 1

    def base(self, rank: int) -> NDArray[np.int64]:
        """base_r of the module's docstring: int64, shape (PERIOD,)."""
        generator = np.random.default_rng((self.seed, rank))
        if self.redop == "prod":
            high = 3 if rank < _PROD_RANKS else 2
            return generator.integers(1, high, PERIOD, dtype=np.int64)
        most = self.kind.exact
        if self.collective.reduces and self.redop in ("sum", "avg"):
            most //= self.ranks
        if self.redop == "avg":
            # Multiples of n keep every partial average an integer, whether one divides before or after adding.
            return generator.integers(0, max(1, most // self.ranks) + 1, PERIOD, dtype=np.int64) * self.ranks
        return generator.integers(0, max(1, min(most, 100)) + 1, PERIOD, dtype=np.int64)

    def contribution(self, rank: int) -> NDArray[np.int64]:
        """The period of what `rank` puts in; zeros at a broadcast's other ranks."""
        if self.collective is Collective.BROADCAST and rank != self.root:
            return np.zeros(PERIOD, np.int64)
        return self.base(rank)

    def _reduced(self) -> NDArray[np.int64]:
        bases = np.stack([self.base(rank) for rank in range(self.ranks)])
        if self.redop == "sum":
            return np.asarray(bases.sum(axis=0))
        if self.redop == "prod":
            return np.asarray(bases.prod(axis=0))
        if self.redop == "min":
            return np.asarray(bases.min(axis=0))
        if self.redop == "max":
            return np.asarray(bases.max(axis=0))
        return np.asarray(bases.sum(axis=0) // self.ranks)

    def expected(self, rank: int) -> NDArray[np.int64] | None:
        """What `rank` must hold afterwards, shape (elements of its result,); None where its result is undefined."""
        if self.collective is Collective.REDUCE and rank != self.root:
            return None
        if self.collective is Collective.BROADCAST:
            return np.resize(self.base(self.root), self.count)
        if self.collective is Collective.ALL_GATHER:
            return np.concatenate([np.resize(self.base(r), self.count) for r in range(self.ranks)])
        if self.collective is Collective.REDUCE_SCATTER:
            whole = np.resize(self._reduced(), self.count * self.ranks)
            return whole[rank * self.count : (rank + 1) * self.count]
        return np.resize(self._reduced(), self.count)


def count_wrong(result: NDArray[np.generic], expected: NDArray[np.int64], *, tolerance: float = 0.0) -> int:
    """Elements of `result` that are not the expected integer. Not-a-number is wrong; so is a result of another shape.

    Args:
        tolerance: relative, for averages alone, where a backend may multiply by a rounded 1/n.
    """
    if result.shape != expected.shape:
        return max(result.size, expected.size)
    if tolerance:
        values = result.astype(np.float64)
        return int(np.count_nonzero(~(np.abs(values - expected) <= tolerance * np.maximum(1, np.abs(expected)))))
    return int(np.count_nonzero(result != expected.astype(result.dtype)))


def tolerance_of(cell: Cell) -> float:
    """0, except for averages over a number of ranks whose inverse is no binary fraction."""
    if cell.redop != "avg" or cell.ranks & (cell.ranks - 1) == 0:
        return 0.0
    return 4 * cell.ranks / cell.kind.exact
