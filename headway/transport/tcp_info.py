"""The few fields of Linux's `struct tcp_info` that say what held a flow back, and their change over time.

The struct only ever grows at its end, so one layout serves every kernel; what an older one lacks is None. Times in
the struct are microseconds. `busy`, `rwnd_limited` and `sndbuf_limited` exist since Linux 4.10; the kernel counts them
in its ticks (1 to 10 ms), so a short burst may show none.
"""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass

from headway.observe.samples import FlowSample
from headway.transport.send_window import SendWindow

# Skips by offset: snd_mss at 16, unacked 24, sacked 28, rtt 68, total_retrans 100, bytes_acked 120, notsent 144,
# min_rtt 148, delivery_rate 160, busy 168, rwnd_limited 176, sndbuf_limited 184, delivered_ce 196.
_LAYOUT = struct.Struct("=16xI4xII36xI28xI16xQ16xII8xQQQQ4xI")
_FIELD_ENDS = (20, 28, 32, 72, 104, 128, 148, 152, 168, 176, 184, 192, 200)
_US = 1e-6
_NO_MIN_RTT = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """One reading of a socket. None where the kernel does not tell.

    Attributes:
        snd_mss: bytes of a full segment.
        unacked: segments sent and not acknowledged.
        sacked: those among them that have arrived all the same, behind one that is missing.
        rtt_s: smoothed round-trip time.
        total_retrans: segments retransmitted since the start.
        bytes_acked: bytes acknowledged since the start; the SYN counts as one.
        notsent_bytes: bytes in the send buffer that were never sent.
        min_rtt_s: least round-trip time.
        delivery_rate_Bps: the kernel's own estimate; wrong for flows that are paced or have nothing to send.
        busy_s: time with data outstanding since the start.
        rwnd_limited_s: part of it limited by the receiver's window.
        sndbuf_limited_s: part of it limited by the send buffer.
        delivered_ce: segments that arrived with a congestion mark (ECN).
    """

    snd_mss: int | None = None
    unacked: int | None = None
    sacked: int | None = None
    rtt_s: float | None = None
    total_retrans: int | None = None
    bytes_acked: int | None = None
    notsent_bytes: int | None = None
    min_rtt_s: float | None = None
    delivery_rate_Bps: float | None = None
    busy_s: float | None = None
    rwnd_limited_s: float | None = None
    sndbuf_limited_s: float | None = None
    delivered_ce: int | None = None

    @property
    def arrived_bytes(self) -> int:
        """Bytes that have arrived, as far as the kernel knows: those acknowledged, and full segments behind a gap.

        Acknowledged bytes stand still while a lost segment is sent again, and then jump.
        """
        return (self.bytes_acked or 0) + (self.sacked or 0) * (self.snd_mss or 0)


def decode(raw: bytes) -> TcpInfo:
    """The fields in what getsockopt(TCP_INFO) returned, however long it is."""
    values: list[int | None] = list(_LAYOUT.unpack_from(raw.ljust(_LAYOUT.size, b"\0")))
    if len(raw) < _LAYOUT.size:
        values = [value if end <= len(raw) else None for value, end in zip(values, _FIELD_ENDS, strict=True)]
    snd_mss, unacked, sacked, rtt, retrans, acked, notsent, min_rtt, rate, busy, rwnd, sndbuf, marked = values
    return TcpInfo(
        snd_mss=snd_mss,
        unacked=unacked,
        sacked=sacked,
        rtt_s=_seconds(rtt),
        total_retrans=retrans,
        bytes_acked=acked,
        notsent_bytes=notsent,
        min_rtt_s=None if min_rtt == _NO_MIN_RTT else _seconds(min_rtt),
        delivery_rate_Bps=None if rate is None else float(rate),
        busy_s=_seconds(busy),
        rwnd_limited_s=_seconds(rwnd),
        sndbuf_limited_s=_seconds(sndbuf),
        delivered_ce=marked,
    )


def read(sock: socket.socket) -> TcpInfo:
    """A reading of `sock`; all None where the system has no TCP_INFO, or the socket is closed."""
    option = getattr(socket, "TCP_INFO", None)
    if option is None:
        return TcpInfo()
    try:
        return decode(sock.getsockopt(socket.IPPROTO_TCP, option, _LAYOUT.size))
    except OSError:
        return TcpInfo()


class FlowMeter:
    """Turns readings of one sending socket into samples of what happened in between.

    Args:
        sock: the sending socket.
        src: its rank.
        dst: the rank at the other end.
        window: follows each sample.
    """

    def __init__(self, sock: socket.socket, src: int, dst: int, window: SendWindow | None = None) -> None:
        self._sock, self._src, self._dst = sock, src, dst
        self._window = window
        self._last = read(sock)
        self._last_s = time.monotonic()

    def sample(self, *, sent_bytes: int = 0) -> FlowSample:
        """What happened since the last call (or the start).

        Args:
            sent_bytes: bytes given to the socket in the stretch; taken for acknowledged where TCP_INFO is missing.
        """
        now, now_s = read(self._sock), time.monotonic()
        last, last_s = self._last, self._last_s
        self._last, self._last_s = now, now_s
        acked = _change(now.bytes_acked, last.bytes_acked)
        retransmits = _change(now.total_retrans, last.total_retrans)
        sample = FlowSample(
            src=self._src,
            dst=self._dst,
            start_s=last_s,
            end_s=now_s,
            acked_bytes=sent_bytes if acked is None else int(acked),
            busy_s=_change(now.busy_s, last.busy_s),
            rwnd_limited_s=_change(now.rwnd_limited_s, last.rwnd_limited_s),
            sndbuf_limited_s=_change(now.sndbuf_limited_s, last.sndbuf_limited_s),
            rtt_s=now.rtt_s,
            min_rtt_s=now.min_rtt_s,
            retransmits=None if retransmits is None else int(retransmits),
        )
        if self._window is not None:
            self._window.follow(sample)
        return sample


def _seconds(value_us: int | None) -> float | None:
    return None if value_us is None else value_us * _US


def _change(now: float | None, before: float | None) -> float | None:
    return None if now is None or before is None else now - before
