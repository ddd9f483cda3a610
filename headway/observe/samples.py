"""What one flow did over one stretch of time."""

from __future__ import annotations

from dataclasses import dataclass

QUEUED_RATIO = 2.0
"""Smoothed over least round-trip time from which on a queue stands on the way (1). Ours: on an idle path the two differ
by some per cent; our send windows grow until the queue is as long as the path, or 1 ms."""


@dataclass(frozen=True, slots=True)
class FlowSample:
    """What the flow from rank `src` to rank `dst` did between `start_s` and `end_s`, seen by the sender.

    Only network-limited time says anything about capacity: a flow that had nothing to send, or whose receiver
    did not read, tells nothing. Fields that the transport cannot know are None (process-group driver).

    Attributes:
        src: sending rank.
        dst: receiving rank.
        start_s: begin of the stretch on the sender's monotonic clock, seconds.
        end_s: its end.
        acked_bytes: bytes that the receiver acknowledged in the stretch.
        busy_s: time with unacknowledged data outstanding (TCP_INFO tcpi_busy_time).
        rwnd_limited_s: part of `busy_s` limited by the receiver's window.
        sndbuf_limited_s: part of `busy_s` limited by our own send buffer.
        rtt_s: smoothed round-trip time at `end_s`.
        min_rtt_s: least round-trip time the kernel has seen.
        retransmits: segments retransmitted in the stretch.
        operation: number of the operation that the stretch belongs to, -1 outside any.
    """

    src: int
    dst: int
    start_s: float
    end_s: float
    acked_bytes: int
    busy_s: float | None = None
    rwnd_limited_s: float | None = None
    sndbuf_limited_s: float | None = None
    rtt_s: float | None = None
    min_rtt_s: float | None = None
    retransmits: int | None = None
    operation: int = -1

    @property
    def queued(self) -> bool:
        """Whether the round trip shows a queue on the way: only a full link makes one."""
        return self.rtt_s is not None and self.min_rtt_s is not None and self.rtt_s >= QUEUED_RATIO * self.min_rtt_s

    @property
    def network_limited_s(self) -> float:
        """Time that only the network held this flow back; the whole stretch where that is unknown.

        A full send buffer counts as the network's doing while there is a queue on the way: then the buffer drains as
        fast as the link takes it. Without a queue it is the buffer that was too small.
        """
        if self.busy_s is None:
            return self.end_s - self.start_s
        own_s = 0.0 if self.queued else self.sndbuf_limited_s or 0.0
        return max(0.0, self.busy_s - (self.rwnd_limited_s or 0.0) - own_s)

    @property
    def rate_Bps(self) -> float | None:
        """Bytes acknowledged per network-limited second; None when there was no such time."""
        limited_s = self.network_limited_s
        return self.acked_bytes / limited_s if limited_s > 0 else None
