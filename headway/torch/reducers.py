"""How two pieces are summed, for every type and operation that gloo takes.

numpy does most types. bfloat16 it lacks, and float16 it does in software one by one, so torch does these two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.distributed import ReduceOp

from headway.collectives.operation import Reducer
from headway.collectives.reducers import NumpyReducer, ReduceKind

SLICE_ELEMENTS = 32_704
"""Just below the 32,768 elements from which torch spreads an addition over its intra-op threads: the progress thread
would start a team of its own beside the training's. Slices also stay in the cache."""

_KINDS = {
    ReduceOp.SUM: ReduceKind.SUM,
    ReduceOp.AVG: ReduceKind.AVG,
    ReduceOp.PRODUCT: ReduceKind.PROD,
    ReduceOp.MIN: ReduceKind.MIN,
    ReduceOp.MAX: ReduceKind.MAX,
    ReduceOp.BAND: ReduceKind.BAND,
    ReduceOp.BOR: ReduceKind.BOR,
    ReduceOp.BXOR: ReduceKind.BXOR,
}
_BITS = (ReduceKind.BAND, ReduceKind.BOR, ReduceKind.BXOR)
_NUMPY_TYPES = {
    torch.float64: np.float64,
    torch.float32: np.float32,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int16: np.int16,
    torch.int8: np.int8,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
}
_TORCH_TYPES = (torch.float16, torch.bfloat16)


class TorchReducer:
    """A `Reducer` of a floating point type by torch.

    Args:
        kind: what is done; not a bit operation.
        dtype: element type.
        size: number of ranks, which AVG divides by.
    """

    def __init__(self, kind: ReduceKind, dtype: torch.dtype, *, size: int) -> None:
        self.kind = kind
        self._dtype = dtype
        functions: dict[ReduceKind, Callable[..., Tensor]] = {
            ReduceKind.SUM: torch.add,
            ReduceKind.AVG: torch.add,
            ReduceKind.PROD: torch.mul,
            ReduceKind.MIN: torch.minimum,
            ReduceKind.MAX: torch.maximum,
        }
        self._function = functions[kind]
        self._divisor = size if kind is ReduceKind.AVG else 1

    def reduce(self, into: memoryview, piece: memoryview) -> None:
        """into := into (op) piece, element by element, each result rounded to the type."""
        if not len(into):
            return
        target = torch.frombuffer(into, dtype=self._dtype)
        other = torch.frombuffer(piece, dtype=self._dtype)
        if target.numel() <= SLICE_ELEMENTS:
            self._function(target, other, out=target)
            return
        for mine, theirs in zip(_slices(target), _slices(other), strict=True):
            self._function(mine, theirs, out=mine)

    def finish(self, result: memoryview) -> None:
        """Divide, for an average."""
        if self._divisor != 1 and len(result):
            for part in _slices(torch.frombuffer(result, dtype=self._dtype)):
                part.div_(self._divisor)


def _slices(tensor: Tensor) -> Sequence[Tensor]:
    return torch.split(tensor, SLICE_ELEMENTS)


@lru_cache(maxsize=256)
def _reducer(kind: ReduceKind, dtype: torch.dtype, size: int) -> Reducer | None:
    if dtype in _TORCH_TYPES:
        return None if kind in _BITS else TorchReducer(kind, dtype, size=size)
    if dtype not in _NUMPY_TYPES:
        return None
    if kind is ReduceKind.AVG and not dtype.is_floating_point:
        return None
    if kind in _BITS and dtype.is_floating_point:
        return None
    return NumpyReducer(kind, _NUMPY_TYPES[dtype], size=size)


def reducer_for(dtype: torch.dtype, op: ReduceOp, *, size: int) -> Reducer | None:
    """The reducer of `op` on `dtype` among `size` ranks; None for a pair that is left to gloo, which refuses it."""
    kind = _KINDS.get(op.op)  # type: ignore[attr-defined]  # torch's stub lacks it
    return None if kind is None else _reducer(kind, dtype, size)


@lru_cache(maxsize=256)
def _in_words(dtype: torch.dtype, kind: ReduceKind | None) -> str:
    name = str(dtype).removeprefix("torch.")
    return f"{name} by {kind.value}" if kind is not None else name


def in_words(dtype: torch.dtype, reducer: Reducer | None) -> str:
    """Such as "float32 by sum", or "float32" where nothing is reduced: `what` of an operation."""
    return _in_words(dtype, reducer.kind if isinstance(reducer, (NumpyReducer, TorchReducer)) else None)
