"""One message over several connections to the same rank, for a lab's `send` jobs.

The bytes of such a message mean nothing, so they carry no place: whoever receives counts them over all connections. A
connection gets a chunk when it has hardly anything unsent left, so each takes as much as its share of the link lets
through, and a connection that goes out of use holds nothing back.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Sequence

from headway.errors import DeadlineError, PeerLostError
from headway.transport.send_window import LANE_BYTES, SendWindow
from headway.transport.tcp_info import FlowMeter

CHUNK_BYTES = 32 << 10
UNSENT_BYTES = 32 << 10
"""How much may wait unsent in each connection: what waits there when a connection goes out of use comes last."""
_FOLLOW_S = 0.05
_LOOK_MS = 5
"""While nothing can be written, the number of connections in use is looked at again after this long."""


def prepare(connections: Sequence[socket.socket]) -> None:
    """Let little wait in each connection."""
    for connection in connections:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


class Windows:
    """Keeps each connection's send buffer as our transport does (`transport.send_window`).

    Otherwise every further connection would fill the queue in front of the link until it overflows, and a connection
    that loses its last packets stands still for 200 ms.
    """

    def __init__(self, connections: Sequence[socket.socket]) -> None:
        self._meters = [FlowMeter(connection, 0, 1, SendWindow(connection, LANE_BYTES)) for connection in connections]
        self._next_s = 0.0

    def follow(self) -> None:
        """Look at all connections, if it is time to."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + _FOLLOW_S
            for meter in self._meters:
                meter.sample()


def send(
    connections: Sequence[socket.socket], buffer: memoryview, size_bytes: int, *, rank: int,
    width: Callable[[], int], limit_s: float, windows: Windows | None = None,
) -> None:  # fmt: skip
    """Hand so many bytes to the first `width()` connections, which may change at any time.

    Args:
        connections: to one rank.
        buffer: any bytes, at least `CHUNK_BYTES`.
        size_bytes: in all.
        rank: that one.
        width: asked all the time.
        limit_s: DeadlineError when nothing moves for so long.
        windows: of the connections; None: as the kernel has them.
    """
    left, waited_ms = size_bytes, 0.0
    while left:
        if windows is not None:
            windows.follow()
        in_use = connections[: width()]
        moved = 0
        for connection in in_use:
            try:
                moved += connection.send(buffer[: min(CHUNK_BYTES, left - moved)], socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            if moved == left:
                break
        left -= moved
        if moved:
            waited_ms = 0.0
        elif not _wait(in_use, select.POLLOUT, _LOOK_MS):
            waited_ms += _LOOK_MS
            if waited_ms > limit_s * 1e3:
                raise DeadlineError(f"nothing moved for {limit_s:g} s", rank=rank, operation="send")


def receive(
    connections: Sequence[socket.socket], buffer: memoryview, size_bytes: int, *, rank: int, limit_s: float
) -> None:
    """Take so many bytes from all connections from `rank` together.

    PeerLostError when one of them ends, DeadlineError when nothing moves for `limit_s`.
    """
    poller = select.poll()
    by_number = {connection.fileno(): connection for connection in connections}
    for number in by_number:
        poller.register(number, select.POLLIN)
    left = size_bytes
    while left:
        ready = poller.poll(limit_s * 1e3)
        if not ready:
            raise DeadlineError(f"nothing moved for {limit_s:g} s", rank=rank, operation="receive")
        for number, _ in ready:
            if not left:
                return
            try:
                got = by_number[number].recv_into(buffer, min(left, len(buffer)), socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            if not got:
                raise PeerLostError(f"rank {rank} sent nothing more, or has ended", rank=rank, operation="receive")
            left -= got


def _wait(connections: Sequence[socket.socket], events: int, limit_ms: float) -> bool:
    poller = select.poll()
    for connection in connections:
        poller.register(connection, events)
    return bool(poller.poll(limit_ms))
