"""Both executors over real sockets on loopback: same bits, and nothing left over after an abort."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from headway.collectives import families
from headway.collectives.executor import PipelinedExecutor
from headway.collectives.operation import Executor, Operation, OperationOutcome
from headway.collectives.plan import Collective, Plan
from headway.collectives.rounds import RoundsExecutor
from headway.errors import DeadlineError, PeerLostError, TransportError
from headway.transport.lanes import FixedStreams
from headway.transport.tcp import TcpTransport
from tests.collectives.harness import Vector, inputs, operation, star_plan
from tests.transport.harness import group, on_loop

pytestmark = pytest.mark.ranks
LIMIT_S = 30.0
SIZE = 4
MIB = 2**20


class Five(FixedStreams):
    """Always five connections."""

    def __init__(self) -> None:
        super().__init__(5)


class Restless(FixedStreams):
    """Another number of connections each time."""

    def __init__(self) -> None:
        super().__init__(6)
        self._chance = random.Random(1)

    def width(self, connection: object) -> int:
        """1 to 6."""
        return self._chance.randint(1, 6)


class _Waiting:
    """Counts down `done` calls, and lets the test wait for the last one."""

    def __init__(self, expected: int) -> None:
        self.errors: dict[tuple[int, int], Exception | None] = {}
        self._left = expected
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def done(self, rank: int, number: int) -> Callable[[OperationOutcome], None]:
        def call(outcome: OperationOutcome) -> None:
            with self._lock:
                assert (rank, number) not in self.errors
                self.errors[rank, number] = outcome.error
                self._left -= 1
                if not self._left:
                    self._ended.set()

        return call

    def wait(self) -> None:
        assert self._ended.wait(LIMIT_S), f"only these ended: {sorted(self.errors)}"


def _run(
    make_executor: Callable[[TcpTransport], Executor],
    transports: list[TcpTransport],
    vectors: list[list[Vector]],
    make: Callable[[int, Vector], Operation],
) -> None:
    executors = [make_executor(transport) for transport in transports]
    waiting = _Waiting(len(executors) * len(vectors))
    for number, of_ranks in enumerate(vectors):
        for rank, executor in enumerate(executors):
            executor.start(make(number, of_ranks[rank]), waiting.done(rank, number))
    waiting.wait()
    assert set(waiting.errors.values()) == {None}
    for executor in executors:
        if isinstance(executor, RoundsExecutor):
            executor.close()


PLANS = (
    families.ring(range(SIZE)),
    families.direct([1.0, 2.0, 1.0, 0.5]),
    families.chains([0, 1, 3], last=[2]),
    families.double_tree(range(SIZE)),
    families.star(SIZE, 3),
)


@pytest.mark.parametrize("steering", [None, Five, Restless])
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_all_reduces_are_right_and_both_executors_give_the_same_bits(
    plan: Plan, steering: type[FixedStreams] | None
) -> None:
    given = [inputs(SIZE, count, "float32", count) for count in (1, 3, 1000, 300_000, 17)]
    piped = [[vector.copy() for vector in vectors] for vectors in given]
    in_rounds = [[vector.copy() for vector in vectors] for vectors in given]

    def make(number: int, vector: Vector) -> Operation:
        return operation(number, Collective.ALL_REDUCE, plan, vector, chunk_bytes=20_000)

    with group(SIZE, steering=steering or (lambda: None)) as transports:
        _run(PipelinedExecutor, transports, piped, make)
        _run(RoundsExecutor, transports, in_rounds, make)
    for vectors, ours, theirs in zip(given, piped, in_rounds, strict=True):
        assert {vector.tobytes() for vector in (*ours, *theirs)} == {ours[0].tobytes()}
        total = np.sum([vector.astype(np.float64) for vector in vectors], axis=0)
        np.testing.assert_allclose(ours[0].astype(np.float64), total, atol=1e-3)


@pytest.mark.parametrize("collective", [Collective.REDUCE_SCATTER, Collective.ALL_GATHER])
def test_the_halves_of_a_ring(collective: Collective) -> None:
    given = inputs(SIZE, 4 * 25_000, "int32", 3)
    vectors = [[vector.copy() for vector in given]]
    plan = families.ring(range(SIZE))
    with group(SIZE) as transports:
        _run(
            PipelinedExecutor,
            transports,
            vectors,
            lambda number, vector: operation(number, collective, plan, vector, chunk_bytes=16_384),
        )
    for rank in range(SIZE):
        block = slice(rank * 25_000, (rank + 1) * 25_000)
        if collective is Collective.ALL_GATHER:
            for vector in vectors[0]:
                np.testing.assert_array_equal(vector[block], given[rank][block])
        else:
            total = np.sum([vector.astype(np.int64) for vector in given], axis=0)
            np.testing.assert_array_equal(vectors[0][rank][block], total[block])


@pytest.mark.parametrize("steering", [None, Five])
def test_an_abort_leaves_the_buffers_alone_and_ends_everything(steering: type[FixedStreams] | None) -> None:
    plan = star_plan(2, [1, 0])
    with group(2, steering=steering or (lambda: None)) as transports:
        root, leaf = (PipelinedExecutor(transport) for transport in transports)
        waiting = _Waiting(3)
        big = np.ones(8_000_000, dtype="float32")
        error = TransportError("aborted")
        leaf.start(operation(0, Collective.ALL_REDUCE, plan, big, chunk_bytes=MIB), waiting.done(1, 0))
        leaf.start(operation(1, Collective.ALL_REDUCE, plan, big, chunk_bytes=MIB), waiting.done(1, 1))
        leaf.fail(error)
        root.start(
            operation(0, Collective.ALL_REDUCE, plan, big.copy(), chunk_bytes=MIB, deadline_s=time.monotonic() + 0.3),
            waiting.done(0, 0),
        )
        waiting.wait()
        assert waiting.errors[1, 0] is error
        assert waiting.errors[1, 1] is error
        late = waiting.errors[0, 0]
        assert isinstance(late, DeadlineError)
        assert late.rank == 1
        assert on_loop(transports[0], root.waiting_for) == []


@pytest.mark.parametrize("steering", [None, Five])
def test_a_rank_that_leaves_is_named_by_those_who_need_it(steering: type[FixedStreams] | None) -> None:
    plan = families.ring(range(3))
    with group(3, steering=steering or (lambda: None)) as transports:
        executors = [PipelinedExecutor(transport) for transport in transports]
        first = _Waiting(3)
        for rank, executor in enumerate(executors):
            executor.start(operation(0, Collective.ALL_REDUCE, plan, np.ones(100)), first.done(rank, 0))
        first.wait()
        transports[2].close()
        second = _Waiting(2)
        for rank in (0, 1):
            executors[rank].start(operation(1, Collective.ALL_REDUCE, plan, np.ones(100)), second.done(rank, 1))
        second.wait()
        for error in second.errors.values():
            assert isinstance(error, PeerLostError)
            assert error.rank == 2
