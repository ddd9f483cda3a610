"""Calls that are refused in our own words, because gloo's do not say what is wrong."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.distributed import ReduceOp


def refuse_average_of_integers(operation: str, tensors: Sequence[Tensor], op: ReduceOp) -> None:
    """RuntimeError, as from gloo, if `op` is AVG and the CPU tensors hold integers or bools."""
    if op != ReduceOp(ReduceOp.AVG) or not tensors or tensors[0].device.type != "cpu":
        return
    dtype = tensors[0].dtype
    if not dtype.is_floating_point and not dtype.is_complex:
        name = str(dtype).removeprefix("torch.")
        raise RuntimeError(
            f"{operation}: ReduceOp.AVG of {name} tensors is refused, an average is no integer "
            "(use ReduceOp.SUM and divide, or a floating-point type)"
        )
