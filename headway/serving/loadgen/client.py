"""Sends one request and reads its answer. aiohttp."""

from __future__ import annotations

import errno
import json
import math
import os
import ssl
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from time import monotonic, time
from types import SimpleNamespace

import aiohttp
from yarl import URL

from headway.errors import UsageError
from headway.serving.bodies import beginning
from headway.serving.loadgen.answer import Answer, BrokenAnswerError
from headway.serving.loadgen.row import DONE, Row

KEPT_S = 3.0
"""How long an idle connection is kept, seconds: less than servers do, which is 5 s for uvicorn and llama.cpp."""
SENT_AGAIN = 4
"""Times that a request is sent again because the connection that it took had just been closed (count). llama.cpp closes
one after each stream without saying so beforehand."""
SHOWN_CHARACTERS = 200
"""Of what a server says, in a row: characters."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long is waited.

    Attributes:
        connect_s: for a connection.
        stall_s: for the next byte, from sending on.
        total_s: for a whole answer.
    """

    connect_s: float = 10.0
    stall_s: float = 120.0
    total_s: float = 600.0

    def timeout(self) -> aiohttp.ClientTimeout:
        """As aiohttp has it."""
        return aiohttp.ClientTimeout(total=self.total_s, sock_connect=self.connect_s, sock_read=self.stall_s)


def session(limits: Limits) -> aiohttp.ClientSession:
    """For `send`: connections as many as there are requests, kept for the next ones."""
    told = aiohttp.TraceConfig()
    told.on_connection_reuseconn.append(_kept)
    connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=300, keepalive_timeout=KEPT_S)
    return aiohttp.ClientSession(connector=connector, timeout=limits.timeout(), trace_configs=[told])


async def _kept(session: aiohttp.ClientSession, context: SimpleNamespace, found: object) -> None:
    """A request takes a connection that was kept."""
    context.trace_request_ctx.append(True)


def base_url(text: str, *, where: str = "URL") -> URL:
    """`http://host:port`, with or without `/v1` behind it. UsageError for anything else, such as an endpoint's URL."""
    try:
        url = URL(text.rstrip("/").removesuffix("/v1"))
        host = url.host
    except ValueError as error:
        raise UsageError(f"{text!r} is no URL: {error}", where=where) from None
    if url.scheme not in ("http", "https") or not host:
        raise UsageError(f"{text!r} is no URL", where=where, hint="write for example http://127.0.0.1:8000")
    before, endpoint, _ = str(url).partition("/v1/")
    if endpoint:
        raise UsageError(f"{text!r} goes on behind /v1", where=where, hint=f"write {before}")
    return url


async def send(
    session: aiohttp.ClientSession, url: URL, body: bytes, headers: dict[str, str], row: Row, *, begin_s: float
) -> None:
    """Send one request now and fill in its row. Never raises but where it is cancelled.

    Where a connection that was kept turns out to be closed before anything of an answer came, the request was not lost
    with a server but with that connection, and is sent again.

    Args:
        session: from `session`.
        begin_s: the run's begin, monotonic, from which `Row.sent_s` counts.
    """
    sent_s = monotonic()  # not the loop's clock, which stands still within an iteration and has whole milliseconds
    row.sent_s = sent_s - begin_s
    try:
        for _ in range(1 + SENT_AGAIN):
            if not await _sent(session, url, body, headers, row, sent_s):
                return
    finally:
        row.e2e_s = monotonic() - sent_s


async def _sent(
    session: aiohttp.ClientSession, url: URL, body: bytes, headers: dict[str, str], row: Row, sent_s: float
) -> bool:
    """Whether it was lost with a connection that had been kept."""
    answer = Answer(row, sent_s)
    kept: list[bool] = []
    try:
        async with session.post(url, data=body, headers=headers, trace_request_ctx=kept) as response:
            row.status = response.status
            row.replica = _shown(response.headers.get("x-headway-replica", ""))
            row.reason = _shown(response.headers.get("x-headway-reason", ""))
            row.policy = _shown(response.headers.get("x-headway-policy", ""))
            if response.status != 200:
                row.end = f"http-{response.status}"
                row.retry_after_s = retry_after_s(response.headers.get("Retry-After", ""), time())
                row.what = said(await beginning(response.content, 64 * 1024))
            else:
                async for chunk in response.content.iter_any():
                    answer.feed(chunk, monotonic())
                row.end, row.what = (DONE, "") if answer.complete else ("cut", "the stream ended without its end mark")
    except BrokenAnswerError as error:
        row.end, row.what = error.kind, str(error)
    except aiohttp.ClientConnectorError as error:
        row.end, row.what = "connect", f"cannot connect to {url.origin()} ({_no_connection(error)})"
    except aiohttp.ConnectionTimeoutError:
        row.end, row.what = "connect", f"cannot connect to {url.origin()} (nothing came in time)"
    except aiohttp.SocketTimeoutError:
        row.end, row.what = "stall", "nothing more came for too long" if row.status else "no answer came for too long"
    except TimeoutError:
        row.end, row.what = "timeout", "the answer was not complete within its limit"
    except (aiohttp.ClientError, OSError) as error:
        row.end, row.what = ("cut" if row.status else "disconnect"), _broken(error, begun=row.status is not None)
        return bool(kept) and not row.status
    return False


def _no_connection(error: aiohttp.ClientConnectorError) -> str:
    """Why there is none. The library's own text names its classes, and TLS where there is none."""
    cause = error.certificate_error if isinstance(error, aiohttp.ClientConnectorCertificateError) else error.os_error
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "nobody knows the name"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"TLS: {cause.verify_message or 'the certificate is not valid'}"
    if isinstance(cause, ssl.SSLError):
        return f"TLS: {(cause.reason or 'it failed').lower().replace('_', ' ')}"
    if not isinstance(cause, OSError) or not cause.errno or cause.errno < 0:
        return "none of its addresses answers"
    return "refused" if cause.errno == errno.ECONNREFUSED else os.strerror(cause.errno)


def _broken(error: aiohttp.ClientError | OSError, *, begun: bool) -> str:
    """What became of a connection that there was; `begun`: a status had come."""
    if isinstance(error, aiohttp.TooManyRedirects):
        return "sent on from one address to another without end"
    if isinstance(error, aiohttp.ClientResponseError):
        return "what came is no HTTP answer"
    if begun:
        return "the answer broke off"
    why = f" ({os.strerror(error.errno)})" if isinstance(error, OSError) and error.errno else ""
    return f"the connection was closed before an answer came{why}"


def retry_after_s(text: str, now_s: float) -> float | None:
    """Seconds of a Retry-After header: a number, or a date (`now_s`: seconds since the epoch); None: neither."""
    try:
        asked_s = float(text)
        return max(0.0, asked_s) if math.isfinite(asked_s) else None
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now_s)
    except ValueError:
        return None


def said(body: bytes) -> str:
    """An error's message where the body is OpenAI's form of one, else its beginning."""
    try:
        error = json.loads(body)["error"]
        text = error["message"] if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError, RecursionError):
        text = body.decode("utf-8", "replace")
    return _shown(" ".join(str(text).split()))


def _shown(text: str) -> str:
    """What can be printed and isn't long: bytes that are no text, in a header, come as lone surrogates."""
    return text.encode("utf-8", "replace").decode()[:SHOWN_CHARACTERS]
