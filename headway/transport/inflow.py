"""The receiving end of one connection: bytes into messages."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Protocol

from headway.errors import PeerLostError, TransportError
from headway.transport import wire
from headway.transport.loop import ProgressLoop

# Read-ahead while small messages come: one system call then serves many of them (16 KiB messages cost half the CPU time
# that they cost one by one). Behind a large payload only the next header is read ahead, because the payload after it
# belongs elsewhere and would be copied twice.
_STAGING_BYTES = 128 << 10
_LARGE_BYTES = 40 << 10
# One connection may not keep the progress thread for longer than this many bytes.
_READ_BUDGET_BYTES = 2 << 20


class Receiver(Protocol):
    """Where the messages of one purpose go. Called on the progress thread."""

    def accept(self, inflow: Inflow, channel: int, tag: int, size: int) -> memoryview | None:
        """Where a payload goes; None: not now, call `inflow.resume` later. TransportError breaks the connection."""
        ...

    def complete(self, inflow: Inflow, channel: int, tag: int, payload: memoryview) -> None:
        """The payload is complete in the view that `accept` gave."""
        ...


class Inflow:
    """Reads one connection and hands its messages to a receiver, at most one unaccepted header ahead.

    Args:
        sock: connected and authenticated; owned from here on.
        src: rank of the sender.
        receiver: takes the messages.
        loop: the progress thread.
        on_end: called once when the connection ended: with None after a goodbye, with the error otherwise.
        on_retire: called instead of it when another connection takes this one's place.
    """

    def __init__(
        self,
        sock: socket.socket,
        src: int,
        receiver: Receiver,
        loop: ProgressLoop,
        on_end: Callable[[Inflow, TransportError | None], None],
        on_retire: Callable[[Inflow], None],
    ) -> None:
        self.src = src
        self.channel = -1
        self.closed = False
        self._sock = sock
        self._fd = sock.fileno()
        self._receiver = receiver
        self._loop = loop
        self._on_end = on_end
        self._on_retire = on_retire
        self._staging = memoryview(bytearray(_STAGING_BYTES))
        self._ahead = self._staging[: wire.HEADER_BYTES]
        self._head = self._tail = 0
        self._size = self._filled = self._tag = 0
        self._into: memoryview | None = None
        self._held = False
        self._large = False
        loop.replace(self._fd, self.ready)

    def ready(self, events: int) -> None:
        """The socket has something to read."""
        budget = _READ_BUDGET_BYTES
        while not self.closed and not self._held:
            into = self._into
            try:
                if into is not None:
                    room = self._size - self._filled
                    wanted = room + wire.HEADER_BYTES
                    rest = into[self._filled :] if self._filled else into
                    if self._large:
                        got = self._sock.recvmsg_into((rest, self._ahead))[0]
                    else:
                        wanted = room + _STAGING_BYTES
                        got = self._sock.recvmsg_into((rest, self._staging))[0]
                else:
                    # Fewer bytes than a header are left here, at the front.
                    room = 0
                    end = wire.HEADER_BYTES if self._large else _STAGING_BYTES
                    wanted = end - self._tail
                    got = self._sock.recv_into(self._staging[self._tail : end])
            except BlockingIOError:
                return
            except OSError as error:
                self._end(PeerLostError(f"the connection from rank {self.src} broke: {error.strerror}", rank=self.src))
                return
            if got == 0:
                self._end(PeerLostError(f"rank {self.src} closed its connection without a goodbye", rank=self.src))
                return
            budget -= got
            if into is not None:
                if got >= room:
                    self._tail = got - room
                    self._filled = self._size
                else:
                    self._filled += got
                    return  # the socket is empty
            else:
                self._tail += got
            self._parse()
            if got < wanted or budget <= 0:
                return
            self._loop.run_pending()

    def resume(self) -> None:
        """Ask the receiver again about the message that is held back."""
        if self._held and not self.closed:
            self._held = False
            try:
                taken = self._take(self.channel, self._tag, self._size)
            except TransportError as error:
                self._end(error)
                return
            if taken and not self.closed:
                self._loop.poller.resume(self._fd)
                self._parse()

    def divert(self) -> None:
        """Read the rest of the payload under way into a buffer of our own: the receiver's is no longer ours."""
        if self._into is not None:
            self._into = memoryview(bytearray(self._size))

    def _parse(self) -> None:
        """Use up what is in the staging buffer."""
        try:
            while not self.closed and not self._held:
                into = self._into
                if into is not None:
                    missing = self._size - self._filled
                    if missing:
                        take = min(missing, self._tail - self._head)
                        into[self._filled : self._filled + take] = self._staging[self._head : self._head + take]
                        self._head += take
                        self._filled += take
                        if take < missing:
                            self._head = self._tail = 0
                            return
                    self._into = None
                    self._receiver.complete(self, self.channel, self._tag, into)
                    continue
                left = self._tail - self._head
                if left < wire.HEADER_BYTES:
                    if left and self._head:
                        self._staging[:left] = bytes(self._staging[self._head : self._tail])
                    self._head, self._tail = 0, left
                    return
                kind, channel, tag, size = wire.HEADER.unpack_from(self._staging, self._head)
                self._head += wire.HEADER_BYTES
                if kind == wire.MESSAGE:
                    if not self._take(channel, tag, size):
                        self._loop.poller.pause(self._fd)
                elif kind == wire.GOODBYE:
                    self._end(None)
                elif kind == wire.RETIRE:
                    self.close()
                    self._on_retire(self)
                else:
                    raise TransportError(f"rank {self.src} sent a malformed frame (kind {kind:#x})", rank=self.src)
        except TransportError as error:
            self._end(error)

    def _take(self, channel: int, tag: int, size: int) -> bool:
        """Ask the receiver for room; without it the message is held."""
        self.channel, self._tag, self._size = channel, tag, size
        into = self._receiver.accept(self, channel, tag, size)
        if into is None:
            self._held = True
            return False
        self._into = into
        self._filled = 0
        self._large = size >= _LARGE_BYTES
        return True

    def _end(self, error: TransportError | None) -> None:
        if not self.closed:
            self.close()
            self._on_end(self, error)

    def close(self, *, goodbye: bool = False) -> None:
        """Close the connection, telling the sender first that it is in good order if `goodbye`. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self._into = None
        if goodbye:
            # A sender that is gone, or does not read, sees the end of the stream instead.
            with contextlib.suppress(OSError):
                self._sock.send(wire.GOODBYE_FRAME)
        self._loop.remove(self._fd, self._sock.close)
