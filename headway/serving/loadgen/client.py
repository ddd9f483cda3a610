"""Sends one request and reads its answer. aiohttp."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from time import monotonic, time

import aiohttp
from yarl import URL

from headway.errors import UsageError
from headway.serving.loadgen.answer import Answer, BrokenAnswerError
from headway.serving.loadgen.row import DONE, Row

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
            row.replica = _shown(response.headers.get("x-headway-replica", ""))
            row.reason = _shown(response.headers.get("x-headway-reason", ""))
            row.policy = _shown(response.headers.get("x-headway-policy", ""))
            if response.status != 200:
                row.end = f"http-{response.status}"
                row.retry_after_s = retry_after_s(response.headers.get("Retry-After", ""), time())
                row.what = said(await response.content.read(64 * 1024))
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
