"""What an engine does when its client goes away, when it is told to fail, and when it does fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headway.errors import UsageError
from headway.serving.engine.types import Token
from headway.serving.enginehttp.answering import ServingSettings
from headway.serving.enginehttp.faults import Faults, changed
from headway.serving.enginehttp.server import Engine
from tests.fakes.engine import QUICK, Running, engines

BODY = {"prompt": "x", "max_tokens": 1000, "stream": True}


async def until(met: Callable[[], bool]) -> None:
    """Wait for something that must come soon."""
    async with asyncio.timeout(10):
        while not met():
            await asyncio.sleep(0.002)


def clean(engine: Running) -> bool:
    report = engine.engine.answering.core.report()
    return engine.open == 0 and report.running == report.waiting == 0 and report.kv_usage == 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_blocks(stream: bool) -> None:
    async def check() -> None:
        async with engines() as [engine], aiohttp.ClientSession() as session:
            core = engine.engine.answering.core
            # No prefix is kept of a prompt that is shorter than a block.
            asking = asyncio.create_task(session.post(f"{engine.url}/v1/completions", json={**BODY, "stream": stream}))
            await until(lambda: bool(core.report().kv_usage))
            if stream:
                response = await asking
                assert await response.content.readline()
                response.close()
            else:
                asking.cancel()
            await until(lambda: clean(engine))
            ended = engine.engine.answering.measures.ended
            assert ended == {"stop": 0, "length": 0, "abort": 1, "error": 0}
            assert engine.engine.answering.measures.generation_tokens < 1000

    asyncio.run(check())


def test_a_stalled_engine_keeps_its_connections_and_goes_on_later() -> None:
    async def check() -> None:
        async with engines() as [engine], aiohttp.ClientSession() as session:
            async with session.post(f"{engine.url}/v1/completions", json={**BODY, "max_tokens": 50}) as response:
                await response.content.readline()
                engine.engine.set_faults(stall=True)
                steps = engine.engine.answering.pace.steps
                await asyncio.sleep(0.05)
                assert engine.engine.answering.pace.steps == steps
                assert engine.open == 1
                async with session.get(f"{engine.url}/health") as health:
                    assert health.status == 200
                engine.engine.set_faults(stall=False)
                assert (await response.text()).endswith("data: [DONE]\n\n")
            assert engine.engine.answering.pace.lost_s == 0

    asyncio.run(check())


@pytest.mark.parametrize("after_tokens", [0, 1, 3])
@pytest.mark.parametrize("stream", [True, False])
def test_an_engine_can_die_in_the_middle_of_an_answer(stream: bool, after_tokens: int) -> None:
    async def check() -> None:
        async with engines() as [engine], aiohttp.ClientSession() as session:
            engine.engine.set_faults(die_after_tokens=after_tokens)

            async def read() -> None:
                async with session.post(f"{engine.url}/v1/completions", json={**BODY, "stream": stream}) as response:
                    await response.read()

            with pytest.raises(aiohttp.ClientError):
                await read()
            await until(lambda: clean(engine))

    asyncio.run(check())


@pytest.mark.parametrize(
    ("status", "kind"), [(500, "server_error"), (503, "server_error"), (429, "invalid_request_error")]
)
def test_an_engine_can_answer_with_an_error(status: int, kind: str) -> None:
    async def check() -> None:
        async with engines() as [engine], aiohttp.ClientSession() as session:
            engine.engine.set_faults(status=status)
            for path in ("completions", "chat/completions", "embeddings"):
                async with session.post(f"{engine.url}/v1/{path}", json=BODY) as response:
                    assert response.status == status
                    assert (await response.json())["error"]["type"] == kind
                    assert ("Retry-After" in response.headers) == (status in (429, 503))
            async with session.get(f"{engine.url}/health") as response:
                assert response.status == (503 if status >= 500 else 200)

    asyncio.run(check())


def test_an_engine_can_refuse_connections_for_a_while() -> None:
    async def check() -> None:
        async with engines() as [engine], aiohttp.ClientSession() as session:
            async with session.post(f"{engine.url}/v1/completions", json=BODY) as response:
                await response.content.readline()
                async with session.post(f"{engine.url}/admin/faults", json={"refuse_s": 0.3}) as told:
                    assert told.status == 200
                with pytest.raises(aiohttp.ClientError):
                    await response.read()
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.get(f"{engine.url}/health")
            await until(lambda: clean(engine))
            async with asyncio.timeout(10):
                while True:
                    try:
                        async with session.get(f"{engine.url}/health") as health:
                            assert health.status == 200
                            break
                    except aiohttp.ClientConnectorError:
                        await asyncio.sleep(0.02)

    asyncio.run(check())


def test_faults_are_changed_and_shown_over_http() -> None:
    async def check() -> None:
        async with engines() as [engine], aiohttp.ClientSession() as session:
            async with session.post(f"{engine.url}/admin/faults", json={"slowdown": 3, "metrics": "html"}) as response:
                shown = await response.json()
            assert (shown["slowdown"], shown["metrics"], shown["stall"]) == (3.0, "html", False)
            begin_s = time.monotonic()
            async with session.post(f"{engine.url}/v1/completions", json={**BODY, "max_tokens": 10}) as response:
                await response.read()
            assert time.monotonic() - begin_s >= 3 * 10 * QUICK.step_s
            async with session.post(f"{engine.url}/admin/faults", json={"slow": 3}) as response:
                assert response.status == 400
                assert "'slow' is no fault" in (await response.json())["error"]["message"]
            async with session.get(f"{engine.url}/admin/faults") as response:
                assert (await response.json())["slowdown"] == 3.0

    asyncio.run(check())


def test_without_the_flag_there_is_no_way_to_the_faults() -> None:
    async def check() -> None:
        async with Engine(QUICK) as engine, aiohttp.ClientSession() as session:
            async with session.post(f"{engine.url}/admin/faults", json={"stall": True}) as response:
                assert response.status == 404
            assert not engine.faults.stall

    asyncio.run(check())


@pytest.mark.parametrize(
    "wanted",
    [
        {"slowdown": 0},
        {"slowdown": "3"},
        {"stall": 1},
        {"status": 200},
        {"metrics": "gone"},
        {"refuse_s": -1},
        {"die": True},
    ],
)
def test_wrong_faults_are_told(wanted: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wanted))):
        changed(Faults(), wanted)


@pytest.mark.parametrize(("page", "status"), [("garbage", 200), ("html", 200), ("error", 500)])
def test_a_metrics_page_can_be_wrong(page: str, status: int) -> None:
    async def check() -> None:
        async with engines() as [engine], aiohttp.ClientSession() as session:
            engine.engine.set_faults(metrics=page)
            async with session.get(f"{engine.url}/metrics") as response:
                assert response.status == status
                text = (await response.read()).decode("latin-1")
            with pytest.raises(ValueError):
                list(text_string_to_metric_families(text))

    asyncio.run(check())


def test_a_metrics_page_can_be_frozen_or_slow() -> None:
    async def check() -> None:
        async with engines() as [engine], aiohttp.ClientSession() as session:

            async def page() -> str:
                async with session.get(f"{engine.url}/metrics") as response:
                    return await response.text()

            engine.engine.set_faults(metrics="frozen")
            before = await page()
            async with session.post(f"{engine.url}/v1/completions", json={**BODY, "max_tokens": 2}) as response:
                await response.read()
            assert await page() == before
            engine.engine.set_faults(metrics="slow", slow_page_s=0.05)
            begin_s = time.monotonic()
            assert await page() != before
            assert time.monotonic() - begin_s >= 0.05

    asyncio.run(check())


def test_a_killed_engine_ends_its_streams_and_closes_its_port() -> None:
    async def check() -> None:
        async with engines() as [engine], aiohttp.ClientSession() as session:
            async with session.post(f"{engine.url}/v1/completions", json=BODY) as response:
                await response.content.readline()
                await engine.engine.kill()
                with pytest.raises(aiohttp.ClientError):
                    await response.read()
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.get(f"{engine.url}/health")

    asyncio.run(check())


def test_an_engine_that_stops_lets_open_answers_end() -> None:
    async def check() -> None:
        async with engines() as [engine], aiohttp.ClientSession() as session:
            async with session.post(f"{engine.url}/v1/completions", json={**BODY, "max_tokens": 50}) as response:
                await response.content.readline()
                stopping = asyncio.create_task(engine.engine.stop())
                assert (await response.text()).endswith("data: [DONE]\n\n")
            await stopping

    asyncio.run(check())


def test_a_client_that_does_not_read_delays_nobody() -> None:
    async def check() -> None:
        async with engines(step_s=1e-6) as [engine], aiohttp.ClientSession() as session:
            lazy = await session.post(f"{engine.url}/v1/completions", json={**BODY, "max_tokens": 20_000})
            async with session.post(f"{engine.url}/v1/completions", json={**BODY, "max_tokens": 100}) as response:
                assert (await response.text()).endswith("data: [DONE]\n\n")
            await until(lambda: clean(engine))  # all 4 MB wait for it; its blocks do not
            assert (await lazy.text()).count("data: ") == 20_001

    asyncio.run(check())


def test_when_the_core_fails_everybody_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
        async with engines() as [engine], aiohttp.ClientSession() as session:
            base = f"{engine.url}/v1"
            stream = await session.post(f"{base}/completions", json=BODY)
            await stream.content.readline()
            whole = asyncio.create_task(session.post(f"{base}/completions", json={**BODY, "stream": False}))
            await until(lambda: engine.open == 2)

            def broken(now_s: float) -> list[Token]:
                raise ZeroDivisionError("of the core")

            monkeypatch.setattr(engine.engine.answering.core, "end_step", broken)
            response = await whole
            assert response.status == 500
            assert "of the core" in (await response.json())["error"]["message"]
            with pytest.raises(aiohttp.ClientError):
                await stream.read()
            async with session.get(f"{engine.url}/health") as health:
                assert health.status == 503
            async with session.post(f"{base}/completions", json=BODY) as later:
                assert later.status in (200, 500)  # its status may have gone out before
            assert [type(context["exception"]) for context in told] == [ZeroDivisionError]
            assert engine.open == 0

    asyncio.run(check())


def test_a_machine_that_is_too_slow_says_so() -> None:
    async def check() -> None:
        async with engines() as [engine], aiohttp.ClientSession() as session:
            async with session.post(f"{engine.url}/v1/completions", json={**BODY, "max_tokens": 20}) as response:
                await response.content.readline()
                time.sleep(1.1)
                assert (await response.text()).endswith("data: [DONE]\n\n")
            assert engine.engine.answering.pace.lost_s > 1
            async with session.get(f"{engine.url}/metrics") as page:
                lost = [
                    sample.value
                    for family in text_string_to_metric_families(await page.text())
                    for sample in family.samples
                    if sample.name == "headway_engine_lost_seconds_total"
                ]
            assert lost == [engine.engine.answering.pace.lost_s]

    asyncio.run(check())


def test_a_taken_port_and_a_context_beyond_the_cache_are_told() -> None:
    async def check() -> None:
        async with engines() as [engine]:
            with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{engine.engine.port}"):
                await Engine(QUICK, port=engine.engine.port).start()
        with pytest.raises(UsageError, match="does not fit the KV cache"):
            await Engine(QUICK, ServingSettings(most_context_tokens=100_000)).start()

    asyncio.run(check())


def test_the_official_client_sees_a_death_as_an_error() -> None:
    async def check() -> None:
        async with engines() as [engine]:
            engine.engine.set_faults(die_after_tokens=2)
            async with openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0) as api:
                stream = await api.completions.create(model="test-model", prompt="x", max_tokens=9, stream=True)
                with pytest.raises(openai.APIConnectionError):
                    [chunk async for chunk in stream]
