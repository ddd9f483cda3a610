"""Sums and the like of numpy's element types. A reducer for a type that numpy lacks comes from outside."""

from __future__ import annotations

from enum import Enum

import numpy as np
from numpy.typing import DTypeLike

from headway.errors import UsageError


class ReduceKind(Enum):
    """What is done with two elements. On bool, SUM and MAX are "or", PROD and MIN are "and"."""

    SUM = "sum"
    AVG = "avg"
    PROD = "prod"
    MIN = "min"
    MAX = "max"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"


_UFUNCS: dict[ReduceKind, np.ufunc] = {
    ReduceKind.SUM: np.add,
    ReduceKind.AVG: np.add,
    ReduceKind.PROD: np.multiply,
    ReduceKind.MIN: np.minimum,
    ReduceKind.MAX: np.maximum,
    ReduceKind.BAND: np.bitwise_and,
    ReduceKind.BOR: np.bitwise_or,
    ReduceKind.BXOR: np.bitwise_xor,
}
_BITWISE = (ReduceKind.BAND, ReduceKind.BOR, ReduceKind.BXOR)


class NumpyReducer:
    """A `Reducer` for vectors of one numpy type. Integers wrap around and floats overflow silently, as in C.

    Args:
        kind: what is done.
        dtype: element type: a float, an integer or bool.
        size: number of ranks, which AVG divides by.

    UsageError: bits of floats, or the average of anything else.
    """

    def __init__(self, kind: ReduceKind, dtype: DTypeLike, *, size: int) -> None:
        self.kind = kind
        self._dtype = np.dtype(dtype)
        if kind in _BITWISE and self._dtype.kind not in "iub":
            raise UsageError(f"{kind.value} of {self._dtype}", hint="bit operations take integers or bool")
        if kind is ReduceKind.AVG and self._dtype.kind != "f":
            raise UsageError(f"avg of {self._dtype}", hint="take the sum and divide it as you need")
        self._ufunc = _UFUNCS[kind]
        self._divisor = size if kind is ReduceKind.AVG else 1
        self._quiet = self._dtype.kind == "f"

    def reduce(self, into: memoryview, piece: memoryview) -> None:
        """into := into (op) piece, element by element."""
        target = np.frombuffer(into, self._dtype)
        if self._quiet:
            with np.errstate(all="ignore"):
                self._ufunc(target, np.frombuffer(piece, self._dtype), out=target)
        else:
            self._ufunc(target, np.frombuffer(piece, self._dtype), out=target)

    def finish(self, result: memoryview) -> None:
        """Divide, for an average."""
        if self._divisor != 1:
            target = np.frombuffer(result, self._dtype)
            np.divide(target, self._dtype.type(self._divisor), out=target)
