"""Collectives in rounds over matched sends and receives: any torch backend can carry them.

The plan is unrolled by `schedule.rounds`. In each round a rank posts its receives, then its sends, in an order that
both ends share (so that backends without tags, as NCCL, match them), waits for all, and adds. The order of addition
is the pipelined executor's, so both give the same bits on the same plan.

It loses to the pipelined executor wherever links or ranks differ in speed, because a round waits for its slowest.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from headway.collectives.folding import Fold
from headway.collectives.operation import Operation, OperationOutcome
from headway.collectives.plan import Phase
from headway.collectives.schedule import Transfer, rounds
from headway.collectives.scratch import ScratchPool
from headway.collectives.table import check
from headway.collectives.tables import Tables
from headway.errors import TransportError
from headway.transport import api

Done = Callable[[OperationOutcome], None]
_Step = tuple[tuple[Transfer, ...], tuple[Transfer, ...]]


class RoundsExecutor:
    """Runs the operations of one group one after the other on a thread of its own; see `operation.Executor`.

    `done` is called on that thread. After a failure every further operation fails with the same error.
    """

    def __init__(self, transport: api.Transport) -> None:
        self._transport = transport
        self._tables = Tables(transport.rank)
        self._steps: dict[tuple[int, str, tuple[int, ...]], tuple[object, list[_Step]]] = {}
        self._pool = ScratchPool()
        self._queue: queue.SimpleQueue[tuple[Operation, Done] | None] = queue.SimpleQueue()
        self._error: Exception | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name=f"headway-rounds-{transport.rank}", daemon=True)
        self._thread.start()

    @property
    def scratch_outstanding(self) -> int:
        """Scratch buffers in use; 0 between operations."""
        return self._pool.outstanding

    def start(self, operation: Operation, done: Done) -> None:
        """Begin `operation`. Any thread. PlanError, UsageError: it can't be run. TransportError: after `close`."""
        check(operation, size=self._transport.size)
        with self._lock:
            if self._closed:
                raise TransportError("the executor is closed", operation=operation.label)
            self._queue.put((operation, done))

    def fail(self, error: Exception) -> None:
        """Fail every operation that has not begun. The one under way ends when the transport is closed."""
        self._error = self._error or error

    def close(self) -> None:
        """Finish what was started, then end the thread. Idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            operation, done = item
            started_s = time.monotonic()
            if self._error is None:
                try:
                    self._run(operation)
                except Exception as error:
                    self._error = error
            done(OperationOutcome(started_s, time.monotonic(), self._error))

    def _run(self, operation: Operation) -> None:
        pieces = self._tables.table(operation).pieces
        reducer, buffer, pool = operation.reducer, operation.buffer, self._pool
        fold: Fold | None = None
        if reducer is not None and operation.collective.reduces:
            fold = Fold(
                operation.plan, pieces, self._transport.rank, buffer, reducer, pool,
                in_rank_order=operation.in_rank_order,
            )  # fmt: skip
            if self._transport.size == 1 and buffer.nbytes:
                reducer.finish(buffer)

        def region(transfer: Transfer) -> memoryview:
            piece = pieces.numbers[transfer.tree, transfer.piece]
            return buffer[pieces.first[piece] : pieces.last[piece]]

        tag = operation.number % 2**31
        taken = pool.outstanding
        try:
            for receives, sends in self._steps_of(operation, pieces.per_tree):
                into = [pool.take(region(t).nbytes) if t.phase is Phase.UP else region(t) for t in receives]
                arriving = [self._transport.receive(t.src, tag, view) for t, view in zip(receives, into, strict=True)]
                leaving = [self._transport.send(t.dst, tag, region(t)) for t in sends]
                for transfer in (*arriving, *leaving):
                    transfer.wait(max(0.0, operation.deadline_s - time.monotonic()))
                for t, view in zip(receives, into, strict=True):
                    if t.phase is Phase.UP and fold is not None and reducer is not None:
                        complete = fold.add(pieces.numbers[t.tree, t.piece], t.src, view)
                        if complete and operation.plan.trees[t.tree].root == t.dst:
                            reducer.finish(region(t))
        except TransportError as error:
            # A receive may still be filling a buffer: none of this operation's is used again.
            pool.forget(pool.outstanding - taken)
            raise type(error)(error.what, rank=error.rank, operation=operation.label) from error

    def _steps_of(self, operation: Operation, per_tree: tuple[int, ...]) -> list[_Step]:
        """This rank's (receives, sends) of each round that it takes part in."""
        plan, rank = operation.plan, self._transport.rank
        key = (id(plan), operation.collective.value, per_tree)
        if key not in self._steps:
            steps = []
            for transfers in rounds(plan, operation.collective, per_tree):
                mine = (tuple(t for t in transfers if t.dst == rank), tuple(t for t in transfers if t.src == rank))
                if mine[0] or mine[1]:
                    steps.append(mine)
            if len(self._steps) >= 128:
                del self._steps[next(iter(self._steps))]
            self._steps[key] = (plan, steps)
        return self._steps[key][1]
