"""Finding a job's iterations in what it sends: where one ends, and how many bytes one has. Pure.

A training job sends in bursts with pauses between them, and the longest pause comes back once per iteration. A pause
ends an iteration when it is longer than the threshold, which is half of the longest pauses seen lately; so the short
pauses between buckets don't count. Bytes per iteration are the median of the last few iterations. Traffic counts as
periodic when those agree; else the ratio is None, and the flow should be plain TCP.

It is wrong for jobs whose longest pauses come in the middle of an iteration (a checkpoint, a validation pass): the
next few iterations are then not periodic, and the flow is plain TCP until they are again.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrackerSettings:
    """How iterations are found.

    Attributes:
        least_pause_s: shorter pauses never end an iteration: a few round trips and a late wake-up.
        pause_share: part of the lately longest pause that ends an iteration.
        keep: iterations that are remembered.
        least: iterations that must agree before traffic counts as periodic.
        spread: largest relative difference from their median that still is agreement.
    """

    least_pause_s: float = 0.01
    pause_share: float = 0.5
    keep: int = 8
    least: int = 2
    spread: float = 0.15


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration as the sender saw it: first and last byte, and how many. The next begins at `next_s`."""

    start_s: float
    last_s: float
    sent_bytes: int
    next_s: float


class IterationTracker:
    """Follows one job's bytes on one host. Feed `sent` whenever bytes have left, at least every few milliseconds.

    Attributes:
        ended: the last iterations, oldest first.
        iterations: how many have ended in all.
    """

    def __init__(self, settings: TrackerSettings | None = None) -> None:
        self._settings = settings or TrackerSettings()
        self.ended: deque[Iteration] = deque(maxlen=self._settings.keep)
        self.iterations = 0
        self._pauses_s: deque[float] = deque(maxlen=4 * self._settings.keep)
        self._start_s: float | None = None
        self._paused_s = 0.0
        self._last_s = 0.0
        self._before_bytes = 0
        self._total_bytes = 0

    def sent(self, now_s: float, total_bytes: int, *, idle: bool = True) -> None:
        """The flow has sent `total_bytes` in all by `now_s` (seconds on any steady clock; bytes never fall).

        Args:
            idle: it had nothing to send in the pause before; a pause in which data waited, as for a packet to be
                sent again, is the network's doing and no part of the job's pattern.
        """
        if self._start_s is None:
            if total_bytes <= 0:
                return
            self._start_s, self._last_s = now_s, now_s
        pause_s = now_s - self._last_s
        if total_bytes <= self._total_bytes:
            self._paused_s = pause_s if idle else 0.0
            return
        self._paused_s = 0.0
        if idle and pause_s > self._settings.least_pause_s:
            if pause_s > self.threshold_s:
                self.ended.append(Iteration(self._start_s, self._last_s, self._total_bytes - self._before_bytes, now_s))
                self.iterations += 1
                self._start_s, self._before_bytes = now_s, self._total_bytes
            self._pauses_s.append(pause_s)
        self._last_s, self._total_bytes = now_s, total_bytes

    @property
    def threshold_s(self) -> float:
        """A longer pause ends an iteration."""
        longest_s = max(self._pauses_s, default=0.0)
        return max(self._settings.least_pause_s, self._settings.pause_share * longest_s)

    @property
    def iteration_bytes(self) -> float | None:
        """Bytes per iteration; None while traffic is not periodic."""
        recent = [each.sent_bytes for each in self.ended][-max(3, self._settings.least) :]
        if len(recent) < self._settings.least:
            return None
        middle = statistics.median(recent)
        agree = all(abs(each - middle) <= self._settings.spread * middle for each in recent)
        return middle if agree and middle > 0 else None

    @property
    def period_s(self) -> float | None:
        """From the beginning of one iteration to the next, median of the remembered ones; None if not periodic."""
        if self.iteration_bytes is None:
            return None
        return statistics.median(each.next_s - each.start_s for each in self.ended)

    @property
    def ratio(self) -> float | None:
        """Part of this iteration's bytes that has been sent, 0 to 1; None while traffic is not periodic.

        0 in a pause that ends the iteration: the next bytes begin another one.
        """
        expected = self.iteration_bytes
        if expected is None:
            return None
        if self._paused_s > self.threshold_s:
            return 0.0
        sent = self._total_bytes - self._before_bytes
        if sent > (1 + self._settings.spread) * expected:
            return None  # the job has changed: plain TCP until the new size has been seen
        return min(1.0, sent / expected)
