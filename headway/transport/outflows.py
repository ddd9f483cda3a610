"""The outgoing connections of one group: begun at first use, replaced, measured, and said goodbye on."""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Callable, Iterator, Mapping

from headway.errors import TransportError
from headway.observe.samples import FlowSample
from headway.transport import sockets, wire
from headway.transport.lanes import Lanes, Steering, add_up
from headway.transport.loop import ProgressLoop
from headway.transport.options import TcpOptions
from headway.transport.outflow import Outflow, State
from headway.transport.send_window import FIRST_BYTES, LANE_BYTES, SendWindow
from headway.transport.tcp_info import FlowMeter
from headway.transport.wire import Purpose


class Outflows:
    """One connection to each peer for each purpose, for bulk further ones where steering asks. Progress thread only.

    Args:
        loop: the progress thread.
        rank: of this process.
        group: the group's id (`wire.group_id`).
        token: the group's secret.
        address: of this host, where connections start.
        addresses: where each rank listens.
        options: see `TcpOptions`.
        steering: see `TcpTransport`.
        check: raises TransportError when there is no connecting to a rank, or no longer.
        on_sent: for each purpose, called with (dst, channel, tag) for each message that has left user space.
        on_end: called once for a connection that ended by itself: with None after a goodbye, with the error otherwise.
    """

    def __init__(
        self,
        loop: ProgressLoop,
        *,
        rank: int,
        group: bytes,
        token: bytes,
        address: str,
        addresses: list[tuple[str, int]],
        options: TcpOptions,
        steering: Steering | None,
        check: Callable[[int], None],
        on_sent: Mapping[Purpose, Callable[[int, int, int], None]],
        on_end: Callable[[Outflow, TransportError | None], None],
    ) -> None:
        self._loop, self._rank, self._group, self._token = loop, rank, group, token
        self._address, self._addresses, self._options = address, addresses, options
        self._check, self._on_sent, self._on_end = check, on_sent, on_end
        self._first: dict[tuple[int, Purpose], Outflow] = {}
        self._meters: dict[Outflow, FlowMeter] = {}
        self._lanes: Lanes | None = None
        if steering is not None:
            self._lanes = Lanes(loop, steering, functools.partial(self._begin, purpose=Purpose.STREAM), self._bulk)

    @property
    def streams(self) -> int:
        """The most bulk connections to one peer. Any thread."""
        return 1 if self._lanes is None else self._lanes.steering.widest

    @property
    def idle(self) -> bool:
        """Whether everything has left user space that still can."""
        return all(outflow.idle or outflow.closed for outflow in self.every())

    def width(self, dst: int) -> int:
        """How many bulk connections to `dst` are to be used now."""
        first = self._first.get((dst, Purpose.STREAM))
        return 1 if self._lanes is None or first is None else self._lanes.steering.width(first.sock)

    def every(self) -> list[Outflow]:
        """All connections, also those that have ended and were not replaced."""
        further = () if self._lanes is None else self._lanes.every()
        return [*self._first.values(), *further]

    def to(self, dst: int, purpose: Purpose) -> Outflow:
        """The first connection to `dst`, begun now if there is none. TransportError when `dst` is gone."""
        outflow = self._first.get((dst, purpose))
        if outflow is None or outflow.state is State.CLOSED:
            outflow = self._first[dst, purpose] = self._begin(dst, purpose)
        return outflow

    def lane(self, dst: int) -> Outflow:
        """The connection for the next bulk message to `dst`. TransportError when `dst` is gone."""
        first = self.to(dst, Purpose.STREAM)
        return first if self._lanes is None else self._lanes.choose(first)

    def reroute(self, dst: int) -> None:
        """Let new connections take the place of the bulk ones to `dst`, unless something is queued on one of them."""
        outflow = self._first.get((dst, Purpose.STREAM))
        if outflow is None or outflow.state is not State.OPEN or not outflow.idle:
            return
        if self._lanes is not None:
            if not all(each.idle for each in self._lanes.to(dst)):
                return
            for each in self._lanes.forget(dst):
                self._retire(each)
        del self._first[dst, Purpose.STREAM]
        self._retire(outflow)

    def disown(self, channel: int) -> None:
        """Forget the queued bulk messages of `channel`: their buffers are no longer ours."""
        for outflow in self.every():
            if outflow.purpose is Purpose.STREAM:
                outflow.disown(channel)

    def drop(self, dst: int) -> None:
        """Close the connections to `dst`, whatever is queued on them."""
        for outflow in self.every():
            if outflow.dst == dst:
                self._meters.pop(outflow, None)
                outflow.close()

    def sample(self) -> list[FlowSample]:
        """What each open connection did since the last call; several bulk ones to a peer as one. See `add_up`."""
        if self._lanes is None:
            samples = [meter.sample() for outflow, meter in self._meters.items() if outflow.state is State.OPEN]
        else:
            samples = []
            for bulk in (True, False):
                of_kind = [each for each in self._meters.items() if (each[0].purpose is Purpose.STREAM) == bulk]
                some = [meter.sample() for outflow, meter in of_kind if outflow.state is State.OPEN]
                samples += add_up(some) if bulk else some
        return [sample for sample in samples if sample.acked_bytes or sample.busy_s]

    def say_goodbye(self) -> None:
        """Steering ends, and each connection after what is queued on it; nothing of matched messages leaves any more.

        `close` follows, once they are `idle` or it took too long.
        """
        if self._lanes is not None:
            self._lanes.close()
        for outflow in self.every():
            if outflow.purpose is Purpose.MATCHED:
                outflow.disown(None)
            if outflow.state is State.OPEN or (outflow.state is not State.CLOSED and not outflow.idle):
                outflow.say_goodbye()
            else:
                outflow.close()

    def close(self) -> None:
        """Close all connections; what has left user space still arrives. Idempotent."""
        for outflow in self.every():
            outflow.close()

    def _bulk(self) -> Iterator[Outflow]:
        """The first bulk connection to each peer."""
        return (outflow for (_, purpose), outflow in self._first.items() if purpose is Purpose.STREAM)

    def _begin(self, dst: int, purpose: Purpose) -> Outflow:
        self._check(dst)
        host, port = self._addresses[dst]
        sock, code = sockets.begin_connect(self._address, host, port, self._options)
        hello = wire.Hello(self._group, self._rank, dst, purpose, secrets.token_bytes(wire.NONCE_BYTES))
        outflow = Outflow(sock, hello, self._token, self._loop, self._on_sent[purpose], self._ended)
        if purpose is not Purpose.CONTROL:
            bounded = not self._options.send_buffer_bytes and host != sockets.published(self._address)
            first_bytes = FIRST_BYTES if self.streams == 1 else LANE_BYTES
            window = SendWindow(sock, first_bytes) if bounded and purpose is Purpose.STREAM else None
            self._meters[outflow] = FlowMeter(sock, self._rank, dst, window)
        if code:
            self._loop.run_next(functools.partial(outflow.fail_connect, code))
        else:
            limit_s = self._options.connect_timeout_s
            self._loop.run_at(time.monotonic() + limit_s, functools.partial(outflow.expire, limit_s, f"{host}:{port}"))
        return outflow

    def _retire(self, outflow: Outflow) -> None:
        self._meters.pop(outflow, None)
        if outflow.state is State.OPEN:
            outflow.retire()
        else:
            outflow.close()

    def _ended(self, outflow: Outflow, error: TransportError | None) -> None:
        self._meters.pop(outflow, None)
        if not outflow.greeted and self._lanes is not None and outflow in self._lanes.to(outflow.dst):
            return  # nothing was given to it, and the first connection tells what has become of the peer
        self._on_end(outflow, error)
