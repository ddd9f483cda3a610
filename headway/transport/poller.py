"""Which sockets are ready: epoll where it exists, `selectors` elsewhere.

Events are bits: WRITE, and any other bit (data, end of stream, error) means "read, and you will see".
"""

from __future__ import annotations

import contextlib
import select
import selectors
from typing import Protocol

READ = 1
WRITE = 4


class Poller(Protocol):
    """Readiness of descriptors. One thread."""

    def add(self, fd: int, *, sender: bool) -> None:
        """Watch `fd` for reading. A sender is watched for writing too, and must read and write until it would block."""
        ...

    def want_write(self, fd: int, wanted: bool) -> None:
        """A sender has met a full socket (or has nothing more to send)."""
        ...

    def pause(self, fd: int) -> None:
        """Stop watching a receiver."""
        ...

    def resume(self, fd: int) -> None:
        """Watch a paused receiver again."""
        ...

    def remove(self, fd: int) -> None:
        """Forget `fd`."""
        ...

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        """Descriptors that are ready, with their events; a negative timeout waits for ever."""
        ...

    def close(self) -> None:
        """Release it."""
        ...


class EpollPoller:
    """epoll. Senders are edge-triggered, so that a socket that fills and drains costs no further system calls."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self.poll = self._epoll.poll
        self.close = self._epoll.close

    def add(self, fd: int, *, sender: bool) -> None:
        """See `Poller`."""
        flags = select.EPOLLIN | select.EPOLLRDHUP
        if sender:
            flags |= select.EPOLLOUT | select.EPOLLET
        self._epoll.register(fd, flags)

    def want_write(self, fd: int, wanted: bool) -> None:
        """Nothing to do: the edge comes by itself."""

    def pause(self, fd: int) -> None:
        """See `Poller`."""
        self._epoll.unregister(fd)

    def resume(self, fd: int) -> None:
        """See `Poller`."""
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLRDHUP)

    def remove(self, fd: int) -> None:
        """See `Poller`."""
        with contextlib.suppress(FileNotFoundError):  # it may be paused
            self._epoll.unregister(fd)


class SelectorPoller:
    """The same on `selectors`, for systems without epoll: level-triggered, so interest in writing is switched."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def add(self, fd: int, *, sender: bool) -> None:
        """See `Poller`."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if sender else 0)
        self._selector.register(fd, events)

    def want_write(self, fd: int, wanted: bool) -> None:
        """See `Poller`."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
        if self._selector.get_key(fd).events != events:
            self._selector.modify(fd, events)

    def pause(self, fd: int) -> None:
        """See `Poller`."""
        self._selector.unregister(fd)

    def resume(self, fd: int) -> None:
        """See `Poller`."""
        self._selector.register(fd, selectors.EVENT_READ)

    def remove(self, fd: int) -> None:
        """See `Poller`."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        """See `Poller`."""
        ready = self._selector.select(None if timeout_s < 0 else timeout_s)
        return [
            (key.fd, (READ if events & selectors.EVENT_READ else 0) | (WRITE if events & selectors.EVENT_WRITE else 0))
            for key, events in ready
        ]

    def close(self) -> None:
        """See `Poller`."""
        self._selector.close()


def make_poller() -> Poller:
    """The best that this system has."""
    return EpollPoller() if hasattr(select, "epoll") else SelectorPoller()
