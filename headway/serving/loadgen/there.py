"""Whether a server is there and lets us in, before a run. Waits for one that starts, says what one refuses. aiohttp."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

import aiohttp
from yarl import URL

from headway.errors import HeadwayError, UsageError
from headway.serving.bodies import beginning
from headway.serving.loadgen.client import said

ASK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a server is waited for.

    Attributes:
        wait_s: while nobody listens, no model is there yet, or the answer is 503; 0: not at all.
        answer_s: for one answer.
        told: called with one line when waiting begins.
    """

    wait_s: float = 0.0
    answer_s: float = 10.0
    told: Callable[[str], None] = lambda line: None


async def model_there(session: aiohttp.ClientSession, url: URL, model: str, patience: Patience) -> str:
    """The model to ask for: `model`, or where that is empty the only one that the server has.

    Args:
        session: with the headers that requests will have.
        url: without `/v1`.
        model: its name; a server need not list it.
        patience: how long is waited.

    Raises:
        HeadwayError: nobody answers, or no model came.
        UsageError: the server wants a key, the URL is wrong, or it has several models and `model` is empty.
    """
    until_s = monotonic() + patience.wait_s
    waits = False
    while True:
        try:
            return await _ask(session, url, model, patience.answer_s)
        except _NotYetError as error:
            if monotonic() >= until_s:
                waited = f" after {patience.wait_s:g} s" if waits else ""
                raise HeadwayError(f"{error}{waited}") from None
            if not waits:
                patience.told(f"waits up to {patience.wait_s:g} s: {error}")
                waits = True
            await asyncio.sleep(ASK_EVERY_S)


class _NotYetError(Exception):
    """What a server that starts may do."""


async def _ask(session: aiohttp.ClientSession, url: URL, model: str, limit_s: float) -> str:
    at = url / "v1" / "models"
    try:
        async with asyncio.timeout(limit_s), session.get(at) as answer:
            status, body = answer.status, await beginning(answer.content, 2**20)
    except (aiohttp.ClientConnectorDNSError, aiohttp.ClientSSLError, ssl.SSLError) as error:
        raise HeadwayError(f"no server answers at {url}: {_plain(error, limit_s)}") from None
    except (OSError, aiohttp.ClientError, TimeoutError) as error:
        raise _NotYetError(f"no server answers at {url}: {_plain(error, limit_s)}") from None
    if status == 200:
        return _chosen(url, _names(body), model)
    refused = f"{at} answers {status}: {said(body) or 'nothing more'}"
    if status == 503:
        raise _NotYetError(refused)
    if status in (401, 403):
        raise UsageError(refused, hint='send a key that it takes: --header "Authorization: Bearer KEY"')
    if model:
        return model  # a server may have no list; what it thinks of requests, the rows will say
    if status == 404:
        raise UsageError(refused, hint="is the URL what stands before /v1? If so, name the model with --model")
    raise UsageError(refused, hint="name the model with --model if it has no list of them")


def _chosen(url: URL, names: list[str] | None, model: str) -> str:
    if names == []:
        raise _NotYetError(f"{url} has no models yet")
    if model:
        return model
    if names is None:
        raise UsageError(f"{url}/v1/models lists no models", hint="name one with --model")
    if len(names) != 1:
        raise UsageError(f"{url} has {len(names)} models: {', '.join(names)}", hint="name one of them with --model")
    return names[0]


def _names(body: bytes) -> list[str] | None:
    """Names in a list of models; None where it is none."""
    try:
        return sorted({str(each["id"]) for each in json.loads(body)["data"]})
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


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
