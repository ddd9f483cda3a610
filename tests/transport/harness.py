"""A group of ranks as threads of this process, and a sink that collects."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from headway.errors import TransportError
from headway.transport.lanes import Steering
from headway.transport.options import TcpOptions
from headway.transport.tcp import TcpTransport
from tests.fakes.rendezvous import DictRendezvous

LIMIT_S = 20.0
T = TypeVar("T")


@contextmanager
def group(
    size: int,
    options: TcpOptions | None = None,
    *,
    rendezvous: DictRendezvous | None = None,
    name: str = "default",
    steering: Callable[[], Steering | None] = lambda: None,
) -> Iterator[list[TcpTransport]]:
    """`size` transports that know each other, each with a steering of its own; closed at the end."""
    meeting = rendezvous if rendezvous is not None else DictRendezvous()

    def build(rank: int) -> TcpTransport:
        return TcpTransport(rank=rank, size=size, rendezvous=meeting, options=options, group=name, steering=steering())

    with ThreadPoolExecutor(size) as pool:
        transports = list(pool.map(build, range(size)))
    try:
        yield transports
    finally:
        for transport in transports:
            transport.close()


def on_loop(transport: TcpTransport, function: Callable[[], T]) -> T:
    """The result of `function` on the progress thread of `transport`."""
    result: list[T] = []
    errors: list[Exception] = []
    ran = threading.Event()

    def run() -> None:
        try:
            result.append(function())
        except Exception as error:
            errors.append(error)
        ran.set()

    transport.run_soon(run)
    assert ran.wait(LIMIT_S), "the progress thread did not come to it"
    if errors:
        raise errors[0]
    return result[0]


class CollectingSink:
    """Keeps every message it receives; `wait_for` blocks until something holds."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, int, bytes]] = []
        self.sent_tags: list[tuple[int, int]] = []
        self.errors: list[TransportError] = []
        self._changed = threading.Condition()

    def buffer_for(self, src: int, tag: int, size: int) -> memoryview:
        """A fresh buffer."""
        return memoryview(bytearray(size))

    def received(self, src: int, tag: int, buffer: memoryview) -> None:
        """Keep it."""
        with self._changed:
            self.messages.append((src, tag, bytes(buffer)))
            self._changed.notify_all()

    def sent(self, dst: int, tag: int) -> None:
        """Keep it."""
        with self._changed:
            self.sent_tags.append((dst, tag))
            self._changed.notify_all()

    def failed(self, error: TransportError) -> None:
        """Keep it."""
        with self._changed:
            self.errors.append(error)
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Block until `condition` holds; fails the test after a while."""
        with self._changed:
            assert self._changed.wait_for(condition, LIMIT_S), (len(self.messages), self.sent_tags, self.errors)
