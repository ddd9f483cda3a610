"""Bodies of answers that come in pieces."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from headway.serving.bodies import beginning

PIECES = (b"0123", b"4567", b"89")


@pytest.mark.parametrize(("most_bytes", "body"), [(100, b"0123456789"), (10, b"0123456789"), (5, b"01234"), (0, b"")])
def test_a_body_in_pieces_is_read_to_its_end_or_to_the_limit(most_bytes: int, body: bytes) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in PIECES:
            await response.write(piece)
            await asyncio.sleep(0.05)
        return response

    async def read() -> bytes:
        app = web.Application()
        app.router.add_get("/", answer)
        async with (
            TestServer(app) as server,
            aiohttp.ClientSession() as session,
            session.get(server.make_url("/")) as it,
        ):
            return await beginning(it.content, most_bytes)

    assert asyncio.run(read()) == body
