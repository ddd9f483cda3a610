"""Watches the operation under way: asks who holds it up, and ends it at its limit with a name."""

from __future__ import annotations

from dataclasses import dataclass

from headway.collectives.control import Control
from headway.collectives.liveness import (
    ANSWER_SHARE,
    ASK_SHARE,
    Diagnosis,
    Inquiry,
    LivenessMessage,
    coordinator_silent,
    verdict_message,
)


@dataclass
class _OpenInquiry:
    inquiry: Inquiry
    closes_s: float


class Watchdog:
    """One rank's part in finding the culprit of a stuck operation (see `liveness`).

    Args:
        control: to the other ranks.
        rank: this rank.
        size: number of ranks.
    """

    def __init__(self, control: Control, *, rank: int, size: int) -> None:
        self._control = control
        self._rank = rank
        self._size = size
        self._asked = -1
        self._open: _OpenInquiry | None = None
        self._verdicts: dict[int, Diagnosis] = {}

    def tick(self, *, now_s: float, operation: int | None, started_s: float, timeout_s: float, called: int) -> None:
        """Call every now and then. `operation` is the oldest one not complete; None when there is none."""
        if self._open is not None and now_s >= self._open.closes_s:
            self._close_inquiry()
        if operation is None or operation <= self._asked or now_s < started_s + ASK_SHARE * timeout_s:
            return
        self._asked = operation
        if self._rank == 0:
            self._inquire(operation, now_s=now_s, timeout_s=timeout_s, called=called)
        else:
            self._control.send(0, LivenessMessage(kind="stuck", operation=operation, limit_s=timeout_s))

    def receive(self, src: int, message: LivenessMessage, *, now_s: float, called: int) -> None:
        """Take one liveness message. `called` is the last operation this rank's user asked for."""
        if message.kind == "stuck" and self._rank == 0:
            self._inquire(message.operation, now_s=now_s, timeout_s=message.limit_s, called=called)
        elif message.kind == "ping":
            self._control.send(0, LivenessMessage(kind="pong", operation=message.operation, called=called))
        elif message.kind == "pong":
            inquiry = self._open.inquiry if self._open is not None else None
            if inquiry and inquiry.operation == message.operation and inquiry.answer(src, message.called):
                self._close_inquiry()
        elif message.kind == "verdict":
            self._verdicts = {message.operation: Diagnosis(message.operation, message.silent, message.behind)}

    def diagnosis(self, operation: int) -> Diagnosis:
        """What is known when `operation` reaches its limit; without a verdict, rank 0 is the one that is silent."""
        known = self._verdicts.get(operation)
        if known is not None:
            return known
        if self._rank == 0:
            return Diagnosis(operation, silent=(), behind=())
        return coordinator_silent(operation)

    def _inquire(self, operation: int, *, now_s: float, timeout_s: float, called: int) -> None:
        if self._open is not None and self._open.inquiry.operation >= operation:
            return
        if operation in self._verdicts:
            return
        inquiry = Inquiry(operation, self._size)
        inquiry.answer(0, called)
        self._open = _OpenInquiry(inquiry, closes_s=now_s + ANSWER_SHARE * timeout_s)
        self._control.broadcast(LivenessMessage(kind="ping", operation=operation), but=frozenset({0}))

    def _close_inquiry(self) -> None:
        if self._open is None:
            return
        diagnosis = self._open.inquiry.diagnose()
        self._open = None
        self._control.broadcast(verdict_message(diagnosis))
