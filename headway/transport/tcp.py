"""The TCP driver: our own sockets, one progress thread, both kinds of transport."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from headway.errors import DeadlineError, TransportError, UsageError
from headway.observe.samples import FlowSample
from headway.transport import sockets, wire
from headway.transport.api import Sink
from headway.transport.channels import Channels
from headway.transport.control import ControlReceiver
from headway.transport.inflow import Inflow
from headway.transport.inflows import Inflows
from headway.transport.lanes import Steering
from headway.transport.listener import Listener
from headway.transport.loop import ProgressLoop
from headway.transport.matched import Matcher, TcpTransfer
from headway.transport.options import TcpOptions, local_address
from headway.transport.outflow import Outflow
from headway.transport.outflows import Outflows
from headway.transport.peers import Peers
from headway.transport.poller import Poller
from headway.transport.rendezvous import Rendezvous, meet
from headway.transport.wire import Purpose

_LOG = logging.getLogger(__name__)
# Between looks at whether everything has left, while closing.
_CLOSE_POLL_S = 0.002


class TcpTransport:
    """`StreamTransport` and `Transport` of one group over TCP.

    Each rank listens on one port. Whoever has something to send connects, once for each purpose (bulk, control,
    matched messages), at first use. So a connection carries messages one way, and a full one holds up nothing else.
    Bulk may have several connections to a peer: see `lanes`.

    The constructor blocks until every rank of the group has published its address.

    Args:
        rank: of this process, in the group.
        size: of the group.
        rendezvous: where addresses and the group's token are exchanged; only used in the constructor.
        options: see `TcpOptions`.
        group: name of the group, unique within the rendezvous.
        steering: of the connections that carry bulk messages, closed at the end; None: one for each peer, left alone.
        poller: for tests.

    Raises:
        UsageError: an option does not work on this host.
        DeadlineError: another rank did not publish its address in time.
    """

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        rendezvous: Rendezvous,
        options: TcpOptions | None = None,
        group: str = "default",
        steering: Steering | None = None,
        poller: Poller | None = None,
    ) -> None:
        if not 0 <= rank < size:
            raise UsageError(f"rank {rank} in a group of {size}")
        self._rank, self._size, self._group = rank, size, group
        self._options = options if options is not None else TcpOptions()
        self._address = local_address(self._options)
        self._close_lock = threading.Lock()
        # Set by `close`: no more calls. What was handed in before still runs, until the progress thread sets the other.
        self._closed = False
        self._closing = False
        self._close_deadline_s = 0.0

        listening = sockets.listen_on(self._address, self._options)
        try:
            self._port: int = listening.getsockname()[1]
            token, addresses = meet(
                rendezvous,
                rank=rank,
                size=size,
                group=group,
                own=(sockets.published(self._address), self._port),
                timeout_s=self._options.connect_timeout_s,
            )
            self._loop = ProgressLoop(f"headway {group} rank {rank}", self._callback_failed, poller)
        except BaseException:
            listening.close()
            raise
        self._peers = Peers(self._loop, lambda rank: self._inflows.settled(rank), self._left)
        self._channels = Channels(
            self._loop, self._options.max_message_bytes, lambda channel: self._outflows.disown(channel)
        )
        self._control = ControlReceiver(self._options.max_control_bytes, self._callback_failed)
        self._matcher = Matcher(
            rank=rank,
            size=size,
            loop=self._loop,
            connect=lambda dst: self._outflows.to(dst, Purpose.MATCHED),
            max_message_bytes=self._options.max_message_bytes,
            max_early_bytes=self._options.max_early_bytes,
            early_grace_s=self._options.early_grace_s,
        )
        self._inflows = Inflows(
            self._loop,
            rank=rank,
            receivers={
                Purpose.STREAM: self._channels,
                Purpose.CONTROL: self._control,
                Purpose.MATCHED: self._matcher,
            },
            bulk=self._channels.inflows,
            refuses=lambda src: self._closing or self._peers.why_gone(src) is not None,
            on_end=self._inflow_ended,
        )
        self._listener = Listener(
            listening,
            rank=rank,
            size=size,
            group=wire.group_id(group),
            token=token,
            loop=self._loop,
            max_pending=self._options.max_pending_hellos,
            hello_timeout_s=self._options.hello_timeout_s,
            adopt=self._inflows.adopt,
        )
        self._outflows = Outflows(
            self._loop,
            rank=rank,
            group=wire.group_id(group),
            token=token,
            address=self._address,
            addresses=addresses,
            options=self._options,
            steering=steering,
            check=self._check_reachable,
            on_sent={
                Purpose.STREAM: self._channels.sent,
                Purpose.CONTROL: lambda dst, channel, tag: None,
                Purpose.MATCHED: self._matcher.sent,
            },
            on_end=self._outflow_ended,
        )
        self._loop.start()

    @property
    def rank(self) -> int:
        """This process's rank in the group."""
        return self._rank

    @property
    def size(self) -> int:
        """Number of ranks in the group."""
        return self._size

    @property
    def streams(self) -> int:
        """See `StreamTransport`."""
        return self._outflows.streams

    @property
    def address(self) -> tuple[str, int]:
        """Where this rank listens."""
        return self._address, self._port

    # Any thread

    def run_soon(self, function: Callable[[], None]) -> None:
        """See `StreamTransport`. TransportError when the transport is closed."""
        if self._closed:
            raise self._closed_error()
        self._loop.run_soon(function)

    def send_control(self, dst: int, payload: bytes) -> None:
        """See `StreamTransport`. To oneself it is delivered too; to a rank that is gone it is dropped."""
        self._check_rank(dst)
        if len(payload) > self._options.max_control_bytes:
            raise TransportError(
                f"control message of {len(payload)} bytes; the limit is {self._options.max_control_bytes}"
            )
        self.run_soon(lambda: self._send_control(dst, payload))

    def on_control(self, handler: Callable[[int, bytes], None]) -> None:
        """See `StreamTransport`. Messages that came before the first handler are kept for it."""
        self.run_soon(lambda: self._control.add_handler(handler))

    def on_peer_lost(self, handler: Callable[[int, str], None]) -> None:
        """See `StreamTransport`. Also called for peers that are lost already."""
        self.run_soon(lambda: self._peers.add_lost_handler(handler))

    def on_peer_left(self, handler: Callable[[int], None]) -> None:
        """See `StreamTransport`. Also called for peers that have left already."""
        self.run_soon(lambda: self._peers.add_left_handler(handler))

    def on_stray(self, handler: Callable[[int, int], None]) -> None:
        """See `StreamTransport`."""
        self.run_soon(lambda: setattr(self._channels, "on_stray", handler))

    def send(self, peer: int, tag: int, buffer: memoryview) -> TcpTransfer:
        """See `Transport`."""
        if self._closed:
            raise self._closed_error()
        return self._matcher.send(peer, tag, buffer)

    def receive(self, peer: int, tag: int, buffer: memoryview) -> TcpTransfer:
        """See `Transport`. Early arrivals: see `matched`."""
        if self._closed:
            raise self._closed_error()
        return self._matcher.receive(peer, tag, buffer)

    def flow_samples(self) -> list[FlowSample]:
        """One sample for each outgoing connection that did something since the last call. Any thread."""
        if self._loop.on_thread():
            return self._outflows.sample()
        samples: list[FlowSample] = []
        taken = threading.Event()

        def take() -> None:
            samples.extend(self._outflows.sample())
            taken.set()

        self.run_soon(take)
        if not taken.wait(self._options.connect_timeout_s):
            raise DeadlineError("flow_samples: the progress thread is busy, or was closed meanwhile")
        return samples

    def close(self) -> None:
        """See `StreamTransport`. Waits `close_timeout_s` at most for what is queued to leave.

        From the progress thread it only begins to close, and returns.
        """
        with self._close_lock:
            if not self._closed:
                self._closed = True
                self._loop.run_soon(self._begin_close)
        if not self._loop.on_thread() and not self._loop.join(self._options.close_timeout_s + 5.0):
            _LOG.error("rank %d: the progress thread of group %s did not end: a callback blocks", *self._names())

    # Progress thread

    def width(self, dst: int) -> int:
        """See `StreamTransport`."""
        return self._outflows.width(dst)

    def run_at(self, when_s: float, function: Callable[[], None]) -> None:
        """See `StreamTransport`."""
        self._loop.run_at(when_s, function)

    def open_channel(self, channel: int, sink: Sink) -> None:
        """See `StreamTransport`. TransportError when the channel was open before."""
        self._channels.open(channel, sink)
        error = self._closed_error() if self._closing else self._peers.first_loss
        if error is not None:
            self._loop.run_next(lambda: self._channels.fail(channel, error))

    def close_channel(self, channel: int) -> None:
        """See `StreamTransport`."""
        self._channels.close(channel)

    def abandon_channel(self, channel: int) -> None:
        """See `StreamTransport`."""
        self._channels.abandon(channel)

    def send_message(self, dst: int, channel: int, tag: int, payload: memoryview) -> None:
        """See `StreamTransport`. When `dst` is gone the channel fails, after the call has returned."""
        try:
            outflow = self._outflows.lane(dst)
        except TransportError as caught:
            error = caught
            self._loop.run_next(lambda: self._channels.fail(channel, error))
            return
        outflow.send(channel, tag, payload)

    def reroute(self, dst: int) -> None:
        """See `StreamTransport`."""
        self._outflows.reroute(dst)

    def _send_control(self, dst: int, payload: bytes) -> None:
        if dst == self._rank:
            self._control.deliver(dst, payload)
            return
        try:
            self._outflows.to(dst, Purpose.CONTROL).send(0, 0, memoryview(payload))
        except TransportError as error:
            _LOG.info("rank %d drops a control message to rank %d: %s", self._rank, dst, error)

    def _inflow_ended(self, inflow: Inflow, error: TransportError | None) -> None:
        if self._closing:
            return
        if error is not None:
            self._lose(inflow.src, error)
        else:
            self._peers.leaving(inflow.src)

    def _outflow_ended(self, outflow: Outflow, error: TransportError | None) -> None:
        if self._closing:
            return
        dst = outflow.dst
        if error is not None and not self._peers.is_leaving(dst):
            self._lose(dst, error)
            return
        self._peers.leaving(dst)
        left = self._peers.left_error(dst)
        for channel in outflow.waiting_channels():
            self._channels.fail(channel, left)
        if outflow.purpose is Purpose.MATCHED:
            self._matcher.sends_failed(dst, left)

    def _lose(self, rank: int, error: TransportError) -> None:
        """A connection of `rank` broke: the group has lost it."""
        if not self._peers.lost(rank, error):
            return
        self._drop(rank)
        self._channels.fail_all(error)
        self._matcher.peer_gone(rank, error)
        self._peers.tell_lost(rank)

    def _left(self, rank: int) -> None:
        self._drop(rank)
        self._matcher.peer_gone(rank, self._peers.left_error(rank))

    def _drop(self, rank: int) -> None:
        self._outflows.drop(rank)
        self._inflows.drop(rank)

    def _callback_failed(self, error: Exception) -> None:
        """A function that was handed to the progress thread raised."""
        _LOG.error("rank %d, group %s: a callback raised", *self._names(), exc_info=error)
        wrapped = TransportError(f"{type(error).__name__} in a callback of the progress thread: {error}")
        wrapped.__cause__ = error
        self._channels.fail_all(wrapped)

    def _begin_close(self) -> None:
        self._closing = True
        error = self._closed_error()
        self._channels.fail_all(error)
        self._matcher.close(error)
        self._listener.close()
        self._inflows.say_goodbye()
        self._outflows.say_goodbye()
        self._close_deadline_s = time.monotonic() + self._options.close_timeout_s
        self._loop.run_next(self._finish_close)

    def _finish_close(self) -> None:
        if not self._outflows.idle and time.monotonic() < self._close_deadline_s:
            self._loop.run_at(time.monotonic() + _CLOSE_POLL_S, self._finish_close)
            return
        self._outflows.close()
        self._loop.stop()

    def _closed_error(self) -> TransportError:
        return TransportError(f"the transport of rank {self._rank} in group {self._group} is closed")

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self._size:
            raise TransportError(f"there is no rank {rank} in group {self._group} of {self._size}")

    def _check_reachable(self, dst: int) -> None:
        self._check_rank(dst)
        if dst == self._rank:
            raise TransportError(f"rank {dst} does not connect to itself")
        gone = self._closed_error() if self._closing else self._peers.why_gone(dst)
        if gone is not None:
            raise gone

    def _names(self) -> tuple[int, str]:
        return self._rank, self._group
