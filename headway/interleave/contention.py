"""Whether somebody else is on a flow's way, from what the kernel says of the flow. Pure.

A flow alone fills its link, and its own queue, if its congestion control is loss-based: so neither a long round trip
nor a lost packet says that somebody else is there. What does, is less than the flow had when it was alone, while the
network is what holds it back:

    free     its rate is below `low` of its best, and a queue stands (or packets are lost, or marked)
    capped   (by ourselves, so its rate says nothing) a queue stands although the cap is below the link's rate

The kernel's round trip is smoothed over many packets, of which a capped flow has few: it is still long when the queue
has been gone for 100 ms. What is on the way, over the rate at which it arrives, is the round trip of this moment
(Little's law), so a queue stands only if both say so.

The best rate is learnt from long stretches in which the flow was busy all the time, since a link's token bucket lets
more through at first, and is forgotten slowly, so that a link that became slower for good counts as the new link after
a while. Both changes of mind need several readings in sequence (hysteresis). A flow that has never been faster than it
is now is taken to be alone.

It is wrong for a competitor that was there from the first byte on and never pauses, which it takes for the link.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContentionSettings:
    """Thresholds.

    Attributes:
        free_s, capped_s: a reading of a flow that is free, or capped, is one stretch of at least this long.
        best_stretches: so many stretches of a free flow together are long enough to learn its best rate from.
        low: part of the best rate below which a free flow shares its link.
        queue_s, queue_ratio: a queue stands when the round trip is above its least by both.
        on, off: readings in sequence that change the mind.
        forget: part of the best rate that is forgotten per second of busy time.
    """

    free_s: float = 0.03
    capped_s: float = 0.01
    best_stretches: int = 4
    low: float = 0.75
    queue_s: float = 0.002
    queue_ratio: float = 2.0
    on: int = 2
    off: int = 2
    forget: float = 0.002


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters of one flow at one moment, as TCP_INFO has them.

    Attributes:
        now_s: on any steady clock.
        arrived_bytes: arrived at the other end since the connection's begin, as `TcpInfo.arrived_bytes`.
        flight_bytes: on the way now.
        busy: something is on the way or waits to be sent.
        rtt_s, min_rtt_s: smoothed and least round trip; None where unknown.
        lost: segments sent again, or marked by ECN, since the begin.
    """

    now_s: float
    arrived_bytes: int
    flight_bytes: int
    busy: bool
    rtt_s: float | None = None
    min_rtt_s: float | None = None
    lost: int = 0


class ContentionWatch:
    """Watches one flow.

    Attributes:
        contended: whether somebody else is on its way.
        best_Bps: what it had alone, as far as is known; 0 before the first long busy stretch.
    """

    def __init__(self, settings: ContentionSettings | None = None) -> None:
        self._settings = settings or ContentionSettings()
        self.contended = False
        self.best_Bps = 0.0
        self._stretches: deque[Reading] = deque(maxlen=self._settings.best_stretches + 1)
        self._capped = False
        self._for = 0

    def read(self, reading: Reading, *, capped: bool) -> bool:
        """Take in a reading; returns `contended`.

        Args:
            reading: the newest; a stretch may span several.
            capped: the flow is held below `best_Bps` by ourselves.
        """
        if not reading.busy:
            # Nobody is in the way of a flow that does not send.
            self._stretches.clear()
            self.contended, self._for = False, 0
            return False
        if capped != self._capped:
            self._capped = capped
            self._stretches.clear()
        if not self._stretches:
            self._stretches.append(reading)
            return self.contended
        before = self._stretches[-1]
        span_s = reading.now_s - before.now_s
        if span_s < (self._settings.capped_s if capped else self._settings.free_s):
            return self.contended
        self._stretches.append(reading)
        rate_Bps = (reading.arrived_bytes - before.arrived_bytes) / span_s
        queue = self._queue(reading, rate_Bps)
        if capped:
            self._turn(queue)
            return self.contended
        self._learn(span_s)
        held_back = queue or reading.lost > before.lost
        self._turn(held_back and rate_Bps < self._settings.low * self.best_Bps)
        return self.contended

    def _learn(self, span_s: float) -> None:
        self.best_Bps *= 1.0 - self._settings.forget * span_s
        if len(self._stretches) > self._settings.best_stretches:
            first, last = self._stretches[0], self._stretches[-1]
            rate_Bps = (last.arrived_bytes - first.arrived_bytes) / (last.now_s - first.now_s)
            self.best_Bps = max(self.best_Bps, rate_Bps)

    def _queue(self, reading: Reading, rate_Bps: float) -> bool:
        if reading.rtt_s is None or reading.min_rtt_s is None:
            return False
        now_s = min(reading.rtt_s, reading.flight_bytes / rate_Bps) if rate_Bps > 0 else reading.rtt_s
        return (
            now_s > self._settings.queue_ratio * reading.min_rtt_s
            and now_s - reading.min_rtt_s > self._settings.queue_s
        )

    def _turn(self, contended: bool) -> None:
        if contended == self.contended:
            self._for = 0
            return
        self._for += 1
        if self._for >= (self._settings.on if contended else self._settings.off):
            self.contended, self._for = contended, 0


class Worthwhile:
    """Whether capping is worth a try for a job with several flows, from how long its iterations send.

    Several flows of one job take turns on its own links, and each is slower than its best without anybody else. So
    such a job is capped only when an iteration sent for longer than `slow` times the shortest, for `TRY` iterations;
    when they were no better, it is left alone for `REST` iterations, and twice as long each time.

    Attributes:
        allowed: whether flows may be capped now.
    """

    TRY, REST, MOST_REST = 3, 8, 128
    SLOW, BETTER = 1.07, 0.97

    def __init__(self) -> None:
        self.allowed = False
        self._tried: list[float] = []
        self._reference_s = 0.0
        self._resting, self._rest = 0, self.REST

    def ended(self, sending_s: float, shortest_s: float) -> None:
        """An iteration has ended that sent for so long; the shortest of its kind is given too."""
        if self._resting:
            self._resting -= 1
            return
        slow = sending_s > self.SLOW * shortest_s
        if not self.allowed:
            self.allowed, self._tried, self._reference_s = slow, [], sending_s
            return
        self._tried.append(sending_s)
        if len(self._tried) < self.TRY:
            return
        middle_s = statistics.median(self._tried)
        if middle_s <= self.BETTER * self._reference_s:
            self.allowed, self._tried, self._reference_s = slow, [], middle_s
            self._rest = self.REST
        else:
            self.allowed, self._resting = False, self._rest
            self._rest = min(self.MOST_REST, 2 * self._rest)
