"""Two servers of llama.cpp with a small real model, behind the gateway, asked with the official client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headway.errors import HeadwayError
from headway.serving import llama
from headway.serving.gateway.config import Config
from headway.serving.gateway.gateway import Gateway
from headway.serving.llama import LlamaServer, LlamaSettings

pytestmark = pytest.mark.skipif(bool(llama.missing()), reason=llama.missing() or "all there")

MODEL = llama.MODEL_NAME
SETTINGS = LlamaSettings(slots=1, context_tokens=1024)
TALE = "Once upon a time there was a miller who had three sons, a mill, an ass and a cat. " * 4
LIST = "Item one is a lamp. Item two is a chair. Item three is a long table made of oak. " * 4


@pytest.fixture(scope="module")
def replicas() -> Iterator[list[LlamaServer]]:
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        servers = [LlamaServer(SETTINGS) for _ in range(2)]
        for server in servers:
            stack.callback(server.stop)
        list(pool.map(LlamaServer.start, servers))
        yield servers


@asynccontextmanager
async def behind(servers: list[LlamaServer], policy: str) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client of a gateway in front of these, ready for requests."""
    pool = {"policy": policy, "replicas": [{"url": server.url} for server in servers]}
    config = Config.model_validate({"listen": {"port": 0}, "pools": [pool], "timeouts": {"drain_s": 1.0}})
    async with Gateway(config, {}) as gateway, aiohttp.ClientSession() as session:
        async with asyncio.timeout(10):
            while True:
                async with session.get(f"{gateway.url}/v1/models") as response:
                    if response.status == 200 and MODEL in await response.text():
                        break
                await asyncio.sleep(0.05)
        async with openai.AsyncOpenAI(
            base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=30
        ) as client:
            yield client


async def ask(client: openai.AsyncOpenAI, text: str, **more: Any) -> tuple[str, str, int]:
    """What was said, who said it, and how many tokens of the prompt it had in its cache."""
    raw = await client.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": text}], max_tokens=8, temperature=0, **more
    )
    answer = raw.parse()
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    cached = answer.usage.prompt_tokens_details.cached_tokens or 0
    return answer.choices[0].message.content or "", raw.headers["x-headway-replica"], cached


def test_whole_and_streamed_answers_say_the_same(replicas: list[LlamaServer]) -> None:
    async def check() -> None:
        async with behind(replicas, "round-robin") as client:
            whole, _, _ = await ask(client, "Count from one to five.")
            stream = await client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "Count from one to five."}],
                max_tokens=8,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
            )
            chunks = [chunk async for chunk in stream]
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == whole
            assert whole
            assert len(chunks) > 3
            assert chunks[-1].usage is not None
            assert chunks[-1].usage.completion_tokens <= 8

    asyncio.run(check())


def test_prompts_that_begin_alike_go_where_their_beginning_is_cached(replicas: list[LlamaServer]) -> None:
    async def check() -> None:
        async with behind(replicas, "prefix") as client:
            # At the same time, so that they go to different replicas.
            (_, tales, _), (_, lists, _) = await asyncio.gather(ask(client, TALE + "Why?"), ask(client, LIST + "Why?"))
            assert tales != lists
            for text, home in ((TALE, tales), (LIST, lists), (TALE, tales)):
                _, replica, cached_tokens = await ask(client, text + "And who was the eldest of them all?")
                assert replica == home
                assert cached_tokens > 60

    asyncio.run(check())


def test_a_client_that_goes_away_stops_the_real_engine(replicas: list[LlamaServer]) -> None:
    async def check() -> None:
        async with behind(replicas[:1], "round-robin") as client, aiohttp.ClientSession() as session:

            async def gauge(name: str) -> float:
                async with session.get(f"{replicas[0].url}/metrics") as response:
                    families = text_string_to_metric_families(await response.text())
                    return next(sample.value for family in families for sample in family.samples if sample.name == name)

            before = await gauge("llamacpp:tokens_predicted_total")
            stream = await client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "Tell a long story."}],
                max_tokens=900,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            await anext(aiter(stream))
            assert await gauge("llamacpp:requests_processing") == 1
            await stream.close()
            async with asyncio.timeout(5):
                while await gauge("llamacpp:requests_processing"):
                    await asyncio.sleep(0.05)
            assert await gauge("llamacpp:tokens_predicted_total") - before < 900

    asyncio.run(check())


def test_when_a_replica_is_killed_the_other_one_answers(replicas: list[LlamaServer]) -> None:
    async def check(victim: LlamaServer) -> None:
        async with behind([victim, replicas[0]], "round-robin") as client:
            before = [await ask(client, "Name a colour.") for _ in range(2)]
            assert len({replica for _, replica, _ in before}) == 2
            victim.kill()
            assert not victim.alive
            after = [await ask(client, "Name a colour.") for _ in range(2)]  # one of them would have been the victim's
            assert len({replica for _, replica, _ in after}) == 1
            assert {said for said, _, _ in before + after} == {before[0][0]}

    with LlamaServer(SETTINGS) as victim:
        asyncio.run(check(victim))


def test_a_server_that_cannot_start_is_told(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(HeadwayError, match=r"ended with status \d+ before it answered"):
        LlamaServer(LlamaSettings(model_path=str(broken))).start()
