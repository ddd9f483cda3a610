"""A replica's answer on its way to the client: as it comes, byte for byte, with flow control both ways.

Nothing is read from the replica while the client does not take what was read before: at most 64 KiB wait in each of the
connections' buffers, then the replica's own sending stops. Each wait has a limit (`watch`).
"""

from __future__ import annotations

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from headway.serving.gateway.config import Timeouts
from headway.serving.gateway.exchange import Exchange
from headway.serving.gateway.incoming import DONE_PATHS
from headway.serving.gateway.sse import EventStream, usage_in
from headway.serving.gateway.upstream import ReplicaError, read
from headway.serving.gateway.watch import Phase, Watch

WHOLE_BYTES = 2**20
"""An answer that isn't streamed is passed on when it is whole, so that a failure in it can still be retried; one longer
than this is passed on as it comes, from here on."""
_TAIL_BYTES = 65_536


class ClientGoneError(Exception):
    """The client closed its connection."""


async def relay_stream(
    exchange: Exchange, answer: aiohttp.ClientResponse, headers: CIMultiDict[str], watch: Watch, limits: Timeouts
) -> web.StreamResponse:
    """Pass on a stream of events.

    Args:
        exchange: hears of tokens.
        answer: of the replica, its head read.
        headers: for the client.
        watch: bounds each wait.
        limits: by how much.

    Raises:
        ReplicaError: it broke off, or ended without the mark that it is whole. Before the first byte the client has
            got nothing, and `exchange.response` is None.
        ClientGoneError: the client closed its connection.
    """
    events = EventStream()
    chunk = await read(answer)
    while chunk and not (out := events.feed(chunk)):
        chunk = await read(answer)
    if not chunk:
        raise ReplicaError("ended its answer before it began", "broken")
    stream = web.StreamResponse(status=answer.status, headers=headers)
    await _begin(exchange, stream, watch, limits)
    while True:
        if out:
            if events.begun:
                if not exchange.first_token:
                    exchange.has_first_token()
                exchange.has_tokens(events.tokens)
            watch.waits(Phase.CLIENT, limits.client_s)
            try:
                await stream.write(out)
            except ConnectionError:
                raise ClientGoneError from None
        watch.waits(Phase.CHUNK, limits.stall_s)
        chunk = await read(answer)
        if not chunk:
            break
        out = events.feed(chunk)
    exchange.usage = events.usage()
    rest = events.rest()
    if exchange.http.path in DONE_PATHS and answer.status == 200 and not events.closed:
        raise ReplicaError("ended its answer without the mark that it is whole", "broken")
    watch.waits(Phase.CLIENT, limits.client_s)
    await _end(stream, rest)
    return stream


async def relay_whole(
    exchange: Exchange, answer: aiohttp.ClientResponse, headers: CIMultiDict[str], watch: Watch, limits: Timeouts
) -> web.StreamResponse:
    """Pass on an answer that isn't a stream. Args and errors as `relay_stream`; its first token is not known."""
    parts: list[bytes] = []
    size_bytes = 0
    while size_bytes <= WHOLE_BYTES:
        chunk = await read(answer)
        if not chunk:
            body = b"".join(parts)
            exchange.usage = usage_in(body)
            whole = web.Response(status=answer.status, body=body, headers=headers)
            if body == b"" and answer.status in (204, 304):
                whole = web.Response(status=answer.status, headers=headers)
            await _begin(exchange, whole, watch, limits)
            await _end(whole, b"")
            return whole
        parts.append(chunk)
        size_bytes += len(chunk)
    stream = web.StreamResponse(status=answer.status, headers=headers)
    if answer.content_length is not None:
        stream.content_length = answer.content_length
    await _begin(exchange, stream, watch, limits)
    tail, chunk = b"", b"".join(parts)
    parts.clear()
    while chunk:
        tail = (tail + chunk)[-_TAIL_BYTES:]
        watch.waits(Phase.CLIENT, limits.client_s)
        try:
            await stream.write(chunk)
        except ConnectionError:
            raise ClientGoneError from None
        watch.waits(Phase.CHUNK, limits.stall_s)
        chunk = await read(answer)
    exchange.usage = usage_in(tail)
    watch.waits(Phase.CLIENT, limits.client_s)
    await _end(stream, b"")
    return stream


async def _begin(exchange: Exchange, response: web.StreamResponse, watch: Watch, limits: Timeouts) -> None:
    watch.waits(Phase.CLIENT, limits.client_s)
    exchange.response = response
    try:
        await response.prepare(exchange.http)
    except ConnectionError:
        raise ClientGoneError from None


async def _end(response: web.StreamResponse, rest: bytes) -> None:
    try:
        if rest:
            await response.write(rest)
        await response.write_eof()
    except ConnectionError:
        raise ClientGoneError from None
