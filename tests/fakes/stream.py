"""n `StreamTransport`s in one process: one thread, no sockets, a seeded order of events."""

from __future__ import annotations

import heapq
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from headway.errors import PeerLostError, TransportError
from headway.observe.samples import FlowSample
from headway.transport.api import Sink


@dataclass
class _Message:
    channel: int
    tag: int
    payload: memoryview | bytes
    into: memoryview | None = None


@dataclass
class _Link:
    """One direction between two ranks: unsent messages, and those on the wire."""

    unsent: deque[_Message] = field(default_factory=deque)
    wire: deque[_Message] = field(default_factory=deque)


class FakeNetwork:
    """Joins the transports and decides what happens next.

    `pump` runs one event after the other, chosen by `seed`: a function of `run_soon`, a due timer, a message that
    leaves (`sent`; the payload is read only then, so that a buffer changed too early is noticed), the start of a
    message's arrival (`buffer_for`) or its end (`received`). Order is kept where the contract keeps it.

    Args:
        size: number of ranks.
        seed: of the order of events.
    """

    def __init__(self, size: int, seed: int = 0) -> None:
        self.transports = [FakeStreamTransport(self, rank, size) for rank in range(size)]
        self.links = {(src, dst): _Link() for src in range(size) for dst in range(size) if src != dst}
        self.delivered: list[tuple[int, int, int, int]] = []
        self.dead: set[int] = set()
        self.leaving: set[int] = set()
        self._told: set[tuple[int, int]] = set()
        self._random = random.Random(seed)
        self._lose_after: dict[int, list[int]] = {}

    def lose(self, rank: int, *, after: int) -> None:
        """`rank` dies once `after` messages have been delivered in all."""
        self._lose_after.setdefault(after, []).append(rank)
        self._lose_due()

    def pump(self, limit: int = 1_000_000) -> None:
        """Run events until nothing can happen any more. More than `limit` is an AssertionError: a livelock."""
        for _ in range(limit):
            events = self._possible()
            if not events:
                return
            self._random.choice(events)()
        raise AssertionError(f"still busy after {limit} events")

    def pump_until_timers(self) -> None:
        """As `pump`, and then wait in real time for every timer."""
        while True:
            self.pump()
            pending = [t.timers[0][0] for t in self.transports if t.timers and t.rank not in self.dead]
            if not pending:
                return
            time.sleep(max(0.0, min(pending) - time.monotonic()))

    def _possible(self) -> list[Callable[[], None]]:
        now_s = time.monotonic()
        events: list[Callable[[], None]] = []
        for transport in self.transports:
            if transport.rank in self.dead:
                continue
            if transport.soon:
                events.append(transport.run_one)
            if transport.timers and transport.timers[0][0] <= now_s:
                events.append(transport.run_timer)
        for (src, dst), link in self.links.items():
            if link.unsent:
                events.append(partial(self._leave, src, dst))
            if link.wire and self.transports[dst].accepts(link.wire[0].channel):
                events.append(partial(self._arrive, src, dst))
            if src in self.leaving and not link.unsent and not link.wire and (src, dst) not in self._told:
                events.append(partial(self._tell_left, src, dst))
        return events

    def _leave(self, src: int, dst: int) -> None:
        link = self.links[src, dst]
        message = link.unsent.popleft()
        message.payload = bytes(message.payload)
        link.wire.append(message)
        sink = self.transports[src].channels.get(message.channel)
        if sink is not None:
            self.transports[src].call(message.channel, lambda: sink.sent(dst, message.tag))

    def _arrive(self, src: int, dst: int) -> None:
        link, transport = self.links[src, dst], self.transports[dst]
        message = link.wire[0]
        sink = transport.channels.get(message.channel)
        if sink is None:
            link.wire.popleft()  # a failed channel: read and dropped
            return
        if message.into is None:
            size = len(message.payload)

            def place() -> None:
                message.into = sink.buffer_for(src, message.tag, size)
                assert len(message.into) == size

            transport.call(message.channel, place)
            return
        link.wire.popleft()
        message.into[:] = message.payload
        into = message.into
        self.delivered.append((src, dst, message.channel, message.tag))
        transport.call(message.channel, lambda: sink.received(src, message.tag, into))
        self._lose_due()

    def _lose_due(self) -> None:
        for after in [count for count in self._lose_after if count <= len(self.delivered)]:
            for rank in self._lose_after.pop(after):
                self._lose(rank)

    def _lose(self, rank: int) -> None:
        self.dead.add(rank)
        for (src, dst), link in self.links.items():
            if rank in (src, dst):
                link.unsent.clear()
                link.wire.clear()
        for transport in self.transports:
            if transport.rank not in self.dead:
                transport.run_soon(partial(transport.peer_lost, rank))

    def _tell_left(self, src: int, dst: int) -> None:
        self._told.add((src, dst))
        self.transports[dst].peer_left(src)


