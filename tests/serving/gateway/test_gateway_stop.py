"""Stopping in good order, reloading, TLS, and the clients that people use."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import trustme

from headway.errors import UsageError
from headway.serving.gateway.gateway import Gateway
from tests.fakes.engine import engines
from tests.fakes.gateway import config_of, gateway
from tests.fakes.scripted_engine import END, HOLD, RESET, SSE, chunk, event, scripted

CHAT = "/v1/chat/completions"
DONE = chunk(b"data: [DONE]\n\n") + END
BODY: dict[str, Any] = {"model": "test-model", "stream": True, "messages": [{"role": "user", "content": "hi"}]}


async def stopped_while_streaming(script: tuple[Any, ...], drain_s: float) -> tuple[bytes, float, list[str]]:
    """What a client gets whose gateway is stopped after the first event; how long that took; what was said."""
    told: list[str] = []
    async with scripted(*script) as engine, aiohttp.ClientSession() as session:
        async with gateway([engine.url], told=told, timeouts={"drain_s": drain_s}) as running:
            answer = await session.post(running.url + CHAT, json=BODY)
            got = await answer.content.readany()
            began_s = time.monotonic()
            reading = asyncio.create_task(answer.content.read())
        return got + await reading, time.monotonic() - began_s, told


def test_an_open_stream_may_end_when_the_gateway_stops() -> None:
    script = (SSE + chunk(event("a")), 0.3, chunk(event("b")) + DONE)
    got, took_s, _ = asyncio.run(stopped_while_streaming(script, 20))
    assert got == event("a") + event("b") + b"data: [DONE]\n\n"
    assert took_s < 15


def test_a_stream_that_does_not_end_is_ended_with_an_error() -> None:
    got, took_s, told = asyncio.run(stopped_while_streaming((SSE + chunk(event("a")), HOLD), 0.2))
    last = got.removeprefix(event("a"))
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "stopping"
    assert took_s < 15
    assert told[-1] == "ended 1 request still open"


def test_a_gateway_that_stops_takes_nothing_new() -> None:
    async def run() -> None:
        async with scripted(SSE + chunk(event("a")), 0.3, DONE) as engine, aiohttp.ClientSession() as session:
            async with gateway([engine.url], timeouts={"drain_s": 5}) as running:
                url = running.url
                idle = await session.get(url + "/health")  # a connection that stays
                await idle.read()
                first = await session.post(url + CHAT, json=BODY)
                running.admission.draining = True
                async with session.post(url + CHAT, json=BODY) as second:
                    assert second.status == 503
                    assert int(second.headers["Retry-After"]) >= 1
                async with session.get(url + "/ready") as ready:
                    assert ready.status == 503
                await first.read()
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.get(url + "/health")

    asyncio.run(run())


def test_an_address_in_use_is_one_line() -> None:
    async def run() -> None:
        async with scripted(SSE) as engine, gateway([engine.url]) as running:
            port = int(running.url.rpartition(":")[2])
            config = config_of([engine.url]).model_copy(
                update={"listen": running.admission.config.listen.model_copy(update={"port": port})}
            )
            with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
                async with Gateway(config, {}):
                    pass

    asyncio.run(run())


def test_keys_limits_and_policy_change_while_it_runs() -> None:
    async def run() -> None:
        async with (
            engines(2) as (one, two),
            gateway([one.url, two.url], environment={"KEY": "secret"}) as running,
            aiohttp.ClientSession() as session,
        ):
            changed = config_of(
                [one.url, two.url],
                pool={"policy": "least-requests"},
                keys=[{"name": "a", "env": "KEY"}],
                limits={"body_bytes": 100},
            )
            stream = await session.post(running.url + CHAT, json=BODY)
            assert running.reload(changed) == []
            assert (await stream.read()).endswith(b"data: [DONE]\n\n")
            async with session.post(running.url + CHAT, json=BODY) as answer:
                assert answer.status == 401
            headers = {"Authorization": "Bearer secret"}
            async with session.post(running.url + CHAT, json=BODY, headers=headers) as answer:
                assert (answer.status, answer.headers["x-headway-policy"]) == (200, "least-requests")
            async with session.post(running.url + CHAT, json={**BODY, "user": "x" * 200}, headers=headers) as answer:
                assert answer.status == 413
            elsewhere = config_of([one.url], keys=[{"name": "a", "env": "KEY"}], journal={"path": "x"})
            assert running.reload(elsewhere) == ["journal", "pools"]
            with pytest.raises(UsageError):
                running.reload(config_of([one.url], pool={"policy": "nonsense"}))

    asyncio.run(run())


def test_replicas_come_and_go_with_their_file(tmp_path: Path) -> None:
    path = tmp_path / "replicas.yaml"

    async def run() -> None:
        told: list[str] = []
        async with engines(2) as (one, two), aiohttp.ClientSession() as session:
            path.write_text(f"- {{url: {one.url}, name: one}}\n")
            discovery = [{"kind": "file", "path": str(path), "poll_s": 0.02}]
            async with gateway([], pool={"replicas": [], "discovery": discovery}, told=told) as running:
                fleet = running.admission.pools[0].fleet
                for text, names in (
                    (f"- {{url: {one.url}, name: one}}\n", ("one",)),
                    (f"- {{url: {two.url}, name: two}}\n", ("two",)),
                ):
                    path.write_text(text)
                    async with asyncio.timeout(5):
                        while fleet.names != names:
                            await asyncio.sleep(0.01)
                    async with session.post(running.url + CHAT, json=BODY) as answer:
                        assert (answer.status, answer.headers["x-headway-replica"]) == (200, names[0])
        assert f"one joined at {one.url}" in told
        assert any(line.startswith("one leaves") for line in told)

    asyncio.run(run())


def test_the_official_client_in_both_its_forms() -> None:
    def chat(url: str) -> None:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
            assert [model.id for model in client.models.list()] == ["test-model"]
            messages: Any = [{"role": "user", "content": "hello there"}]
            whole = client.chat.completions.create(model="test-model", messages=messages, max_tokens=5)
            assert whole.usage is not None
            assert whole.usage.completion_tokens == 5
            parts = client.chat.completions.create(
                model="test-model", messages=messages, max_tokens=5, stream=True, stream_options={"include_usage": True}
            )
            chunks = list(parts)
            assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "w1 w2 w3 w4 w5"
            assert chunks[-1].usage is not None
            text = client.completions.create(model="test-model", prompt="one two", max_tokens=2)
            assert text.choices[0].text
            with pytest.raises(openai.NotFoundError, match="test-model"):
                client.chat.completions.create(model="nope", messages=messages)
            raw = client.chat.completions.with_raw_response.create(model="test-model", messages=messages)
            assert raw.headers["x-headway-replica"] in ("r0", "r1")

    async def run() -> None:
        async with engines(2) as (one, two), gateway([one.url, two.url]) as running:
            await asyncio.to_thread(chat, running.url)
            async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="any", max_retries=0) as client:
                stream = await client.chat.completions.create(
                    model="test-model", messages=[{"role": "user", "content": "hi"}], max_tokens=3, stream=True
                )
                assert [c async for c in stream if c.choices and c.choices[0].delta.content]

    asyncio.run(run())


def test_the_official_client_hears_of_a_stream_that_broke() -> None:
    first = b'data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[]}\n\n'

    async def run() -> None:
        async with (
            scripted(SSE + chunk(first + event("a") + b'data: {"ch'), 0.05, RESET) as engine,
            gateway([engine.url]) as running,
            openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="any", max_retries=0) as client,
        ):
            stream = await client.chat.completions.create(
                model="test-model", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            with pytest.raises(openai.APIError, match="broke off"):
                async for _ in stream:
                    pass

    asyncio.run(run())


def test_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    tls = {"certificate": str(tmp_path / "both.pem"), "key": str(tmp_path / "both.pem")}

    async def run() -> None:
        async with engines(1) as (engine,), gateway([engine.url], listen={"port": 0, "tls": tls}) as running:
            assert running.url.startswith("https://")
            async with (
                openai.DefaultAsyncHttpxClient(verify=context) as http,
                openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="any", http_client=http) as client,
            ):
                stream = await client.chat.completions.create(
                    model="test-model", messages=[{"role": "user", "content": "hi"}], max_tokens=3, stream=True
                )
                assert [c async for c in stream if c.choices and c.choices[0].delta.content]
            assert engine.calls[-1].headers["X-Forwarded-Proto"] == "https"

    asyncio.run(run())
