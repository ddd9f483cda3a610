"""The listening socket: lets in who proves to be a rank of the group, and nobody else."""

from __future__ import annotations

import hmac
import logging
import secrets
import socket
import time
from collections.abc import Callable

from headway.transport import wire
from headway.transport.loop import ProgressLoop

_LOG = logging.getLogger(__name__)
# After accept failed for want of descriptors or memory.
_ACCEPT_RETRY_S = 1.0


class Listener:
    """Accepts connections, at most `max_pending` without proof at a time; the others wait in the kernel's backlog.

    A connection that says something wrong, or nothing for `hello_timeout_s`, is closed and logged. It never disturbs
    the group.

    Args:
        sock: bound and listening, non-blocking; owned from here on.
        rank: of this process.
        size: of the group.
        group: the group's id (`wire.group_id`).
        token: the group's secret.
        loop: the progress thread.
        max_pending: see above.
        hello_timeout_s: see above.
        adopt: takes an authenticated connection with its hello; its descriptor stays registered in the loop.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        rank: int,
        size: int,
        group: bytes,
        token: bytes,
        loop: ProgressLoop,
        max_pending: int,
        hello_timeout_s: float,
        adopt: Callable[[socket.socket, wire.Hello], None],
    ) -> None:
        self.rank, self.size, self.group, self.token = rank, size, group, token
        self.loop = loop
        self.adopt = adopt
        self._sock = sock
        self._fd = sock.fileno()
        self._max_pending = max_pending
        self._hello_timeout_s = hello_timeout_s
        self._pending: set[_Pending] = set()
        self._paused = False
        self._closed = False
        loop.add(self._fd, self._ready, sender=False)

    def _ready(self, events: int) -> None:
        while not self._closed and not self._paused:
            if len(self._pending) >= self._max_pending:
                self._pause()
                return
            try:
                sock, address = self._sock.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue  # it gave up before we came to it
            except OSError as error:
                _LOG.warning("rank %d cannot accept a connection: %s", self.rank, error.strerror)
                self._pause()
                self.loop.run_at(time.monotonic() + _ACCEPT_RETRY_S, self._resume)
                return
            sock.setblocking(False)
            pending = _Pending(sock, str(address[0]), self)
            self._pending.add(pending)
            self.loop.run_at(time.monotonic() + self._hello_timeout_s, pending.expire)

    def forget(self, pending: _Pending) -> None:
        """A pending connection was let in or refused."""
        self._pending.discard(pending)
        self._resume()

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self.loop.poller.pause(self._fd)

    def _resume(self) -> None:
        if self._paused and not self._closed and len(self._pending) < self._max_pending:
            self._paused = False
            self.loop.poller.resume(self._fd)

    def close(self) -> None:
        """Stop listening and drop who is not in yet. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for pending in list(self._pending):
            pending.drop()
        self.loop.remove(self._fd, self._sock.close)


class _Pending:
    """One connection that did not prove yet who it is."""

    def __init__(self, sock: socket.socket, address: str, listener: Listener) -> None:
        self._sock = sock
        self._fd = sock.fileno()
        self._address = address
        self._listener = listener
        self._got = bytearray()
        self._hello: wire.Hello | None = None
        self._hello_bytes = b""
        self._nonce = b""
        self._open = True
        listener.loop.add(self._fd, self.ready, sender=False)

    def ready(self, events: int) -> None:
        """Read no more than the step needs: what follows the proof is not ours."""
        while self._open:
            needed = wire.HELLO.size if self._hello is None else wire.PROOF_BYTES
            try:
                data = self._sock.recv(needed - len(self._got))
            except BlockingIOError:
                return
            except OSError as error:
                self._refuse(f"it broke: {error.strerror}")
                return
            if not data:
                self._refuse("it closed before its hello was complete")
                return
            self._got += data
            if len(self._got) < needed:
                return
            if self._hello is None:
                self._challenge()
            else:
                self._verify(self._hello)

    def _challenge(self) -> None:
        self._hello_bytes = bytes(self._got)
        self._got.clear()
        try:
            hello = wire.parse_hello(self._hello_bytes)
        except ValueError as error:
            self._refuse(str(error))
            return
        listener = self._listener
        if hello.group != listener.group:
            self._refuse("it belongs to another group")
        elif hello.dst != listener.rank:
            self._refuse(f"it looks for rank {hello.dst}, we are rank {listener.rank}")
        elif hello.src >= listener.size or hello.src == listener.rank:
            self._refuse(f"it says to be rank {hello.src}")
        else:
            self._hello = hello
            self._nonce = secrets.token_bytes(wire.CHALLENGE_NONCE_BYTES)
            proof = wire.listener_proof(listener.token, self._hello_bytes, self._nonce)
            try:
                self._sock.send(wire.CHALLENGE.pack(self._nonce, proof))
            except OSError as error:
                self._refuse(f"it broke: {error.strerror}")

    def _verify(self, hello: wire.Hello) -> None:
        expected = wire.opener_proof(self._listener.token, self._hello_bytes, self._nonce)
        if not hmac.compare_digest(bytes(self._got), expected):
            self._refuse(f"it says to be rank {hello.src} but does not know the group's token")
            return
        self._open = False
        self._listener.adopt(self._sock, hello)
        self._listener.forget(self)

    def expire(self) -> None:
        """The time for the hello is over."""
        if self._open:
            self._refuse("its hello took too long")

    def _refuse(self, why: str) -> None:
        _LOG.warning("rank %d refused a connection from %s: %s", self._listener.rank, self._address, why)
        self.drop()

    def drop(self) -> None:
        """Close it."""
        if self._open:
            self._open = False
            self._listener.loop.remove(self._fd, self._sock.close)
            self._listener.forget(self)
