"""Whose fault a 500 is: bad requests take no replica from others, a bad replica goes down."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from headway.serving.fleet import Condition
from headway.serving.gateway.doubts import COUNTED, LONG_S, MANY, Doubts
from headway.serving.gateway.gateway import Gateway
from tests.fakes.gateway import gateway

CHAT = "/v1/chat/completions"


@asynccontextmanager
async def moody(*, error: int = 500, broken: bool = False, health: int = 200) -> AsyncIterator[str]:
    """An engine that answers `error` to prompts with "image" in them, or to all where it is broken."""

    async def chat(http: web.Request) -> web.Response:
        if broken or "image" in await http.text():
            return web.json_response({"error": "whatever"}, status=error)
        return web.json_response({"usage": {"prompt_tokens": 1, "completion_tokens": 1}})

    async def models(http: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "test-model"}]})

    async def word(http: web.Request) -> web.Response:
        return web.Response(status=health)

    app = web.Application()
    app.router.add_post(CHAT, chat)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/health", word)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def asked(session: aiohttp.ClientSession, running: Gateway, prompt: str) -> int:
    body = {"model": "test-model", "messages": [{"role": "user", "content": prompt}]}
    async with session.post(running.url + CHAT, data=json.dumps(body)) as answer:
        await answer.read()
        return answer.status


def condition(running: Gateway, name: str) -> Condition:
    admission = running.admission
    return admission.pools[0].fleet.condition(name, admission.clock.now_s())


@pytest.mark.parametrize("error", [500, 501])
def test_one_clients_bad_requests_take_no_replica_from_the_others(error: int) -> None:
    async def run() -> None:
        async with (
            moody(error=error) as one,
            moody(error=error) as two,
            gateway([one, two]) as running,
            aiohttp.ClientSession() as session,
        ):
            for number in range(30):
                assert await asked(session, running, f"image {number}") == error
            assert [condition(running, name) for name in ("r0", "r1")] == [Condition.UP] * 2
            assert await asked(session, running, "hello") == 200

    asyncio.run(run())


def test_a_500_of_a_replica_whose_health_fails_counts() -> None:
    async def run() -> None:
        async with (
            moody(broken=True, health=503) as engine,
            gateway([engine]) as running,
            aiohttp.ClientSession() as session,
        ):
            assert [await asked(session, running, "a") for _ in range(4)] == [500, 500, 500, 503]
            assert condition(running, "r0") is Condition.DOWN

    asyncio.run(run())


def test_a_replica_that_answers_500_to_what_others_answer_goes_down_though_it_calls_itself_well() -> None:
    async def run() -> None:
        told: list[str] = []
        async with (
            moody(broken=True) as bad,
            moody() as good,
            gateway([bad, good], told=told) as running,
            aiohttp.ClientSession() as session,
        ):
            got = [await asked(session, running, "a") for _ in range(20)]
            assert got.count(500) == 3  # what comes after these is answered by the other
            assert condition(running, "r0") is Condition.DOWN
            assert condition(running, "r1") is Condition.UP
            assert any("answered 500 to what r1 answers" in line for line in told)

    asyncio.run(run())


def test_a_lone_replica_goes_down_after_many_prompts_in_a_long_time() -> None:
    doubts = Doubts()

    def verdicts(count: int, at_s: float, prompt: Any = None) -> list[bool]:
        found = []
        for number in range(count):
            doubts.erred("a", hash((at_s, number)) if prompt is None else prompt, at_s)
            found.append(doubts.condemned("a", at_s))
        return found

    assert not any(verdicts(MANY - 1, 0.0))
    doubts.answered("a")
    assert not any(verdicts(MANY + 5, 1.0))  # too fast
    assert verdicts(COUNTED + 1, 1.0 + LONG_S) == [True] * COUNTED + [False]
    doubts.answered("a")
    verdicts(MANY + 5, 20.0, prompt=7)
    assert not any(verdicts(5, 21.0 + LONG_S, prompt=7))  # the same one again and again
