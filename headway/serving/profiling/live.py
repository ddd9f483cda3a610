"""Latency curves from live engines: recorded calls are sent again at swept rates (Scepsy, arXiv 2604.15186).

On each engine, in this order: one call after the other until it is warm; a crowd that grows until that brings no more,
for the saturation (`crowd`); then Poisson arrivals at parts of it (`point`). Where the engine does not keep up with
such a part, twice, the saturation was too high: it is lowered (`lowered`), and all parts are measured anew.

What is sent is what `allocation.replay` says: bursts as bursts, lengths as recorded, prompts that share what the
recorded ones share, though in other words. A word stands for a token; by how many the engine counts more (a chat's
template, rare words) shows while it warms up, and prompts are shorter by so many from then on. No two of these steps
use the same private texts, so that none finds in the cache what another left there.

An engine that fails a call ends the measurement: what a broken engine does is no curve. A 404 is a wrong command line:
either the path is wrong, or the engine knows its model by another name.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import aiohttp
from yarl import URL

from headway.errors import HeadwayError, UsageError
from headway.serving.allocation.replay import WARM_UP, Replay
from headway.serving.allocation.types import Curve, ModelProfile, Shape
from headway.serving.engine.types import Job
from headway.serving.loadgen.ask import Ask
from headway.serving.loadgen.client import Limits, send
from headway.serving.loadgen.client import session as new_session
from headway.serving.loadgen.row import DONE, Row
from headway.serving.loadgen.run import allow_streams, run
from headway.serving.prefix import mix
from headway.serving.profiling.crowd import Level, Ramp, Span, grows, levels
from headway.serving.profiling.point import Phases, Point, judged, phases
from headway.serving.workflows.blocks import block_size
from headway.serving.workflows.calls import Call
from headway.serving.workload.arrival import Arrival

WARMING_CALLS = 3
"""Calls one after the other before anything is measured (count)."""
NOT_FOUND = 404
TRIES = 3
"""Saturations that are tried, each lower than the one before (count)."""
LOWER = 0.9
"""At most so much of the one before, the next one is (1), unless more was steady."""
FELL = 0.9
"""Below so much of what the crowd found (1), a lowered saturation is worth a note."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is measured on each engine.

    Attributes:
        loads: rates, as parts of the saturation, rising, below 1.
        ramp: how the saturation is found.
        point_s: how long calls of a rate are measured, seconds; before and after them come others.
        least_calls: that are measured of a rate, whatever `point_s` says (count).
        spread: instances that share every burst in the end; the engine gets one part of it.
        limits: of each call.
    """

    loads: tuple[float, ...] = (0.1, 0.4, 0.7, 0.85, 0.95)
    ramp: Ramp = field(default_factory=Ramp)
    point_s: float = 30.0
    least_calls: int = 24
    spread: int = 1
    limits: Limits = field(default_factory=Limits)


async def live_profile(
    model: str,
    calls: Sequence[Call],
    engines: Mapping[Shape, URL],
    sweep: Sweep,
    *,
    ask: Ask,
    told: Callable[[str], None] = lambda line: None,
    noted: Callable[[str], None] = lambda line: None,
) -> ModelProfile:
    """Curves of the shapes that there are engines of, measured one engine after the other.

    Args:
        model: the name in the calls; others' are left out.
        calls: recorded; at least one of the model.
        engines: an engine of each shape, alone on its GPUs while it is measured.
        sweep: what to measure.
        ask: how requests are written, with the model's name on the engines.
        told: gets a line for each step and each point.
        noted: gets a line of what whoever uses the curves should know.

    Raises:
        UsageError: an engine answers 404.
        HeadwayError: an engine failed a call, or never kept up with what it had just done.
    """
    mine = [call for call in calls if call.model == model]
    curves = {}
    for shape, url in engines.items():
        curves[shape] = await live_curve(mine, url, sweep, ask=ask, told=told, noted=noted)
    source = "live: " + ", ".join(str(url) for url in engines.values())
    return ModelProfile(model, curves, {}, source)


async def live_curve(
    calls: Sequence[Call],
    url: URL,
    sweep: Sweep,
    *,
    ask: Ask,
    told: Callable[[str], None] = lambda line: None,
    noted: Callable[[str], None] = lambda line: None,
) -> Curve:
    """The curve of one engine; see `live_profile`."""
    told(f"{url}: {plan_words(sweep)}")
    measuring = _Measuring(url, sweep, ask, calls, block_size(calls), told)
    rows = await measuring.warmed_up()
    more_tokens = statistics.median(row.asked_tokens - row.input_tokens for row in rows)
    measuring = replace(measuring, more_tokens=max(0, round(more_tokens)))
    alone_s = statistics.fmean(row.e2e_s or 0.0 for row in rows)
    found = saturation = await measuring.saturation(seed=1)
    seed = 2
    steady = 0.0
    for _ in range(TRIES):
        points: dict[float, Point] = {}
        call_s = alone_s
        told(f"{url}: {len(sweep.loads)} rates, for {measuring.rates_s(saturation, alone_s):.0f} s or more ...")
        for load in sweep.loads:
            rate = load * saturation
            point = await measuring.point(rate, call_s, seed=seed)
            if point.overloaded:
                told(f"{url}: at {rate:.3g} calls/s a queue grows, and {point.ended_per_s:.3g} calls/s end: once more")
                again = await measuring.point(rate, call_s, seed=seed + 1)
                point = again if not again.overloaded else max(point, again, key=lambda it: it.ended_per_s)
            seed += 2
            if point.overloaded:
                saturation = lowered(saturation, rate, point.ended_per_s, steady)
                told(f"{url}: the saturation was too high: {saturation:.3g} calls/s")
                break
            points[rate], call_s = point, point.mean_s
            steady = max(steady, rate)
        else:
            if saturation < FELL * found:
                noted(
                    f"{url}: measured {found:.3g} calls/s at most, then lowered to {saturation:.3g}: was something "
                    "else running?"
                )
            return Curve(
                tuple(points),
                tuple(point.mean_s for point in points.values()),
                tuple(point.p99_s for point in points.values()),
                saturation,
            )
        if not saturation:
            break
    raise HeadwayError(
        f"{url} is not steady: it does not keep up with parts of what it has just done, after {TRIES} tries, the last "
        f"one at {rate:.3g} calls/s; is anything else sent to it, or running beside it?"
    )


def lowered(saturation: float, rate: float, ended_per_s: float, steady: float) -> float:
    """The next saturation to try where an engine did not keep up with a part of the one before.

    All figures are calls per second.

    What ended may say little: something else that runs for a minute makes it small. So the next one is not below what
    was steady before, but between that and what was too much.

    Args:
        saturation: that was tried.
        rate: with which the engine did not keep up, below `saturation`.
        ended_per_s: calls that ended then.
        steady: the highest rate that it has kept up with, below `saturation`; 0: none.
    """
    between = (steady + rate) / 2 if steady else 0.0
    return max(min(ended_per_s, LOWER * saturation), between, steady)


def plan_words(sweep: Sweep) -> str:
    """What will be measured of an engine, and how many calls that takes."""
    ramp = sweep.ramp
    return (
        f"{WARMING_CALLS} calls one by one; then {ramp.first} at once, twice as many, and so on ({ramp.most} at most), "
        "until that brings no more: about 8 calls for each of the largest crowd; then calls at "
        f"{len(sweep.loads)} rates, each for {sweep.point_s:g} s or {sweep.least_calls} calls, if that is longer"
    )


@dataclass(frozen=True, slots=True)
class _Measuring:
    url: URL
    sweep: Sweep
    ask: Ask
    calls: Sequence[Call]
    block_tokens: int
    told: Callable[[str], None]
    more_tokens: int = 0
    """That the engine counts in a prompt beyond its words."""

    async def warmed_up(self) -> list[Row]:
        """Of calls one after the other."""
        replay = Replay(self.calls, seed=0)
        jobs = replay.arrivals(WARMING_CALLS, 1.0, spread=self.sweep.spread)[:WARMING_CALLS]
        return [row for _, job in jobs for row in await self._rows([(0.0, job)], seed=0)]

    async def saturation(self, *, seed: int) -> float:
        """Calls per second that end at most."""
        jobs = Replay(self.calls, seed=seed).jobs(spread=self.sweep.spread)
        ramp = self.sweep.ramp
        allow_streams(ramp.most)
        async with new_session(self.sweep.limits) as session:
            found = await levels(self._sender(session, jobs, seed), ramp, self._told_level, self._told_begin)
        best = max(found, key=lambda it: it.calls_per_s)
        if grows(found, ramp):
            self.told(f"note: {best.crowd} calls at once still did more than fewer, and more are not tried")
        if best.busy > ramp.busy:
            self.told(
                f"note: this process was busy {best.busy:.0%} of the time: {best.calls_per_s:.3g} calls/s may be its "
                "own limit"
            )
        self.told(f"{self.url}: saturation {best.calls_per_s:.3g} calls/s")
        return best.calls_per_s

    def rates_s(self, saturation: float, call_s: float) -> float:
        """How long calls come at all parts of `saturation`, seconds, where each takes `call_s`."""
        return sum(self._phases(load * saturation, call_s).calls / (load * saturation) for load in self.sweep.loads)

    async def point(self, rate: float, call_s: float, *, seed: int) -> Point:
        """What `rate` calls per second meet, where a call takes about `call_s`."""
        parts = self._phases(rate, call_s)
        arrivals = Replay(self.calls, seed=seed).arrivals(parts.calls, rate, spread=self.sweep.spread)
        point = judged([_span(row) for row in await self._rows(arrivals, seed=seed)], parts)
        self.told(
            f"{self.url}: {rate:.3g} calls/s: mean {point.mean_s:.3g} s, p99 {point.p99_s:.3g} s, "
            f"{parts.measured} calls in {parts.measured / rate:.3g} s"
        )
        return point

    def _phases(self, rate: float, call_s: float) -> Phases:
        sweep = self.sweep
        return phases(rate, sweep.point_s, least_calls=sweep.least_calls, warm_up=WARM_UP, call_s=call_s)

    def _told_level(self, level: Level) -> None:
        self.told(f"{self.url}: {level.crowd} at once: {level.calls_per_s:.3g} calls/s")

    def _told_begin(self, crowd: int, calls: int) -> None:
        self.told(f"{self.url}: {crowd} at once, for {calls} calls or more ...")

    def _sender(self, session: aiohttp.ClientSession, jobs: Iterator[Job], seed: int) -> Callable[[], Awaitable[Span]]:
        """Sends the next of the jobs and waits for its end."""
        url = self.url / self.ask.path.lstrip("/")

        async def one() -> Span:
            load = self._arrival(0.0, next(jobs), seed=seed)
            row = Row(number=0, due_s=0.0, input_tokens=load.input_tokens, output_tokens=load.output_tokens)
            await send(session, url, self.ask.body(load), self.ask.headers_of(load), row, begin_s=0.0)
            self._check([row])
            return _span(row)

        return one

    async def _rows(self, arrivals: Sequence[tuple[float, Job]], *, seed: int) -> list[Row]:
        """Send and wait. HeadwayError where one was not answered to its end."""
        load = [self._arrival(at_s, job, seed=seed) for at_s, job in arrivals]
        outcome = await run(load, self.ask, self.url, limits=self.sweep.limits, stop=asyncio.Event())
        self._check(outcome.rows)
        return outcome.rows

    def _arrival(self, at_s: float, job: Job, *, seed: int) -> Arrival:
        shorter = replace(job, input_tokens=max(1, job.input_tokens - self.more_tokens))
        return arrival(at_s, shorter, self.block_tokens, seed=seed)

    def _check(self, rows: Sequence[Row]) -> None:
        failed = [row for row in rows if row.end != DONE]
        if not failed:
            return
        first = failed[0]
        if first.status == NOT_FOUND:
            raise UsageError(
                f"answers 404: {first.what.removeprefix('404: ') or 'nothing more'}",
                where=str(self.url / self.ask.path.lstrip("/")),
                hint=f"is the URL right, and does the engine know {self.ask.model}? --served-model-name NAME",
            )
        if first.end == "connect":
            raise HeadwayError(first.what)
        how = f"answers {first.status}: {first.what}" if first.end == f"http-{first.status}" else first.what
        # in a crowd each call is looked at by itself, and others are under way
        which = "a call" if len(rows) == 1 else f"{len(failed)} of {len(rows)} calls"
        raise HeadwayError(f"{self.url}: {which} failed: {how}")


def arrival(at_s: float, job: Job, block_tokens: int, *, seed: int) -> Arrival:
    """A call as the load generator sends it: blocks that were not recorded are texts of its own.

    Args:
        at_s: when.
        job: its id is a number.
        block_tokens: tokens in a block.
        seed: of the replay; another one gives other texts for what was not recorded.
    """
    own = mix(mix(seed) ^ int(job.id))
    needed = -(-job.input_tokens // block_tokens)
    blocks = (*job.blocks[:needed], *(mix(own ^ at) for at in range(len(job.blocks), needed)))
    return Arrival(at_s, job.input_tokens, job.output_tokens, blocks, block_tokens)


def _span(row: Row) -> Span:
    sent_s = row.sent_s or 0.0
    return sent_s, sent_s + (row.e2e_s or 0.0)
