"""Tensors as the bytes that the engine works on, with a copy only where the layout forces one.

The engine takes one contiguous run of bytes. A tensor that is contiguous is used in place. For anything else a packed
copy in logical (row-major) order is made, and the result is copied back when the operation is done: so ranks may hold
the same tensor in different strides. Copies go through numpy on the calling thread: torch's own would start its
intra-op threads on every thread that copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

AnyArray = NDArray[np.uint8] | NDArray[np.int16] | NDArray[np.int32] | NDArray[np.int64]

_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Staged:
    """A collective's vector.

    Attributes:
        buffer: its bytes, writable.
        after: copies the result to where the user wants it; None when it is there already.
    """

    buffer: memoryview
    after: Callable[[], None] | None = None


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the engine can take it: real elements in ordinary CPU memory, and no subclass with other ideas."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.itemsize in _SAME_SIZE
        and not tensor.is_complex()
        and not tensor.is_quantized
        and not tensor.is_neg()
    )


def array_of(tensor: torch.Tensor) -> AnyArray:
    """The tensor's memory as an array of integers of the same size, with the same shape and strides."""
    array: AnyArray = tensor.detach().view(_SAME_SIZE[tensor.itemsize]).numpy()
    return array


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    array: NDArray[np.uint8] = tensor.detach().view(-1).view(torch.uint8).numpy()
    return array.data


def scratch(size_bytes: int) -> NDArray[np.uint8]:
    """Uninitialised memory."""
    return np.empty(size_bytes, dtype=np.uint8)


def copy_in(array: NDArray[np.uint8], tensor: torch.Tensor) -> None:
    """Pack `tensor` in logical order into `array`, whose size is the tensor's."""
    source = array_of(tensor)
    np.copyto(array.view(source.dtype).reshape(source.shape), source)


def copy_out(tensor: torch.Tensor, array: NDArray[np.uint8]) -> None:
    """The reverse of `copy_in`."""
    target = array_of(tensor)
    np.copyto(target, array.view(target.dtype).reshape(target.shape))


def in_place(tensor: torch.Tensor) -> Staged:
    """One tensor that is input and output."""
    return Staged(bytes_of(tensor)) if tensor.is_contiguous() else in_place_of_many([tensor])


def in_place_of_many(tensors: Sequence[torch.Tensor]) -> Staged:
    """Several tensors of one type that are input and output, packed one after the other."""
    packed = scratch(sum(tensor.nbytes for tensor in tensors))
    parts = _parts(packed, tensors)
    for part, tensor in zip(parts, tensors, strict=True):
        copy_in(part, tensor)
    return Staged(packed.data, partial(_copy_all_out, tensors, parts))


def gathered(outputs: Sequence[torch.Tensor], own: torch.Tensor, rank: int) -> Staged:
    """All-gather into `outputs`, one of each rank, all of the size of `own`, the input."""
    whole = _adjoining(outputs)
    if whole is not None:
        buffer = whole.data
        block = whole[rank * own.nbytes : (rank + 1) * own.nbytes]
        if outputs[rank].data_ptr() != own.data_ptr() or not own.is_contiguous():
            copy_in(block, own)
        return Staged(buffer)
    packed = scratch(own.nbytes * len(outputs))
    parts = _parts(packed, outputs)
    copy_in(parts[rank], own)
    return Staged(packed.data, partial(_copy_all_out, outputs, parts))


def gathered_flat(output: torch.Tensor, own: torch.Tensor, rank: int) -> Staged:
    """All-gather into one tensor that holds the blocks of all ranks one after the other."""
    if not output.is_contiguous():
        packed = scratch(output.nbytes)
        copy_in(packed[rank * own.nbytes : (rank + 1) * own.nbytes], own)
        return Staged(packed.data, partial(copy_out, output, packed))
    buffer = bytes_of(output)
    first = rank * own.nbytes
    if not (own.is_contiguous() and own.data_ptr() == output.data_ptr() + first):
        copy_in(np.frombuffer(buffer, dtype=np.uint8)[first : first + own.nbytes], own)
    return Staged(buffer)


def scattered(output: torch.Tensor, inputs: Sequence[torch.Tensor], rank: int) -> Staged:
    """Reduce-scatter of `inputs`, one for each rank, or of one tensor with all blocks; `inputs` stay as they are."""
    packed = scratch(sum(tensor.nbytes for tensor in inputs))
    for part, tensor in zip(_parts(packed, inputs), inputs, strict=True):
        copy_in(part, tensor)
    own = packed[rank * output.nbytes : (rank + 1) * output.nbytes]
    return Staged(packed.data, partial(copy_out, output, own))


def _parts(packed: NDArray[np.uint8], tensors: Sequence[torch.Tensor]) -> list[NDArray[np.uint8]]:
    parts = []
    first = 0
    for tensor in tensors:
        parts.append(packed[first : first + tensor.nbytes])
        first += tensor.nbytes
    return parts


def _copy_all_out(tensors: Sequence[torch.Tensor], parts: Sequence[NDArray[np.uint8]]) -> None:
    for tensor, part in zip(tensors, parts, strict=True):
        copy_out(tensor, part)


def _adjoining(tensors: Sequence[torch.Tensor]) -> NDArray[np.uint8] | None:
    """The memory of contiguous tensors that lie one after the other in one storage, as `torch.chunk` makes them."""
    first = tensors[0]
    storage = first.untyped_storage()
    expected = first.data_ptr()
    total = 0
    for tensor in tensors:
        if tensor.data_ptr() != expected or not tensor.is_contiguous():
            return None
        if tensor.untyped_storage().data_ptr() != storage.data_ptr():
            return None
        expected += tensor.nbytes
        total += tensor.nbytes
    flat = torch.empty(0, dtype=torch.uint8).set_(storage, first.storage_offset() * first.itemsize, (total,), (1,))
    array: NDArray[np.uint8] = flat.numpy()
    return array
