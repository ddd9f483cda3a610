"""The pipelined executor on in-process streams: right sums, same bits, every interleaving, every failure."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.collectives.executor import PipelinedExecutor
from headway.collectives.operation import Operation
from headway.collectives.plan import Collective, Plan, PlanError, Tree
from headway.collectives.reducers import NumpyReducer, ReduceKind
from headway.collectives.tables import Tables
from headway.errors import DeadlineError, MismatchError, PeerLostError, TransportError, UsageError
from tests.collectives.harness import (
    Outcomes,
    Vector,
    inputs,
    operation,
    plans,
    ring_plan,
    run_rounds,
    run_streams,
    star_plan,
)
from tests.fakes.stream import FakeNetwork

DTYPES = ("float64", "float32", "float16", "int64", "uint8", "bool")
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10}


def _close(actual: Vector, expected: Vector) -> None:
    if expected.dtype.kind == "f":
        tolerance = EPSILON[expected.dtype.name] * 4e4
        np.testing.assert_allclose(actual.astype("float64"), expected.astype("float64"), rtol=0, atol=tolerance)
    else:
        np.testing.assert_array_equal(actual, expected)


def _total(vectors: list[Vector]) -> Vector:
    total = vectors[0].copy()
    for vector in vectors[1:]:
        np.add(total, vector, out=total)
    return total


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_every_collective_on_any_plan_gives_the_reference(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 6))
    collective = data.draw(st.sampled_from(Collective))
    root = data.draw(st.integers(0, size - 1))
    plan = data.draw(plans(size, collective, root))
    blocks = collective in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER)
    count = data.draw(st.integers(0, 30)) * size if blocks else data.draw(st.integers(0, 150))
    dtype = data.draw(st.sampled_from(DTYPES))
    chunk_bytes = data.draw(st.sampled_from((1, 16, 64, 4096)))
    number = data.draw(st.integers(1, 3))
    given_vectors = [inputs(size, count, dtype, seed) for seed in range(number)]
    piped = [[vector.copy() for vector in vectors] for vectors in given_vectors]
    network = run_streams(
        piped,
        lambda number, vector: operation(number, collective, plan, vector, chunk_bytes=chunk_bytes),
        data.draw(st.integers(0, 2**16)),
    )
    assert len(set(network.delivered)) == len(network.delivered)
    in_rounds = [[vector.copy() for vector in vectors] for vectors in given_vectors]
    run_rounds(in_rounds, lambda number, vector: operation(number, collective, plan, vector, chunk_bytes=chunk_bytes))
    for before, after, other in zip(given_vectors, piped, in_rounds, strict=True):
        _check_results(collective, root, before, after)
        for rank in range(size):
            assert _result(collective, root, rank, after).tobytes() == _result(collective, root, rank, other).tobytes()


def _result(collective: Collective, root: int, rank: int, vectors: list[Vector]) -> Vector:
    """What `rank` may rely on: all of its vector, its block, or at a rank without result, nothing."""
    vector = vectors[rank]
    if collective is Collective.REDUCE_SCATTER:
        block = len(vector) // len(vectors)
        return vector[rank * block : (rank + 1) * block]
    return vector[:0] if collective is Collective.REDUCE and rank != root else vector


def _check_results(collective: Collective, root: int, before: list[Vector], after: list[Vector]) -> None:
    size = len(before)
    block = len(before[0]) // size
    if collective is Collective.ALL_GATHER:
        expected = np.concatenate([before[rank][rank * block : (rank + 1) * block] for rank in range(size)])
    elif collective is Collective.BROADCAST:
        expected = before[root]
    else:
        expected = _total(before)
    for rank in range(size):
        result = _result(collective, root, rank, after)
        part = (
            slice(rank * block, (rank + 1) * block) if collective is Collective.REDUCE_SCATTER else slice(len(result))
        )
        _close(result, expected[part])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_interleaving_changes_a_bit_and_all_ranks_agree(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 6))
    plan = data.draw(plans(size, Collective.ALL_REDUCE))
    given_vectors = inputs(size, 60, "float32", data.draw(st.integers(0, 99)))
    results = set()
    for seed in range(3):
        vectors = [vector.copy() for vector in given_vectors]
        run_streams([vectors], lambda number, vector: operation(number, Collective.ALL_REDUCE, plan, vector), seed)
        results |= {vector.tobytes() for vector in vectors}
    assert len(results) == 1


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_in_rank_order_no_star_plan_changes_a_bit(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 6))
    given_vectors = inputs(size, 50, data.draw(st.sampled_from(("float32", "float16"))), 7)
    expected = _total(given_vectors)  # ((v0 + v1) + v2) + ...
    shares = data.draw(st.lists(st.integers(0, 4), min_size=size, max_size=size).filter(any))
    plan = star_plan(size, [share / sum(shares) for share in shares])
    chunk_bytes = data.draw(st.sampled_from((4, 64, 4096)))
    for run in ("streams", "rounds"):
        vectors = [vector.copy() for vector in given_vectors]

        def make(number: int, vector: Vector) -> Operation:
            return operation(number, Collective.ALL_REDUCE, plan, vector, chunk_bytes=chunk_bytes, in_rank_order=True)

        if run == "streams":
            run_streams([vectors], make, data.draw(st.integers(0, 999)))
        else:
            run_rounds([vectors], make)
        assert {vector.tobytes() for vector in vectors} == {expected.tobytes()}


def test_each_rank_sends_what_the_plan_says_and_no_more() -> None:
    size, count = 5, 1000
    vectors = inputs(size, count, "float32", 1)
    network = run_streams(
        [vectors], lambda number, vector: operation(number, Collective.ALL_REDUCE, ring_plan(size), vector), 3
    )
    pieces = size * -(-(count // size) // 16)
    assert len(network.delivered) == 2 * (size - 1) * pieces


def test_an_average_is_divided_once() -> None:
    vectors = inputs(4, 100, "float64", 2)
    expected = np.divide(_total(vectors).astype(np.float64), 4)
    run_streams(
        [vectors],
        lambda number, vector: operation(number, Collective.ALL_REDUCE, ring_plan(4), vector, kind=ReduceKind.AVG),
        0,
    )
    np.testing.assert_allclose(vectors[2].astype(np.float64), expected)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_a_lost_peer_ends_every_operation_everywhere(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 5))
    plan = data.draw(plans(size, Collective.ALL_REDUCE))
    network = FakeNetwork(size, data.draw(st.integers(0, 999)))
    network.lose(size - 1, after=data.draw(st.integers(0, 40)))
    executors = [PipelinedExecutor(transport) for transport in network.transports]
    outcomes = [Outcomes() for _ in executors]
    vectors = [inputs(size, 100, "float32", number) for number in range(3)]
    for rank, executor in enumerate(executors):
        for number in range(3):
            executor.start(operation(number, Collective.ALL_REDUCE, plan, vectors[number][rank]), outcomes[rank])
    network.pump()
    for rank in range(size - 1):
        errors = outcomes[rank].errors
        assert len(errors) == 3
        failed = [error for error in errors if error is not None]
        assert errors[: 3 - len(failed)] == [None] * (3 - len(failed))
        assert all(isinstance(error, PeerLostError) and error.rank == size - 1 for error in failed)
        assert executors[rank].scratch_outstanding == 0
        for number in range(3 - len(failed)):
            _close(vectors[number][rank], _total(inputs(size, 100, "float32", number)))


def test_after_a_failure_everything_is_refused_with_the_same_error() -> None:
    network = FakeNetwork(2)
    executor = PipelinedExecutor(network.transports[0])
    outcomes = Outcomes()
    for number in range(2):
        executor.start(operation(number, Collective.ALL_REDUCE, ring_plan(2), np.ones(9)), outcomes)
    network.pump()
    error = TransportError("aborted")
    executor.fail(error)
    network.pump()
    executor.start(operation(2, Collective.ALL_REDUCE, ring_plan(2), np.ones(9)), outcomes)
    network.pump()
    assert outcomes.errors == [error, error, error]


def test_past_its_limit_an_operation_names_whom_it_waits_for() -> None:
    network = FakeNetwork(4)
    plan = star_plan(4, [1, 0, 0, 0])
    executors = [PipelinedExecutor(transport) for transport in network.transports]
    outcomes = [Outcomes() for _ in executors]
    soon_s = time.monotonic() + 0.05
    for rank in (0, 2):  # ranks 1 and 3 never call
        executors[rank].start(operation(0, Collective.ALL_REDUCE, plan, np.ones(50), deadline_s=soon_s), outcomes[rank])
    executors[2].start(operation(1, Collective.ALL_REDUCE, plan, np.ones(50)), outcomes[2])
    network.pump()
    assert [executor.waiting_for() for executor in executors] == [[1, 3], [], [0], []]
    network.pump_until_timers()
    root, leaf = outcomes[0].errors[0], outcomes[2].errors[0]
    assert isinstance(root, DeadlineError)
    assert str(root) == "all_reduce #0 of group test: not complete within its limit; still waits for ranks 1, 3"
    assert isinstance(leaf, DeadlineError)
    assert leaf.rank == 0
    assert outcomes[2].errors == [leaf, leaf]


def test_one_timer_serves_many_operations() -> None:
    network = FakeNetwork(1)
    executor = PipelinedExecutor(network.transports[0])
    outcomes = Outcomes()
    for number in range(50):
        executor.start(operation(number, Collective.ALL_REDUCE, ring_plan(1), np.ones(4)), outcomes)
    network.pump()
    assert len(network.transports[0].timers) == 1
    assert outcomes.errors == [None] * 50


def test_a_peer_that_left_in_good_order_is_no_error_until_it_is_needed() -> None:
    network = FakeNetwork(3, 5)
    executors = [PipelinedExecutor(transport) for transport in network.transports]
    outcomes = [Outcomes() for _ in executors]
    plan = ring_plan(3)
    for rank, executor in enumerate(executors):
        executor.start(operation(0, Collective.ALL_REDUCE, plan, np.ones(9)), outcomes[rank])
    network.pump()
    network.transports[2].close()
    executors[0].start(operation(1, Collective.ALL_REDUCE, plan, np.ones(9)), outcomes[0])
    network.pump()
    executors[1].start(operation(1, Collective.ALL_REDUCE, plan, np.ones(9)), outcomes[1])
    network.pump()
    for rank in (0, 1):
        assert outcomes[rank].errors[0] is None
        error = outcomes[rank].errors[1]
        assert isinstance(error, PeerLostError)
        assert error.rank == 2


def test_a_rank_may_leave_as_soon_as_its_own_part_is_done() -> None:
    network = FakeNetwork(3, 1)
    executors = [PipelinedExecutor(transport) for transport in network.transports]
    outcomes = [Outcomes() for _ in executors]
    chain = Plan("chain", 3, (Tree((-1, 0, 1), 1.0),))
    for rank in (2, 1):
        executors[rank].start(operation(0, Collective.REDUCE, chain, np.ones(9)), outcomes[rank])
    network.pump()
    assert outcomes[2].errors == [None]
    network.transports[2].close()
    network.pump()
    executors[0].start(operation(0, Collective.REDUCE, chain, np.ones(9)), outcomes[0])
    network.pump()
    assert outcomes[0].errors == outcomes[1].errors == [None]


def test_ranks_that_call_different_sizes_get_an_error() -> None:
    network = FakeNetwork(2)
    executors = [PipelinedExecutor(transport) for transport in network.transports]
    outcomes = [Outcomes() for _ in executors]
    for rank, executor in enumerate(executors):
        executor.start(operation(0, Collective.ALL_REDUCE, ring_plan(2), np.ones(8 + rank)), outcomes[rank])
    network.pump()
    assert any(isinstance(error, MismatchError) for o in outcomes for error in o.errors)


def test_the_first_message_tells_of_another_reduction_of_the_same_size() -> None:
    network = FakeNetwork(2)
    executors = [PipelinedExecutor(transport) for transport in network.transports]
    outcomes = [Outcomes() for _ in executors]
    for rank, what in enumerate(("float64 by sum", "float64 by max")):
        made = replace(operation(0, Collective.ALL_REDUCE, ring_plan(2), np.ones(8)), what=what)
        executors[rank].start(made, outcomes[rank])
    network.pump()
    errors = [error for outcome in outcomes for error in outcome.errors]
    assert errors, "nobody noticed"
    for error in errors:
        assert isinstance(error, MismatchError)
        assert (error.rank, error.number) == (None, 0)
    assert not network.delivered


def test_marks_are_the_same_on_all_ranks_and_differ_with_what_is_called() -> None:
    def mark(rank: int, collective: Collective, count: int, dtype: str = "float32", chunk_bytes: int = 64) -> int:
        made = operation(0, collective, ring_plan(3), np.ones(count, dtype), chunk_bytes=chunk_bytes)
        return Tables(rank).table(made).mark("x")

    assert len({mark(rank, Collective.ALL_REDUCE, 60) for rank in range(3)}) == 1
    others = [
        mark(0, Collective.ALL_REDUCE, 60),
        mark(0, Collective.ALL_REDUCE, 63),
        mark(0, Collective.ALL_REDUCE, 30, "float64"),
        mark(0, Collective.ALL_REDUCE, 60, chunk_bytes=32),
        mark(0, Collective.ALL_GATHER, 60),
    ]
    assert len(set(others)) == len(others)
    assert all(2**31 < each < 2**60 and not each & 0xFFFF_FFFF for each in others)


def test_a_reducer_that_raises_fails_the_operation() -> None:
    class Broken(NumpyReducer):
        def reduce(self, into: memoryview, piece: memoryview) -> None:
            raise ArithmeticError("no")

    network = FakeNetwork(2)
    executors = [PipelinedExecutor(transport) for transport in network.transports]
    outcomes = [Outcomes() for _ in executors]
    for rank, executor in enumerate(executors):
        reducer = Broken(ReduceKind.SUM, "float64", size=2)
        executor.start(
            operation(0, Collective.REDUCE, star_plan(2, [1, 0]), np.ones(4), reducer=reducer), outcomes[rank]
        )
    network.pump()
    assert isinstance(outcomes[0].errors[0], TransportError)


def test_what_cannot_run_is_refused_at_once() -> None:
    network = FakeNetwork(2)
    executor = PipelinedExecutor(network.transports[0])
    outcomes = Outcomes()
    with pytest.raises(PlanError, match="for 3 ranks"):
        executor.start(operation(0, Collective.ALL_REDUCE, ring_plan(3), np.ones(4)), outcomes)
    chain = Plan("chain", 3, (Tree((1, 2, -1), 1.0),))
    with pytest.raises(PlanError, match="takes stars"):
        PipelinedExecutor(FakeNetwork(3).transports[0]).start(
            operation(0, Collective.ALL_REDUCE, chain, np.ones(4), in_rank_order=True), outcomes
        )
    frozen = np.ones(4)
    frozen.flags.writeable = False
    with pytest.raises(UsageError, match="writable"):
        executor.start(operation(0, Collective.ALL_REDUCE, ring_plan(2), frozen), outcomes)
    assert not outcomes.all


def test_a_slow_rank_at_the_leaf_of_all_trees_feeds_them_in_turn() -> None:
    plan = Plan("rotated", 3, (Tree((-1, 0, 1), 0.5), Tree((1, -1, 0), 0.5)))
    made = operation(0, Collective.ALL_REDUCE, plan, np.ones(64), chunk_bytes=64)
    table = Tables(2).table(made)
    trees = [table.pieces.tree[tag >> 1] for tag in sorted(tag for tags in table.ready.values() for tag in tags)]
    assert trees == [0, 1] * 4
    assert list(table.ready) == [0, 1]
