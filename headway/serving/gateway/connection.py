"""Clients' connections: how many there may be, how long a request's head may take, and errors in HTTP itself.

What aiohttp answers to what is no HTTP becomes an error in OpenAI's shape; half a head is waited for HEAD_S, since
aiohttp has no limit of its own on that; one that came together with a whole request before it is waited for KEPT_S.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader

from headway.serving.gateway.answers import AnswerError

HEAD_S = 10.0
"""From the first byte of a request to the last of its head; for TLS to be agreed upon too."""
KEPT_S = 75.0
"""For an idle client's connection."""
Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Server(web.Server):
    """As aiohttp's, with limits.

    Args:
        answer: called with each request; cancelled when its client goes away.
        most: connections at once.
        full: called when one more has come and was turned away.
        options: of aiohttp's `RequestHandler`.
    """

    def __init__(self, answer: Answer, *, most: int, full: Callable[[], None], **options: Any) -> None:
        super().__init__(answer, request_factory=self._request, handler_cancellation=True, **options)
        self.most, self.full = most, full
        self.count = 0
        self._options = options

    def __call__(self) -> web.RequestHandler:
        """A new connection's protocol."""
        return Connection(self, loop=asyncio.get_running_loop(), keepalive_timeout=KEPT_S, **self._options)

    def _request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        assert isinstance(protocol, Connection)
        protocol.head_came()
        if message.method == "UNKNOWN":  # aiohttp's own, of what is no HTTP; it says 1.0, and so would the answer
            message = message._replace(version=HttpVersion11)
        return web.BaseRequest(message, payload, protocol, writer, task, asyncio.get_running_loop())


class Connection(web.RequestHandler):
    """One client's connection."""

    def __init__(self, server: Server, **options: Any) -> None:
        super().__init__(server, **options)
        self._server, self._counted = server, False
        self._timer: asyncio.TimerHandle | None = None
        self._answering = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """One more, or one too many."""
        if self._server.count >= self._server.most:
            self._server.full()
            cast(asyncio.Transport, transport).write(_TOO_MANY)  # uvloop's is one in all but name
            transport.close()
            self.force_close()
            return
        self._server.count += 1
        self._counted = True
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """It is over."""
        if self._counted:
            self._counted = False
            self._server.count -= 1
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """The first bytes of a head start the clock."""
        if not self._answering and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(HEAD_S, self._late)
        super().data_received(data)

    def head_came(self) -> None:
        """A request has come, or what was none."""
        self._answering = True
        self._stop_timer()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """The answer's end; what comes now is another head."""
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._answering = False

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """What is no HTTP gets an error as all others."""
        if status != 400:
            return super().handle_error(request, status, exc, message)
        what = " ".join((message or "").split())[:200]
        response = AnswerError(400, f"this is no HTTP request: {what}", code="invalid_http").response()
        response.force_close()
        return response

    def _late(self) -> None:
        self._timer = None
        if self.transport is not None:
            self.transport.write(_LATE)
        self.force_close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _whole(reason: str, error: AnswerError) -> bytes:
    """An answer as bytes, for a connection on which no request has come."""
    body = error.body()
    head = [f"HTTP/1.1 {error.status} {reason}", "Server: headway", "Content-Type: application/json; charset=utf-8"]
    head += [f"Content-Length: {len(body)}", "Connection: close", *(f"{k}: {v}" for k, v in error.headers.items())]
    return "\r\n".join([*head, "", ""]).encode() + body


_TOO_MANY = _whole(
    "Service Unavailable",
    AnswerError(503, "there are as many connections as can be", code="too_many_connections", retry_after_s=1.0),
)
_LATE = _whole(
    "Request Timeout",
    AnswerError(408, f"the request's head did not come within {HEAD_S:g} s", code="request_timeout"),
)
