"""Clients' connections: their number, the time for a head, and what is no HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
import uvloop

from headway.serving.gateway import admission, connection, incoming
from headway.serving.gateway import gateway as gateway_module
from headway.serving.gateway.prompt import BLOCK_BYTES, HASHED_BYTES, Prompt
from tests.fakes.gateway import gateway
from tests.fakes.scripted_engine import scripted, whole

CHAT = "/v1/chat/completions"
ANSWER = whole(b'{"usage":{"prompt_tokens":1,"completion_tokens":1}}')
PATIENCE_S = 10.0


async def said(url: str, data: bytes) -> bytes:
    """All that comes for some bytes, up to the connection's end."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    async with asyncio.timeout(PATIENCE_S):
        got = await reader.read()
    writer.close()
    return got


def test_a_head_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.2)

    async def run() -> None:
        async with scripted(ANSWER) as engine, gateway([engine.url]) as running, aiohttp.ClientSession() as session:
            got = await said(running.url, b"GET /health HTTP/1.1\r\nHost: ")
            assert got.startswith(b"HTTP/1.1 408 ")
            assert json.loads(got.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"
            for _ in range(2):  # a connection that stays idle for longer is kept
                async with session.get(running.url + "/health") as answer:
                    assert answer.status == 200
                    await answer.read()
                await asyncio.sleep(0.4)

    asyncio.run(run())


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_connections_are_bounded_and_said(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "many_files", lambda wanted: 64 + 2)  # one request, 33 connections

    async def run() -> None:
        told: list[str] = []
        async with scripted(ANSWER) as engine, gateway([engine.url], told=told) as running:
            host, port = running.url.removeprefix("http://").split(":")
            idle = [await asyncio.open_connection(host, int(port)) for _ in range(33)]
            await asyncio.sleep(0.1)
            got = await said(running.url, b"")
            assert got.startswith(b"HTTP/1.1 503 ")
            assert b"too_many_connections" in got
            assert told.count("has as many connections as it takes; more are turned away") == 1
            idle.pop()[1].close()
            await asyncio.sleep(0.1)
            async with aiohttp.ClientSession() as session, session.get(running.url + "/metrics") as page:
                assert 'headway_gateway_refused_total{reason="connections"} 1.0' in await page.text()
            for _, writer in idle:
                writer.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(run())


NO_HTTP = {
    "garbage": b"\x00\x01\r\n\r\n",
    "a header too long": b"GET /health HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 20_000 + b"\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("data", NO_HTTP.values(), ids=NO_HTTP.keys())
def test_what_is_no_http_gets_an_error_in_the_promised_form(data: bytes) -> None:
    async def run() -> None:
        async with scripted(ANSWER) as engine, gateway([engine.url]) as running:
            head, _, body = (await said(running.url, data)).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400 ")
            assert b"Server: headway" in head
            assert json.loads(body)["error"]["code"] == "invalid_http"

    asyncio.run(run())


def test_errors_have_a_request_id_and_all_answers_one_server() -> None:
    async def run() -> None:
        async with (
            scripted(ANSWER) as engine,
            gateway([engine.url], keys=[{"name": "a", "env": "K"}], environment={"K": "k"}) as running,
            aiohttp.ClientSession() as session,
        ):
            good: dict[str, Any] = {"Authorization": "Bearer k", "x-request-id": "mine"}
            for path, headers, wanted in ((CHAT, {}, 401), (CHAT, good, 400), ("/nope", good, 404)):
                async with session.request("POST", running.url + path, data=b"{", headers=headers) as answer:
                    assert answer.status == wanted
                    assert answer.headers["Server"] == "headway"
                    named = answer.headers["x-request-id"]
                    assert named == "mine" if headers else named
            async with session.get(running.url + "/health") as answer:
                assert answer.headers["Server"] == "headway"

    asyncio.run(run())


def test_large_bodies_are_understood_in_a_thread_and_hashed_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    parse = incoming.parse_call

    def watched(*args: Any, **named: Any) -> Any:
        threads.append(threading.current_thread().name)
        return parse(*args, **named)

    monkeypatch.setattr(admission, "parse_call", watched)

    async def run() -> None:
        async with scripted(ANSWER) as engine, gateway([engine.url]) as running, aiohttp.ClientSession() as session:
            for size in (10, 300_000):
                body = {"model": "test-model", "messages": [{"role": "user", "content": "x" * size}]}
                async with session.post(running.url + CHAT, json=body, headers={"x-request-id": "mine"}) as answer:
                    assert (answer.status, answer.headers["x-request-id"]) == (200, "mine")

    asyncio.run(run())
    assert threads[0] == threading.main_thread().name
    assert threads[1].startswith("bodies")
    assert len(Prompt(b"x" * (HASHED_BYTES + 5000)).blocks("m")) == HASHED_BYTES // BLOCK_BYTES
