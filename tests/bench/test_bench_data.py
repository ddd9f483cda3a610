"""Data in closed form: results are what they should be, and any wrong element is found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from headway.bench.data import DATA_TYPES, PERIOD, REDUCTIONS, Cell, DataType, count_wrong, tolerance_of
from headway.collectives.plan import Collective
from headway.errors import UsageError

_NUMPY = {"int8": np.int8, "uint8": np.uint8, "int32": np.int32, "int64": np.int64, "float": np.float32}


def _cell(collective: Collective, count: int, kind: str = "float", redop: str = "sum", ranks: int = 4) -> Cell:
    rooted = collective in (Collective.BROADCAST, Collective.REDUCE)
    return Cell(
        collective, count, DATA_TYPES[kind], redop if collective.reduces else "none", 1 if rooted else -1, ranks, 5
    )


def _add_up(cell: Cell, kind: str) -> NDArray[np.generic]:
    vectors = [np.resize(cell.contribution(r), cell.count).astype(_NUMPY[kind]) for r in range(cell.ranks)]
    whole = vectors[0]
    for vector in vectors[1:]:
        whole = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[cell.redop](whole, vector)
    return whole


@pytest.mark.parametrize("kind", list(_NUMPY))
@pytest.mark.parametrize("redop", ["sum", "prod", "min", "max"])
def test_a_right_all_reduce_has_nothing_wrong(kind: str, redop: str) -> None:
    cell = _cell(Collective.ALL_REDUCE, 20_000, kind, redop)
    expected = cell.expected(2)
    assert expected is not None
    assert count_wrong(_add_up(cell, kind), expected) == 0


@given(index=st.integers(0, 19_999), change=st.sampled_from([1.0, -1.0, 0.5, float("nan"), float("inf")]))
def test_one_wrong_element_is_found_wherever_it_is(index: int, change: float) -> None:
    cell = _cell(Collective.ALL_REDUCE, 20_000)
    expected = cell.expected(0)
    assert expected is not None
    result = expected.astype(np.float32)
    result[index] += change
    assert count_wrong(result, expected) == 1


@pytest.mark.parametrize("shift", [1, 1024, 4096, 65536])
def test_a_piece_in_the_wrong_place_is_found(shift: int) -> None:
    cell = _cell(Collective.BROADCAST, 200_000)
    expected = cell.expected(0)
    assert expected is not None
    assert count_wrong(np.roll(expected, shift).astype(np.float32), expected) > 0.9 * cell.count


def test_a_missing_contribution_and_a_wrong_shape_are_found() -> None:
    cell = _cell(Collective.ALL_REDUCE, PERIOD)
    expected = cell.expected(0)
    assert expected is not None
    assert count_wrong((expected - cell.base(3)).astype(np.float32), expected) > 0.9 * PERIOD
    assert count_wrong(expected[:-1].astype(np.float32), expected) == PERIOD


def test_ranks_contribute_different_data_and_the_same_every_time() -> None:
    cell = _cell(Collective.ALL_REDUCE, 10)
    assert not np.array_equal(cell.base(0), cell.base(1))
    assert np.array_equal(cell.base(0), cell.base(0))


@pytest.mark.parametrize("kind", DATA_TYPES.values(), ids=lambda kind: kind.name)
@pytest.mark.parametrize("redop", REDUCTIONS)
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_every_result_is_exact_in_every_type(kind: DataType, redop: str, ranks: int) -> None:
    if redop == "avg" and "int" in kind.name:
        with pytest.raises(UsageError, match="average"):
            Cell(Collective.ALL_REDUCE, 1, kind, redop, -1, ranks, 5)
        return
    cell = Cell(Collective.ALL_REDUCE, PERIOD, kind, redop, -1, ranks, 5)
    expected = cell.expected(0)
    assert expected is not None
    assert expected.min() >= 0
    assert expected.max() <= kind.exact
    assert tolerance_of(cell) == 0


def test_halves_and_roots() -> None:
    gather = _cell(Collective.ALL_GATHER, 100)
    gathered = gather.expected(3)
    assert gathered is not None
    assert np.array_equal(gathered[200:300], gather.base(2)[:100])
    scatter = _cell(Collective.REDUCE_SCATTER, 3000)
    whole = np.resize(sum(scatter.base(r) for r in range(4)), 12_000)
    block = scatter.expected(3)
    assert block is not None
    assert np.array_equal(block, whole[9000:])
    reduce = _cell(Collective.REDUCE, 100)
    assert reduce.expected(0) is None
    assert reduce.expected(1) is not None
    broadcast = _cell(Collective.BROADCAST, 100)
    assert not broadcast.contribution(0).any()
    with pytest.raises(UsageError, match="root 9"):
        Cell(Collective.BROADCAST, 1, DATA_TYPES["float"], "none", 9, 4, 5)
