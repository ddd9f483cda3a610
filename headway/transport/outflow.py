"""The sending end of one connection: connect, prove who we are, then messages into bytes."""

from __future__ import annotations

import hmac
import os
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from headway.errors import DeadlineError, PeerLostError, TransportError
from headway.transport import wire
from headway.transport.loop import ProgressLoop
from headway.transport.poller import WRITE

# Buffers in one sendmsg: a header and a payload each for 16 messages.
_GATHER_MESSAGES = 16
# One connection may not keep the progress thread for longer than this many bytes.
_WRITE_BUDGET_BYTES = 4 << 20


class State(Enum):
    """How far a connection is."""

    CONNECTING = "connect"
    HELLO = "hello"
    OPEN = "open"
    CLOSED = "closed"


@dataclass(slots=True)
class _Queued:
    header: bytes
    payload: memoryview
    channel: int
    tag: int
    tell: bool


class Outflow:
    """Sends messages to one peer for one purpose, in order.

    Args:
        sock: non-blocking, connect already begun; owned from here on.
        hello: who we are and for whom this is.
        token: the group's secret.
        loop: the progress thread.
        on_sent: called with (dst, channel, tag) for each message that has left user space.
        on_end: called once when the connection ended: with None after a goodbye, with the error otherwise.

    Attributes:
        greeted: whether the peer has ever let us in.
    """

    def __init__(
        self,
        sock: socket.socket,
        hello: wire.Hello,
        token: bytes,
        loop: ProgressLoop,
        on_sent: Callable[[int, int, int], None],
        on_end: Callable[[Outflow, TransportError | None], None],
    ) -> None:
        self.dst = hello.dst
        self.purpose = hello.purpose
        self.state = State.CONNECTING
        self.sock = sock
        self._fd = sock.fileno()
        self._hello = wire.pack_hello(hello)
        self._token = token
        self._loop = loop
        self._on_sent = on_sent
        self._on_end = on_end
        self._inbox = bytearray()
        self._queue: deque[_Queued] = deque()
        self._offset = 0
        self._full = False
        self._marked = False
        self._retiring = False
        self.greeted = False
        loop.add(self._fd, self.ready, sender=True)

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self.state is State.CLOSED

    @property
    def idle(self) -> bool:
        """Whether everything has left user space."""
        return not self._queue

    @property
    def waiting(self) -> int:
        """How much is before a message that is sent now: those queued, and one more where the socket is full."""
        return len(self._queue) + self._full

    def send(self, channel: int, tag: int, payload: memoryview) -> None:
        """Queue one message."""
        header = wire.HEADER.pack(wire.MESSAGE, channel, tag, len(payload))
        self._queue.append(_Queued(header, payload, channel, tag, True))
        self._mark()

    def say_goodbye(self) -> None:
        """Queue the last frame."""
        self._queue.append(_Queued(wire.GOODBYE_FRAME, memoryview(b""), -1, 0, False))
        self._mark()

    def retire(self) -> None:
        """Send what is queued and a last frame, then close without a word to `on_end`: another connection follows."""
        self._retiring = True
        self._queue.append(_Queued(wire.RETIRE_FRAME, memoryview(b""), -1, 0, False))
        self._mark()

    def disown(self, channel: int | None) -> None:
        """Forget the messages of `channel` (None: of all): their buffers are no longer ours.

        A message that has partly left is finished from a copy, because the frame must be complete.
        """
        kept: deque[_Queued] = deque()
        for index, entry in enumerate(self._queue):
            if channel is not None and entry.channel != channel:
                kept.append(entry)
            elif index == 0 and self._offset:
                kept.append(_Queued(entry.header, memoryview(bytes(entry.payload)), entry.channel, entry.tag, False))
        self._queue = kept

    def ready(self, events: int) -> None:
        """The socket has become readable, writable, or broken."""
        if self.state is State.CONNECTING:
            self._connected()
        if events & ~WRITE and self.state is not State.CLOSED:
            self._read()
        if events & WRITE and self.state is State.OPEN:
            self._full = False
            self._flush()

    def _mark(self) -> None:
        if not self._marked and not self._full and self.state is State.OPEN:
            self._marked = True
            self._loop.run_next(self._flush)

    def _flush(self) -> None:
        """Write as much as the socket takes, several messages at once."""
        self._marked = False
        queue, sock = self._queue, self.sock
        budget = _WRITE_BUDGET_BYTES
        while queue and self.state is State.OPEN and not self._full:
            if budget <= 0:
                self._marked = True
                self._loop.run_soon(self._flush)
                return
            wanted, buffers = self._gather()
            try:
                written = sock.sendmsg(buffers)
            except BlockingIOError:
                self._stalled()
                return
            except OSError as error:
                self._read()  # a goodbye may lie there, and explains more than the broken pipe
                self._end(PeerLostError(f"the connection to rank {self.dst} broke: {error.strerror}", rank=self.dst))
                return
            budget -= written
            if written < wanted:
                self._stalled()
            self._account(written)
            queue = self._queue  # `sent` may have led to `disown`
        if not queue and self.state is State.OPEN:
            if self._retiring:
                self.close()
            else:
                self._loop.poller.want_write(self._fd, False)

    def _gather(self) -> tuple[int, list[bytes | memoryview]]:
        first = self._queue[0]
        buffers: list[bytes | memoryview] = []
        offset = self._offset
        if offset == 0:
            buffers = [first.header, first.payload]
        elif offset < wire.HEADER_BYTES:
            buffers = [first.header[offset:], first.payload]
        else:
            buffers = [first.payload[offset - wire.HEADER_BYTES :]]
        wanted = wire.HEADER_BYTES + len(first.payload) - offset
        if len(self._queue) > 1:
            count = 0
            for entry in self._queue:
                count += 1
                if count == 1:
                    continue
                if count > _GATHER_MESSAGES:
                    break
                buffers += (entry.header, entry.payload)
                wanted += wire.HEADER_BYTES + len(entry.payload)
        return wanted, buffers

    def _account(self, written: int) -> None:
        """Take what has left off the queue, then tell whoever sent it."""
        queue = self._queue
        self._offset += written
        told: list[_Queued] = []
        while queue:
            entry = queue[0]
            size = wire.HEADER_BYTES + len(entry.payload)
            if self._offset < size:
                break
            self._offset -= size
            queue.popleft()
            if entry.tell:
                told.append(entry)
        for entry in told:
            self._on_sent(self.dst, entry.channel, entry.tag)

    def _stalled(self) -> None:
        self._full = True
        self._loop.poller.want_write(self._fd, True)

    def _connected(self) -> None:
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code == 0:
            try:
                self.sock.getpeername()
            except OSError:
                return  # not yet
        if code:
            self.fail_connect(code)
            return
        self.state = State.HELLO
        self._loop.poller.want_write(self._fd, False)
        try:
            written = self.sock.send(self._hello)
        except OSError as error:
            self._end(PeerLostError(f"cannot greet rank {self.dst}: {error.strerror}", rank=self.dst))
            return
        if written != len(self._hello):
            self._end(TransportError(f"cannot greet rank {self.dst}: its socket took {written} bytes", rank=self.dst))

    def _read(self) -> None:
        """What comes back: the challenge, a goodbye, the end."""
        while self.state is not State.CLOSED:
            try:
                data = self.sock.recv(4096)
            except BlockingIOError:
                return
            except OSError as error:
                self._end(PeerLostError(f"the connection to rank {self.dst} broke: {error.strerror}", rank=self.dst))
                return
            if not data:
                what = "refused our hello" if self.state is State.HELLO else "closed its connection without a goodbye"
                self._end(PeerLostError(f"rank {self.dst} {what}", rank=self.dst))
                return
            self._inbox += data
            if self.state is State.HELLO and len(self._inbox) >= wire.CHALLENGE.size:
                self._answer()
            if self.state is State.OPEN and len(self._inbox) >= wire.HEADER_BYTES:
                if bytes(self._inbox) == wire.GOODBYE_FRAME:
                    self._end(None)
                else:
                    self._end(TransportError(f"rank {self.dst} answered with a malformed frame", rank=self.dst))

    def _answer(self) -> None:
        nonce, proof = wire.CHALLENGE.unpack(bytes(self._inbox[: wire.CHALLENGE.size]))
        del self._inbox[: wire.CHALLENGE.size]
        if not hmac.compare_digest(proof, wire.listener_proof(self._token, self._hello, nonce)):
            where = self.sock.getpeername()[:2]
            self._end(TransportError(f"whoever listens at {where} is not rank {self.dst}: wrong proof", rank=self.dst))
            return
        try:
            self.sock.send(wire.opener_proof(self._token, self._hello, nonce))
        except OSError as error:
            self._end(PeerLostError(f"the connection to rank {self.dst} broke: {error.strerror}", rank=self.dst))
            return
        self.state = State.OPEN
        self.greeted = True
        self._full = False
        self._mark()

    def fail_connect(self, code: int) -> None:
        """The connect failed at once, with this error number."""
        self._end(PeerLostError(f"cannot connect to rank {self.dst}: {os.strerror(code)}", rank=self.dst))

    def expire(self, limit_s: float, where: str) -> None:
        """The time for connect and hello is over."""
        if self.state in (State.CONNECTING, State.HELLO):
            what = f"rank {self.dst} at {where} did not answer within {limit_s:g} s ({self.state.value})"
            self._end(DeadlineError(what, rank=self.dst))

    def waiting_channels(self) -> list[int]:
        """Channels with a message that did not leave, ascending."""
        return sorted({entry.channel for entry in self._queue if entry.tell})

    def _end(self, error: TransportError | None) -> None:
        if self.state is not State.CLOSED:
            self.close()
            if not self._retiring:
                self._on_end(self, error)

    def close(self) -> None:
        """Close the connection; what has left user space still arrives. Idempotent."""
        if self.state is State.CLOSED:
            return
        self.state = State.CLOSED
        self._loop.remove(self._fd, self._shut)

    def _shut(self) -> None:
        # Closing with unread bytes would reset the connection and lose what is under way: read them first.
        try:
            self.sock.recv(4096)
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # nothing to read, or already broken; closing is all that is left
        self.sock.close()
