"""Collectives as dataflow over one-sided messages: a piece moves on as soon as it can.

Each piece of a tree goes up once it holds the sums of everything below, and the result comes down into its place.
There are no rounds: a rank reacts to what arrives. What it may send waits in one queue per peer, the most urgent
first (see `pieces`): results before sums, old pieces before new ones, so that the pipeline drains before it is
filled further and all trees progress together. Only `table.WINDOW_BYTES` per peer are given to the transport ahead,
because what is there can't be overtaken.

Tags carry a mark of what their sender called (bits 32 to 59), so that the first message of a rank that called
something else is noticed, whatever its size: see `sameness`.

Communication steps: see `schedule`. Bytes on the wire: the plan's; nothing is sent twice. It loses to a library in C
where operations are so small that Python's time per message counts.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush

from headway.collectives.folding import Fold
from headway.collectives.operation import Operation, OperationOutcome
from headway.collectives.scratch import ScratchPool
from headway.collectives.table import DOWN, MARK_SHIFT, UP, Table, check, window_messages
from headway.collectives.tables import Tables
from headway.errors import DeadlineError, MismatchError, PeerLostError, TransportError
from headway.transport.api import StreamTransport

Done = Callable[[OperationOutcome], None]


class PipelinedExecutor:
    """Runs the operations of one group, one after the other; see `operation.Executor`.

    Operation k+1 begins on this rank as soon as its part of k is complete. After a failure every further operation
    fails with the same error: some rank's messages are lost, so the group can't go on.
    """

    def __init__(self, transport: StreamTransport) -> None:
        self._transport = transport
        self._tables = Tables(transport.rank)
        self._pool = ScratchPool()
        self._queue: deque[_Run] = deque()
        self._current: _Run | None = None
        self._advancing = False
        self._error: Exception | None = None
        self._alarm_s = float("inf")
        self._left: set[int] = set()
        transport.on_peer_left(self._peer_left)

    @property
    def scratch_outstanding(self) -> int:
        """Scratch buffers in use; 0 between operations."""
        return self._pool.outstanding

    def start(self, operation: Operation, done: Done) -> None:
        """Begin `operation`; `done` is called once, on the progress thread. Any thread.

        Raises PlanError or UsageError at once for an operation that can't be run.
        """
        check(operation, size=self._transport.size)
        run = _Run(operation, self._tables.table(operation), self._transport, self._pool, done, self._finished)
        self._transport.run_soon(partial(self._admit, run))

    def fail(self, error: Exception) -> None:
        """Abort the current and all queued operations; `done` gets `error`. Any thread."""
        self._transport.run_soon(partial(self._fail, error))

    def waiting_for(self) -> list[int]:
        """Ranks, ascending, from which the current operation awaits data, else those that don't take ours."""
        return self._current.waiting_for() if self._current is not None else []

    def _admit(self, run: _Run) -> None:
        if self._error is not None:
            run.done(_refused(self._error))
            return
        self._queue.append(run)
        if run.operation.deadline_s < self._alarm_s:
            self._set_alarm(run.operation.deadline_s)
        self._advance()

    def _advance(self) -> None:
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._current is None and self._queue:
                run = self._current = self._queue.popleft()
                run.begin()
                if self._left:
                    self._check_left()
        except Exception as error:
            self._fail(error)
        finally:
            self._advancing = False

    def _finished(self, run: _Run, error: Exception | None) -> None:
        outcome = OperationOutcome(run.started_s, time.monotonic(), error)
        if error is not None:
            self._fail(error)
            return
        self._current = None
        try:
            run.done(outcome)
        finally:
            self._advance()

    def _fail(self, error: Exception) -> None:
        if self._error is not None:
            return
        self._error = error
        current, self._current = self._current, None
        waiting = [*self._queue]
        self._queue.clear()
        if current is not None:
            current.abandon()
            current.done(OperationOutcome(current.started_s, time.monotonic(), error))
        for run in waiting:
            run.done(_refused(error))

    def _peer_left(self, rank: int) -> None:
        self._left.add(rank)
        self._check_left()

    def _check_left(self) -> None:
        """Fail if the current operation needs data of a rank that has left: all that it sent has been delivered."""
        if self._current is not None:
            missing = self._left.intersection(self._current.waiting_for())
            if missing:
                self._fail(_gone(min(missing), self._current))

    def _set_alarm(self, when_s: float) -> None:
        self._alarm_s = when_s
        self._transport.run_at(when_s, partial(self._alarm, when_s))

    def _alarm(self, when_s: float) -> None:
        if when_s != self._alarm_s:
            return
        self._alarm_s = float("inf")
        runs = [*([self._current] if self._current is not None else []), *self._queue]
        if not runs or self._error is not None:
            return
        first = min(runs, key=lambda run: run.operation.deadline_s)
        if first.operation.deadline_s > time.monotonic():
            self._set_alarm(first.operation.deadline_s)
            return
        ranks = self.waiting_for()
        names = ", ".join(map(str, ranks))
        self._fail(
            DeadlineError(
                f"not complete within its limit; still waits for {'ranks' if len(ranks) > 1 else 'rank'} {names}",
                rank=ranks[0] if len(ranks) == 1 else None,
                operation=first.operation.label,
            )
        )


