"""Saturation by a crowd that grows: engines of which it is known what they can do, and what is made of the ends."""

from __future__ import annotations

import asyncio
import time

import pytest

from headway.errors import HeadwayError
from headway.serving.profiling.crowd import Level, Ramp, Span, calls_within, grows, levels
from headway.serving.profiling.point import Phases, judged, phases


class Batches:
    """Ends `batch` calls together, `step_s` after they began; no one joins a batch under way."""

    def __init__(self, batch: int, step_s: float) -> None:
        self._slots, self._step_s = asyncio.Semaphore(batch), step_s
        self.most = self.open = 0

    async def send(self) -> Span:
        sent_s = time.monotonic()
        self.open += 1
        self.most = max(self.most, self.open)
        async with self._slots:
            await asyncio.sleep(self._step_s)
        self.open -= 1
        return sent_s, time.monotonic()


def test_a_crowd_grows_past_the_batch_and_no_further() -> None:
    engine = Batches(32, 0.05)
    told: list[Level] = []

    async def main() -> list[Level]:
        async with asyncio.timeout(30):
            return await levels(engine.send, Ramp(first=8, least_calls=16), told.append)

    found = asyncio.run(main())
    assert told == found
    assert [it.crowd for it in found][:3] == [8, 16, 32]
    best = max(it.calls_per_s for it in found)
    assert best < 1.05 * 32 / 0.05, "more than a batch in each step is none of the engine's doing"
    assert engine.most == found[-1].crowd >= 64


def test_the_crowd_ends_at_its_most() -> None:
    engine = Batches(1000, 0.01)
    found = asyncio.run(levels(engine.send, Ramp(first=8, most=12, least_calls=8), lambda level: None))
    assert [it.crowd for it in found] == [8, 12]
    assert engine.most == 12


def test_a_call_that_fails_ends_it_with_its_own_error() -> None:
    engine, sent = Batches(4, 0.005), 0

    async def send() -> Span:
        nonlocal sent
        sent += 1
        if sent == 30:
            raise HeadwayError("engine x failed")
        return await engine.send()

    with pytest.raises(HeadwayError, match=r"^engine x failed$"):
        asyncio.run(levels(send, Ramp(first=8), lambda level: None))


def test_calls_count_by_the_part_that_lies_within() -> None:
    assert calls_within([(0, 4), (2, 3), (3, 7), (9, 10), (0, 8)], 1, 5) == pytest.approx(0.75 + 1 + 0.5 + 0 + 0.5)


def test_ends_that_fall_together_make_no_difference() -> None:
    batches = [(float(at), float(at + 1)) for at in range(10) for _ in range(50)]
    for begin_s, end_s in ((2.0, 5.9), (2.1, 6.0), (2.5, 4.6)):
        assert calls_within(batches, begin_s, end_s) / (end_s - begin_s) == pytest.approx(50)


def test_growth_is_over_the_best_so_far() -> None:
    ramp = Ramp()
    assert grows([Level(8, 10.0, 0.1)], ramp)
    assert grows([Level(8, 10.0, 0.1), Level(16, 10.6, 0.1)], ramp)
    assert not grows([Level(8, 10.0, 0.1), Level(16, 10.4, 0.1)], ramp)
    assert not grows([Level(8, 12.0, 0.1), Level(16, 9.0, 0.1), Level(32, 10.0, 0.1)], ramp)


def one_at_a_time(rate: float, service_s: float, calls: int) -> list[Span]:
    """Calls at even times to a server that takes one after the other."""
    spans, free_s = [], 0.0
    for number in range(calls):
        at_s = number / rate
        free_s = max(free_s, at_s) + service_s
        spans.append((at_s, free_s))
    return spans


@pytest.mark.parametrize(("load", "overloaded"), [(0.5, False), (0.95, False), (1.3, True), (2.2, True), (5.0, True)])
def test_a_queue_that_grows_is_an_overload(load: float, overloaded: bool) -> None:
    parts = Phases(50, 200, 20)
    point = judged(one_at_a_time(load * 10, 0.1, parts.calls), parts)
    assert point.overloaded is overloaded
    assert point.ended_per_s == pytest.approx(min(load, 1.0) * 10, rel=0.05)


def test_long_calls_that_are_still_under_way_are_no_overload() -> None:
    parts = phases(10.0, 5.0, least_calls=24, warm_up=0.25, call_s=8.0)
    assert (parts.warm_up, parts.measured, parts.cool_down) == (160, 50, 80)
    spans = [(number / 10, number / 10 + 8.0) for number in range(parts.calls)]
    point = judged(spans, parts)
    assert not point.overloaded
    assert point.mean_s == pytest.approx(8.0)


def test_few_calls_are_measured_longer_than_asked() -> None:
    assert phases(0.1, 5.0, least_calls=24, warm_up=0.25, call_s=0.1) == Phases(6, 24, 1)
