"""The progress thread: one event loop over sockets, timers and functions handed in from other threads."""

from __future__ import annotations

import contextlib
import heapq
import os
import threading
import time
from collections import deque
from collections.abc import Callable

from headway.transport.poller import Poller, make_poller

# After one event at most this many follow-up functions run before sockets are looked at again.
_FOLLOW_UP_LIMIT = 256


class ProgressLoop:
    """Runs handlers on one thread.

    A handler that raises does not end the thread: the exception goes to `on_error`.

    Args:
        name: of the thread.
        on_error: called on the progress thread with the exception of a handler.
        poller: how readiness is learnt; by default the best that the system has.
    """

    def __init__(self, name: str, on_error: Callable[[Exception], None], poller: Poller | None = None) -> None:
        self._on_error = on_error
        self.poller = make_poller() if poller is None else poller
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._soon: deque[Callable[[], None]] = deque()
        self._next: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_count = 0
        self._closing: list[Callable[[], None]] = []
        self._stopping = False
        self._asleep = False
        self._wake_lock = threading.Lock()
        self._wake_read, self._wake_write = _wake_pair()
        self.poller.add(self._wake_read, sender=False)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def on_thread(self) -> bool:
        """Whether the caller is the progress thread."""
        return threading.current_thread() is self._thread

    def run_soon(self, function: Callable[[], None]) -> None:
        """Run `function` on the progress thread, after those handed in before. Any thread."""
        self._soon.append(function)
        if self._asleep:
            self.wake()

    def run_next(self, function: Callable[[], None]) -> None:
        """Run `function` as soon as the handler that runs now has returned. Progress thread only."""
        self._next.append(function)

    def run_at(self, when_s: float, function: Callable[[], None]) -> None:
        """Run `function` at time.monotonic() >= `when_s`. Progress thread only."""
        self._timer_count += 1
        heapq.heappush(self._timers, (when_s, self._timer_count, function))

    def add(self, fd: int, handler: Callable[[int], None], *, sender: bool) -> None:
        """Call handler(events) when `fd` is ready; events as in `poller`. See `Poller.add` for `sender`."""
        self._handlers[fd] = handler
        self.poller.add(fd, sender=sender)

    def replace(self, fd: int, handler: Callable[[int], None]) -> None:
        """Another handler for the same descriptor."""
        self._handlers[fd] = handler

    def remove(self, fd: int, close: Callable[[], None]) -> None:
        """Forget `fd`; `close` runs at the end of this turn, so that its number does not return within it."""
        if self._handlers.pop(fd, None) is not None:
            self.poller.remove(fd)
        self._closing.append(close)

    def stop(self) -> None:
        """End the thread once what was handed in has run. Any thread."""
        self._stopping = True
        self.wake()
        if self._thread.ident is None:
            self._release()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end; False when it did not come in time."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def wake(self) -> None:
        """Make a sleeping progress thread look around. Any thread."""
        with self._wake_lock:
            if self._wake_write >= 0:
                # It blocks only when it is full of wake-ups already.
                with contextlib.suppress(BlockingIOError):
                    os.write(self._wake_write, b"\1\0\0\0\0\0\0\0")

    def run_pending(self) -> None:
        """Run what handlers left for after their return. Handlers that go on for long call it in between."""
        following = self._next
        for _ in range(_FOLLOW_UP_LIMIT):
            if not following:
                return
            self._call(following.popleft())

    def _call(self, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception as error:
            self._on_error(error)

    def _run(self) -> None:
        poll, handlers, soon, following = self.poller.poll, self._handlers, self._soon, self._next
        wake_read = self._wake_read
        try:
            while not self._stopping:
                self._asleep = True
                # Read after the flag is up: whoever adds after this look sees the flag and wakes us.
                events = poll(0.0 if soon or following or self._stopping else self._until_timer())
                self._asleep = False
                for fd, event in events:
                    if fd == wake_read:
                        os.read(wake_read, 4096)
                        continue
                    handler = handlers.get(fd)
                    if handler is not None:
                        try:
                            handler(event)
                        except Exception as error:
                            self._on_error(error)
                        if following:
                            self.run_pending()
                for _ in range(len(soon)):
                    self._call(soon.popleft())
                    if following:
                        self.run_pending()
                if self._timers:
                    self._run_timers()
                if following:
                    self.run_pending()
                if self._closing:
                    self._close_removed()
            while soon or following:
                if soon:
                    self._call(soon.popleft())
                self.run_pending()
        finally:
            self._release()

    def _until_timer(self) -> float:
        if not self._timers:
            return -1.0
        return max(0.0, self._timers[0][0] - time.monotonic())

    def _run_timers(self) -> None:
        now_s = time.monotonic()
        while self._timers and self._timers[0][0] <= now_s:
            self._call(heapq.heappop(self._timers)[2])
            self.run_pending()

    def _release(self) -> None:
        self._close_removed()
        with self._wake_lock:
            if self._wake_write >= 0:
                self._wake_write = _close_pair(self._wake_read, self._wake_write)
                self.poller.close()

    def _close_removed(self) -> None:
        closing, self._closing = self._closing, []
        for close in closing:
            self._call(close)


def _wake_pair() -> tuple[int, int]:
    if hasattr(os, "eventfd"):
        fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        return fd, fd
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    return read, write


def _close_pair(read: int, write: int) -> int:
    for fd in {read, write}:
        os.close(fd)
    return -1