def _gone(rank: int, run: _Run) -> PeerLostError:
    return PeerLostError(f"rank {rank} has left the group", rank=rank, operation=run.operation.label)


def _refused(error: Exception) -> OperationOutcome:
    now_s = time.monotonic()
    return OperationOutcome(now_s, now_s, error)


class _Run:
    """One operation on its way: the `Sink` of its channel."""

    def __init__(
        self,
        operation: Operation,
        table: Table,
        transport: StreamTransport,
        pool: ScratchPool,
        done: Done,
        on_end: Callable[[_Run, Exception | None], None],
    ) -> None:
        self.operation = operation
        self.done = done
        self.started_s = 0.0
        self._on_end = on_end
        self._table = table
        self._transport = transport
        self._send = transport.send_message
        self._channel = operation.number
        self._mark = table.mark(operation.what)
        self._pool = pool
        pieces = table.pieces
        self._buffer = operation.buffer
        self._tree, self._first, self._last = pieces.tree, pieces.first, pieces.last
        self._parent, self._children = table.parent, table.children
        self._spreads = operation.collective.spreads
        self._fold: Fold | None = None
        self._finish: Callable[[memoryview], None] | None = None
        if operation.collective.reduces and operation.reducer is not None:
            self._finish = operation.reducer.finish
            self._fold = Fold(
                operation.plan, pieces, transport.rank, operation.buffer, operation.reducer, pool,
                in_rank_order=operation.in_rank_order,
            )  # fmt: skip
        self._down = bytearray(pieces.count)
        self._in_use = 0
        self._left = table.messages + 1
        self._ended = False
        self._closed = True
        self._waiting: dict[int, list[int]] = {}
        self._slots: dict[int, int] = {}
        self._window = 0
        self._several = transport.streams > 1
        self._widths: dict[int, int] = {}

    def begin(self) -> None:
        """Open the channel and send what can be sent from the start."""
        self.started_s = time.monotonic()
        self._window = window_messages(self.operation.chunk_bytes)
        for peer, tags in self._table.ready.items():
            self._waiting[peer] = list(tags)
            self._slots[peer] = self._window
        self._closed = False
        self._transport.open_channel(self._channel, self)
        if self._transport.size == 1 and self._finish is not None and self._buffer.nbytes:
            self._finish(self._buffer)
        for peer in self._table.ready:
            if self._several:
                self._widen(peer)
            self._feed(peer)
        self._count_down()

    def buffer_for(self, src: int, tag: int, size: int) -> memoryview:
        """Scratch for a contribution; the piece's own place for a result."""
        tag ^= self._mark
        piece = tag >> 1
        if piece >= len(self._tree) or size != self._last[piece] - self._first[piece]:
            if tag >> MARK_SHIFT:
                raise MismatchError(
                    f"ranks {src} and {self._transport.rank} called different things: all ranks must call the same",
                    operation=self.operation.label,
                    number=self.operation.number,
                )
            raise self._refusal(src, f"message {tag} of {size} bytes fits no piece: do all ranks call the same?")
        if tag & 1:
            if self._fold is None or not self._fold.expects(piece, src):
                raise self._refusal(src, f"contribution to piece {piece} came twice or isn't owed")
            self._in_use += 1
            return self._pool.take(size)
        if not self._spreads or self._parent[self._tree[piece]] != src or self._down[piece]:
            raise self._refusal(src, f"result of piece {piece} came twice or isn't owed")
        return self._buffer[self._first[piece] : self._last[piece]]

    def received(self, src: int, tag: int, buffer: memoryview) -> None:
        """Add a contribution, or pass a result on."""
        tag ^= self._mark
        piece = tag >> 1
        if tag & 1:
            self._in_use -= 1
            if self._fold is not None and self._fold.add(piece, src, buffer):
                self._summed(piece)
        else:
            self._down[piece] = 1
            for child in self._children[self._tree[piece]]:
                self._post(child, tag)
        self._left -= 1
        if not self._left:
            self._end(None)

    def sent(self, dst: int, tag: int) -> None:
        """A place in the peer's window is free: send the most urgent message."""
        waiting = self._waiting[dst]
        if self._several:
            self._widen(dst)
        if waiting and self._slots[dst] >= 0:
            following = heappop(waiting)
            piece = following >> 1
            self._send(dst, self._channel, following | self._mark, self._buffer[self._first[piece] : self._last[piece]])
        else:
            self._slots[dst] += 1
        self._left -= 1
        if not self._left:
            self._end(None)

    def _widen(self, dst: int) -> None:
        """Give the window one place more for each further connection in use, else those would stand empty."""
        width = self._transport.width(dst)
        change = width - self._widths.get(dst, 1)
        if change:
            # Below 0 the next places that become free are taken back.
            self._widths[dst] = width
            self._slots[dst] += change
            self._feed(dst)

    def failed(self, error: TransportError) -> None:
        """The transport gave up: a peer is lost, a message didn't fit, or it was closed."""
        self._closed = True
        self._end(error)

    def abandon(self) -> None:
        """Stop taking part. Scratch that a receive was filling isn't used again."""
        self._ended = True
        if not self._closed:
            self._closed = True
            self._transport.abandon_channel(self._channel)
        if self._fold is not None:
            self._fold.drop()
        self._pool.forget(self._in_use)
        self._in_use = 0

    def waiting_for(self) -> list[int]:
        """Direct peers whose data is missing; if none, those that don't take ours."""
        ranks: set[int] = set()
        for piece, tree in enumerate(self._tree):
            missing = self._fold.missing(piece) if self._fold is not None else []
            ranks.update(missing)
            if not missing and self._spreads and self._parent[tree] >= 0 and not self._down[piece]:
                ranks.add(self._parent[tree])
        if not ranks:
            for peer, slots in self._slots.items():
                if slots < self._window + self._widths.get(peer, 1) - 1 or self._waiting[peer]:
                    ranks.add(peer)
        return sorted(ranks)

    def _summed(self, piece: int) -> None:
        """The piece holds everything below this rank: send it up, or at the root, down."""
        tree = self._tree[piece]
        parent = self._parent[tree]
        if parent >= 0:
            self._post(parent, 2 * piece + UP)
            return
        if self._finish is not None:
            self._finish(self._buffer[self._first[piece] : self._last[piece]])
        if self._spreads:
            for child in self._children[tree]:
                self._post(child, 2 * piece + DOWN)

    def _post(self, dst: int, tag: int) -> None:
        if self._slots[dst] > 0:
            self._slots[dst] -= 1
            piece = tag >> 1
            self._send(dst, self._channel, tag | self._mark, self._buffer[self._first[piece] : self._last[piece]])
        else:
            heappush(self._waiting[dst], tag)

    def _feed(self, peer: int) -> None:
        waiting = self._waiting[peer]
        while waiting and self._slots[peer] > 0:
            self._post(peer, heappop(waiting))

    def _count_down(self) -> None:
        self._left -= 1
        if not self._left:
            self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._ended:
            return
        if error is None:
            self._ended = self._closed = True
            self._transport.close_channel(self._channel)
        self._on_end(self, error)

    def _refusal(self, src: int, what: str) -> TransportError:
        return TransportError(f"from rank {src}: {what}", rank=src, operation=self.operation.label)
