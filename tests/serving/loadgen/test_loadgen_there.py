"""Servers that start, refuse, or are not there, as the load generator meets them before a run."""

from __future__ import annotations

import asyncio
import socket

import aiohttp
import pytest
from aiohttp import web

from headway.cli import main
from headway.errors import HeadwayError, UsageError
from headway.serving.loadgen.client import base_url
from headway.serving.loadgen.there import Patience, model_there
from tests.fakes.openai_server import MisbehavingServer as Server
from tests.fakes.openai_server import nobody


async def asked(url: str, model: str = "", wait_s: float = 0.0, told: list[str] | None = None) -> str:
    lines = told if told is not None else []
    async with aiohttp.ClientSession() as session:
        return await model_there(session, base_url(url), model, Patience(wait_s, 5.0, lines.append))


def test_a_server_that_is_not_there() -> None:
    told: list[str] = []
    with nobody() as url:
        with pytest.raises(HeadwayError, match=r"no server answers at .*: Connection refused$"):
            asyncio.run(asked(url, told=told))
        assert not told
        with pytest.raises(HeadwayError, match=r"Connection refused after 0.5 s$"):
            asyncio.run(asked(url, wait_s=0.5, told=told))
    assert told == [f"waits up to 0.5 s: no server answers at {url}: Connection refused"]


def test_a_server_that_starts_is_waited_for() -> None:
    told: list[str] = []

    async def run() -> str:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", 0))
            asking = asyncio.create_task(asked(f"http://127.0.0.1:{listener.getsockname()[1]}", "", 20.0, told))
            await asyncio.sleep(0.5)
            app = web.Application()
            app.router.add_get("/v1/models", _late)
            runner = web.AppRunner(app)
            await runner.setup()
            await web.SockSite(runner, listener).start()
            try:
                return await asking
            finally:
                await runner.cleanup()

    assert asyncio.run(run()) == "late"
    assert len(told) == 1


async def _late(_: web.Request) -> web.Response:
    return web.json_response({"data": [{"id": "late"}]})


def test_a_server_whose_models_are_not_there_yet_is_waited_for(server: Server) -> None:
    told: list[str] = []
    server.refusals = [(503, "no replica"), (503, "no replica"), (200, "")]
    assert asyncio.run(asked(server.url, wait_s=20.0, told=told)) == "good"
    assert told == [f"waits up to 20 s: {server.url}/v1/models answers 503: no replica"]
    server.models = []
    with pytest.raises(HeadwayError, match="has no models yet"):
        asyncio.run(asked(server.url, "any"))


def test_the_only_model(server: Server) -> None:
    assert asyncio.run(asked(server.url)) == "good"
    server.models = ["b", "a"]
    assert asyncio.run(asked(server.url, "c")) == "c"
    with pytest.raises(UsageError, match=r"has 2 models: a, b .name one of them"):
        asyncio.run(asked(server.url))


@pytest.mark.parametrize(
    ("status", "model", "words"),
    [
        (401, "", r'answers 401: who are you\? \(send a key that it takes: --header "Authorization: Bearer KEY"\)'),
        (401, "good", "answers 401"),
        (403, "good", "answers 403"),
        (404, "", r"answers 404: who are you\? \(is the URL what stands before /v1\?"),
        (500, "", "answers 500"),
    ],
)
def test_a_refusal_is_said_at_once_and_what_to_do(server: Server, status: int, model: str, words: str) -> None:
    server.refusals = [(status, "who are you?")]
    with pytest.raises(UsageError, match=words):
        asyncio.run(asked(server.url, model, 60.0))


def test_a_server_without_a_list_may_be_asked_by_name(server: Server) -> None:
    server.refusals = [(404, "no such path")]
    assert asyncio.run(asked(server.url, "m")) == "m"


def test_the_command_does_not_wait_where_it_must_not(capsys: pytest.CaptureFixture[str]) -> None:
    with nobody() as url:
        assert main.run(["loadgen", url, "--load", "mixed", "--rate", "1", "--wait", "0"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"headway: no server answers at {url}: Connection refused"
