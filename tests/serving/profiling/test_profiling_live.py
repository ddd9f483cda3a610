"""Curves of engines that run here, of which it is known how fast they are."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import pytest
from yarl import URL

from headway.errors import HeadwayError, UsageError
from headway.serving.allocation.types import Shape
from headway.serving.engine.types import EngineProfile, Job
from headway.serving.loadgen.ask import Ask
from headway.serving.loadgen.run import in_loop
from headway.serving.loadgen.text import prompt_of
from headway.serving.prefix import chain
from headway.serving.profiling import live
from headway.serving.profiling.crowd import Ramp
from headway.serving.profiling.live import Sweep, arrival, live_curve, live_profile, lowered
from headway.serving.workflows.calls import Call
from tests.fakes.engine import QUICK, Running, engines
from tests.fakes.openai_server import misbehaving_server, nobody

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


def test_a_model_that_the_engine_does_not_know_is_a_wrong_command_line() -> None:
    async def measured(it: Running) -> None:
        says = r"^http://127.*/v1/chat/completions: answers 404: .*no-such-model.* --served-model-name NAME\)$"
        with pytest.raises(UsageError, match=says):
            await live_curve(calls(), URL(it.url), QUICKLY, ask=Ask("no-such-model"))

    with_engine(QUICK, measured)


def test_a_wrong_path_is_a_wrong_command_line() -> None:
    async def measured(it: Running) -> None:
        with pytest.raises(UsageError, match=r"/api/v1/chat/completions: answers 404: Not Found \(is the URL right"):
            await live_curve(calls(), URL(it.url) / "api", QUICKLY, ask=Ask("test-model"))

    with_engine(QUICK, measured)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("busy", "a call failed: answers 429: too much"),
        ("die", "a call failed: the answer broke off"),
        ("rude", "a call failed: the connection was closed before an answer came"),
    ],
)
def test_an_engine_that_fails_calls_ends_the_measurement_in_our_own_words(model: str, says: str) -> None:
    with misbehaving_server() as server, pytest.raises(HeadwayError) as raised:
        in_loop(lambda: live_curve(calls(), URL(server.url), QUICKLY, ask=Ask(model)))
    assert str(raised.value) == f"{server.url}: {says}"
    assert not isinstance(raised.value, UsageError)


def test_an_engine_that_breaks_under_a_crowd_is_said_of_one_call() -> None:
    async def measured(it: Running) -> None:
        def told(line: str) -> None:
            if line.endswith("4 at once, for 12 calls or more ..."):
                it.engine.set_faults(status=503)

        with pytest.raises(HeadwayError, match=rf"^{it.url}: a call failed: answers 503: "):
            await live_curve(calls(), URL(it.url), QUICKLY, ask=Ask("test-model"), told=told)

    with_engine(QUICK, measured)


def test_nobody_there_is_said_once_and_without_the_librarys_words() -> None:
    with nobody() as url, pytest.raises(HeadwayError) as raised:
        in_loop(lambda: live_curve(calls(), URL(url), QUICKLY, ask=Ask("test-model")))
    assert str(raised.value) == f"cannot connect to {url} (refused)"


def test_what_will_be_sent_is_said_before_it_is() -> None:
    async def measured(it: Running) -> list[tuple[str, int]]:
        lines: list[tuple[str, int]] = []
        await live_curve(
            calls(), URL(it.url), QUICKLY, ask=Ask("test-model"), told=lambda line: lines.append((line, len(it.calls)))
        )
        return lines

    (first, none), (begins, three), (level, _), *_ = with_engine(QUICK, measured)
    assert none == 0
    assert "3 calls one by one; then 4 at once, twice as many" in first
    assert "about 8 calls for each of the largest crowd; then calls at 2 rates" in first
    assert three == 3
    assert begins.endswith(": 4 at once, for 12 calls or more ...")
    assert re.search(r": 4 at once: [\d.e+]+ calls/s$", level)


@pytest.mark.parametrize(
    ("rate", "ended_per_s", "steady", "expected"),
    [
        (60.7, 31.5, 44.7, 52.7),  # between what was steady and what was too much
        (60.7, 55.0, 44.7, 55.0),  # what came back, where that is more
        (60.7, 60.6, 44.7, 57.51),  # but a tenth less than before
        (60.7, 31.5, 60.0, 60.35),  # unless more was steady
        (40.0, 31.5, 44.7, 44.7),  # of the saturation before this one
        (6.39, 3.0, 0.0, 3.0),  # nothing was steady
    ],
)
def test_a_lowered_saturation_is_not_below_what_was_steady(
    rate: float, ended_per_s: float, steady: float, expected: float
) -> None:
    assert lowered(63.9, rate, ended_per_s, steady) == pytest.approx(expected)


def test_a_disturbance_does_not_take_the_saturation_below_what_was_steady() -> None:
    notes: list[str] = []

    async def measured(it: Running) -> tuple[float, list[str]]:
        lines: list[str] = []

        def told(line: str) -> None:
            lines.append(line)
            if "too high" in line:
                it.engine.answering.pace.slow_down(1.0)  # over
            elif ": mean" in line and not any("queue" in each for each in lines):
                it.engine.answering.pace.slow_down(6.0)  # until both tries of the next rate are through

        sweep = replace(LATE, loads=(0.2, 0.8))
        curve = await live_curve(calls(), URL(it.url), sweep, ask=Ask("test-model"), told=told, noted=notes.append)
        return curve.saturation, lines

    saturation, lines = with_engine(SLOW, measured)
    queues = [float(each.split(": at ")[1].split()[0]) for each in lines if "a queue grows" in each]
    means = [float(each.split(": ")[1].split()[0]) for each in lines if ": mean" in each]
    assert queues
    assert saturation >= 0.99 * max((rate for rate in means if rate not in queues), default=0.0)
    (note,) = notes
    assert re.search(rf"calls/s at most, then lowered to {saturation:.3g}: was something else running\?$", note)


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
