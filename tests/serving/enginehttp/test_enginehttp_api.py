"""The engine's API with the official client: what comes, in which order, how much of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp
import openai
import pytest
import uvloop
from openai.types.chat import ChatCompletionMessageParam

from headway.serving.engine.types import EngineProfile
from headway.serving.enginehttp.answering import ServingSettings
from headway.serving.enginehttp.pace import sped_up
from headway.serving.enginehttp.server import Engine
from tests.fakes.engine import QUICK, Running, engines

MODEL = "test-model"
Runner = Callable[[Coroutine[Any, Any, None]], None]


def client(engine: Running) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0, timeout=10)


def user(text: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_chat_is_streamed_in_order_and_ends_with_its_usage(run: Runner) -> None:
    async def check() -> None:
        async with engines() as [engine], client(engine) as api:
            stream = await api.chat.completions.create(
                model=MODEL,
                messages=user("one two three"),
                max_tokens=20,
                stream=True,
                stream_options={"include_usage": True},
            )
            chunks = [chunk async for chunk in stream]
        *texts, last = chunks
        assert texts[0].choices[0].delta.role == "assistant"
        said = "".join(chunk.choices[0].delta.content or "" for chunk in texts)
        assert said == " ".join(f"w{number}" for number in range(1, 21))
        assert [chunk.choices[0].finish_reason for chunk in texts] == [None] * 20 + ["length"]
        assert last.choices == []
        assert last.usage is not None
        # The role, the three words, and the turn that is asked for.
        assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (5, 20, 25)
        assert len({chunk.id for chunk in chunks}) == 1
        assert {chunk.model for chunk in chunks} == {MODEL}

    run(check())


def test_the_sync_client_gets_the_same_answer_whole() -> None:
    async def check() -> None:
        async with engines() as [engine]:

            def ask() -> tuple[str | None, str, int, str | None]:
                with openai.OpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0, timeout=10) as api:
                    answer = api.chat.completions.create(model=MODEL, messages=user("hello"), max_completion_tokens=3)
                    text = api.completions.create(model=MODEL, prompt="a b c", max_tokens=2).choices[0].text
                    assert answer.usage is not None
                    choice = answer.choices[0]
                    return choice.message.content, choice.finish_reason, answer.usage.completion_tokens, text

            assert await asyncio.to_thread(ask) == ("w1 w2 w3", "length", 3, "w1 w2")

    asyncio.run(check())


@pytest.mark.parametrize(("tokens", "found"), [(15, 0), (16, 0), (17, 16), (40, 32), (48, 32), (49, 48)])
def test_whole_blocks_are_found_again_but_never_the_whole_prompt(tokens: int, found: int) -> None:
    async def check() -> None:
        async with engines() as [engine], client(engine) as api:
            for expected in (0, found):
                answer = await api.completions.create(model=MODEL, prompt=list(range(tokens)), max_tokens=1)
                assert answer.usage is not None
                assert answer.usage.prompt_tokens == tokens
                assert answer.usage.prompt_tokens_details is not None
                assert answer.usage.prompt_tokens_details.cached_tokens == expected

    asyncio.run(check())


def test_the_next_turn_of_a_chat_finds_the_turn_before() -> None:
    async def check() -> None:
        async with engines() as [engine], client(engine) as api:
            messages = user(" ".join(["word"] * 100))
            answer = await api.chat.completions.create(model=MODEL, messages=messages, max_tokens=30)
            messages.append({"role": "assistant", "content": answer.choices[0].message.content})
            messages += user("and then")
            answer = await api.chat.completions.create(model=MODEL, messages=messages, max_tokens=1)
            assert answer.usage is not None
            assert answer.usage.prompt_tokens == 101 + 31 + 3 + 1
            assert answer.usage.prompt_tokens_details is not None
            assert answer.usage.prompt_tokens_details.cached_tokens == 96  # of 101 that both have, in whole blocks

    asyncio.run(check())


@pytest.mark.parametrize(("prompt_tokens", "output_tokens"), [(1, 1), (10, 7), (64, 5), (65, 5), (300, 3)])
def test_a_lone_request_takes_a_step_per_chunk_and_token(prompt_tokens: int, output_tokens: int) -> None:
    async def check() -> None:
        async with engines(step_tokens=64) as [engine], client(engine) as api:
            begin_s = time.monotonic()
            await api.completions.create(model=MODEL, prompt=[1] * prompt_tokens, max_tokens=output_tokens)
            elapsed_s = time.monotonic() - begin_s
            steps = -(-prompt_tokens // 64) + output_tokens - 1
            assert engine.engine.answering.pace.steps == steps
            assert elapsed_s >= steps * QUICK.step_s  # no token comes before its time

    asyncio.run(check())


def test_a_batch_advances_together() -> None:
    async def check() -> None:
        async with engines() as [engine], client(engine) as api:

            async def read() -> int:
                stream = await api.completions.create(model=MODEL, prompt="x", max_tokens=20, stream=True)
                return len([chunk async for chunk in stream])

            engine.engine.set_faults(stall=True)
            tasks = [asyncio.create_task(read()) for _ in range(8)]
            while engine.open < 8:
                await asyncio.sleep(0.001)
            engine.engine.set_faults(stall=False)
            assert await asyncio.gather(*tasks) == [20] * 8
            # The step that stalled held those that were there when it began, at least one; the next one the others.
            assert engine.engine.answering.pace.steps in (20, 21)

    asyncio.run(check())


def test_a_lower_priority_number_goes_first() -> None:
    async def check() -> None:
        async with engines(most_running=1) as [engine], client(engine) as api:
            ended: list[str] = []

            async def ask(name: str, priority: int) -> None:
                await api.completions.create(model=MODEL, prompt=name, max_tokens=5, extra_body={"priority": priority})
                ended.append(name)

            tasks = []
            engine.engine.set_faults(stall=True)
            for open_, (name, priority) in enumerate([("first", 0), ("low", 5), ("high", -5), ("middle", 0)]):
                tasks.append(asyncio.create_task(ask(name, priority)))
                while engine.open == open_:
                    await asyncio.sleep(0.001)
            engine.engine.set_faults(stall=False)
            await asyncio.gather(*tasks)
            assert ended == ["first", "high", "middle", "low"]

    asyncio.run(check())


def test_lengths_without_a_limit_follow_the_seed() -> None:
    async def lengths(seed: int) -> list[tuple[int, str]]:
        settings = ServingSettings(model=MODEL, output_tokens_mean=30, output_tokens_sd=10, seed=seed)
        found: list[tuple[int, str]] = []
        async with Engine(QUICK, settings) as engine, client(Running(engine)) as api:
            for _ in range(6):
                answer = await api.completions.create(model=MODEL, prompt="x")
                assert answer.usage is not None
                assert answer.choices[0].text.split()[-1] == f"w{answer.usage.completion_tokens}"
                found.append((answer.usage.completion_tokens, answer.choices[0].finish_reason))
        return found

    async def check() -> None:
        once, again, other = await lengths(1), await lengths(1), await lengths(2)
        assert once == again != other
        assert {reason for _, reason in once} == {"stop"}
        assert len({tokens for tokens, _ in once}) > 2

    asyncio.run(check())


def test_embeddings_depend_on_the_text_alone() -> None:
    async def check() -> None:
        async with engines(2) as [one, other], client(one) as api, client(other) as elsewhere:
            texts = ["a b c", "a b d"]
            both = await api.embeddings.create(model=MODEL, input=texts)  # the client asks for base64
            floats = await elsewhere.embeddings.create(model=MODEL, input=texts, encoding_format="float")
            assert [each.index for each in both.data] == [0, 1]
            for packed, plain in zip(both.data, floats.data, strict=True):
                assert packed.embedding == pytest.approx(plain.embedding, abs=1e-6)
                assert sum(value**2 for value in plain.embedding) == pytest.approx(1)
            assert floats.data[0].embedding != pytest.approx(floats.data[1].embedding, abs=1e-2)
            assert both.usage.prompt_tokens == 6
            short = await api.embeddings.create(model=MODEL, input=[1, 2, 3], dimensions=8)
            assert len(short.data[0].embedding) == 8

    asyncio.run(check())


def test_models_tell_the_longest_context() -> None:
    async def check() -> None:
        async with engines(cache_tokens=1600) as [engine], client(engine) as api:
            [model] = [each async for each in api.models.list()]
            assert (model.id, model.model_dump()["max_model_len"]) == (MODEL, 1600)

    asyncio.run(check())


HELLO = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("chat/completions", b"{", 400, None),
        ("chat/completions", b"[" * 100_000, 400, None),
        ("chat/completions", [], 400, None),
        ("chat/completions", {}, 400, "messages"),
        ("chat/completions", {"messages": []}, 400, "messages"),
        ("chat/completions", {"messages": [{"content": "x"}]}, 400, "messages.0"),
        ("chat/completions", {"messages": [{"role": "user", "content": 5}]}, 400, "messages.0"),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages.0"),
        ("chat/completions", {**HELLO, "max_tokens": 0}, 400, "max_tokens"),
        ("chat/completions", {**HELLO, "max_tokens": "5"}, 400, "max_tokens"),
        ("chat/completions", {**HELLO, "stream": "yes"}, 400, "stream"),
        ("chat/completions", {**HELLO, "stream_options": {"include_usage": True}}, 400, "stream_options"),
        ("chat/completions", {**HELLO, "n": 2}, 400, "n"),
        ("chat/completions", {**HELLO, "model": "other"}, 404, "model"),
        ("chat/completions", {**HELLO, "max_tokens": 100_000}, 400, "max_tokens"),
        ("completions", {"prompt": ["a", "b"]}, 400, "prompt"),
        ("completions", {"prompt": [1, "b"]}, 400, "prompt"),
        ("completions", {"prompt": [-1]}, 400, "prompt"),
        ("completions", {"prompt": [2**70]}, 400, "prompt"),
        ("completions", {"prompt": [1] * 40_000}, 400, "prompt"),
        ("chat/completions", {"messages": [{"role": "user", "content": "a " * 40_000}]}, 400, "messages"),
        ("embeddings", {"input": "a " * 40_000}, 400, "input"),
        ("embeddings", {"input": []}, 400, "input"),
        ("embeddings", {"input": "x", "encoding_format": "int8"}, 400, "encoding_format"),
        ("rerank", {}, 404, None),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong(path: str, body: Any, status: int, param: str | None) -> None:
    async def check() -> None:
        async with engines() as [engine], aiohttp.ClientSession() as session:
            how: dict[str, Any] = {"data": body} if isinstance(body, bytes) else {"json": body}
            async with session.post(f"{engine.url}/v1/{path}", **how) as response:
                assert response.status == status
                error = (await response.json())["error"]
            assert error["param"] == param
            assert error["type"] == "invalid_request_error"
            assert error["message"]
            assert engine.open == 0

    asyncio.run(check())


def test_a_context_that_is_too_long_has_openais_code() -> None:
    async def check() -> None:
        async with engines(cache_tokens=160) as [engine], client(engine) as api:
            with pytest.raises(openai.BadRequestError) as caught:
                await api.completions.create(model=MODEL, prompt=[1] * 150, max_tokens=11)
            assert caught.value.code == "context_length_exceeded"
            await api.completions.create(model=MODEL, prompt=[1] * 150, max_tokens=10)

    asyncio.run(check())


def test_lone_surrogates_are_words_like_others() -> None:
    async def check() -> None:
        async with engines() as [engine], aiohttp.ClientSession() as session:
            body = b'{"prompt": "a \\ud800 b", "max_tokens": 1}'
            async with session.post(f"{engine.url}/v1/completions", data=body) as response:
                assert (await response.json())["usage"]["prompt_tokens"] == 3

    asyncio.run(check())


@pytest.mark.parametrize("version", [aiohttp.HttpVersion10, aiohttp.HttpVersion11], ids=["1.0", "1.1"])
def test_http_1_0_gets_its_stream_without_chunks(version: aiohttp.HttpVersion) -> None:
    async def check() -> None:
        async with engines() as [engine], aiohttp.ClientSession(version=version) as session:
            body = {"prompt": "x", "max_tokens": 3, "stream": True}
            async with session.post(f"{engine.url}/v1/completions", json=body) as response:
                text = await response.text()
            assert text.startswith("data: {")
            assert text.endswith("data: [DONE]\n\n")
            assert text.count("data: ") == 4

    asyncio.run(check())


def test_a_request_id_comes_back_in_the_answers_id() -> None:
    async def check() -> None:
        async with engines() as [engine], client(engine) as api:
            answer = await api.completions.create(
                model=MODEL, prompt="x", max_tokens=1, extra_headers={"X-Request-Id": "r17"}
            )
            assert answer.id == "cmpl-r17"

    asyncio.run(check())


def test_speed_divides_every_time() -> None:
    slow = EngineProfile("test", 1.0, 2.0, 3.0, 4.0, 5.0, 64, 8, 1600, 16)
    fast = sped_up(slow, 10)
    assert fast == EngineProfile("test", 0.1, 0.2, 0.3, 0.4, 0.5, 64, 8, 1600, 16)
