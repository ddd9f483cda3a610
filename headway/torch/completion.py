"""Threads that finish operations: copies out, and the callbacks of futures.

A callback may itself wait for another collective (torch's PowerSGD hook does), so it must not run on the engine's
progress thread, and one blocked callback must not hold up the next operation's: a new thread starts whenever
none is idle.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

IDLE_S = 10.0
"""A thread that had nothing to do for so long ends."""
EXIT_S = 5.0
"""How long the end of the program waits for callbacks. Python then ends the thread of one that still runs, which aborts
the process if torch's C++ is on its stack."""


class CompletionPool:
    """Runs functions soon, each on a thread that is not busy. They must not raise."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._idle = 0
        self._threads: set[threading.Thread] = set()
        self._closed = False
        _POOLS.add(self)

    def submit(self, function: Callable[[], None]) -> None:
        """Run `function` soon. After `close` it runs at once, on the caller's thread."""
        with self._changed:
            if not self._closed:
                self._work.append(function)
                if self._idle >= len(self._work):
                    self._changed.notify()
                else:
                    self._start_thread()
                return
        function()

    def hand_over(self, function: Callable[[], None]) -> None:
        """As `submit`, but never on the caller's thread: after `close` on a thread that ends with it."""
        with self._changed:
            if self._closed:
                self._work.append(function)
                self._start_thread()
            else:
                self.submit(function)

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._threads.add(thread)
        thread.start()

    def close(self, timeout_s: float = 1.0) -> None:
        """Finish what is queued and end the threads; one that is stuck in a callback ends when that returns."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            threads = [thread for thread in self._threads if thread is not threading.current_thread()]
        for thread in threads:
            thread.join(timeout_s)

    def _run(self) -> None:
        while (function := self._next()) is not None:
            function()
            del function

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._work:
                if not self._closed:
                    self._idle += 1
                    notified = self._changed.wait(IDLE_S)
                    self._idle -= 1
                    if notified or self._work:
                        continue
                self._threads.discard(threading.current_thread())
                return None
            return self._work.popleft()


_POOLS: weakref.WeakSet[CompletionPool] = weakref.WeakSet()
"""All that are in use: a thread holds its pool."""


@atexit.register
def _close_all() -> None:
    deadline_s = time.monotonic() + EXIT_S
    for pool in list(_POOLS):
        pool.close(max(0.0, deadline_s - time.monotonic()))
