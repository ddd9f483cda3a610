"""n matched `Transport`s in one process, for executors that block in threads of their own."""

from __future__ import annotations

import threading
from collections import deque

from headway.errors import DeadlineError, PeerLostError, TransportError
from headway.observe.samples import FlowSample

_Key = tuple[int, int, int]


class FakeMatchedNetwork:
    """Joins the transports. A message waits for its receive, a receive for its message."""

    def __init__(self, size: int) -> None:
        self.changed = threading.Condition()
        self.messages: dict[_Key, deque[bytes]] = {}
        self.receives: dict[_Key, deque[_Receive]] = {}
        self.closed: set[int] = set()
        self.transports = [FakeMatchedTransport(self, rank, size) for rank in range(size)]

    def match(self, key: _Key) -> None:
        """Fill receives from messages, in order. `changed` is held."""
        messages, receives = self.messages.setdefault(key, deque()), self.receives.setdefault(key, deque())
        while messages and receives:
            receive, payload = receives.popleft(), messages.popleft()
            if len(receive.buffer) == len(payload):
                receive.buffer[:] = payload
            else:
                receive.error = TransportError(f"{len(payload)} bytes came, {len(receive.buffer)} were expected")
            receive.finished = True
        self.changed.notify_all()


class _Receive:
    def __init__(self, network: FakeMatchedNetwork, src: int, dst: int, buffer: memoryview) -> None:
        self.network, self.src, self.dst, self.buffer = network, src, dst, buffer
        self.finished = False
        self.error: TransportError | None = None

    def wait(self, timeout_s: float) -> FlowSample:
        with self.network.changed:
            self.network.changed.wait_for(lambda: self.finished or self._broken(), timeout_s)
            if self.error is not None:
                raise self.error
            if self.finished:
                return FlowSample(self.src, self.dst, 0.0, 0.0, len(self.buffer))
            if self._broken():
                raise PeerLostError(f"rank {self.src} is gone", rank=self.src)
            raise DeadlineError(f"nothing came from rank {self.src}", rank=self.src)

    def _broken(self) -> bool:
        return not self.network.closed.isdisjoint((self.src, self.dst))

    def done(self) -> bool:
        return self.finished


class _Sent:
    def __init__(self, sample: FlowSample) -> None:
        self._sample = sample

    def wait(self, timeout_s: float) -> FlowSample:
        return self._sample

    def done(self) -> bool:
        return True


class FakeMatchedTransport:
    """One rank's end. See `headway.transport.api.Transport`."""

    def __init__(self, network: FakeMatchedNetwork, rank: int, size: int) -> None:
        self._network, self._rank, self._size = network, rank, size

    @property
    def rank(self) -> int:
        """This end's rank."""
        return self._rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._size

    def send(self, peer: int, tag: int, buffer: memoryview) -> _Sent:
        """Copied at once."""
        key = (self._rank, peer, tag)
        with self._network.changed:
            self._network.messages.setdefault(key, deque()).append(bytes(buffer))
            self._network.match(key)
        return _Sent(FlowSample(self._rank, peer, 0.0, 0.0, len(buffer)))

    def receive(self, peer: int, tag: int, buffer: memoryview) -> _Receive:
        """Filled once the message is there."""
        key = (peer, self._rank, tag)
        receive = _Receive(self._network, peer, self._rank, buffer)
        with self._network.changed:
            self._network.receives.setdefault(key, deque()).append(receive)
            self._network.match(key)
        return receive

    def flow_samples(self) -> list[FlowSample]:
        """None."""
        return []

    def close(self) -> None:
        """Whoever waits for this rank gets PeerLostError."""
        with self._network.changed:
            self._network.closed.add(self._rank)
            self._network.changed.notify_all()
