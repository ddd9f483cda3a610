"""Recorded calls of one model, sent again to one engine. Pure.

- What a run asked for at one instant comes again as one burst; calls that came alone come alone. Bursts come as a
  Poisson process of which the number in all its time is given: calls come at exactly the rate that is asked for, which
  makes a mean latency near saturation 40 % less a matter of chance.
- Lengths and prompts are the recorded ones; embeddings and the like, which have no answer, get one of one token.
- OPEN_RUNS runs are under way at any time, each in its own order, so that a prompt finds in the cache what its run put
  there. The first ones begin in their middle, long runs more often than
  short ones, as one meets them at any moment: so neither beginnings nor ends are measured too often. Each of them
  sends its first burst before any sends a second, and nothing is measured before: those find nothing in the cache.
- A run that comes again shares with other runs the blocks that it shared before, and has new ones for the rest.
- The same seed gives the same bursts, and the same gaps but for their scale: engines and rates differ, luck does not.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

from headway.errors import HeadwayError
from headway.serving.allocation.recorded import Recorded, part
from headway.serving.engine.core import EngineCore
from headway.serving.engine.types import EngineProfile, Job
from headway.serving.prefix import mix
from headway.serving.workflows.calls import Call

OPEN_RUNS = 12
"""Runs that are under way at any time of a replay (count)."""
WARM_UP = 0.25
"""Calls before the first one that is measured, as a part of those that are (1)."""

Jobs = tuple[Job, ...]
"""Of one burst."""


class Replay:
    """The calls of one model.

    Args:
        calls: of that model, at least one, of any runs.
        seed: of the gaps, and of which run comes when.
    """

    def __init__(self, calls: Sequence[Call], *, seed: int) -> None:
        self._recorded = Recorded(calls, seed=seed)
        self._seed = seed
        self._made: dict[int, list[Jobs]] = {}
        self._more: dict[int, Iterator[Jobs]] = {}

    def latencies_s(self, engine: EngineProfile, calls: int, rate: float, *, spread: int = 1) -> list[float]:
        """How long each call takes, in order of arrival, where `rate` come per second.

        Args:
            engine: to replay on.
            calls: to measure, about (count); before them come those of the warm-up.
            rate: calls per second.
            spread: instances that share every burst; this is one of them.
        """
        warm_up = max(round(calls * WARM_UP), self._first_bursts(spread))
        arrivals = self.arrivals(calls + warm_up, rate, spread=spread)
        ends_s = run(engine, arrivals)
        return [ends_s[job.id] - at_s for at_s, job in arrivals[warm_up:]]

    def arrivals(self, calls: int, rate: float, *, spread: int = 1) -> list[tuple[float, Job]]:
        """When which call comes: so many at least, `rate` per second from 0 to the last of them."""
        bursts = self._first(calls, spread)
        choose = random.Random(self._seed)
        gaps = [choose.expovariate(1.0) for _ in bursts]
        gap_s = sum(len(burst) for burst in bursts) / rate / sum(gaps)
        arrivals = []
        for at, burst in zip(itertools.accumulate(gaps), bursts, strict=True):
            arrivals += [(at * gap_s, job) for job in burst]
        return arrivals

    def jobs(self, *, spread: int = 1) -> Iterator[Job]:
        """The same calls in the same order without times, and without end."""
        for burst in self._endless(spread):
            yield from burst

    def _first_bursts(self, spread: int) -> int:
        """Calls until each run that is under way in the beginning has sent one burst (count)."""
        widest = max(len(burst.calls) for run in self._recorded.runs for burst in run)
        return sum(len(burst) for burst in self._first(OPEN_RUNS * widest, spread)[:OPEN_RUNS])

    def _first(self, calls: int, spread: int) -> list[Jobs]:
        """Bursts of so many calls at least, always the same ones."""
        if spread not in self._made:
            self._made[spread], self._more[spread] = [], self._endless(spread)
        made = self._made[spread]
        jobs = bursts = 0
        while jobs < calls:
            if bursts == len(made):
                made.append(next(self._more[spread]))
            jobs += len(made[bursts])
            bursts += 1
        return made[:bursts]

    def _endless(self, spread: int) -> Iterator[Jobs]:
        """What one of `spread` instances gets of each burst, without end."""
        choose = random.Random(mix(self._seed))
        runs = self._recorded.runs
        under_way = [(*begun, copy) for copy, begun in enumerate(self._recorded.begun(choose, OPEN_RUNS))]
        sent = 0
        for copy in itertools.count(OPEN_RUNS):
            turn = copy - OPEN_RUNS
            slot = turn if turn < OPEN_RUNS else choose.randrange(OPEN_RUNS)
            run, at, named = under_way[slot]
            burst = runs[run][at]
            last = at + 1 == len(runs[run])
            under_way[slot] = (choose.randrange(len(runs)), 0, copy) if last else (run, at + 1, named)
            mine = part(burst, spread, choose)
            if mine:
                yield tuple(self._recorded.job(str(number), it, named) for number, it in enumerate(mine, start=sent))
                sent += len(mine)


def run(engine: EngineProfile, arrivals: Sequence[tuple[float, Job]]) -> dict[str, float]:
    """When each job ends: by its id, seconds.

    Args:
        engine: that they are sent to.
        arrivals: when and what, in order of time.
    """
    core = EngineCore(engine)
    ends_s: dict[str, float] = {}
    come = 0
    while len(ends_s) < len(arrivals):
        due_s = core.due_s
        if come < len(arrivals) and (due_s is None or arrivals[come][0] <= due_s):
            now_s = arrivals[come][0]
            while come < len(arrivals) and arrivals[come][0] == now_s:
                core.submit(arrivals[come][1], now_s)
                come += 1
            if core.due_s is None:
                core.begin_steps(now_s)
        elif due_s is None:
            raise HeadwayError(f"an engine stands still with {len(arrivals) - len(ends_s)} calls in it")
        else:
            ends_s |= {token.id: due_s for token in core.end_steps(due_s) if token.last}
            core.begin_steps(due_s)
    return ends_s
