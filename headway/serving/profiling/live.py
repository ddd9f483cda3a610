"""Latency curves from live engines: recorded calls are sent again at swept rates (Scepsy, arXiv 2604.15186).

On each engine, in this order: one call after the other until it is warm; all at once, for the saturation; then Poisson
arrivals at parts of it. What is sent is what `allocation.replay` says: bursts as bursts, lengths as recorded, prompts
that share what the recorded ones share, though in other words. A word stands for a token; by how many the engine counts
more (a chat's template, rare words) shows while it warms up, and prompts are shorter by so many from then on. No two of
these steps use the same private texts, so that none finds in the cache what another left there.

An engine that fails a call ends the measurement: what a broken engine does is no curve.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from yarl import URL

from headway.errors import HeadwayError
from headway.serving.allocation.replay import WARM_UP, Replay, throughput
from headway.serving.allocation.types import Curve, ModelProfile, Shape
from headway.serving.engine.types import Job
from headway.serving.loadgen.ask import Ask
from headway.serving.loadgen.client import Limits
from headway.serving.loadgen.row import DONE, Row
from headway.serving.loadgen.run import run
from headway.serving.prefix import mix
from headway.serving.workflows.blocks import block_size
from headway.serving.workflows.calls import Call
from headway.serving.workload.arrival import Arrival

WARMING_CALLS = 3
"""Calls one after the other before anything is measured (count)."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is measured on each engine.

    Attributes:
        loads: rates, as parts of the saturation, rising, below 1.
        saturation_calls: sent at once to find the saturation (count).
        point_s: about how long a rate is held, seconds.
        least_calls, most_calls: of a rate, whatever `point_s` says (count).
        spread: instances that share every burst in the end; the engine gets one part of it.
        limits: of each call.
    """

    loads: tuple[float, ...] = (0.1, 0.4, 0.7, 0.85, 0.95)
    saturation_calls: int = 128
    point_s: float = 30.0
    least_calls: int = 24
    most_calls: int = 1000
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
) -> ModelProfile:
    """Curves of the shapes that there are engines of, measured one engine after the other.

    Args:
        model: the name in the calls; others' are left out.
        calls: recorded; at least one of the model.
        engines: an engine of each shape, alone on its GPUs while it is measured.
        sweep: what to measure.
        ask: how requests are written, with the model's name on the engines.
        told: gets a line for each point.

    Raises:
        HeadwayError: an engine failed a call.
    """
    mine = [call for call in calls if call.model == model]
    curves = {}
    for shape, url in engines.items():
        curves[shape] = await live_curve(mine, url, sweep, ask=ask, told=told)
    source = "live: " + ", ".join(str(url) for url in engines.values())
    return ModelProfile(model, curves, {}, source)


async def live_curve(
    calls: Sequence[Call], url: URL, sweep: Sweep, *, ask: Ask, told: Callable[[str], None] = lambda line: None
) -> Curve:
    """The curve of one engine; see `live_profile`."""
    measuring = _Measuring(url, sweep, ask, block_size(calls))
    more = []
    for _, job in Replay(calls, seed=0).arrivals(WARMING_CALLS, 1.0, spread=sweep.spread)[:WARMING_CALLS]:
        more += [row.asked_tokens - row.input_tokens for row in await measuring.rows([(0.0, job)], seed=0)]
    measuring = replace(measuring, more_tokens=max(0, round(statistics.median(more))))
    at_once = Replay(calls, seed=1).arrivals(sweep.saturation_calls, float("inf"), spread=sweep.spread)
    rows = await measuring.rows(at_once, seed=1)
    saturation = throughput(_end_s(row) for row in rows)
    told(f"{url}: saturation {saturation:.3g} calls/s")
    rates, means, p99s = [], [], []
    for number, load in enumerate(sweep.loads, start=2):
        rate = load * saturation
        count = round(min(max(rate * sweep.point_s, sweep.least_calls), sweep.most_calls) * (1 + WARM_UP))
        rows = await measuring.rows(Replay(calls, seed=number).arrivals(count, rate, spread=sweep.spread), seed=number)
        measured_s = [row.e2e_s or 0.0 for row in rows[round(len(rows) * WARM_UP / (1 + WARM_UP)) :]]
        rates.append(rate)
        means.append(float(np.mean(measured_s)))
        p99s.append(float(np.quantile(measured_s, 0.99)))
        told(f"{url}: {rate:.3g} calls/s: mean {means[-1]:.3g} s, p99 {p99s[-1]:.3g} s, {len(measured_s)} calls")
    return Curve(tuple(rates), tuple(means), tuple(p99s), saturation)


@dataclass(frozen=True, slots=True)
class _Measuring:
    url: URL
    sweep: Sweep
    ask: Ask
    block_tokens: int
    more_tokens: int = 0
    """That the engine counts in a prompt beyond its words."""

    async def rows(self, arrivals: Sequence[tuple[float, Job]], *, seed: int) -> list[Row]:
        """Send and wait. HeadwayError where one was not answered to its end."""
        shorter = [
            (at_s, replace(job, input_tokens=max(1, job.input_tokens - self.more_tokens))) for at_s, job in arrivals
        ]
        load = [arrival(at_s, job, self.block_tokens, seed=seed) for at_s, job in shorter]
        outcome = await run(load, self.ask, self.url, limits=self.sweep.limits, stop=asyncio.Event())
        failed = [row for row in outcome.rows if row.end != DONE]
        if failed:
            first = failed[0]
            raise HeadwayError(
                f"{self.url} failed {len(failed)} of {len(load)} calls, the first with {first.end}: {first.what}"
            )
        return outcome.rows


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


def _end_s(row: Row) -> float:
    return (row.sent_s or 0.0) + (row.e2e_s or 0.0)
