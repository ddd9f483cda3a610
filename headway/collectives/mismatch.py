"""Holds a group's failure back until it is clear who called something else, and then fails with that."""

from __future__ import annotations

import time
from collections.abc import Callable

from headway.collectives.control import Control
from headway.collectives.sameness import ANSWER_S, HOLD_S, Called, Sameness, SamenessMessage
from headway.errors import HeadwayError, MismatchError
from headway.transport.api import StreamTransport

Fail = Callable[[HeadwayError, bool], None]
"""Break the group with an error; whether to tell the other ranks."""


class MismatchWatch:
    """One rank's part: see `sameness` for the messages. Progress thread only.

    Ranks that fail early leave, and a rank that has left looks like the culprit. So from the first sign of a mismatch
    on, `holds` keeps the first error of any kind, which counts only if no verdict comes.

    Args:
        transport: of the group.
        control: to the other ranks.
        fail: called with the verdict, or with what was held back.
    """

    def __init__(self, transport: StreamTransport, control: Control, fail: Fail) -> None:
        self._transport = transport
        self._rank = transport.rank
        self._sameness = Sameness(control, rank=transport.rank, size=transport.size)
        self._fail = fail
        self._holding = False
        self._held: tuple[HeadwayError, bool] | None = None
        transport.on_stray(self._stray)

    @property
    def holding(self) -> bool:
        """Whether a verdict is awaited."""
        return self._holding

    def note(self, number: int, called: Called) -> None:
        """This rank's user called operation `number`."""
        self._sameness.note(number, called)

    def holds(self, error: HeadwayError, *, tell: bool) -> bool:
        """Whether the group's failure has to wait; if so, `fail` is called later."""
        if self._holding and self._held is None:
            self._held = (error, tell)
        return self._holding

    def differs(self, error: MismatchError) -> None:
        """This rank has seen a message of another call. It can't know who is wrong: rank 0 finds out."""
        self._hold()
        self._fail(error, True)
        self._sameness.notice(error.number)

    def doubt(self, operation: int) -> None:
        """Every rank has called `operation` and it is stuck: compare what they called, if this is rank 0."""
        if self._rank == 0:
            self._sameness.compare(operation, doubtful=True)

    def receive(self, src: int, message: SamenessMessage) -> None:
        """Take a message."""
        if message.kind == "verdict":
            self._holding = False
            self._fail(MismatchError(message.words, rank=message.blamed, number=message.operation), False)
            return
        if message.kind == "ask":
            self._hold()
            if self._rank == 0:
                self._transport.run_at(time.monotonic() + ANSWER_S, self._sameness.conclude)
        self._sameness.receive(src, message)

    def wait_no_longer(self) -> None:
        """Fail now with what is held back, if anything is."""
        self._holding = False
        held, self._held = self._held, None
        if held is not None:
            self._fail(*held)

    def _hold(self) -> None:
        if not self._holding:
            self._holding = True
            self._transport.run_at(time.monotonic() + HOLD_S, self.wait_no_longer)

    def _stray(self, src: int, number: int) -> None:
        if not self._holding:
            what = f"ranks {src} and {self._rank} called different things as operation #{number}"
            self.differs(MismatchError(what, number=number))
