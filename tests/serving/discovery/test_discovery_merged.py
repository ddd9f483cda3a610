"""Several sources as one, and replicas that are asked what they serve."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from headway.serving.gateway.discovery.build import MergedSource, StaticSource, discovery_of
from headway.serving.gateway.discovery.models import AskError, AskingSource, ask_models
from headway.serving.gateway.discovery.options import ReplicaOptions, StaticOptions
from headway.serving.gateway.discovery.source import Replicas
from headway.serving.replica import ReplicaSpec

LIMIT_S = 10.0


class Told:
    """A source that gives what the test puts in."""

    name = "told"

    def __init__(self) -> None:
        self.sets: asyncio.Queue[Replicas | Exception] = asyncio.Queue()

    async def watch(self) -> AsyncGenerator[Replicas, None]:
        while True:
            found = await self.sets.get()
            if isinstance(found, Exception):
                raise found
            yield found


class Engine:
    """Answers `/v1/models`.

    Attributes:
        models: their names.
        status: of the answer.
        asked: how often.
    """

    def __init__(self, *models: str) -> None:
        self.models = list(models)
        self.status = 200
        self.body: bytes | None = None
        self.asked = 0
        self.keys: set[str] = set()

    async def answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        self.keys.add(request.headers.get("Authorization", ""))
        if self.body is not None:
            return web.Response(body=self.body, status=self.status)
        return web.json_response({"object": "list", "data": [{"id": m} for m in self.models]}, status=self.status)


@asynccontextmanager
async def engine(*models: str) -> AsyncIterator[tuple[Engine, str]]:
    fake = Engine(*models)
    app = web.Application()
    app.router.add_get("/v1/models", fake.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield fake, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _next(updates: AsyncGenerator[Replicas, None]) -> Replicas:
    return await asyncio.wait_for(anext(updates), LIMIT_S)


def _spec(name: str, **more: object) -> ReplicaSpec:
    return ReplicaSpec(name=name, url=f"http://{name}", **more)  # type: ignore[arg-type]


def test_merged_sets_follow_each_source_and_the_first_of_a_name_counts(caplog: pytest.LogCaptureFixture) -> None:
    async def follow() -> None:
        one, two = Told(), Told()
        one.sets.put_nowait((_spec("a", device="l20"),))
        two.sets.put_nowait((_spec("a", device="a30"), _spec("b")))
        async with aclosing(MergedSource([one, two]).watch()) as updates:
            first = await _next(updates)
            assert [(spec.name, spec.device) for spec in first] == [("a", "l20"), ("b", "")]
            two.sets.put_nowait((_spec("a", device="a30"),))
            assert [spec.name for spec in await _next(updates)] == ["a"]
            one.sets.put_nowait(())
            assert [spec.device for spec in await _next(updates)] == ["a30"]

    with caplog.at_level(logging.WARNING):
        asyncio.run(follow())
    assert len([r for r in caplog.records if "another replica named a" in r.getMessage()]) == 1


def test_a_late_source_is_waited_for_only_so_long() -> None:
    async def follow() -> None:
        late = Told()
        async with aclosing(MergedSource([StaticSource((_spec("a"),)), late], first_wait_s=0.1).watch()) as updates:
            assert [spec.name for spec in await _next(updates)] == ["a"]
            late.sets.put_nowait((_spec("b"),))
            assert [spec.name for spec in await _next(updates)] == ["a", "b"]

    asyncio.run(follow())


def test_a_source_that_breaks_breaks_the_merged_one() -> None:
    async def follow() -> None:
        broken = Told()
        broken.sets.put_nowait(RuntimeError("a mistake of ours"))
        async with aclosing(MergedSource([StaticSource((_spec("a"),)), broken]).watch()) as updates:
            with pytest.raises(RuntimeError, match="a mistake of ours"):
                await _next(updates)

    asyncio.run(follow())


def test_models_are_asked_of_those_that_have_none() -> None:
    async def follow() -> None:
        async with engine("m", "m-lora") as (fake, url), aiohttp.ClientSession() as session:
            options = StaticOptions(
                replicas=(ReplicaOptions(url=url, name="a"), ReplicaOptions(url="http://never:1", models=("x",)))
            )
            source = discovery_of([options], session, headers={"Authorization": "Bearer k"})
            async with aclosing(source.watch()) as updates:
                found = await _next(updates)
                while len(found) < 2:
                    found = await _next(updates)
                assert [spec.models for spec in found] == [("m", "m-lora"), ("x",)]
            assert fake.keys == {"Bearer k"}

    asyncio.run(follow())


def test_a_replica_joins_when_it_answers_and_follows_what_it_serves(caplog: pytest.LogCaptureFixture) -> None:
    async def follow() -> None:
        async with engine("m") as (fake, url), aiohttp.ClientSession() as session:
            fake.status = 503  # still loading
            source = AskingSource(StaticSource((ReplicaSpec("a", url),)), session, refresh_s=0.05)
            async with aclosing(source.watch()) as updates:
                waiting = asyncio.create_task(_next(updates))
                await asyncio.sleep(0.2)
                assert not waiting.done()
                fake.status = 200
                assert [spec.models for spec in await waiting] == [("m",)]
                fake.models = ["m", "adapter"]
                assert [spec.models for spec in await _next(updates)] == [("m", "adapter")]
                fake.status, fake.models = 500, []
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(updates), 0.2)

    with caplog.at_level(logging.WARNING):
        asyncio.run(follow())
    told = [record.getMessage() for record in caplog.records]
    assert len([line for line in told if "/v1/models answers 503; it gets no requests until it says" in line]) == 1
    assert len([line for line in told if "/v1/models answers 500; its models stay as they were" in line]) == 1


def test_where_all_change_at_once_those_before_stay_until_the_first_new_one_has_answered() -> None:
    async def follow() -> None:
        async with engine("m") as (_, old), engine("m") as (fake, new), aiohttp.ClientSession() as session:
            told = Told()
            told.sets.put_nowait((ReplicaSpec("a", old), ReplicaSpec("b", old)))
            async with aclosing(AskingSource(told, session, refresh_s=0.02).watch()) as updates:
                while len(await _next(updates)) < 2:
                    pass
                fake.status = 503  # still loading
                told.sets.put_nowait((ReplicaSpec("c", new), ReplicaSpec("d", "http://127.0.0.1:1")))
                waiting = asyncio.create_task(_next(updates))
                await asyncio.sleep(0.2)
                assert not waiting.done()
                fake.status = 200
                assert [spec.name for spec in await waiting] == ["c"]

    asyncio.run(follow())


def test_those_before_do_not_stay_for_ever_where_none_of_the_new_ones_answers() -> None:
    async def follow() -> None:
        async with engine("m") as (_, old), engine("m") as (fake, new), aiohttp.ClientSession() as session:
            fake.status = 503
            told = Told()
            told.sets.put_nowait((ReplicaSpec("a", old),))
            async with aclosing(AskingSource(told, session, timeout_s=0.3, refresh_s=0.02).watch()) as updates:
                assert [spec.name for spec in await _next(updates)] == ["a"]
                told.sets.put_nowait((ReplicaSpec("b", new),))
                assert await _next(updates) == ()
                fake.status = 200
                assert [spec.name for spec in await _next(updates)] == ["b"]

    asyncio.run(follow())


def test_one_that_left_is_asked_no_more() -> None:
    async def follow() -> None:
        async with engine("m") as (fake, url), aiohttp.ClientSession() as session:
            told = Told()
            told.sets.put_nowait((ReplicaSpec("a", url),))
            async with aclosing(AskingSource(told, session, refresh_s=0.02).watch()) as updates:
                await _next(updates)
                told.sets.put_nowait(())
                assert await _next(updates) == ()
                asked = fake.asked
                await asyncio.sleep(0.2)
                assert fake.asked <= asked + 1  # one may have been under way

    asyncio.run(follow())


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        (b"<html>", 200, "no list of models"),
        (b'{"data": 3}', 200, "no list of models"),
        (b'{"data": []}', 200, "names no model"),
        (b'{"data": [{"id": 7}]}', 200, "names no model"),
        (b"x" * ((1 << 20) + 1), 200, "more than 1048576 bytes"),
        (b"", 404, "answers 404"),
    ],
)
def test_an_answer_that_says_no_models(body: bytes, status: int, named: str) -> None:
    async def ask() -> None:
        async with engine() as (fake, url), aiohttp.ClientSession() as session:
            fake.body, fake.status = body, status
            with pytest.raises(AskError, match=named):
                await ask_models(session, url, timeout_s=LIMIT_S)

    asyncio.run(ask())


def test_nobody_there() -> None:
    async def ask() -> None:
        async with engine() as (_, url):
            pass
        async with aiohttp.ClientSession() as session:
            with pytest.raises(AskError, match="/v1/models: "):
                await ask_models(session, url, timeout_s=LIMIT_S)

    asyncio.run(ask())
