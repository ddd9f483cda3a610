"""One group's collectives on one rank: numbers the operations, gives each its plan, and keeps the loop going.

    run -> queue -> (ruling there?) -> plan -> executor -> done
                        ^                         |
                        |                    flow samples
                   rank 0 rules  <- reports of an epoch

Everything but `run`, `abort` and `close` happens on the transport's progress thread, so that nothing here needs a
lock but the operation number.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from headway.cluster.model import Cluster
from headway.collectives.agreement import (
    FIRST_EPOCH_WEIGHT,
    FIRST_LEAD_OPERATIONS,
    LARGE_BYTES,
    Admission,
    EpochClock,
    EpochReport,
    Ruling,
)
from headway.collectives.chunking import chunk_bytes_for, chunk_from_setting, link_rate_Bps
from headway.collectives.control import Control, FailureNotice, Message
from headway.collectives.coordinator import Coordinator
from headway.collectives.executor import PipelinedExecutor
from headway.collectives.liveness import LivenessMessage
from headway.collectives.mismatch import MismatchWatch
from headway.collectives.operation import Operation, OperationOutcome, Reducer
from headway.collectives.plan import Collective
from headway.collectives.plan_book import PlanBook
from headway.collectives.sameness import Called, SamenessMessage
from headway.collectives.watchdog import Watchdog
from headway.decide.journal import FailureRecord, Journal
from headway.errors import DeadlineError, HeadwayError, MismatchError, PeerLostError, TransportError
from headway.observe.samples import FlowSample
from headway.observe.summary import OperationSpan, summarise
from headway.settings import Settings
from headway.transport.api import StreamTransport

TICK_S = 0.04
"""Between two readings of the flows' counters (12 us a flow each) and two looks at the limits, while busy."""

ABORT_S = 1.0
"""How long `abort` waits for the progress thread to take it."""

NOTICE_GRACE_S = 0.15
"""After a connection broke, wait this long for a notice that names who was lost first: the peer whose connection
broke may only have given up because of another."""


@dataclass(frozen=True)
class _Call:
    """A collective that the user called."""

    number: int
    collective: Collective
    buffer: memoryview
    element_bytes: int
    reducer: Reducer | None
    root: int
    called_s: float
    timeout_s: float
    label: str
    done: Callable[[OperationOutcome], None]
    what: str

    @property
    def deadline_s(self) -> float:
        return self.called_s + self.timeout_s


