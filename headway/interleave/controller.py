"""From the bytes that a job has sent to how hard its flows push. Pure.

One controller follows one job on one host: the sum over all of its flows there. How far the job's iteration is, is a
property of the job: with one controller per flow, a flow that has its turn late in the iteration would begin with the
weight of a job that has only just begun. What comes out is one F for all flows, or None (plain TCP) while traffic is
not periodic; a job that changes is plain TCP until its new size has been seen `TrackerSettings.least` times.

It also keeps account of what it has reached: a job is settled while its last iterations take at most `SETTLED` times
what they would take alone, which is estimated as the pause (computing) plus its bytes at the best rate of any iteration
seen. The estimate is too high for a job that was never alone on its link, so "settled" is only as good as that.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from headway.interleave.aggressiveness import Aggressiveness
from headway.interleave.contention import Worthwhile
from headway.interleave.iterations import Iteration, IterationTracker, TrackerSettings

SETTLED = 1.05
SETTLED_RUN = 3
"""So many iterations in sequence, on average no longer than `SETTLED` times the isolated one."""
_HISTORY = 64


@dataclass(frozen=True, slots=True)
class Report:
    """What was learnt of a job.

    Attributes:
        iterations: how many have ended.
        iteration_bytes: bytes per iteration that leave this host; None while not periodic.
        period_s: from one iteration's begin to the next, median of the last; None while not periodic.
        isolated_s: the same if the job were alone, estimated; None while not periodic.
        overlap: part of the sending time of the last iterations that is there only because others send too, 0 to 1.
        settled_after: iterations until it settled first, since the job took its present form; None: not yet.
        settled: whether the last `SETTLED_RUN` iterations were.
    """

    iterations: int
    iteration_bytes: float | None = None
    period_s: float | None = None
    isolated_s: float | None = None
    overlap: float | None = None
    settled_after: int | None = None
    settled: bool = False

    @property
    def sentence(self) -> str:
        """For people."""
        if self.period_s is None or self.isolated_s is None or self.iteration_bytes is None:
            return f"{self.iterations} iterations seen, not periodic: plain TCP"
        what = (
            f"{self.iterations} iterations seen, of {self.iteration_bytes / 1e6:.1f} MB in {self.period_s:.3f} s; "
            f"alone it would take {self.isolated_s:.3f} s"
        )
        if self.settled_after is None:
            return f"{what}; not settled, {self.overlap or 0.0:.0%} of the sending time is others' doing"
        return f"{what}; settled after {self.settled_after}" + ("" if self.settled else ", not any more")


class Controller:
    """Follows one job's bytes on one host."""

    def __init__(self, aggressiveness: Aggressiveness, settings: TrackerSettings | None = None) -> None:
        self._aggressiveness = aggressiveness
        self._settings = settings or TrackerSettings()
        self._tracker = IterationTracker(self._settings)
        self._first_bytes: int | None = None
        self._worthwhile = Worthwhile()
        self._recent: list[Iteration] = []
        self._seen = 0
        self._since = 0
        self._settled_after: int | None = None

    def sent(self, now_s: float, total_bytes: int, *, idle: bool = True) -> float | None:
        """F for all of the job's flows; None: plain TCP.

        Args:
            now_s: on any steady clock; call at least every few milliseconds while bytes move.
            total_bytes: that all flows together have sent since any moment before the first call; never less.
            idle: nothing waited to be sent in the pause that ends now; see `IterationTracker.sent`.
        """
        if self._first_bytes is None:
            self._first_bytes = total_bytes
        self._tracker.sent(now_s, total_bytes - self._first_bytes, idle=idle)
        if self._tracker.iterations > self._seen:
            self._ended()
        return self.weight

    @property
    def ratio(self) -> float | None:
        """Part of this iteration's bytes that has been sent; None while not periodic."""
        return self._tracker.ratio

    @property
    def weight(self) -> float | None:
        """F now; None: plain TCP."""
        ratio = self._tracker.ratio
        return None if ratio is None else self._aggressiveness.weight(ratio)

    @property
    def worth_capping(self) -> bool:
        """Whether a job with several flows may be capped now; see `contention.Worthwhile`."""
        return self._worthwhile.allowed

    @property
    def report(self) -> Report:
        """What was learnt so far."""
        expected, isolated_s = self._tracker.iteration_bytes, self._isolated_s()
        if expected is None or isolated_s is None:
            return Report(self._seen)
        last = self._recent[-SETTLED_RUN:]
        busy_s = sum(each.last_s - each.start_s for each in last)
        alone_s = sum(each.sent_bytes for each in last) / self._best_Bps()
        return Report(
            iterations=self._seen,
            iteration_bytes=expected,
            period_s=statistics.median(_length_s(each) for each in last),
            isolated_s=isolated_s,
            overlap=max(0.0, 1.0 - alone_s / busy_s) if busy_s > 0 else 0.0,
            settled_after=self._settled_after,
            settled=self._is_settled(isolated_s),
        )

    def _ended(self) -> None:
        self._seen = self._tracker.iterations
        latest = self._tracker.ended[-1]
        expected = self._tracker.iteration_bytes
        if expected is not None:
            # Those of another size belong to what the job was before.
            near = [each for each in self._recent if self._alike(each, expected)]
            if len(near) < len(self._recent):
                self._recent, self._since, self._settled_after = near, self._seen - 1 - len(near), None
                self._worthwhile = Worthwhile()
        self._recent = [*self._recent, latest][-_HISTORY:]
        if expected is not None:
            sending_s = [each.last_s - each.start_s for each in self._recent if self._alike(each, expected)]
            if sending_s:
                self._worthwhile.ended(sending_s[-1], min(sending_s))
        isolated_s = self._isolated_s()
        if None not in (expected, isolated_s) and self._settled_after is None and self._is_settled(isolated_s or 0.0):
            self._settled_after = self._seen - SETTLED_RUN - self._since

    def _alike(self, each: Iteration, expected: float) -> bool:
        return abs(each.sent_bytes - expected) <= self._settings.spread * expected

    def _is_settled(self, isolated_s: float) -> bool:
        last = self._recent[-SETTLED_RUN:]
        return len(last) == SETTLED_RUN and statistics.mean(map(_length_s, last)) <= SETTLED * isolated_s

    def _isolated_s(self) -> float | None:
        if not self._recent:
            return None
        best_Bps = self._best_Bps()
        if not best_Bps:
            return None
        pause_s = statistics.median(each.next_s - each.last_s for each in self._recent)
        return pause_s + statistics.median(each.sent_bytes for each in self._recent) / best_Bps

    def _best_Bps(self) -> float:
        # Short bursts are all queue and no link; a median of the three best would need a job that is alone often.
        moving = [each for each in self._recent if each.last_s > each.start_s]
        return max((each.sent_bytes / (each.last_s - each.start_s) for each in moving), default=0.0)


def _length_s(each: Iteration) -> float:
    return each.next_s - each.start_s
