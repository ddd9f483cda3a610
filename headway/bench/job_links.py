"""The connections of a job's `send` phases: plain TCP, kept open for all iterations.

A job with a weight has so many connections to each rank that it sends to, and uses them all; one that interleaves by
`streams` has as many as it may ever use. Interleaving counts what this rank sends to all others together.
"""

from __future__ import annotations

import errno
import socket
import struct
import time
from collections.abc import Sequence

from headway.bench import stripes
from headway.errors import DeadlineError, PeerLostError, UsageError
from headway.interleave.actuator import open_actuator
from headway.interleave.aggressiveness import Aggressiveness
from headway.interleave.controller import Report
from headway.interleave.driver import Background, Driver
from headway.interleave.streams import Streams
from headway.lab.jobs import Interleave, Phase

START_LIMIT_S = 60.0
STALL_S = 600
"""A wait for a peer ends after this long: it may compute for minutes before it sends."""
_RETRY_S = 0.02
_BUFFER_BYTES = 1 << 20
_ACK = b"\1"
_TIMEVAL = "ll"


_HELLO = struct.Struct("!ii")


class SendLinks:
    """One rank's connections, for each ordered pair of ranks that some phase sends between.

    Args:
        rank: this one.
        loop: the job's phases.
        addresses, ports: where each of the job's ranks listens.
        streams: connections for each pair, all in use.
        congestion_control: of the sending ends; empty: the system's.
        interleave: how flows make way for those of other jobs; None: they do not.
    """

    def __init__(
        self, *, rank: int, loop: Sequence[Phase], addresses: Sequence[str], ports: Sequence[int], streams: int = 1,
        congestion_control: str = "", interleave: Interleave | None = None,
    ) -> None:  # fmt: skip
        self._rank = rank
        self._control = congestion_control
        self._interleaved: Background | None = None
        self._streams: Streams | None = None
        self._windows: dict[int, stripes.Windows] = {}
        pairs = {(phase.src, phase.dst) for phase in loop if phase.kind == "send"}
        self._out: dict[int, list[socket.socket]] = {}
        self._in: dict[int, dict[int, socket.socket]] = {}
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        deadline_s = time.monotonic() + START_LIMIT_S
        sources = {src for src, dst in pairs if dst == rank}
        targets = {dst for src, dst in pairs if src == rank}
        driver = None
        if interleave is not None and pairs:
            f = Aggressiveness(slope=interleave.slope, intercept=interleave.intercept, most=interleave.most)
            actuator = open_actuator(interleave.actuator, f)
            driver = Driver(actuator, f)
            if isinstance(actuator, Streams):
                self._streams, streams = actuator, actuator.widest
        try:
            backlog = max(1, len(sources) * streams)
            listener = socket.create_server((addresses[rank], ports[rank]), backlog=backlog) if sources else None
            try:
                for dst in sorted(targets):
                    self._out[dst] = []
                    for number in range(streams):
                        self._out[dst].append(self._connected(dst, addresses[dst], ports[dst], number, deadline_s))
                    if streams > 1:
                        stripes.prepare(self._out[dst])
                    if self._streams is not None:
                        self._windows[dst] = stripes.Windows(self._out[dst])
                while listener is not None and sum(map(len, self._in.values())) < len(sources) * streams:
                    self._accept(listener, sources, streams, deadline_s)
            finally:
                if listener is not None:
                    listener.close()
            if driver is not None and targets:
                self._interleave(driver)
                driver = None
        except BaseException:
            self.close()
            raise
        finally:
            if driver is not None:
                driver.close()

    def _interleave(self, driver: Driver) -> None:
        every = [connection for mine in self._out.values() for connection in mine]
        first = [mine[0] for mine in self._out.values()]
        pushed = first if self._streams is not None else every
        counted = [connection for connection in every if connection not in pushed]
        self._interleaved = Background(driver, pushed, counted)

    @property
    def report(self) -> Report | None:
        """What interleaving learnt of this rank; None where it is off, or this rank sends nothing."""
        return None if self._interleaved is None else self._interleaved.report

    def send(self, dst: int, size_bytes: int) -> None:
        """Send so much, and wait until the receiver says that it has all."""
        connections = self._out[dst]
        first = connections[0]
        try:
            if len(connections) > 1:
                streams, all_of_them = self._streams, len(connections)
                stripes.send(
                    connections, self._buffer, size_bytes, rank=dst,
                    width=lambda: all_of_them if streams is None else streams.width(first), limit_s=STALL_S,
                    windows=self._windows.get(dst),
                )  # fmt: skip
            else:
                for piece in _pieces(size_bytes):
                    first.sendall(self._buffer[:piece])
            if first.recv(1) != _ACK:
                raise PeerLostError(f"rank {dst} has ended", rank=dst, operation="send")
        except OSError as error:
            raise self._trouble(error, dst, "send") from None

    def receive(self, src: int, size_bytes: int) -> None:
        """Take so much, and say so."""
        connections = self._in[src]
        first = connections[0]
        try:
            if len(connections) > 1:
                stripes.receive([*connections.values()], self._buffer, size_bytes, rank=src, limit_s=STALL_S)
            else:
                for piece in _pieces(size_bytes):
                    # One call for the whole piece: the process wakes up once for it, not once per packet.
                    if first.recv_into(self._buffer, piece, socket.MSG_WAITALL) < piece:
                        what = f"rank {src} sent nothing more, or has ended"
                        raise PeerLostError(what, rank=src, operation="receive")
            first.sendall(_ACK)
        except OSError as error:
            raise self._trouble(error, src, "receive") from None

    def close(self) -> None:
        """Close all. Idempotent."""
        if self._interleaved is not None:
            self._interleaved.close()
        for connections in self._out.values():
            for connection in connections:
                connection.close()
        for by_number in self._in.values():
            for connection in by_number.values():
                connection.close()

    def _connected(self, dst: int, address: str, port: int, number: int, deadline_s: float) -> socket.socket:
        while True:
            try:
                connection = socket.create_connection((address, port), timeout=START_LIMIT_S)
                break
            except (ConnectionRefusedError, TimeoutError) as error:
                if time.monotonic() > deadline_s:
                    what = f"rank {dst} took no connection within {START_LIMIT_S:g} s ({error})"
                    raise DeadlineError(what, rank=dst, operation="send") from None
                time.sleep(_RETRY_S)
        if self._control:
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, self._control.encode())
            except OSError as error:
                connection.close()
                what = f"{self._control!r}: {error.strerror}"
                raise UsageError(what, where="congestion_control", hint="the kernel must have it loaded") from None
        connection.sendall(_HELLO.pack(self._rank, number))
        return _prepared(connection)

    def _accept(self, listener: socket.socket, sources: set[int], streams: int, deadline_s: float) -> None:
        listener.settimeout(max(0.001, deadline_s - time.monotonic()))
        try:
            connection, _ = listener.accept()
            connection.settimeout(START_LIMIT_S)
            hello = connection.recv(_HELLO.size, socket.MSG_WAITALL)
        except TimeoutError:
            late = min(src for src in sources if len(self._in.get(src, ())) < streams)
            what = f"rank {late} did not connect within {START_LIMIT_S:g} s"
            raise DeadlineError(what, rank=late, operation="receive") from None
        src, number = _HELLO.unpack(hello) if len(hello) == _HELLO.size else (-1, -1)
        if src in sources and 0 <= number < streams and number not in self._in.get(src, ()):
            self._in.setdefault(src, {})[number] = _prepared(connection)
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
