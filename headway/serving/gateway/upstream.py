"""Requests to replicas: headers, connections, and what goes wrong before the first byte."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Literal

import aiohttp
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

HOP_BY_HOP = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
"""RFC 9110, 7.6.1, and the older names that are still sent."""
OURS = frozenset(("host", "content-length", "content-encoding", "accept-encoding", "authorization", "expect", "cookie"))
"""Of the client's: set anew, or between the client and the gateway alone. Bodies arrive here decompressed."""
ROUTING = frozenset(("routing-strategy", "x-headway-workflow"))
NOT_PASSED_BACK = frozenset(("server", "date", "set-cookie"))
IDLE_S = 4.0
"""For an idle connection to be kept: less than uvicorn's 5 s, so that requests don't meet one that is being closed."""
RETRIED = frozenset((502, 503, 504))
TOO_MANY = 429
_AUTOMATIC = ("User-Agent", "Accept", "Content-Type")


class ReplicaError(Exception):
    """A replica failed a request.

    Args:
        what: how, in words; names no address, since clients see it.
        kind: for metrics and the choice of status.
        status, retry_after: what it answered, where it did (kind "status").
        counts: whether it speaks against the replica.
    """

    def __init__(
        self,
        what: str,
        kind: Literal["connect", "status", "broken", "stall"],
        *,
        status: int = 502,
        retry_after: str = "",
        counts: bool = True,
    ) -> None:
        super().__init__(what)
        self.kind, self.status, self.retry_after, self.counts = kind, status, retry_after, counts


def session(*, connect_s: float) -> aiohttp.ClientSession:
    """The connections to all replicas: as many as needed, no limits of their own but that on connecting.

    Args:
        connect_s: for a TCP connection and its TLS.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, limit_per_host=0, keepalive_timeout=IDLE_S, ttl_dns_cache=10),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=_AUTOMATIC,
    )


def request_headers(
    client: CIMultiDictProxy[str], *, peer: str, scheme: str, request_id: str, authorization: str
) -> CIMultiDict[str]:
    """What goes to the replica of a client's headers.

    Args:
        client: as they came.
        peer: the client's address, for X-Forwarded-For.
        scheme: http or https, as the client spoke it.
        request_id: goes as x-request-id.
        authorization: the header's value; empty: none.
    """
    named = {name.strip().lower() for name in client.get("Connection", "").split(",")}
    headers: CIMultiDict[str] = CIMultiDict()
    for name, value in client.items():
        low = name.lower()
        if low not in HOP_BY_HOP and low not in OURS and low not in ROUTING and low not in named:
            headers.add(name, value)
    forwarded = ", ".join((*client.getall("X-Forwarded-For", ()), peer))
    headers["X-Forwarded-For"] = forwarded
    headers["X-Forwarded-Proto"] = scheme
    headers["X-Request-Id"] = request_id
    headers["Accept-Encoding"] = "identity"
    if authorization:
        headers["Authorization"] = authorization
    return headers


def response_headers(replica: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """What goes back to the client of a replica's headers, without its length."""
    named = {name.strip().lower() for name in replica.get("Connection", "").split(",")}
    headers: CIMultiDict[str] = CIMultiDict(Server="headway")
    for name, value in replica.items():
        low = name.lower()
        if low not in HOP_BY_HOP and low not in NOT_PASSED_BACK and low not in named and low != "content-length":
            headers.add(name, value)
    return headers


async def ask(
    connections: aiohttp.ClientSession, method: str, url: URL, *, headers: Mapping[str, str], body: bytes | None
) -> aiohttp.ClientResponse:
    """Send a request and wait for the answer's head. The caller closes or releases the response.

    Raises:
        ReplicaError: no connection, or none of HTTP came back.
    """
    try:
        return await connections.request(method, url, headers=headers, data=body, allow_redirects=False)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise ReplicaError(f"can't be reached ({_reason(error)})", "connect") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise ReplicaError(f"broke off before it answered ({_reason(error)})", "broken") from None


async def read(response: aiohttp.ClientResponse) -> bytes:
    """The next bytes of an answer, as they come; empty at its end. ReplicaError where it breaks off."""
    try:
        return await response.content.readany()
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise ReplicaError(f"broke off in its answer ({_reason(error)})", "broken") from None


def _reason(error: BaseException) -> str:
    """Without addresses."""
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
        return cause.strerror or type(cause).__name__
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return "timed out"
    return type(error).__name__
