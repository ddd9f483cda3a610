"""Plans, inputs and expected results that the executors' tests share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from headway.collectives.executor import PipelinedExecutor
from headway.collectives.operation import Operation, OperationOutcome, Reducer
from headway.collectives.plan import Collective, Plan, Tree
from headway.collectives.reducers import NumpyReducer, ReduceKind
from headway.collectives.rounds import RoundsExecutor
from tests.fakes.matched import FakeMatchedNetwork
from tests.fakes.stream import FakeNetwork

Vector = npt.NDArray[np.generic]


def star_plan(size: int, shares: Sequence[float]) -> Plan:
    """One star per root with a share above 0."""
    trees = [
        Tree(tuple(-1 if rank == root else root for rank in range(size)), share)
        for root, share in enumerate(shares)
        if share > 0
    ]
    return Plan("stars", size, tuple(trees))


def ring_plan(size: int) -> Plan:
    """The rotations of one chain."""
    trees = []
    for turn in range(size):
        parents = [-1] * size
        for place in range(size - 1):
            parents[(turn + place) % size] = (turn + place + 1) % size
        trees.append(Tree(tuple(parents), 1 / size))
    return Plan("ring", size, tuple(trees))


@st.composite
def trees(draw: st.DrawFn, size: int, root: int | None = None) -> tuple[int, ...]:
    """The parents of any spanning tree, with any root or the given one."""
    order = draw(st.permutations(range(size)))
    if root is not None:
        order = [root, *[rank for rank in order if rank != root]]
    parents = [-1] * size
    for place in range(1, size):
        parents[order[place]] = order[draw(st.integers(0, place - 1))]
    return tuple(parents)


@st.composite
def plans(draw: st.DrawFn, size: int, collective: Collective, root: int = 0) -> Plan:
    """Any packing that `collective` can run on."""
    if collective in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER):
        roots: list[int | None] = [*range(size), *([0] if draw(st.booleans()) else [])]
    elif collective in (Collective.BROADCAST, Collective.REDUCE):
        roots = [root] * draw(st.integers(1, 3))
    else:
        roots = [None] * draw(st.integers(1, size + 1))
    shares = [draw(st.integers(1, 5)) for _ in roots]
    made = [Tree(draw(trees(size, at)), share / sum(shares)) for at, share in zip(roots, shares, strict=True)]
    return Plan("any", size, tuple(made))


def inputs(size: int, count: int, dtype: str, seed: int) -> list[Vector]:
    """One vector per rank; floats whose sum depends on the order of addition."""
    random = np.random.default_rng(seed)
    if dtype.startswith("float"):
        return [
            (random.standard_normal(count) * 10.0 ** random.integers(-2, 3, count)).astype(dtype) for _ in range(size)
        ]
    if dtype == "bool":
        return [random.integers(0, 2, count).astype(dtype) for _ in range(size)]
    return [random.integers(0, 100, count).astype(dtype) for _ in range(size)]


def operation(
    number: int,
    collective: Collective,
    plan: Plan,
    vector: Vector,
    *,
    kind: ReduceKind = ReduceKind.SUM,
    chunk_bytes: int = 64,
    in_rank_order: bool = False,
    deadline_s: float | None = None,
    reducer: Reducer | None = None,
) -> Operation:
    """One rank's operation on `vector`."""
    if reducer is None and collective.reduces:
        reducer = NumpyReducer(kind, vector.dtype, size=plan.size)
    return Operation(
        number=number,
        collective=collective,
        plan=plan,
        buffer=vector.data.cast("B") if vector.size else memoryview(bytearray()),
        element_bytes=vector.dtype.itemsize,
        reducer=reducer,
        in_rank_order=in_rank_order,
        chunk_bytes=chunk_bytes,
        label=f"{collective.value} #{number} of group test",
        deadline_s=time.monotonic() + 60 if deadline_s is None else deadline_s,
    )


class Outcomes:
    """Collects what `done` is called with."""

    def __init__(self) -> None:
        self.all: list[OperationOutcome] = []

    def __call__(self, outcome: OperationOutcome) -> None:
        self.all.append(outcome)

    @property
    def errors(self) -> list[Exception | None]:
        """The error of each outcome."""
        return [outcome.error for outcome in self.all]


def run_streams(
    vectors: Sequence[Sequence[Vector]], make: Callable[[int, Vector], Operation], seed: int
) -> FakeNetwork:
    """Run the operations number 0.. on every rank, vectors[number][rank], in place; all must succeed."""
    size = len(vectors[0])
    network = FakeNetwork(size, seed)
    executors = [PipelinedExecutor(transport) for transport in network.transports]
    outcomes = [Outcomes() for _ in executors]
    for rank, executor in enumerate(executors):
        for number, of_ranks in enumerate(vectors):
            executor.start(make(number, of_ranks[rank]), outcomes[rank])
    network.pump()
    for outcome in outcomes:
        assert outcome.errors == [None] * len(vectors)
    for executor, transport in zip(executors, network.transports, strict=True):
        assert executor.scratch_outstanding == 0
        assert executor.waiting_for() == []
        assert not transport.channels
    return network


def run_rounds(vectors: Sequence[Sequence[Vector]], make: Callable[[int, Vector], Operation]) -> None:
    """The same through matched sends and receives."""
    network = FakeMatchedNetwork(len(vectors[0]))
    executors = [RoundsExecutor(transport) for transport in network.transports]
    outcomes = [Outcomes() for _ in executors]
    for rank, executor in enumerate(executors):
        for number, of_ranks in enumerate(vectors):
            executor.start(make(number, of_ranks[rank]), outcomes[rank])
    for executor in executors:
        executor.close()
    for outcome, executor in zip(outcomes, executors, strict=True):
        assert outcome.errors == [None] * len(vectors)
        assert executor.scratch_outstanding == 0
