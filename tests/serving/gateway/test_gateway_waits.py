"""Limits on waiting, and token buckets."""

from __future__ import annotations

import asyncio
from hashlib import sha256

import pytest

from headway.serving.gateway.answers import AnswerError
from headway.serving.gateway.config import Key, KeyLimits
from headway.serving.gateway.limits import Bucket, Client, KeyRing
from headway.serving.gateway.watch import InterruptedWaitError, Phase, Watch


async def steps(watch: Watch, *todo: tuple[Phase, float] | float) -> None:
    """Under a watch, begin waits with their limits, and sleep."""
    with watch:
        for step in todo:
            if isinstance(step, tuple):
                watch.waits(*step)
            else:
                await asyncio.sleep(step)


async def interrupted(total_s: float, *todo: tuple[Phase, float] | float) -> InterruptedWaitError:
    """How a watch ended these steps."""
    with pytest.raises(InterruptedWaitError) as caught:
        await steps(Watch(total_s=total_s), *todo)
    return caught.value


def test_a_wait_that_is_too_long_is_ended_and_says_what_it_was() -> None:
    async def run() -> None:
        wait = await interrupted(10, (Phase.CHUNK, 0.05), 5)
        assert (wait.phase, wait.total) == (Phase.CHUNK, False)
        assert 0.04 < wait.waited_s < 4
        await asyncio.sleep(0)  # the task itself is not cancelled

    asyncio.run(run())


def test_progress_resets_the_limit_on_a_wait_but_not_that_on_all() -> None:
    async def run() -> None:
        some: list[tuple[Phase, float] | float] = [(Phase.CHUNK, 0.2), 0.01]
        wait = await interrupted(0.3, *some * 100)
        assert wait.total

    asyncio.run(run())


def test_a_short_wait_after_a_long_one_is_ended_in_time() -> None:
    async def run() -> None:
        async with asyncio.timeout(5):
            wait = await interrupted(60, (Phase.FIRST_BYTE, 30), (Phase.CLIENT, 0.05), 30)
        assert wait.phase is Phase.CLIENT

    asyncio.run(run())


def test_a_cancellation_by_another_passes_through() -> None:
    async def watched() -> None:
        with Watch(total_s=60) as watch:
            watch.waits(Phase.CHUNK, 60)
            await asyncio.sleep(60)

    async def run() -> None:
        task = asyncio.create_task(watched())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


def test_work_that_ends_in_time_leaves_nothing_behind() -> None:
    async def run() -> None:
        with Watch(total_s=0.05) as watch:
            watch.waits(Phase.CHUNK, 0.02)
        await asyncio.sleep(0.1)

    asyncio.run(run())


def test_stopping_is_told_apart() -> None:
    async def run() -> None:
        watch = Watch(total_s=60)
        asyncio.get_running_loop().call_later(0.01, watch.stop)
        with pytest.raises(InterruptedWaitError) as caught:
            await steps(watch, 60)
        assert caught.value.phase is Phase.STOP

    asyncio.run(run())


def test_a_bucket_fills_steadily_up_to_a_minutes_worth() -> None:
    bucket = Bucket(60, 100.0)
    assert bucket.wait_s(60, 100.0) == 0
    bucket.add(-60)
    assert bucket.wait_s(1, 100.0) == pytest.approx(1)
    assert bucket.wait_s(30, 110.0) == pytest.approx(20)
    assert bucket.wait_s(60, 1000.0) == 0
    assert bucket.wait_s(500, 1000.0) == 0  # more than it ever holds: when it is full
    bucket.add(-500)
    assert bucket.wait_s(1, 1000.0) == pytest.approx(441)


def test_a_refused_request_takes_nothing() -> None:
    client = Client("a", KeyLimits(requests_per_minute=10, tokens_per_minute=100))
    client.enter(90, 0.0)
    for _ in range(20):
        with pytest.raises(AnswerError) as caught:
            client.enter(50, 0.0)
        assert caught.value.code == "tokens_per_minute"
    client.enter(10, 0.0)  # the refused ones counted as no requests
    assert client.open_requests == 2
    client.leave(0)
    client.leave(0)
    assert client.open_requests == 0


def key(name: str, plain: str, concurrent: int | None = None) -> Key:
    return Key(name=name, sha256=sha256(plain.encode()).hexdigest(), concurrent=concurrent)


def test_keys_may_be_replaced_while_requests_are_open() -> None:
    ring = KeyRing([key("a", "one"), key("b", "two")], KeyLimits(concurrent=1))
    a = ring.client("Bearer one")
    a.enter(1, 0.0)
    ring.replace([key("a", "three")], KeyLimits(concurrent=1))
    with pytest.raises(AnswerError):
        ring.client("Bearer one")
    again = ring.client("Bearer three")
    assert again.open_requests == 1
    ring.replace([key("a", "three")], KeyLimits(concurrent=1, requests_per_minute=9))
    a.leave(0)
    again = ring.client("Bearer three")
    again.enter(1, 0.0)
    with pytest.raises(AnswerError):
        again.enter(1, 0.0)
    ring.replace([], KeyLimits())
    assert ring.client("").name == "anybody"


def test_a_keys_own_limit_is_before_that_of_all() -> None:
    ring = KeyRing([key("a", "one", concurrent=5), key("b", "two")], KeyLimits(concurrent=1, requests_per_minute=7))
    assert ring.client("Bearer one").limits == KeyLimits(concurrent=5, requests_per_minute=7)
    assert ring.client("Bearer two").limits == KeyLimits(concurrent=1, requests_per_minute=7)
