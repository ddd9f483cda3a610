"""What an engine says of the longest request that it takes, in however many pieces its answer comes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from yarl import URL

from headway.cli import live_context
from headway.cli.live_context import context_of

BODY = json.dumps({"data": [{"id": "other", "max_model_len": 8192}, {"id": "mine", "max_model_len": 4096}]}).encode()


@asynccontextmanager
async def answering(pieces: Sequence[bytes]) -> AsyncIterator[URL]:
    """A server that sends its list of models like this, each piece well after the one before it has come."""

    async def models(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for piece in pieces:
            await answer.write(piece)
            await asyncio.sleep(0.05)
        await answer.write_eof()
        return answer

    app = web.Application()
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield URL(f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()


def asked(pieces: Sequence[bytes], model: str = "mine") -> int | None:
    async def ask() -> int | None:
        async with answering(pieces) as url:
            return await context_of(url, model)

    return asyncio.run(ask())


@pytest.mark.parametrize("pieces", [[BODY], [BODY[:20], BODY[20:]], [BODY[:1], BODY[1:60], BODY[60:]]])
def test_the_answer_is_read_to_its_end(pieces: Sequence[bytes]) -> None:
    assert asked(pieces) == 4096


def test_an_engine_that_does_not_say_it() -> None:
    assert asked([BODY], "nobody's") is None
    assert asked([BODY[:40]]) is None
    assert asked([b'{"data": [{"id": "mine"}]}']) is None


def test_no_more_is_read_than_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_context, "MOST_BYTES", len(BODY))
    assert asked([BODY[:30], BODY[30:]]) == 4096
    monkeypatch.setattr(live_context, "MOST_BYTES", len(BODY) - 1)
    assert asked([BODY[:30], BODY[30:]]) is None
