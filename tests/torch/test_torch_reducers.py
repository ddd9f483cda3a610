"""Reducers against torch's own arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributed import ReduceOp

from headway.torch.reducers import SLICE_ELEMENTS, reducer_for
from headway.torch.tensors import bytes_of

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


def op(name: str) -> ReduceOp:
    return ReduceOp(getattr(ReduceOp, name))


def values(dtype: torch.dtype, count: int, seed: int) -> torch.Tensor:
    source = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(count, generator=source).to(dtype)
    return torch.randint(0, 100, (count,), generator=source).to(dtype)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("count", [7, SLICE_ELEMENTS, 2 * SLICE_ELEMENTS + 5])
def test_same_bits_as_torch(dtype: torch.dtype, name: str, count: int) -> None:
    reducer = reducer_for(dtype, op(name), size=3)
    if dtype.is_floating_point and name in ("BAND", "BOR", "BXOR"):
        assert reducer is None
        return
    assert reducer is not None
    mine, other = values(dtype, count, 1), values(dtype, count, 2)
    expected = FUNCTIONS[name](mine, other)
    reducer.reduce(bytes_of(mine), bytes_of(other))
    assert torch.equal(mine, expected)
    reducer.finish(bytes_of(mine))
    assert torch.equal(mine, expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_average_divides_at_the_end(dtype: torch.dtype) -> None:
    reducer = reducer_for(dtype, op("AVG"), size=4)
    assert reducer is not None
    mine = torch.full((SLICE_ELEMENTS + 3,), 6.0).to(dtype)
    reducer.reduce(bytes_of(mine), bytes_of(torch.full_like(mine, 2.0)))
    reducer.finish(bytes_of(mine))
    assert torch.equal(mine, torch.full_like(mine, 2.0))


def test_bool_is_logical() -> None:
    left, right = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    for name, expected in {
        "SUM": [True, True, True, False],
        "MAX": [True, True, True, False],
        "PRODUCT": [True, False, False, False],
        "MIN": [True, False, False, False],
        "BXOR": [False, True, True, False],
    }.items():
        mine = left.clone()
        reducer = reducer_for(torch.bool, op(name), size=2)
        assert reducer is not None
        reducer.reduce(bytes_of(mine), bytes_of(right))
        assert mine.tolist() == expected, name


def test_minimum_and_maximum_pass_nan_on() -> None:
    for dtype in FLOATS:
        for name in ("MIN", "MAX"):
            mine = torch.tensor([float("nan"), 1.0]).to(dtype)
            reducer = reducer_for(dtype, op(name), size=2)
            assert reducer is not None
            reducer.reduce(bytes_of(mine), bytes_of(torch.tensor([1.0, float("nan")]).to(dtype)))
            assert mine.isnan().all()


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.int32, "AVG"),
        (torch.bool, "AVG"),
        (torch.complex64, "SUM"),
        (torch.uint16, "SUM"),
        (torch.float32, "BOR"),
    ],
)
def test_what_gloo_refuses_is_left_to_gloo(dtype: torch.dtype, name: str) -> None:
    assert reducer_for(dtype, op(name), size=2) is None


def test_nothing_to_reduce() -> None:
    reducer = reducer_for(torch.bfloat16, op("AVG"), size=2)
    assert reducer is not None
    reducer.reduce(memoryview(bytearray()), memoryview(bytearray()))
    reducer.finish(memoryview(bytearray()))
