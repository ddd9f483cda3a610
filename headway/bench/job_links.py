"""The connections of a job's `send` phases: plain TCP, kept open for all iterations."""

from __future__ import annotations

import errno
import socket
import struct
import time
from collections.abc import Sequence

from headway.errors import DeadlineError, PeerLostError
from headway.lab.jobs import Phase

START_LIMIT_S = 60.0
STALL_S = 600
"""A wait for a peer ends after this long: it may compute for minutes before it sends."""
_RETRY_S = 0.02
_BUFFER_BYTES = 1 << 20
_ACK = b"\1"
_TIMEVAL = "ll"


class SendLinks:
    """One rank's connections, one per ordered pair of ranks that some phase sends between.

    Args:
        rank: this one.
        loop: the job's phases.
        addresses, ports: where each of the job's ranks listens.
    """

    def __init__(self, *, rank: int, loop: Sequence[Phase], addresses: Sequence[str], ports: Sequence[int]) -> None:
        self._rank = rank
        pairs = {(phase.src, phase.dst) for phase in loop if phase.kind == "send"}
        self._out: dict[int, socket.socket] = {}
        self._in: dict[int, socket.socket] = {}
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        deadline_s = time.monotonic() + START_LIMIT_S
        sources = {src for src, dst in pairs if dst == rank}
        listener = socket.create_server((addresses[rank], ports[rank]), backlog=len(sources)) if sources else None
        try:
            for dst in sorted(dst for src, dst in pairs if src == rank):
                self._out[dst] = self._connected(dst, addresses[dst], ports[dst], deadline_s)
            while listener is not None and len(self._in) < len(sources):
                self._accept(listener, sources, deadline_s)
        except BaseException:
            self.close()
            raise
        finally:
            if listener is not None:
                listener.close()

    def send(self, dst: int, size_bytes: int) -> None:
        """Send so much, and wait until the receiver says that it has all."""
        connection = self._out[dst]
        try:
            for piece in _pieces(size_bytes):
                connection.sendall(self._buffer[:piece])
            if connection.recv(1) != _ACK:
                raise PeerLostError(f"rank {dst} has ended", rank=dst, operation="send")
        except OSError as error:
            raise self._trouble(error, dst, "send") from None

    def receive(self, src: int, size_bytes: int) -> None:
        """Take so much, and say so."""
        connection = self._in[src]
        try:
            for piece in _pieces(size_bytes):
                # One call for the whole piece: the process wakes up once for it, not once per packet.
                if connection.recv_into(self._buffer, piece, socket.MSG_WAITALL) < piece:
                    raise PeerLostError(f"rank {src} sent nothing more, or has ended", rank=src, operation="receive")
            connection.sendall(_ACK)
        except OSError as error:
            raise self._trouble(error, src, "receive") from None

    def close(self) -> None:
        """Close all. Idempotent."""
        for connection in (*self._out.values(), *self._in.values()):
            connection.close()

    def _connected(self, dst: int, address: str, port: int, deadline_s: float) -> socket.socket:
        while True:
            try:
                connection = socket.create_connection((address, port), timeout=START_LIMIT_S)
                break
            except (ConnectionRefusedError, TimeoutError) as error:
                if time.monotonic() > deadline_s:
                    what = f"rank {dst} took no connection within {START_LIMIT_S:g} s ({error})"
                    raise DeadlineError(what, rank=dst, operation="send") from None
                time.sleep(_RETRY_S)
        connection.sendall(struct.pack("!i", self._rank))
        return _prepared(connection)

    def _accept(self, listener: socket.socket, sources: set[int], deadline_s: float) -> None:
        listener.settimeout(max(0.001, deadline_s - time.monotonic()))
        try:
            connection, _ = listener.accept()
            connection.settimeout(START_LIMIT_S)
            hello = connection.recv(4, socket.MSG_WAITALL)
        except TimeoutError:
            late = min(sources - self._in.keys())
            what = f"rank {late} did not connect within {START_LIMIT_S:g} s"
            raise DeadlineError(what, rank=late, operation="receive") from None
        src = struct.unpack("!i", hello)[0] if len(hello) == 4 else -1
        if src in sources and src not in self._in:
            self._in[src] = _prepared(connection)
        else:
            connection.close()

    def _trouble(self, error: OSError, peer: int, what: str) -> Exception:
        if error.errno in (errno.EAGAIN, errno.EWOULDBLOCK):
            return DeadlineError(f"nothing moved for {STALL_S} s", rank=peer, operation=f"{what}, rank {peer}")
        return PeerLostError(f"rank {peer} has ended ({error.strerror})", rank=peer, operation=what)


def _prepared(connection: socket.socket) -> socket.socket:
    """Blocking, with the kernel's own time limits: only then does MSG_WAITALL hold."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, struct.pack(_TIMEVAL, STALL_S, 0))
    return connection


def _pieces(size_bytes: int) -> Sequence[int]:
    whole, rest = divmod(size_bytes, _BUFFER_BYTES)
    return [_BUFFER_BYTES] * whole + [rest] * bool(rest)
