"""torch's overloaded collective methods, brought to one form each.

A method that Python overrides replaces all of its overloads in C++: `(tensors, opts)`, which torch's own code uses,
and the shorter ones such as `(tensor, op, timeout)`. Parameter names are torch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions
from torch.distributed import (
    AllreduceCoalescedOptions,
    AllreduceOptions,
    BroadcastOptions,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
)

Tensors = Sequence[Tensor]
Op = ReduceOp | ReduceOp.RedOpType


def _as_list(given: Tensor | Tensors | None) -> list[Tensor]:
    if given is None:
        raise TypeError("no tensors were given")
    return [given] if isinstance(given, Tensor) else list(given)


def _set_op(options: AllreduceOptions | ReduceOptions | ReduceScatterOptions, op: object) -> None:
    if op is not None:
        options.reduceOp = op  # type: ignore[assignment]


def all_reduce(
    tensors: Tensor | Tensors | None = None,
    opts: AllreduceOptions | Op | None = None,
    timeout: timedelta | None = None,
    *,
    tensor: Tensor | None = None,
    op: Op | None = None,
) -> tuple[list[Tensor], AllreduceOptions]:
    """Arguments of `allreduce`."""
    given = _as_list(tensor if tensors is None else tensors)
    if isinstance(opts, AllreduceOptions):
        return given, opts
    options = AllreduceOptions()
    _set_op(options, opts if op is None else op)
    if timeout is not None:
        options.timeout = timeout
    return given, options


def all_reduce_coalesced(
    tensors: Tensors, opts: AllreduceCoalescedOptions | AllreduceOptions | None = None
) -> tuple[list[Tensor], AllreduceCoalescedOptions]:
    """Arguments of `allreduce_coalesced`."""
    if isinstance(opts, AllreduceCoalescedOptions):
        return list(tensors), opts
    options = AllreduceCoalescedOptions()
    if opts is not None:
        options.reduceOp, options.timeout = opts.reduceOp, opts.timeout
    return list(tensors), options


def broadcast(
    tensors: Tensor | Tensors | None = None,
    opts: BroadcastOptions | int | None = None,
    timeout: timedelta | None = None,
    *,
    tensor: Tensor | None = None,
    root: int | None = None,
) -> tuple[list[Tensor], BroadcastOptions]:
    """Arguments of `broadcast`."""
    given = _as_list(tensor if tensors is None else tensors)
    if isinstance(opts, BroadcastOptions):
        return given, opts
    options = BroadcastOptions()
    options.rootRank = (opts or 0) if root is None else root
    if timeout is not None:
        options.timeout = timeout
    return given, options


def reduce(
    tensors: Tensor | Tensors | None = None,
    opts: ReduceOptions | int | None = None,
    op: Op | None = None,
    timeout: timedelta | None = None,
    *,
    tensor: Tensor | None = None,
    root: int | None = None,
) -> tuple[list[Tensor], ReduceOptions]:
    """Arguments of `reduce`."""
    given = _as_list(tensor if tensors is None else tensors)
    if isinstance(opts, ReduceOptions):
        return given, opts
    options = ReduceOptions()
    options.rootRank = (opts or 0) if root is None else root
    _set_op(options, op)
    if timeout is not None:
        options.timeout = timeout
    return given, options


def all_gather(
    output_tensors: Sequence[Tensors] | Tensors,
    input_tensors: Tensors | Tensor | None = None,
    opts: AllgatherOptions | timedelta | None = None,
    *,
    input_tensor: Tensor | None = None,
    timeout: timedelta | None = None,
) -> tuple[list[list[Tensor]], list[Tensor], AllgatherOptions]:
    """Arguments of `allgather`."""
    inputs = _as_list(input_tensor if input_tensors is None else input_tensors)
    outputs = _as_lists(output_tensors)
    if isinstance(opts, AllgatherOptions):
        return outputs, inputs, opts
    options = AllgatherOptions()
    limit = opts if timeout is None else timeout
    if limit is not None:
        options.timeout = limit
    return outputs, inputs, options


def reduce_scatter(
    output_tensors: Tensors | Tensor | None = None,
    input_tensors: Sequence[Tensors] | Tensors | None = None,
    opts: ReduceScatterOptions | Op | None = None,
    timeout: timedelta | None = None,
    *,
    output: Tensor | None = None,
    input: Tensors | None = None,
    op: Op | None = None,
) -> tuple[list[Tensor], list[list[Tensor]], ReduceScatterOptions]:
    """Arguments of `reduce_scatter`."""
    outputs = _as_list(output if output_tensors is None else output_tensors)
    given = input if input_tensors is None else input_tensors
    if given is None:
        raise TypeError("no tensors were given")
    inputs = _as_lists(given)
    if isinstance(opts, ReduceScatterOptions):
        return outputs, inputs, opts
    options = ReduceScatterOptions()
    _set_op(options, opts if op is None else op)
    if timeout is not None:
        options.timeout = timeout
    return outputs, inputs, options


def _as_lists(given: Sequence[Tensors] | Tensors) -> list[list[Tensor]]:
    rows: list[list[Tensor]] = []
    flat: list[Tensor] = []
    for entry in given:
        if isinstance(entry, Tensor):
            flat.append(entry)
        else:
            rows.append(list(entry))
    return [flat] if flat else rows