class Communicator:
    """Runs the collectives of one group by plans that move around congestion.

    Args:
        transport: of this group; its ranks are the group's.
        group: name, for errors and the journal.
        cluster: hosts and ranks with nominal capacities, the same on every rank.
        settings: policy, bitwise mode and the rest.
        journal: where rank 0's records go.
    """

    def __init__(
        self, transport: StreamTransport, *, group: str, cluster: Cluster, settings: Settings, journal: Journal
    ) -> None:
        self._transport = transport
        self._group = group
        self._journal = journal
        self._bitwise = settings.bitwise
        self._chunk_bytes = chunk_from_setting(settings.chunk)
        self._link_Bps = link_rate_Bps(cluster)
        self._book = PlanBook(cluster, settings.policy, settings.bitwise, settings.plan)
        self._clock = EpochClock(
            epoch_weight=FIRST_EPOCH_WEIGHT if transport.size > 1 else math.inf, lead_operations=FIRST_LEAD_OPERATIONS
        )
        self._control = Control(transport, self._receive)
        self._watchdog = Watchdog(self._control, rank=transport.rank, size=transport.size)
        self._mismatch = MismatchWatch(transport, self._control, lambda error, tell: self._fail(error, tell=tell))
        self._executor = PipelinedExecutor(transport)
        self._coordinator: Coordinator | None = None
        if transport.size > 1 and transport.rank == 0:
            self._coordinator = Coordinator(
                book=self._book, group=group, size=transport.size, journal=journal, rule=self._rule_from_any_thread
            )
            self._coordinator.record_start(settings)
        self._lock = threading.Lock()
        self._next_number = 0
        self._queue: deque[_Call] = deque()
        self._running: _Call | None = None
        self._broken: HeadwayError | None = None
        self._lost: dict[int, str] = {}
        self._samples: list[FlowSample] = []
        self._spans: list[OperationSpan] = []
        self._sampling = False
        self._ticking = False
        self._closed = False
        transport.on_peer_lost(self._peer_lost)

    def run(
        self,
        collective: Collective,
        buffer: memoryview,
        *,
        element_bytes: int,
        reducer: Reducer | None,
        root: int = 0,
        timeout_s: float,
        done: Callable[[OperationOutcome], None],
        what: str = "",
    ) -> int:
        """Start one collective; returns its number. `buffer`, `root`, `reducer`, `what`: see `Operation`.

        `done` is called once, on the progress thread, when this rank's part is complete or has failed:
        DeadlineError, PeerLostError and MismatchError name the rank that is to blame. After a failure the group is
        broken, and every later operation fails at once with the first error's text.
        """
        now_s = time.monotonic()
        with self._lock:
            number = self._next_number
            self._next_number += 1
            label = f"{collective.value} #{number} of group {self._group}"
            call = _Call(
                number, collective, buffer, element_bytes, reducer, root, now_s, timeout_s, label, done, what
            )  # fmt: skip
            self._transport.run_soon(partial(self._enqueue, call))
        return number

    def abort(self, reason: str) -> None:
        """Fail everything under way on every rank, and refuse what comes."""
        blamed = self._transport.rank
        error = TransportError(f"group {self._group} was aborted by rank {blamed}: {reason}", rank=blamed)
        told = threading.Event()

        def fail() -> None:
            self._mismatch.wait_no_longer()
            self._fail(error, tell=True)
            told.set()

        self._transport.run_soon(fail)
        told.wait(ABORT_S)  # a `close` that follows must not overtake it

    def close(self) -> None:
        """Leave the group in order. The other ranks must have called all that this rank has called."""
        if self._mismatch.holding and not self._closed:
            self._transport.run_soon(self._mismatch.wait_no_longer)
        self._closed = True
        if self._coordinator is not None:
            self._coordinator.stop()
        self._transport.close()
        if self._coordinator is not None:
            self._coordinator.record_rest()

    def _enqueue(self, call: _Call) -> None:
        self._mismatch.note(
            call.number, Called(call.collective, len(call.buffer), call.element_bytes, call.root, call.what)
        )
        if self._broken is not None:
            call.done(OperationOutcome(call.called_s, time.monotonic(), self._refusal(call)))
            return
        self._queue.append(call)
        if self._lost:
            self._transport.run_soon(self._fail_for_lost)
        if not self._ticking:
            self._ticking = True
            self._transport.run_at(call.called_s + TICK_S, self._tick)
        if self._running is None:
            self._start_next()

    def _start_next(self) -> None:
        while self._running is None and self._queue:
            call = self._queue[0]
            try:
                admission = self._clock.admit(call.number, len(call.buffer))
                if not admission.admitted:
                    return
                self._queue.popleft()
                self._running = call
                operation = self._operation(call)
            except HeadwayError as error:
                self._fail(error, tell=True)
                return
            for src, dst in admission.reroutes:
                if src == self._transport.rank:
                    self._transport.reroute(dst)
            if admission.in_epoch and not self._sampling:
                self._transport.flow_samples()
            self._sampling = admission.in_epoch
            self._executor.start(operation, partial(self._finished, call, operation.plan.name, admission))

    def _operation(self, call: _Call) -> Operation:
        size_bytes = len(call.buffer)
        tuned = self._clock.tuned_plan(call.collective)
        plan = self._book.choose(call.collective, size_bytes, call.root, tuned)
        chunk_bytes = self._chunk_bytes or chunk_bytes_for(
            plan, call.collective, size_bytes, call.element_bytes, self._clock.link_Bps or self._link_Bps
        )
        return Operation(
            number=call.number,
            collective=call.collective,
            plan=plan,
            buffer=call.buffer,
            element_bytes=call.element_bytes,
            reducer=call.reducer,
            in_rank_order=self._bitwise,
            chunk_bytes=chunk_bytes,
            label=call.label,
            deadline_s=call.deadline_s,
            what=call.what,
        )

    def _finished(self, call: _Call, plan: str, admission: Admission, outcome: OperationOutcome) -> None:
        if self._running is not call:
            return  # answered when the group broke
        if outcome.error is not None:
            self._operation_failed(outcome.error)
            return
        large = len(call.buffer) >= LARGE_BYTES
        if large:
            self._take_samples()
        self._running = None
        call.done(outcome)
        if self._coordinator is not None:
            self._coordinator.operation_done(call.number, call.collective, plan, len(call.buffer), outcome)
        if admission.in_epoch:
            if large:
                self._spans.append(OperationSpan(call.number, outcome.started_s, outcome.ended_s))
            if admission.ends_epoch is not None:
                self._report(admission.ends_epoch)
        self._start_next()

    def _report(self, epoch: int) -> None:
        report = EpochReport(
            epoch=epoch,
            rank=self._transport.rank,
            ruled_from=self._clock.ruled_from or 0,
            durations_s={span.number: span.end_s - span.start_s for span in self._spans},
            summary=summarise(self._transport.rank, self._samples, self._spans).to_json(),
        )
        self._samples = []
        self._spans = []
        self._control.send(0, report)

    def _take_samples(self) -> None:
        number = self._running.number if self._running is not None else -1
        taken = self._transport.flow_samples()
        if self._sampling:
            self._samples.extend(replace(sample, operation=number) for sample in taken)

    def _tick(self) -> None:
        now_s = time.monotonic()
        oldest = self._running or (self._queue[0] if self._queue else None)
        if self._running is not None and len(self._running.buffer) >= LARGE_BYTES:
            self._take_samples()
        self._watchdog.tick(
            now_s=now_s,
            operation=oldest.number if oldest else None,
            started_s=oldest.called_s if oldest else 0.0,
            timeout_s=oldest.timeout_s if oldest else 0.0,
            called=self._next_number - 1,
        )
        if oldest is not None and now_s >= oldest.deadline_s:
            self._expire(oldest)
        self._ticking = oldest is not None and self._broken is None
        if self._ticking:
            self._transport.run_at(now_s + TICK_S, self._tick)

    def _expire(self, call: _Call) -> None:
        if self._broken is not None or self._mismatch.holding:
            return  # the next tick comes back to it
        diagnosis = self._watchdog.diagnosis(call.number)
        what = f"not complete after {call.timeout_s:g} s; {diagnosis.sentence()}"
        self._fail(DeadlineError(what, rank=diagnosis.culprit, operation=call.label), tell=False)
        # The late ranks are told why the others leave. One that is silent reads it when it wakes up.
        name = f"{call.collective.value} #{call.number}"
        for rank in (*diagnosis.behind, *diagnosis.silent):
            late = rank in diagnosis.behind
            if late or 0 in (rank, self._transport.rank):
                why = f"because this rank had not called {name}" if late else f"of {name}: this rank did not answer"
                what = f"the others gave up after {call.timeout_s:g} s {why}"
                self._control.send(rank, FailureNotice(blamed_rank=rank, lost=False, what=what))

    def _receive(self, src: int, message: Message) -> None:
        if isinstance(message, Ruling):
            self._clock.receive(message)
            self._start_next()
        elif isinstance(message, EpochReport):
            if self._coordinator is not None:
                self._coordinator.receive(message)
        elif isinstance(message, LivenessMessage):
            self._watchdog.receive(src, message, now_s=time.monotonic(), called=self._next_number - 1)
            if message.kind == "verdict" and not (message.silent or message.behind):
                self._mismatch.doubt(message.operation)
        elif isinstance(message, SamenessMessage):
            self._mismatch.receive(src, message)
        else:
            kind = PeerLostError if message.lost else TransportError
            self._fail(kind(message.what, rank=message.blamed_rank), tell=False)

    def _rule_from_any_thread(self, ruling: Ruling) -> None:
        self._transport.run_soon(lambda: self._control.broadcast(ruling))

    def _peer_lost(self, rank: int, what: str) -> None:
        self._lost.setdefault(rank, what)
        self._transport.run_at(time.monotonic() + NOTICE_GRACE_S, self._fail_for_lost)

    def _fail_for_lost(self) -> None:
        if self._lost and (self._running is not None or self._queue):
            rank, what = next(iter(self._lost.items()))
            self._fail(PeerLostError(f"rank {rank} is lost: {what}", rank=rank), tell=True)

    def _operation_failed(self, error: Exception) -> None:
        if isinstance(error, PeerLostError) and error.rank is not None:
            self._peer_lost(error.rank, error.what)
        elif isinstance(error, DeadlineError) and self._running is not None:
            # The executor knows its neighbours only; the watchdog has asked everybody.
            self._expire(self._running)
        elif isinstance(error, MismatchError):
            self._mismatch.differs(error)
        elif isinstance(error, HeadwayError):
            self._fail(error, tell=True)
        else:
            self._fail(TransportError(f"{type(error).__name__}: {error}"), tell=True)

    def _fail(self, error: HeadwayError, *, tell: bool) -> None:
        if self._broken is not None or self._mismatch.holds(error, tell=tell):
            return
        self._broken = error
        blamed = error.rank if isinstance(error, TransportError) else None
        waiting = ([self._running] if self._running is not None else []) + list(self._queue)
        self._running = None
        self._queue.clear()
        now_s = time.monotonic()

        def answer() -> None:
            for call in waiting:
                call.done(OperationOutcome(call.called_s, now_s, self._refusal(call)))

        try:
            self._executor.fail(error)
            self._transport.run_soon(answer)  # after the executor has let go of the buffers
        except TransportError:
            answer()  # the transport is closed: nobody touches a buffer any more
        self._journal.write(
            FailureRecord(
                t_s=time.time(),
                group=self._group,
                rank=self._transport.rank,
                blamed_rank=blamed,
                operation=waiting[0].label if waiting else "",
                what=str(error),
            )
        )
        if tell and not self._closed:
            what = error.what if isinstance(error, TransportError) else str(error)  # the reader names its own operation
            notice = FailureNotice(blamed_rank=blamed, lost=isinstance(error, PeerLostError), what=what)
            out_of_reach = {self._transport.rank} | ({blamed} if blamed is not None else set())
            self._control.broadcast(notice, but=frozenset(out_of_reach))

    def _refusal(self, call: _Call) -> HeadwayError:
        error = self._broken
        if isinstance(error, MismatchError):
            what = error.what if error.number == call.number else f"in operation #{error.number} {error.what}"
            return MismatchError(what, rank=error.rank, operation=call.label, number=error.number)
        if isinstance(error, TransportError):
            return type(error)(error.what, rank=error.rank, operation=call.label)
        return TransportError(str(error), operation=call.label)
