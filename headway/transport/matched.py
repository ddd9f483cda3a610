"""Matched sends and receives by (peer, tag) on top of one-sided messages.

A message whose receive is posted goes straight into its buffer. One that comes early is held in memory, up to a
limit for each peer; beyond it the connection waits and its sender feels TCP's back-pressure. If a receive is posted
meanwhile for a message that could only come behind the waiting one, that would be a deadlock: after a grace time such
receives fail with an error that says so.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable

from headway.errors import DeadlineError, TransportError
from headway.observe.samples import FlowSample
from headway.transport.inflow import Inflow
from headway.transport.loop import ProgressLoop
from headway.transport.outflow import Outflow
from headway.transport.tcp_info import FlowMeter


class TcpTransfer:
    """One send or receive (`api.Transfer`). Times are the caller's: from the call to the last byte."""

    def __init__(self, what: str, src: int, dst: int, peer: int, buffer: memoryview) -> None:
        self.buffer = buffer
        self.meter: FlowMeter | None = None
        self._what, self._src, self._dst, self._peer = what, src, dst, peer
        self._size = len(buffer)
        self._start_s = time.monotonic()
        self._sample: FlowSample | None = None
        self._error: TransportError | None = None
        self._over = threading.Event()

    def wait(self, timeout_s: float) -> FlowSample:
        """See `api.Transfer`."""
        if not self._over.wait(timeout_s):
            raise DeadlineError(
                f"{self._what}: nothing from rank {self._peer} within {timeout_s:g} s"
                if self._src == self._peer
                else f"{self._what}: rank {self._peer} took not all of it within {timeout_s:g} s",
                rank=self._peer,
            )
        if self._error is not None:
            raise self._error
        assert self._sample is not None
        return self._sample

    def done(self) -> bool:
        """See `api.Transfer`."""
        return self._over.is_set()

    def finish(self) -> None:
        """All bytes have moved. Progress thread only."""
        if not self._over.is_set():
            end_s = time.monotonic()
            known = None if self.meter is None else self.meter.sample(sent_bytes=self._size)
            self._sample = FlowSample(
                src=self._src,
                dst=self._dst,
                start_s=self._start_s,
                end_s=end_s,
                acked_bytes=self._size if known is None else known.acked_bytes,
                busy_s=None if known is None else known.busy_s,
                rwnd_limited_s=None if known is None else known.rwnd_limited_s,
                sndbuf_limited_s=None if known is None else known.sndbuf_limited_s,
                rtt_s=None if known is None else known.rtt_s,
                min_rtt_s=None if known is None else known.min_rtt_s,
                retransmits=None if known is None else known.retransmits,
            )
            self._release()

    def fail(self, error: TransportError) -> None:
        """It cannot complete. Progress thread only."""
        if not self._over.is_set():
            named = type(error)(f"{self._what}: {error.what}", rank=error.rank, operation=error.operation)
            named.__cause__ = error
            self._error = named
            self._release()

    def _release(self) -> None:
        self.buffer = memoryview(b"")
        self.meter = None
        self._over.set()