class FakeStreamTransport:
    """One rank's end. See `headway.transport.api.StreamTransport`."""

    streams = 1

    def width(self, dst: int) -> int:
        """One connection to each."""
        return 1

    def __init__(self, network: FakeNetwork, rank: int, size: int) -> None:
        self._network, self._rank, self._size = network, rank, size
        self.soon: deque[Callable[[], None]] = deque()
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.channels: dict[int, Sink] = {}
        self.finished: set[int] = set()
        self.failed: set[int] = set()
        self.control: list[Callable[[int, bytes], None]] = []
        self._timer_count = 0
        self._lost_handlers: list[Callable[[int, str], None]] = []
        self._left_handlers: list[Callable[[int], None]] = []
        self._lost: TransportError | None = None
        self._inside = False

    @property
    def rank(self) -> int:
        """This end's rank."""
        return self._rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._size

    def run_soon(self, function: Callable[[], None]) -> None:
        """Queue `function`."""
        self.soon.append(function)

    def run_at(self, when_s: float, function: Callable[[], None]) -> None:
        """Queue `function` for `when_s`."""
        self._timer_count += 1
        heapq.heappush(self.timers, (when_s, self._timer_count, function))

    def open_channel(self, channel: int, sink: Sink) -> None:
        """Deliver to `sink` from now on."""
        assert channel not in self.channels
        assert channel not in self.finished
        self.channels[channel] = sink
        if self._lost is not None:
            self.run_soon(partial(self._fail_channel, channel, self._lost))

    def close_channel(self, channel: int) -> None:
        """Deliver no more; a later message is an error."""
        del self.channels[channel]
        self.finished.add(channel)

    def abandon_channel(self, channel: int) -> None:
        """Read none of its buffers any more, drop what comes."""
        if self.channels.pop(channel, None) is not None:
            self._disown(channel)

    def send_message(self, dst: int, channel: int, tag: int, payload: memoryview) -> None:
        """Queue a message."""
        assert channel in self.channels
        assert 0 <= tag < 2**64
        if dst not in self._network.dead:
            self._network.links[self._rank, dst].unsent.append(_Message(channel, tag, payload))

    def reroute(self, dst: int) -> None:
        """There is one path only."""

    def send_control(self, dst: int, payload: bytes) -> None:
        """Deliver a control message."""
        other = self._network.transports[dst]
        for handler in other.control:
            other.run_soon(partial(handler, self._rank, payload))

    def on_control(self, handler: Callable[[int, bytes], None]) -> None:
        """Register."""
        self.control.append(handler)

    def on_peer_lost(self, handler: Callable[[int, str], None]) -> None:
        """Register."""
        self._lost_handlers.append(handler)

    def on_peer_left(self, handler: Callable[[int], None]) -> None:
        """Register."""
        self._left_handlers.append(handler)

    def on_stray(self, handler: Callable[[int, int], None]) -> None:
        """Such a message fails the test: see `accepts`."""

    def flow_samples(self) -> list[FlowSample]:
        """No flow, no sample."""
        return []

    def close(self) -> None:
        """Leave in good order: open channels fail, the others hear of it once all has been delivered."""
        for channel in list(self.channels):
            self._fail_channel(channel, TransportError("closed"))
        self._network.leaving.add(self._rank)

    def accepts(self, channel: int) -> bool:
        """Whether a message of `channel` can be read now."""
        assert channel not in self.finished, f"rank {self._rank}: a message for the closed channel {channel}"
        return channel in self.channels or channel in self.failed

    def call(self, channel: int, function: Callable[[], None]) -> None:
        """Call into a sink, never nested; what it raises fails the channel."""
        assert not self._inside
        self._inside = True
        try:
            function()
        except Exception as error:
            cause = error if isinstance(error, TransportError) else TransportError(repr(error))
            self._inside = False
            self._fail_channel(channel, cause)
        finally:
            self._inside = False

    def run_one(self) -> None:
        """The next function of `run_soon`."""
        self.soon.popleft()()

    def run_timer(self) -> None:
        """The next due timer."""
        heapq.heappop(self.timers)[2]()

    def peer_lost(self, rank: int) -> None:
        """A connection broke."""
        error = PeerLostError(f"rank {rank} closed the connection", rank=rank)
        self._lost = self._lost or error
        for channel in list(self.channels):
            self._fail_channel(channel, error)
        for handler in self._lost_handlers:
            handler(rank, "closed the connection")

    def peer_left(self, rank: int) -> None:
        """A peer left in good order; nothing of it is on its way."""
        for handler in self._left_handlers:
            handler(rank)

    def _fail_channel(self, channel: int, error: TransportError) -> None:
        sink = self.channels.pop(channel, None)
        if sink is not None:
            self._disown(channel)
            sink.failed(error)

    def _disown(self, channel: int) -> None:
        self.failed.add(channel)
        for link in (link for (src, _), link in self._network.links.items() if src == self._rank):
            kept = [message for message in link.unsent if message.channel != channel]
            link.unsent.clear()
            link.unsent.extend(kept)
