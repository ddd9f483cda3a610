"""The OpenAI API in front of an engine, its metrics page, and the way to its faults."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from aiohttp import HttpVersion11, web

from headway.errors import HeadwayError
from headway.serving.engine.types import Token
from headway.serving.enginehttp import answers, asked
from headway.serving.enginehttp.answering import Answering
from headway.serving.enginehttp.asked import ApiError, Asked
from headway.serving.enginehttp.faults import Faults

MOST_BODY_BYTES = 64 * 2**20
MOST_DRAIN_S = 60.0
"""How long a client may take to read what is left of an answer after its last token, seconds. Ours."""
GARBAGE = bytes(range(256)) + b"\nvllm:num_requests_running{ NaN NaN\nvllm:num_requests_waiting -nan(0x8) x\n"
HTML = b"<!DOCTYPE html><html><head><title>Sign in</title></head><body>vllm:num_requests_running 7</body></html>\n"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
OnRequest = Callable[[web.Request, Any], None]


class Api:
    """Handlers of one engine.

    Args:
        answering: the engine.
        faults: what is wrong with it now.
        set_faults: changes that; None: there is no `/admin/faults`.
        on_request: sees each call of the API with its body; for tests of what stands in front.
    """

    def __init__(
        self,
        answering: Answering,
        faults: Callable[[], Faults],
        set_faults: Callable[[dict[str, Any]], None] | None,
        on_request: OnRequest | None,
    ) -> None:
        self._answering = answering
        self._faults = faults
        self._set_faults = set_faults
        self._on_request = on_request
        self._frozen_page = b""
        self._created_s = int(time.time())

    def app(self) -> web.Application:
        """The application with all its paths."""
        app = web.Application(client_max_size=MOST_BODY_BYTES, middlewares=[_errors])
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._completion)
        app.router.add_post("/v1/embeddings", self._embeddings)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        if self._set_faults is not None:
            app.router.add_get("/admin/faults", self._show_faults)
            app.router.add_post("/admin/faults", self._change_faults)
        return app

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._text(request, asked.chat, "chatcmpl-")

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        return await self._text(request, asked.completion, "cmpl-")

    async def _text(
        self, request: web.Request, parse: Callable[[Any, int], Asked], id_prefix: str
    ) -> web.StreamResponse:
        received_s = time.monotonic()
        wanted = parse(await self._body(request), self._answering.profile.block_tokens)
        self._check_model(wanted.model)
        output_tokens, reason = self._answering.length(
            wanted.prompt, wanted.output_tokens, param="messages" if wanted.chat else "prompt"
        )
        answer_id = id_prefix + (request.headers.get("X-Request-Id") or f"{time.time_ns():x}")
        model, created_s = self._answering.settings.model, int(time.time())

        async def run(on_token: Callable[[Token], None]) -> int:
            return await self._answering.run(
                wanted.prompt,
                output_tokens,
                priority=wanted.priority,
                received_s=received_s,
                reason=reason,
                on_token=on_token,
            )

        if not wanted.stream:
            cached_tokens = await run(lambda token: self._die_after(request, token))
            whole = answers.whole(wanted, answer_id, model, created_s, output_tokens, cached_tokens, reason)
            return web.json_response(whole)
        chunks = answers.Chunks(wanted, answer_id, model, created_s, reason)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        chunked = request.version >= HttpVersion11
        if chunked:
            response.enable_chunked_encoding()
        else:
            response.force_close()  # the only way to say where it ends
        await response.prepare(request)
        write = _writer(request, chunked)

        def send(token: Token) -> None:
            if token.last:
                first = chunks.first() if token.number == 1 else b""
                write(first + chunks.last(token.number, token.cached_tokens))
            elif token.number == 1:
                write(chunks.first() + chunks.token(1))
            else:
                write(chunks.token(token.number))
            self._die_after(request, token)

        try:
            await run(send)
            async with asyncio.timeout(MOST_DRAIN_S):
                await response.write_eof()
        except (HeadwayError, TimeoutError):
            reset(request)  # the status has been sent: only an end without an end says that something is wrong
        return response

    async def _embeddings(self, request: web.Request) -> web.StreamResponse:
        received_s = time.monotonic()
        wanted = asked.embeddings(await self._body(request), self._answering.profile.block_tokens)
        self._check_model(wanted.model)
        for prompt in wanted.prompts:
            self._answering.length(prompt, 1, param="input")
        async with asyncio.TaskGroup() as group:
            for prompt in wanted.prompts:
                group.create_task(
                    self._answering.run(
                        prompt, 1, priority=0, received_s=received_s, reason="stop", on_token=lambda token: None
                    )
                )
        dimensions = wanted.dimensions or answers.DIMENSIONS
        model = self._answering.settings.model
        return web.json_response(answers.embeddings(wanted.prompts, model, dimensions, wanted.as_base64))

    async def _models(self, request: web.Request) -> web.Response:
        self._fail_if_told()
        model = {
            "id": self._answering.settings.model,
            "object": "model",
            "created": self._created_s,
            "owned_by": "headway",
            "max_model_len": self._answering.most_context_tokens,
        }
        return web.json_response({"object": "list", "data": [model]})

    async def _health(self, request: web.Request) -> web.Response:
        failed = self._answering.failure is not None or self._faults().status >= 500
        return web.Response(status=503 if failed else 200)

    async def _metrics(self, request: web.Request) -> web.Response:
        faults = self._faults()
        if faults.metrics == "error":
            raise ApiError(500, "told to fail")
        if faults.metrics == "html":
            return web.Response(body=HTML, content_type="text/html")
        if faults.metrics == "slow":
            await asyncio.sleep(faults.slow_page_s)
        if faults.metrics == "frozen":
            self._frozen_page = self._frozen_page or self._answering.page()
        else:
            self._frozen_page = b""
        page = GARBAGE if faults.metrics == "garbage" else self._frozen_page or self._answering.page()
        return web.Response(body=page, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _show_faults(self, request: web.Request) -> web.Response:
        return web.json_response(asdict(self._faults()))

    async def _change_faults(self, request: web.Request) -> web.Response:
        assert self._set_faults is not None
        body = _parsed(await request.read())
        if not isinstance(body, dict):
            raise ApiError(400, "the body is no JSON object")
        try:
            self._set_faults(body)
        except ValueError as error:
            raise ApiError(400, str(error)) from error
        return web.json_response(asdict(self._faults()))

    async def _body(self, request: web.Request) -> Any:
        body = _parsed(await request.read())
        if self._on_request is not None:
            self._on_request(request, body)
        self._fail_if_told()
        if self._faults().die_after_tokens == 0:
            reset(request)
        return body

    def _fail_if_told(self) -> None:
        status = self._faults().status
        if status:
            raise ApiError(status, "told to fail")

    def _check_model(self, model: str) -> None:
        if model and model != self._answering.settings.model:
            raise ApiError(404, f"The model {model!r} does not exist.", param="model", code="model_not_found")

    def _die_after(self, request: web.Request, token: Token) -> None:
        if token.number == self._faults().die_after_tokens:
            reset(request)


def reset(request: web.Request) -> None:
    """End a client's connection as the kernel ends that of a process that crashed: with a reset."""
    transport = request.transport
    if transport is None:
        return
    its_socket = transport.get_extra_info("socket")
    if its_socket is not None:
        its_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def _writer(request: web.Request, chunked: bool) -> Callable[[bytes], None]:
    """Writes to the connection at once and never waits.

    Past aiohttp's `write`, which is a coroutine: a task per answer that is woken for each token costs twice as much. A
    client that reads slowly fills the transport's buffer with at most the whole answer, about 250 bytes a token.
    """
    transport = request.transport
    if transport is None:
        return lambda data: None  # the client has gone; the handler is about to be cancelled
    write = transport.write

    def frame(data: bytes) -> None:
        if not transport.is_closing():
            write(b"%x\r\n%s\r\n" % (len(data), data) if chunked else data)

    return frame


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is no JSON: {error}") from error


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error in OpenAI's shape."""
    try:
        return await handler(request)
    except ApiError as error:
        headers = {"Retry-After": "1"} if error.status in (429, 503) else None
        return web.json_response(error.body, status=error.status, headers=headers)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return web.json_response(ApiError(error.status, error.text or error.reason).body, status=error.status)
    except HeadwayError as error:
        return web.json_response(ApiError(500, str(error)).body, status=500)
