"""The incoming connections of one group: taken in after their hello, and closed."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping

from headway.errors import TransportError
from headway.transport.inflow import Inflow, Receiver
from headway.transport.loop import ProgressLoop
from headway.transport.wire import Hello, Purpose

_LOG = logging.getLogger(__name__)


class Inflows:
    """One connection from each peer for each purpose, for bulk several. Progress thread only.

    Args:
        loop: the progress thread.
        rank: of this process.
        receivers: who takes the messages of each purpose.
        bulk: filled with the bulk connections that are open.
        refuses: whether no connections are taken from a rank, or no longer.
        on_end: called once for a connection that ended by itself: with None after a goodbye, with the error otherwise.
    """

    def __init__(
        self,
        loop: ProgressLoop,
        *,
        rank: int,
        receivers: Mapping[Purpose, Receiver],
        bulk: set[Inflow],
        refuses: Callable[[int], bool],
        on_end: Callable[[Inflow, TransportError | None], None],
    ) -> None:
        self._loop, self._rank, self._receivers = loop, rank, receivers
        self._bulk, self._refuses, self._on_end = bulk, refuses, on_end
        self._latest: dict[tuple[int, Purpose], Inflow] = {}
        self._beside: set[Inflow] = set()  # bulk connections beside the latest: parallel ones, and those that retire

    def adopt(self, sock: socket.socket, hello: Hello) -> None:
        """An authenticated connection came in. Refused where its rank has one of that purpose, other than bulk."""
        key = (hello.src, hello.purpose)
        before = self._latest.get(key)
        twice = before is not None and hello.purpose is not Purpose.STREAM
        if twice or self._refuses(hello.src):
            _LOG.warning(
                "rank %d refused a connection from rank %d: it has one already, or is gone", self._rank, hello.src
            )
            self._loop.remove(sock.fileno(), sock.close)
            return
        inflow = Inflow(sock, hello.src, self._receivers[hello.purpose], self._loop, self._ended, self._forget)
        if before is not None and not before.closed:
            self._beside.add(before)
        self._latest[key] = inflow
        if hello.purpose is Purpose.STREAM:
            self._bulk.add(inflow)

    def settled(self, src: int) -> bool:
        """Whether all that a leaving rank sent has been delivered."""
        return all(inflow.closed for inflow in self._every() if inflow.src == src)

    def drop(self, src: int) -> None:
        """Close the connections of `src`, whatever is still to be read."""
        for inflow in self._every():
            if inflow.src == src:
                self._bulk.discard(inflow)
                inflow.close()

    def say_goodbye(self) -> None:
        """Close all connections in good order."""
        for inflow in self._every():
            inflow.close(goodbye=True)

    def _every(self) -> list[Inflow]:
        return [*self._latest.values(), *self._beside]

    def _forget(self, inflow: Inflow) -> None:
        self._bulk.discard(inflow)
        self._beside.discard(inflow)

    def _ended(self, inflow: Inflow, error: TransportError | None) -> None:
        self._forget(inflow)
        self._on_end(inflow, error)
