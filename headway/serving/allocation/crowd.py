"""How many calls one engine ends per second at most, with as many runs under way as are best for it. Pure.

A crowd of recorded runs is kept: each sends its next burst when its last one has ended and the recorded pause is over,
and is followed by another run at once. With few, the engine waits for them; with many, its cache no longer holds what
they will come back for (turns of an agent), and throughput falls, to less than half in the worst cases. So crowds
double, or halve, while that brings more, and sizes around the best one are tried too. The most of several measurements
is a little more than what one size does in the mean: by about their deviation, some 3 %.

Only crowds that wait for their answers tell that: where a run's next call is sent before its last one has ended, both
are in one batch and share a prompt which, in truth, the later one might no longer find. Sent so, the ReAct workflow's
calls to a model of 14 billion parameters on half an A100 come to 7.9 per second; in the best crowd it is 5.6.

Cost: some 6 to 14 crowds (`grown`), each with 1.25 times as many calls as are measured or more.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Sequence

from headway.errors import HeadwayError
from headway.serving.allocation.recorded import Burst, Recorded, part
from headway.serving.engine.core import EngineCore
from headway.serving.engine.types import EngineProfile
from headway.serving.workflows.calls import Call

FIRST = 8
"""Runs under way in the crowd that is tried first (count)."""
MOST = 2048
"""Runs that are really under way (count). A larger crowd is so many with pauses that are as much shorter: they send as
many calls, and of so many runs no cache holds what they come back for."""
LARGEST = 1 << 20
"""Runs from which on a crowd does not grow (count)."""
GROWTH = 0.02
"""That doubling a crowd must bring to be doubled again (1)."""
CLOSER = (2**0.5, 2**0.25)
"""Steps from the best crowd to those that are tried besides, first and then (1)."""
TURNOVERS = 2
"""Bursts of each run of a crowd while it is measured, and half as many before (count)."""


def grown(
    throughput: Callable[[int], float], *, first: int = FIRST, closer: Sequence[float] = CLOSER
) -> dict[int, float]:
    """What crowds of several sizes do, by size: as large as bring more, as small as bring more, and some near the best.

    Args:
        throughput: of a crowd of that size; dear. Called some 6 to 14 times, once more for each doubling.
        first: where to begin (count): from there a crowd is doubled, or halved, while that brings more.
        closer: as CLOSER.
    """
    found = {first: throughput(first)}
    size = first
    while size < LARGEST:
        found[2 * size] = throughput(2 * size)
        size *= 2
        if found[size] < (1 + GROWTH) * found[size // 2]:
            break
    size = first
    while size > 1 and (less := throughput(size // 2)) > (1 + GROWTH) * found[size]:
        size //= 2
        found[size] = less
    for step in closer:
        best = max(found, key=lambda runs: found[runs])
        for near in {max(1, round(best / step)), round(best * step)} - found.keys():
            found[near] = throughput(near)
    return found


class Crowds:
    """The calls of one model, in crowds of its runs.

    Args:
        calls: of that model, at least one, of any runs.
        seed: of which run comes when.
    """

    def __init__(self, calls: Sequence[Call], *, seed: int) -> None:
        self._recorded = Recorded(calls, seed=seed)
        self._seed = seed
        bursts = sum(len(run) for run in self._recorded.runs)
        self._burst_calls = len(calls) / bursts

    def saturation(self, engine: EngineProfile, calls: int, *, spread: int = 1) -> float:
        """Calls per second with the best crowd.

        Args:
            engine: that they are sent to.
            calls: to measure for each crowd, at least (count).
            spread: instances that share every burst; this is one of them.
        """
        return max(grown(lambda runs: self.throughput(engine, runs, calls, spread=spread)).values())

    def throughput(self, engine: EngineProfile, runs: int, calls: int, *, spread: int = 1) -> float:
        """Calls per second with so many runs under way, of `calls` calls at least."""
        real = min(runs, MOST)
        turn = real * self._burst_calls / spread
        warm_up = math.ceil(max(turn * TURNOVERS / 2, calls / 4))
        ends_s = _Crowd(self._recorded, engine, real, spread, self._seed, pace=real / runs).ends_s(
            warm_up + math.ceil(max(turn * TURNOVERS, calls))
        )
        return (len(ends_s) - 1 - warm_up) / (ends_s[-1] - ends_s[warm_up])


class _Crowd:
    """So many runs on one engine, as one of `spread` instances sees them; all that is not its own takes `pace` times as
    long as it was recorded."""

    def __init__(
        self, recorded: Recorded, engine: EngineProfile, runs: int, spread: int, seed: int, *, pace: float
    ) -> None:
        self._recorded = recorded
        self._core = EngineCore(engine)
        self._spread = spread
        self._pace = pace
        self._choose = random.Random(seed)
        self._at = [(*begun, copy) for copy, begun in enumerate(recorded.begun(self._choose, runs))]
        self._copies = runs
        self._left = [0] * runs
        self._of: dict[str, int] = {}
        self._sent = 0
        self._due = [(self._choose.random() * self._pace * self._burst(slot).pause_s, slot) for slot in range(runs)]
        heapq.heapify(self._due)

    def ends_s(self, calls: int) -> list[float]:
        """When each of the first `calls` calls ends, seconds, in order."""
        core = self._core
        ends_s: list[float] = []
        while len(ends_s) < calls:
            if self._due and (core.due_s is None or self._due[0][0] <= core.due_s):
                now_s = self._due[0][0]
                while self._due and self._due[0][0] == now_s:
                    self._send(heapq.heappop(self._due)[1], now_s)
                if core.due_s is None:
                    core.begin_steps(now_s)
            elif core.due_s is None:
                raise HeadwayError(f"an engine stands still with {len(self._of)} calls in it")
            else:
                now_s = core.due_s
                for token in core.end_steps(now_s):
                    if token.last:
                        ends_s.append(now_s)
                        self._ended(self._of.pop(token.id), now_s)
                core.begin_steps(now_s)
        return ends_s

    def _send(self, slot: int, now_s: float) -> None:
        """A run's burst, or, where other instances get all of it, its next one after the time that it took."""
        burst, copy = self._burst(slot), self._at[slot][2]
        mine = part(burst, self._spread, self._choose)
        if not mine:
            self._go_on(slot, now_s + self._pace * burst.took_s)
        self._left[slot] = len(mine)
        for call in mine:
            id_ = str(self._sent)
            self._core.submit(self._recorded.job(id_, call, copy), now_s)
            self._of[id_] = slot
            self._sent += 1

    def _ended(self, slot: int, now_s: float) -> None:
        self._left[slot] -= 1
        if not self._left[slot]:
            self._go_on(slot, now_s)

    def _go_on(self, slot: int, now_s: float) -> None:
        """The run's next burst after its pause, or another run's first."""
        run, at, copy = self._at[slot]
        if at + 1 < len(self._recorded.runs[run]):
            self._at[slot] = (run, at + 1, copy)
        else:
            self._at[slot] = (self._choose.randrange(len(self._recorded.runs)), 0, self._copies)
            self._copies += 1
        heapq.heappush(self._due, (now_s + self._pace * self._burst(slot).pause_s, slot))

    def _burst(self, slot: int) -> Burst:
        run, at, _ = self._at[slot]
        return self._recorded.runs[run][at]
