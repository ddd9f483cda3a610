"""Sends one request and reads its answer; and what must be known of a server before a run. aiohttp."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from time import monotonic, time

import aiohttp
from yarl import URL

from headway.errors import HeadwayError, UsageError
from headway.serving.loadgen.answer import Answer, BrokenAnswerError
from headway.serving.loadgen.row import DONE, Row

SHOWN_BYTES = 200
"""Of an error's body, in `Row.what`."""


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


def base_url(text: str, *, where: str = "URL") -> URL:
    """`http://host:port`, with or without `/v1` behind it. UsageError for anything else."""
    try:
        url = URL(text.rstrip("/").removesuffix("/v1"))
        host = url.host
    except ValueError as error:
        raise UsageError(f"{text!r} is no URL: {error}", where=where) from None
    if url.scheme not in ("http", "https") or not host:
        raise UsageError(f"{text!r} is no URL", where=where, hint="write for example http://127.0.0.1:8000")
    return url


async def check_there(session: aiohttp.ClientSession, url: URL, *, limit_s: float) -> None:
    """HeadwayError where nobody answers; any answer will do."""
    try:
        async with asyncio.timeout(limit_s), session.get(url / "v1" / "models"):
            pass
    except (OSError, aiohttp.ClientError, TimeoutError) as error:
        raise HeadwayError(f"no server answers at {url}: {_plain(error, limit_s)}") from None


async def only_model(session: aiohttp.ClientSession, url: URL, *, limit_s: float) -> str:
    """The name of the one model that the server has. UsageError where it has another number of them."""
    try:
        async with asyncio.timeout(limit_s), session.get(url / "v1" / "models") as answer:
            listed = await answer.json(content_type=None)
            names = sorted({str(each["id"]) for each in listed["data"]})
    except (OSError, aiohttp.ClientError, TimeoutError) as error:
        raise HeadwayError(f"no server answers at {url}: {_plain(error, limit_s)}") from None
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{url}/v1/models lists no models", hint="name one with --model") from None
    if len(names) != 1:
        raise UsageError(
            f"{url} has {len(names)} models: {', '.join(names) or 'none'}", hint="name one of them with --model"
        )
    return names[0]


async def send(
    session: aiohttp.ClientSession, url: URL, body: bytes, headers: dict[str, str], row: Row, *, begin_s: float
) -> None:
    """Send one request now and fill in its row. Never raises but where it is cancelled.

    Args:
        session: with its limits set.
        begin_s: the run's begin, monotonic, from which `Row.sent_s` counts.
    """
    sent_s = monotonic()  # not the loop's clock, which stands still within an iteration and has whole milliseconds
    row.sent_s = sent_s - begin_s
    answer = Answer(row, sent_s)
    try:
        async with session.post(url, data=body, headers=headers) as response:
            row.status = response.status
            row.replica = response.headers.get("x-headway-replica", "")
            row.reason = response.headers.get("x-headway-reason", "")
            row.policy = response.headers.get("x-headway-policy", "")
            if response.status != 200:
                row.end = f"http-{response.status}"
                row.retry_after_s = retry_after_s(response.headers.get("Retry-After", ""), time())
                row.what = _said(await response.content.read(64 * 1024))
            else:
                async for chunk in response.content.iter_any():
                    answer.feed(chunk, monotonic())
                row.end, row.what = (DONE, "") if answer.complete else ("cut", "the stream ended without its end mark")
    except BrokenAnswerError as error:
        row.end, row.what = error.kind, str(error)
    except aiohttp.ClientConnectorError as error:
        row.end, row.what = "connect", str(error)
    except aiohttp.ConnectionTimeoutError as error:
        row.end, row.what = "connect", str(error)
    except aiohttp.SocketTimeoutError as error:
        row.end, row.what = "stall", str(error)
    except TimeoutError:
        row.end, row.what = "timeout", "the answer was not complete within its limit"
    except (aiohttp.ClientError, OSError) as error:
        row.end, row.what = ("cut" if row.status else "disconnect"), str(error) or type(error).__name__
    finally:
        row.e2e_s = monotonic() - sent_s


def retry_after_s(text: str, now_s: float) -> float | None:
    """Seconds of a Retry-After header: a number, or a date (`now_s`: seconds since the epoch); None: neither."""
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now_s)
    except ValueError:
        return None


def _said(body: bytes) -> str:
    """An error's message where the body is OpenAI's form of one, else its beginning."""
    try:
        error = json.loads(body)["error"]
        text = error["message"] if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError):
        text = body.decode("utf-8", "replace")
    return " ".join(str(text).split())[:SHOWN_BYTES]


def _plain(error: BaseException, limit_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing came within {limit_s:g} s"
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError | ssl.SSLError):
        return f"TLS: {error}"
    if (
        isinstance(error, aiohttp.ClientConnectorError)
        and error.os_error.errno is not None
        and error.os_error.errno > 0
    ):
        return os.strerror(error.os_error.errno)
    return str(error) or type(error).__name__
