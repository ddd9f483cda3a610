"""Signals that ask a run to end, taken where it is safe to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Deferred:
    """Holds back Ctrl-C, SIGTERM and SIGHUP until `check` is called or the block ends.

    An exception that a signal raises just anywhere can leave a lock taken, a process started that nobody knows of, or
    a lab half removed. Blocks may nest; outside the main thread, where signals do not arrive, a block does nothing.
    """

    def __init__(self) -> None:
        self._asked: int | None = None
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _ASKING:
                if signal.getsignal(number) != signal.SIG_IGN:  # nohup stays nohup
                    self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._asked = number

    def check(self) -> None:
        """Raise KeyboardInterrupt for Ctrl-C, SystemExit(128 + number) for the others, once for each."""
        asked, self._asked = self._asked, None
        if asked == signal.SIGINT:
            raise KeyboardInterrupt
        if asked is not None:
            raise SystemExit(128 + asked)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if error is None:
            self.check()
