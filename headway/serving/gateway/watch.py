"""Limits on waiting, for a task with many short waits. One timer a task, re-armed only when it rings."""

from __future__ import annotations

import asyncio
from enum import Enum
from types import TracebackType
from typing import Self


class Phase(Enum):
    """What a request waits for; the value says it in an error."""

    BODY = "the client to send the request's body"
    CONNECT = "a connection to the replica"
    FIRST_BYTE = "the replica's first byte"
    CHUNK = "the replica's next bytes"
    CLIENT = "the client to read"
    STOP = "requests to end before the gateway stops"


class InterruptedWaitError(Exception):
    """A wait was ended from outside: its limit was reached, or the gateway stops.

    Args:
        phase: what was waited for.
        waited_s: how long.
        total: whether it was the limit on the whole request.
    """

    def __init__(self, phase: Phase, waited_s: float, *, total: bool = False) -> None:
        self.phase, self.waited_s, self.total = phase, waited_s, total
        super().__init__(f"waited {waited_s:.3g} s for {phase.value}")


class Watch:
    """Bounds each wait of the task that enters it, and all of them together.

    `waits(phase, limit_s)` begins a wait; it costs two clock-free comparisons and one look at the clock, no timer: the
    timer that is running rings too early, sees that there was progress, and is set again. So a stream of a thousand
    chunks in a minute costs a few timers, not a thousand. When a limit is reached the task is cancelled, and leaving
    the block turns that into InterruptedWaitError. Another's cancellation (the client went away) passes through.

    Args:
        total_s: limit on the whole block.
    """

    def __init__(self, *, total_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._began_s = self._since_s = self._loop.time()
        self._end_s = self._began_s + total_s
        self._due_s = self._end_s
        self._phase = Phase.BODY
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._rings_s = 0.0
        self._interrupt: InterruptedWaitError | None = None

    @property
    def phase(self) -> Phase:
        """What is waited for."""
        return self._phase

    def waits(self, phase: Phase, limit_s: float) -> None:
        """From now on the task waits for `phase`, for `limit_s` at most."""
        now_s = self._loop.time()
        self._phase, self._since_s = phase, now_s
        due_s = now_s + limit_s
        self._due_s = due_s = due_s if due_s < self._end_s else self._end_s
        if due_s < self._rings_s:
            self._set_timer(due_s)

    def stop(self) -> None:
        """End the task's wait now: the gateway stops."""
        self._cut(Phase.STOP, total=False)

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        self._set_timer(self._due_s)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        task, self._task = self._task, None
        if self._interrupt is not None and task is not None:
            others = task.uncancel()
            if kind is asyncio.CancelledError and others == 0:
                raise self._interrupt from None

    def _set_timer(self, at_s: float) -> None:
        if self._task is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._rings_s = at_s
        self._timer = self._loop.call_at(at_s, self._ring)

    def _ring(self) -> None:
        if self._loop.time() < self._due_s - 1e-4:
            self._set_timer(self._due_s)
        else:
            self._cut(self._phase, total=self._due_s >= self._end_s)

    def _cut(self, phase: Phase, *, total: bool) -> None:
        if self._task is None or self._interrupt is not None:
            return
        began_s = self._began_s if total else self._since_s
        self._interrupt = InterruptedWaitError(phase, self._loop.time() - began_s, total=total)
        self._task.cancel()
