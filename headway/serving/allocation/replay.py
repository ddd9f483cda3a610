"""Recorded calls of one model, sent again to one engine. Pure.

- What a run asked for at one instant comes again as one burst; calls that came alone come alone. Bursts come as a
  Poisson process, at such a rate that calls come at the rate that is asked for.
- Lengths and prompts are the recorded ones; embeddings and the like, which have no answer, get one of one token.
- OPEN_RUNS runs are under way at any time, each in its own order, so that a prompt finds in the cache what its run put
  there. The first ones begin in their middle, long runs more often than
  short ones, as one meets them at any moment: so neither beginnings nor ends are measured too often. Each of them
  sends its first burst before any sends a second, and nothing is measured before: those find nothing in the cache.
- A run that comes again shares with other runs the blocks that it shared before, and has new ones for the rest.
- The same seed gives the same bursts, and the same gaps but for their scale: engines and rates differ, luck does not.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from statistics import fmean

from headway.errors import HeadwayError
from headway.serving.engine.core import EngineCore
from headway.serving.engine.types import EngineProfile, Job
from headway.serving.prefix import mix
from headway.serving.workflows.blocks import Copies, check_lengths
from headway.serving.workflows.calls import Call

OPEN_RUNS = 12
"""Runs that are under way at any time of a replay (count)."""
TOGETHER = 0.1
"""Of a model's mean call: a run's calls that begin within so much time are one burst (1)."""
WARM_UP = 0.25
"""Calls before the first one that is measured, as a part of those that are (1)."""

Burst = tuple[Job, ...]


class Replay:
    """The calls of one model.

    Attributes:
        bursty: whether any came together.

    Args:
        calls: of that model, at least one, of any runs.
        seed: of the gaps, and of which run comes when.
    """

    def __init__(self, calls: Sequence[Call], *, seed: int) -> None:
        check_lengths(calls)
        together_s = TOGETHER * fmean(call.end_s - call.start_s for call in calls)
        runs = defaultdict(list)
        for call in sorted(calls, key=lambda call: (call.start_s, call.id)):
            runs[call.workflow, call.run].append(call)
        self._runs = [_bursts(run, together_s) for run in runs.values()]
        self._copies = Copies(runs.values(), seed=seed)
        self._seed = seed
        self._made: dict[int, list[Burst]] = {}
        self._more: dict[int, Iterator[Burst]] = {}
        self.bursty = any(len(burst) > 1 for run in self._runs for burst in run)

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
        """When which call comes: so many at least, `rate` per second in the mean, all at 0 where that is infinite."""
        bursts = self._first(calls, spread)
        gap_s = fmean(len(burst) for burst in bursts) / rate
        gaps = random.Random(self._seed)
        at_s = 0.0
        arrivals = []
        for burst in bursts:
            at_s += gaps.expovariate(1.0) * gap_s
            arrivals += [(at_s, job) for job in burst]
        return arrivals

    def jobs(self, *, spread: int = 1) -> Iterator[Job]:
        """The same calls in the same order without times, and without end."""
        for burst in self._endless(spread):
            yield from burst

    def saturation(self, engine: EngineProfile, calls: int, *, spread: int = 1) -> float:
        """Calls per second while there are always some that wait: between the first and the last quarter of ends."""
        least = max(2 * calls, 4 * self._first_bursts(spread))
        return throughput(run(engine, self.arrivals(least, float("inf"), spread=spread)).values())

    def _first_bursts(self, spread: int) -> int:
        """Calls until each run that is under way in the beginning has sent one burst (count)."""
        widest = max(len(burst) for run in self._runs for burst in run)
        return sum(len(burst) for burst in self._first(OPEN_RUNS * widest, spread)[:OPEN_RUNS])

    def _first(self, calls: int, spread: int) -> list[Burst]:
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

    def _endless(self, spread: int) -> Iterator[Burst]:
        """What one of `spread` instances gets of each burst, without end."""
        choose = random.Random(mix(self._seed))
        runs = range(len(self._runs))
        sent = 0
        under_way = []
        for copy, run in enumerate(choose.choices(runs, weights=[len(it) for it in self._runs], k=OPEN_RUNS)):
            under_way.append((run, copy, choose.randrange(len(self._runs[run]))))
        for copy in count(OPEN_RUNS):
            turn = copy - OPEN_RUNS
            slot = turn if turn < OPEN_RUNS else choose.randrange(OPEN_RUNS)
            run, named, at = under_way[slot]
            burst = self._runs[run][at]
            last = at + 1 == len(self._runs[run])
            under_way[slot] = (choose.choice(runs), copy, 0) if last else (run, named, at + 1)
            mine = burst[choose.randrange(spread) :: spread]
            if mine:
                yield tuple(
                    Job(str(number), it.input_tokens, max(1, it.output_tokens), self._copies.renamed(it.blocks, named))
                    for number, it in enumerate(mine, start=sent)
                )
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


def throughput(ends_s: Iterable[float]) -> float:
    """Calls per second between the first and the last quarter of their ends, or in all where these fall together."""
    ordered = sorted(ends_s)
    first, last = len(ordered) // 4, 3 * len(ordered) // 4
    if ordered[last] > ordered[first]:
        return (last - first) / (ordered[last] - ordered[first])
    return len(ordered) / ordered[-1]


def _bursts(calls: Sequence[Call], together_s: float) -> list[list[Call]]:
    """A run's calls in order of their starts, those together that begin within `together_s` of the first."""
    bursts: list[list[Call]] = []
    for call in calls:
        if bursts and call.start_s - bursts[-1][0].start_s <= together_s:
            bursts[-1].append(call)
        else:
            bursts.append([call])
    return bursts
