"""A small server with the OpenAI API in a thread, which misbehaves as the model's name says."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web

MOST_S = 20.0
"""No handler lasts longer."""


@dataclass
class MisbehavingServer:
    """Where it is, and what reached it.

    Attributes:
        url: without a path.
        bodies, headers: of the calls, in order.
        cancelled: calls whose client went away.
        models: what it lists.
        refusals: statuses and messages that it answers instead, in order; the last one for ever.
    """

    url: str = ""
    bodies: list[dict[str, object]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    cancelled: int = 0
    models: list[str] = field(default_factory=lambda: ["good"])
    refusals: list[tuple[int, str]] = field(default_factory=list)

    async def list_models(self, _: web.Request) -> web.Response:
        if self.refusals:
            status, message = self.refusals[0]
            if len(self.refusals) > 1:
                del self.refusals[0]
            if status != 200:
                return web.json_response({"error": {"message": message}}, status=status)
        return web.json_response({"object": "list", "data": [{"id": each} for each in self.models]})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        try:
            return await self._answer(request, str(body["model"]), int(body["max_tokens"]))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def _answer(self, request: web.Request, model: str, tokens: int) -> web.StreamResponse:
        if model == "busy":
            wait = {"Retry-After": "3"} if len(self.bodies) % 2 else {}
            return web.json_response({"error": {"message": "too much"}}, status=429, headers=wait)
        if model == "broken":
            return web.Response(status=500, text="<html>no</html>")
        if model == "odd":
            return await self._odd(request)
        if model == "rude":
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        number = len(self.bodies)
        stream = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "x-headway-replica": f"r{number % 2}",
                "x-headway-reason": "round robin",
                "x-headway-policy": "round-robin",
            }
        )
        await stream.prepare(request)
        if model == "mute":
            await asyncio.sleep(MOST_S)
        for token in range(tokens):
            if token == 1 and model == "stall":
                await asyncio.sleep(MOST_S)
            if token == 1 and model == "die":
                assert request.transport is not None
                request.transport.abort()
                return stream
            if token == 1 and model == "end":
                return stream
            if token == 1 and model == "sorry":
                await _event(stream, {"error": {"message": "out of memory"}})
            if token == 1 and model == "garbage":
                await stream.write(b"data: {oops\n\n")
            await asyncio.sleep(0.2 if model == "slow" else 0.01)
            last = token == tokens - 1
            await _event(stream, _chunk(request.path, f"w{token} ", "length" if last else None))
        if model != "terse":
            usage = {"prompt_tokens": 77, "completion_tokens": tokens, "prompt_tokens_details": {"cached_tokens": 16}}
            await _event(stream, {"choices": [], "usage": usage})
        await stream.write(b"data: [DONE]\n\n")
        return stream

    async def _odd(self, request: web.Request) -> web.StreamResponse:
        """A header that is no text, and a count that no engine ever had."""
        assert request.transport is not None
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nx-headway-reason: " + b"\xff" * 4000
        usage = b'{"choices": [], "usage": {"completion_tokens": ' + b"9" * 400 + b"}}"
        events = 2 * (b"data: " + json.dumps(_chunk("chat", "w", None)).encode() + b"\n\n")
        tail = b"data: " + usage + b"\n\ndata: [DONE]\n\n"
        request.transport.write(head + b"\r\nConnection: close\r\n\r\n" + events + tail)
        await asyncio.sleep(0.1)
        request.transport.close()
        return web.Response()


def _chunk(path: str, text: str, finish: str | None) -> dict[str, object]:
    content = {"delta": {"content": text}} if "chat" in path else {"text": text}
    return {"choices": [{"index": 0, "finish_reason": finish, **content}]}


async def _event(stream: web.StreamResponse, fields: dict[str, object]) -> None:
    await stream.write(b"data: " + json.dumps(fields).encode() + b"\n\n")


@contextmanager
def nobody() -> Iterator[str]:
    """An address where nobody listens, and where nobody else can."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@contextmanager
def misbehaving_server() -> Iterator[MisbehavingServer]:
    """One that runs until the block ends."""
    state, ready = MisbehavingServer(), threading.Event()
    loop = asyncio.new_event_loop()

    async def serve(stop: asyncio.Event) -> None:
        app = web.Application()
        app.router.add_get("/v1/models", state.list_models)
        app.router.add_post("/v1/chat/completions", state.answer)
        app.router.add_post("/v1/completions", state.answer)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        state.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        await stop.wait()
        await runner.cleanup()

    stop = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve(stop)), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield state
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        assert not thread.is_alive()
        loop.close()
