"""The gateway as HTTP servers: which path is whose, listening, stopping in good order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import ssl
from collections.abc import Callable

from aiohttp import web

from headway.errors import UsageError
from headway.serving.gateway.admission import Admission
from headway.serving.gateway.answers import AnswerError
from headway.serving.gateway.config import Listen, Tls
from headway.serving.gateway.connection import HEAD_S, Answer, Server
from headway.serving.gateway.incoming import CALLS
from headway.serving.gateway.pages import Pages
from headway.serving.gateway.proxy import LAST_WORDS_S, Proxy
from headway.serving.gateway.workflow import named_by_header

_LOG = logging.getLogger(__name__)
_SERVER_LOG = logging.getLogger(f"{__name__}.http")
_SERVER_LOG.setLevel(logging.CRITICAL)  # else a stack for each client that speaks no HTTP
BACKLOG = 4096
SPARE_FILES = 64
"""Beside those of streams: listening, scrapes, the journal, clients that are being refused."""
PASSED = frozenset(("/tokenize", "/detokenize", "/rerank", "/v2/rerank", "/score", "/pooling", "/classify"))
"""Paths of engines outside of /v1/ that go to a replica (vLLM's; some are llama.cpp's too)."""
_METHODS = frozenset(("GET", "POST", "DELETE", "PUT", "PATCH"))


class Front:
    """Sends each request to whose it is.

    Args:
        proxy: calls to models.
        pages: what the gateway says of itself.
        metrics_here: whether /metrics is on this address too.
    """

    def __init__(self, proxy: Proxy, pages: Pages, *, metrics_here: bool) -> None:
        self._proxy, self._pages, self._metrics_here = proxy, pages, metrics_here

    async def answer(self, http: web.BaseRequest) -> web.StreamResponse:
        """The answer to any request. Errors come in OpenAI's shape; a mistake of ours is a 500, and in the log."""
        response = await self._answered(http)
        if not response.prepared:
            response.headers["Server"] = "headway"
            if response.status >= 400 and "x-request-id" not in response.headers:
                response.headers["x-request-id"] = self._proxy.admission.new_id(http)
        return response

    async def _answered(self, http: web.BaseRequest) -> web.StreamResponse:
        path, method = http.path, http.method
        try:
            http = named_by_header(http)
            path = http.path
            if path in CALLS:
                _allow(method, "POST")
                return await self._proxy.answer(http)
            page = self._page(http, path, method)
            if page is not None:
                return page
            if path.startswith("/v1/") or path in PASSED:
                _allow(method, *_METHODS)
                return await self._proxy.answer(http)
            raise AnswerError(404, f"there is no such path: {path[:80]}", code="unknown_path")
        except AnswerError as error:
            return error.response()
        except ConnectionError:
            raise  # the client has gone while its body was read: nobody is there to answer
        except Exception:
            _LOG.exception("%s %s", method, path)
            return AnswerError(500, "the gateway made a mistake; its log has more", code="internal_error").response()

    async def metrics(self, http: web.BaseRequest) -> web.StreamResponse:
        """The answer on an address that only has /metrics."""
        try:
            if http.path != "/metrics":
                raise AnswerError(404, "there is only /metrics here", code="unknown_path")
            _allow(http.method, "GET", "HEAD")
            return self._pages.metrics(http.headers.get("Accept", ""))
        except AnswerError as error:
            return error.response()

    def _page(self, http: web.BaseRequest, path: str, method: str) -> web.Response | None:
        match path:
            case "/health" | "/healthz":
                _allow(method, "GET", "HEAD")
                return self._pages.health()
            case "/ready" | "/readyz":
                _allow(method, "GET", "HEAD")
                return self._pages.ready()
            case "/metrics" if self._metrics_here:
                _allow(method, "GET", "HEAD")
                return self._pages.metrics(http.headers.get("Accept", ""))
            case "/admin/state":
                _allow(method, "GET", "HEAD")
                return self._pages.state(http.headers.get("Authorization", ""))
            case _ if path == "/v1/models" or path.startswith("/v1/models/"):
                _allow(method, "GET", "HEAD")
                self._proxy.admission.client(http)
                return self._pages.models(path)
        return None


class Listening:
    """One address that is listened on.

    Args:
        answer: called with each request; cancelled when its client goes away.
        listen: where.
        most: connections at once.
        full: called when one more has come and was turned away.
    """

    def __init__(self, answer: Answer, listen: Listen, *, most: int, full: Callable[[], None]) -> None:
        self._server = Server(answer, most=most, full=full, access_log=None, logger=_SERVER_LOG)
        self._sockets: asyncio.Server | None = None
        self._listen = listen

    async def start(self) -> str:
        """Listen; the address as a URL. UsageError: it can't be listened on, or the TLS files are wrong."""
        host, port = self._listen.host, self._listen.port
        context = tls_context(self._listen.tls) if self._listen.tls is not None else None
        loop = asyncio.get_running_loop()
        handshake_s = HEAD_S if context is not None else None
        try:
            self._sockets = await loop.create_server(
                self._server, host, port, ssl=context, backlog=BACKLOG, ssl_handshake_timeout=handshake_s
            )
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise UsageError(
                f"cannot listen on {host}:{port}: {reason}", where="listen", hint="another port, or 0 for a free one"
            ) from None
        bound = self._sockets.sockets[0].getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if context is not None else 'http'}://{shown}:{bound}"

    async def refuse(self) -> None:
        """Take no new connections."""
        if self._sockets is not None:
            self._sockets.close()

    async def close(self) -> None:
        """Close all connections."""
        await self.refuse()
        self._server.pre_shutdown()
        await self._server.shutdown(1.0)


async def drained(admission: Admission, *, limit_s: float, hurry: asyncio.Event) -> int:
    """Wait for open requests to end; after `limit_s`, or on `hurry`, end them. Returns how many had to be ended."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + limit_s
    while admission.open_requests and loop.time() < end_s and not hurry.is_set():
        await asyncio.sleep(0.02)
    left = list(admission.open.values())
    for exchange in left:
        exchange.stop()
    end_s = loop.time() + LAST_WORDS_S + 0.5
    while admission.open and loop.time() < end_s:
        await asyncio.sleep(0.02)
    return len(left)


def tls_context(tls: Tls) -> ssl.SSLContext:
    """For clients. UsageError names the file that is wrong."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for path in (tls.certificate, tls.key):
        if not path.is_file():
            raise UsageError("there is no such file", where=f"listen.tls: {path}")
    try:
        context.load_cert_chain(tls.certificate, tls.key)
    except (ssl.SSLError, OSError) as error:
        raise UsageError(
            f"these are no certificate and its key: {error}", where=f"listen.tls: {tls.certificate}, {tls.key}"
        ) from None
    return context


def many_files(wanted: int) -> int:
    """Raise the limit on open files to `wanted` or to what this process may have, if that is less; returns it.

    Each stream takes two. Beyond its hard limit only a process of root's may go.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))
            return wanted
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def _allow(method: str, *allowed: str) -> None:
    if method not in allowed:
        raise AnswerError(
            405,
            f"{method[:20]} is not for this path, but {', '.join(sorted(allowed))}",
            code="method_not_allowed",
            headers={"Allow": ", ".join(sorted(allowed))},
        )
