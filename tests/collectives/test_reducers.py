"""numpy's sums and the like, and the buffers they work on."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from headway.cluster.model import Cluster, Host, star
from headway.collectives.chunking import LEAST_BYTES, LOCAL_BPS, MOST_BYTES, chunk_bytes_for, link_rate_Bps
from headway.collectives.pieces import cut
from headway.collectives.plan import Collective, Plan, PlanError, Tree
from headway.collectives.reducers import NumpyReducer, ReduceKind
from headway.collectives.scratch import RETAIN_BYTES, ScratchPool
from headway.errors import UsageError
from tests.collectives.harness import inputs, ring_plan, star_plan

REFERENCE = {
    ReduceKind.SUM: np.add,
    ReduceKind.PROD: np.multiply,
    ReduceKind.MIN: np.minimum,
    ReduceKind.MAX: np.maximum,
    ReduceKind.BAND: np.bitwise_and,
    ReduceKind.BOR: np.bitwise_or,
    ReduceKind.BXOR: np.bitwise_xor,
}
INTEGERS = ("int8", "uint8", "int16", "int32", "int64", "bool")


@pytest.mark.parametrize("kind", REFERENCE)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", *INTEGERS])
def test_elements_are_combined_in_place(kind: ReduceKind, dtype: str) -> None:
    if kind in (ReduceKind.BAND, ReduceKind.BOR, ReduceKind.BXOR) and dtype not in INTEGERS:
        with pytest.raises(UsageError, match="integers or bool"):
            NumpyReducer(kind, dtype, size=2)
        return
    into, piece = inputs(2, 33, dtype, 4)
    expected = REFERENCE[kind](into, piece)
    NumpyReducer(kind, dtype, size=2).reduce(into.data.cast("B"), piece.data.cast("B"))
    np.testing.assert_array_equal(into, expected)


def test_an_average_divides_floats_and_refuses_integers() -> None:
    vector = np.array([3.0, 9.0], dtype="float32")
    reducer = NumpyReducer(ReduceKind.AVG, "float32", size=3)
    reducer.finish(vector.data.cast("B"))
    assert vector.tolist() == [1.0, 3.0]
    with pytest.raises(UsageError, match="avg of int32"):
        NumpyReducer(ReduceKind.AVG, "int32", size=3)


def test_overflow_is_silent_as_in_c() -> None:
    into, piece = np.array([60000.0], dtype="float16"), np.array([60000.0], dtype="float16")
    NumpyReducer(ReduceKind.SUM, "float16", size=2).reduce(into.data.cast("B"), piece.data.cast("B"))
    assert np.isinf(into[0])


def test_scratch_is_used_again_and_bounded_between_operations() -> None:
    pool = ScratchPool()
    first = pool.take(5000)
    assert len(first) == 5000
    base = first.obj
    pool.give(first)
    assert pool.take(8192).obj is base
    many = [pool.take(1 << 20) for _ in range(RETAIN_BYTES // 2**20 + 5)]
    for view in many:
        pool.give(view)
    again = {id(pool.take(1 << 20).obj) for _ in many}
    assert len(again & {id(view.obj) for view in many}) == RETAIN_BYTES // 2**20
    with pytest.raises(TypeError):
        pool.give(memoryview(b"other"))


def test_pieces_cover_the_vector_once_in_whole_elements() -> None:
    plan = star_plan(3, [0.5, 0.3, 0.2])
    pieces = cut(plan, Collective.ALL_REDUCE, 1000 * 8, 8, 100)
    ranges = sorted(zip(pieces.first, pieces.last, strict=True))
    assert ranges[0][0] == 0
    assert ranges[-1][1] == 8000
    assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(ranges))
    assert all(first % 8 == 0 and 0 < last - first <= 100 for first, last in ranges)
    with pytest.raises(PlanError, match="whole number of elements"):
        cut(plan, Collective.ALL_REDUCE, 1001, 8, 100)


def test_trees_of_unequal_shares_end_together() -> None:
    pieces = cut(star_plan(2, [0.9, 0.1]), Collective.ALL_REDUCE, 100, 1, 1)
    places = [piece for piece, tree in enumerate(pieces.tree) if tree == 1]
    assert places == [1, 11, 21, 31, 41, 51, 61, 71, 81, 91]


def test_chunks_grow_with_the_vector_and_the_rate_and_shrink_with_hops_and_peers() -> None:
    def chunk(plan: Plan, size_bytes: int = 2**23, element_bytes: int = 4, link_Bps: float = 25e6) -> int:
        return chunk_bytes_for(plan, Collective.ALL_REDUCE, size_bytes, element_bytes, link_Bps)

    sizes = [chunk(ring_plan(8), 2**exponent) for exponent in range(12, 36)]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (LEAST_BYTES, MOST_BYTES)
    assert chunk(ring_plan(8), link_Bps=4e9) > chunk(ring_plan(8))
    chain = Plan("chain", 8, (Tree((1, 2, 3, 4, 5, 6, 7, -1), 1.0),))
    short = Plan("chain", 4, (Tree((1, 2, 3, -1), 1.0),))
    assert chunk(short, 2**26) > chunk(chain, 2**26)
    assert chunk(star_plan(3, [1, 0, 0]), 2**26) > chunk(star_plan(8, [1] + 7 * [0]), 2**26)
    assert chunk(chain, element_bytes=48) % 48 == 0
    assert chunk(chain, element_bytes=10**6) == 10**6
    assert chunk(ring_plan(1)) >= LEAST_BYTES


def test_ranks_of_one_host_are_as_fast_as_memory() -> None:
    assert link_rate_Bps(star(4, 25e6)) == 25e6
    assert link_rate_Bps(Cluster(hosts=(Host("here", 25e6, 25e6),), host_of=(0, 0))) == LOCAL_BPS