class Matcher:
    """Receiver of matched messages, and the calls that match them.

    Args:
        rank: of this process.
        size: of the group.
        loop: the progress thread.
        connect: the connection to a peer; raises TransportError when there is none to be had.
        max_message_bytes: longest message that is accepted.
        max_early_bytes: held for each peer, see above.
        early_grace_s: see above.
    """

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        loop: ProgressLoop,
        connect: Callable[[int], Outflow],
        max_message_bytes: int,
        max_early_bytes: int,
        early_grace_s: float,
    ) -> None:
        self._rank, self._size, self._loop, self._connect = rank, size, loop, connect
        self._max_message_bytes, self._max_early_bytes = max_message_bytes, max_early_bytes
        self._early_grace_s = early_grace_s
        self._sending: dict[int, deque[TcpTransfer]] = defaultdict(deque)
        self._posted: dict[tuple[int, int], deque[TcpTransfer]] = defaultdict(deque)
        self._early: dict[tuple[int, int], deque[memoryview]] = defaultdict(deque)
        self._early_bytes: dict[int, int] = defaultdict(int)
        self._filling: dict[int, TcpTransfer | None] = {}  # None: a payload to drop
        self._held: dict[int, Inflow] = {}
        self._holds: dict[int, int] = defaultdict(int)
        self._gone: dict[int, TransportError] = {}
        self._closed: TransportError | None = None

    def send(self, peer: int, tag: int, buffer: memoryview) -> TcpTransfer:
        """See `api.Transport`. Any thread."""
        self._check(peer, tag)
        transfer = TcpTransfer(f"send of {len(buffer)} bytes to rank {peer}, tag {tag}", self._rank, peer, peer, buffer)
        self._loop.run_soon(lambda: self._begin_send(peer, tag, transfer))
        return transfer

    def receive(self, peer: int, tag: int, buffer: memoryview) -> TcpTransfer:
        """See `api.Transport`. Any thread."""
        self._check(peer, tag)
        if buffer.readonly:
            raise TransportError(f"receive from rank {peer}, tag {tag}: the buffer is read-only")
        what = f"receive of {len(buffer)} bytes from rank {peer}, tag {tag}"
        transfer = TcpTransfer(what, peer, self._rank, peer, buffer)
        self._loop.run_soon(lambda: self._post(peer, tag, transfer))
        return transfer

    def _check(self, peer: int, tag: int) -> None:
        if not 0 <= peer < self._size or peer == self._rank:
            raise TransportError(f"rank {self._rank} has no peer {peer} in a group of {self._size}")
        if not 0 <= tag < 1 << 64:
            raise TransportError(f"tag {tag} is not an unsigned 64-bit number")

    def _begin_send(self, peer: int, tag: int, transfer: TcpTransfer) -> None:
        try:
            if self._closed is not None:
                raise self._closed
            outflow = self._connect(peer)
        except TransportError as error:
            transfer.fail(error)
            return
        transfer.meter = FlowMeter(outflow.sock, self._rank, peer)
        self._sending[peer].append(transfer)
        outflow.send(0, tag, transfer.buffer)

    def sent(self, dst: int, channel: int, tag: int) -> None:
        """The oldest message to `dst` has left user space."""
        sending = self._sending.get(dst)
        if sending:
            sending.popleft().finish()

    def _post(self, peer: int, tag: int, transfer: TcpTransfer) -> None:
        key = (peer, tag)
        early = self._early.get(key)
        if early:
            payload = early.popleft()
            self._early_bytes[peer] -= len(payload)
            if not early:
                del self._early[key]
            if len(payload) != len(transfer.buffer):
                transfer.fail(self._wrong_size(peer, len(payload)))
            else:
                transfer.buffer[:] = payload
                transfer.finish()
        elif self._closed is not None or peer in self._gone:
            transfer.fail(self._closed or self._gone[peer])
        else:
            self._posted[key].append(transfer)
        held = self._held.pop(peer, None)
        if held is not None:
            held.resume()  # it may match now, or there is room; else `accept` holds it again

    def accept(self, inflow: Inflow, channel: int, tag: int, size: int) -> memoryview | None:
        """See `inflow.Receiver`."""
        src = inflow.src
        if size > self._max_message_bytes:
            raise TransportError(
                f"rank {src} announced a message of {size} bytes; the limit is {self._max_message_bytes}", rank=src
            )
        posted = self._posted.get((src, tag))
        if posted:
            transfer = posted.popleft()
            if not posted:
                del self._posted[src, tag]
            if len(transfer.buffer) == size:
                self._filling[src] = transfer
                return transfer.buffer
            transfer.fail(self._wrong_size(src, size))
            self._filling[src] = None
            return memoryview(bytearray(size))
        if self._early_bytes[src] + size > self._max_early_bytes:
            self._held[src] = inflow
            self._holds[src] += 1
            hold = self._holds[src]
            when_s = time.monotonic() + self._early_grace_s
            self._loop.run_at(when_s, lambda: self._check_deadlock(src, hold, tag, size))
            return None
        self._early_bytes[src] += size
        return memoryview(bytearray(size))

    def complete(self, inflow: Inflow, channel: int, tag: int, payload: memoryview) -> None:
        """See `inflow.Receiver`."""
        src = inflow.src
        if src in self._filling:
            transfer = self._filling.pop(src)
            if transfer is not None:
                transfer.finish()
            return
        # A receive may have been posted while the payload came in.
        posted = self._posted.pop((src, tag), None)
        if posted:
            self._early_bytes[src] -= len(payload)
            first = posted.popleft()
            if posted:
                self._posted[src, tag] = posted
            if len(first.buffer) == len(payload):
                first.buffer[:] = payload
                first.finish()
            else:
                first.fail(self._wrong_size(src, len(payload)))
        else:
            self._early[src, tag].append(payload)

    def _wrong_size(self, peer: int, size: int) -> TransportError:
        return TransportError(f"rank {peer} sent {size} bytes", rank=peer)

    def _check_deadlock(self, src: int, hold: int, tag: int, size: int) -> None:
        if src not in self._held or self._holds[src] != hold:
            return  # it went on since, or another receive was posted, which has a grace time of its own
        for key in [key for key in self._posted if key[0] == src]:
            for transfer in self._posted.pop(key):
                transfer.fail(
                    TransportError(
                        f"its message is behind one of {size} bytes with tag {tag} that nobody receives, and "
                        f"{self._early_bytes[src]} bytes from rank {src} are held already; receive in the order of "
                        f"sending, or raise max_early_bytes ({self._max_early_bytes})",
                        rank=src,
                    )
                )

    def sends_failed(self, peer: int, error: TransportError) -> None:
        """The connection to `peer` has ended; what comes from it may still be delivered."""
        for transfer in self._sending.pop(peer, ()):
            transfer.fail(error)

    def peer_gone(self, peer: int, error: TransportError) -> None:
        """No more messages will come from `peer` or go to it."""
        if peer in self._gone:
            return
        self._gone[peer] = error
        self._held.pop(peer, None)
        self._fail_of(peer, error)

    def close(self, error: TransportError) -> None:
        """Fail everything that is under way."""
        self._closed = error
        for peer in range(self._size):
            self._fail_of(peer, error)

    def _fail_of(self, peer: int, error: TransportError) -> None:
        pending = [*self._sending.pop(peer, ())]
        filling = self._filling.pop(peer, None)
        if filling is not None:
            pending.append(filling)
        for key in [key for key in self._posted if key[0] == peer]:
            pending += self._posted.pop(key)
        for transfer in pending:
            transfer.fail(error)
