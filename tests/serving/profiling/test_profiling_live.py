"""Curves of engines that run here, of which it is known how fast they are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import pytest
from yarl import URL

from headway.errors import HeadwayError
from headway.serving.allocation.types import Shape
from headway.serving.engine.types import EngineProfile, Job
from headway.serving.loadgen.ask import Ask
from headway.serving.loadgen.run import in_loop
from headway.serving.loadgen.text import prompt_of
from headway.serving.prefix import chain
from headway.serving.profiling import live
from headway.serving.profiling.crowd import Ramp
from headway.serving.profiling.live import Sweep, arrival, live_curve, live_profile
from headway.serving.workflows.calls import Call
from tests.fakes.engine import QUICK, Running, engines

T = TypeVar("T")
SLOW = replace(QUICK, step_s=0.005, most_running=1, step_tokens=2048)
"""5 ms a token, one request at a time."""
QUICKLY = Sweep(loads=(0.3, 0.6), ramp=Ramp(first=4, least_calls=8), point_s=0.4, least_calls=12)
LATE = replace(QUICKLY, loads=(0.7,), point_s=0.1, least_calls=24)
"""Enough calls to see that a queue grows."""


def calls(count: int = 12, *, shared: int = 0) -> list[Call]:
    """Prompts of 64 tokens whose first `shared` blocks are the same, answers of 4."""
    return [
        Call(
            "w",
            f"r{run}",
            "0",
            "test-model",
            9.0 * run,
            9.0 * run + 1,
            64,
            4,
            chain([*range(shared), *range(900 + 9 * run, 904 + 9 * run - shared)]),
            16,
        )
        for run in range(count)
    ]


def with_engine(profile: EngineProfile, measured: Callable[[Running], Awaitable[T]], *, count: int = 1) -> T:
    async def main() -> T:
        async with asyncio.timeout(60), engines(count, profile=profile) as running:
            return await measured(running[0])

    return in_loop(main)


def test_saturation_and_latencies_are_those_of_the_engine() -> None:
    longer = replace(QUICKLY, ramp=Ramp(first=4, least_calls=60))
    curve = with_engine(SLOW, lambda it: live_curve(calls(), URL(it.url), longer, ask=Ask("test-model")))
    # 4 tokens of 5 ms, one request at a time: 50; less on a busy machine, and more for an instant after it stood still.
    assert 2 < curve.saturation < 100
    assert list(curve.rates) == pytest.approx([0.3 * curve.saturation, 0.6 * curve.saturation])
    assert curve.latencies_s[0] >= 0.019
    assert all(p99 >= mean for p99, mean in zip(curve.p99_s, curve.latencies_s, strict=True))


def test_what_is_sent_has_the_recorded_lengths_and_shares_what_they_share() -> None:
    async def measured(it: Running) -> list[tuple[str, int]]:
        await live_curve(calls(shared=2), URL(it.url), QUICKLY, ask=Ask("test-model"))
        return [(each.body["messages"][0]["content"], each.body["max_tokens"]) for each in it.calls]

    sent = with_engine(QUICK, measured)
    lengths = [len(text.split()) for text, _ in sent]
    assert lengths[0] == 64
    assert max(lengths[3:]) <= 64, "what the engine counts beyond the words is taken off"
    assert len(set(lengths[3:])) == 1
    assert {tokens for _, tokens in sent} == {4}
    assert len({text.split()[31] for text, _ in sent}) == 1
    assert len({text for text, _ in sent}) == len(sent), "a prompt was sent twice: the engine would know it"


def test_each_shape_has_the_curve_of_its_own_engine() -> None:
    async def main() -> tuple[float, float]:
        async with (
            asyncio.timeout(60),
            engines(1, profile=SLOW) as one,
            engines(1, profile=replace(SLOW, step_s=0.002)) as other,
        ):
            urls = {Shape(1, 5): URL(one[0].url), Shape(1, 10): URL(other[0].url)}
            lines: list[str] = []
            profile = await live_profile("test-model", calls(), urls, QUICKLY, ask=Ask("test-model"), told=lines.append)
            assert profile.source == f"live: {one[0].url}, {other[0].url}"
            assert len([line for line in lines if "saturation" in line]) == 2
            assert len([line for line in lines if "mean" in line]) == 4
            return profile.curves[Shape(1, 5)].saturation, profile.curves[Shape(1, 10)].saturation

    half, whole = in_loop(main)
    assert whole > half


def test_an_engine_that_fails_calls_ends_the_measurement_and_is_named() -> None:
    async def measured(it: Running) -> None:
        with pytest.raises(HeadwayError, match=r"http://127.*failed .* calls, the first with .*"):
            await live_curve(calls(), URL(it.url), QUICKLY, ask=Ask("no-such-model"))

    with_engine(QUICK, measured)


def test_a_saturation_that_is_too_high_is_lowered_and_all_points_are_measured_anew() -> None:
    async def measured(it: Running) -> tuple[float, list[str]]:
        lines: list[str] = []

        def told(line: str) -> None:
            lines.append(line)
            if line.endswith("calls/s") and ": saturation" in line:
                it.engine.answering.pace.slow_down(6.0)  # what it could do before, it cannot do any more

        curve = await live_curve(calls(), URL(it.url), LATE, ask=Ask("test-model"), told=told)
        return curve.saturation, lines

    saturation, lines = with_engine(SLOW, measured)
    assert any("a queue grows" in line for line in lines)
    assert saturation < 12, "one call at a time of 4 tokens of 30 ms: at most 8.3"


def test_an_engine_that_never_keeps_up_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "TRIES", 1)

    async def measured(it: Running) -> None:
        def told(line: str) -> None:
            if "saturation" in line:
                it.engine.answering.pace.slow_down(6.0)

        with pytest.raises(HeadwayError, match=r"http://127.* is not steady: .* after 1 tries"):
            await live_curve(calls(), URL(it.url), LATE, ask=Ask("test-model"), told=told)

    with_engine(SLOW, measured)


def test_calls_without_blocks_get_texts_of_their_own() -> None:
    one, other = (arrival(0.0, Job(str(number), 50, 4), 16, seed=1) for number in (1, 2))
    assert len(prompt_of(one).split()) == 50
    assert not set(one.block_ids) & set(other.block_ids)
    assert one == arrival(0.0, Job("1", 50, 4), 16, seed=1)
    assert one.block_ids != arrival(0.0, Job("1", 50, 4), 16, seed=2).block_ids
