"""One collective as the executors see it: bytes, an element size, and how two pieces are summed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from headway.collectives.plan import Collective, Plan


class Reducer(Protocol):
    """How two pieces of a vector become one. Pieces are byte views, whole elements, of equal length."""

    def reduce(self, into: memoryview, piece: memoryview) -> None:
        """into := into (op) piece, element by element."""
        ...

    def finish(self, result: memoryview) -> None:
        """Applied once, at the root, to each complete piece before it is spread: the division of an average."""
        ...


@dataclass(frozen=True)
class Operation:
    """One collective on this rank.

    Attributes:
        number: counts the group's operations from 0, the same on every rank; also the transport's channel.
        collective: what is computed.
        plan: who sends what to whom; the same on every rank.
        buffer: the whole vector as writable bytes, contiguous. All-reduce: input and output. Reduce-scatter: the
            n blocks of input, of which block `rank` becomes the result (the others may be overwritten). All-gather:
            n blocks, of which block `rank` is the input. Broadcast, reduce: input at (or result at) the root.
        element_bytes: size of one element; pieces are never cut inside one.
        reducer: None where nothing is reduced.
        in_rank_order: add in the order of ranks (bitwise mode): the plan must consist of stars.
        chunk_bytes: the piece that is sent, received and reduced at once, at the most.
        label: for errors: "all_reduce #17 of group default".
        deadline_s: time.monotonic() by which it must be done.
        what: what the bytes don't tell of the call, the same on every rank: element type and reduction.
    """

    number: int
    collective: Collective
    plan: Plan
    buffer: memoryview
    element_bytes: int
    reducer: Reducer | None
    in_rank_order: bool
    chunk_bytes: int
    label: str
    deadline_s: float
    what: str = ""


@dataclass(frozen=True)
class OperationOutcome:
    """How an operation ended: `error` is None when it is complete. Times are of time.monotonic()."""

    started_s: float
    ended_s: float
    error: Exception | None


class Executor(Protocol):
    """Runs operations of one group, in the order of their numbers."""

    def start(self, operation: Operation, done: Callable[[OperationOutcome], None]) -> None:
        """Begin `operation`; `done` is called exactly once, when this rank's part is complete and its buffer is free.

        Any thread may call. Operations of one group run one after the other, in the order started.
        """
        ...
