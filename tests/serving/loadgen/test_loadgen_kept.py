"""Connections that are kept, and closed by the server without a word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from yarl import URL

from headway.serving.loadgen.client import SENT_AGAIN, Limits, send, session
from headway.serving.loadgen.row import DONE, Row

ANSWER = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(ANSWER)


class Server:
    """Answers the first `answers` requests of each connection, and closes it at the next one."""

    def __init__(self, answers: int) -> None:
        self.answers = answers
        self.connections = self.requests = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            for _ in range(self.answers):
                await self._request(reader)
                writer.write(HEAD + ANSWER)
                await writer.drain()
            await self._request(reader)
        except asyncio.IncompleteReadError:
            pass  # the client has closed it
        finally:
            writer.close()

    async def _request(self, reader: asyncio.StreamReader) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(2)
        self.requests += 1


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[URL]:
    async with await asyncio.start_server(server, "127.0.0.1", 0) as listening:
        host, port = listening.sockets[0].getsockname()
        yield URL(f"http://{host}:{port}/v1/completions")


async def rows(server: Server, count: int) -> list[Row]:
    """So many requests, one after the other, over one session."""
    made = [Row(number=number, due_s=0.0, input_tokens=1, output_tokens=1) for number in range(count)]
    async with serving(server) as url, session(Limits(total_s=10)) as kept:
        for row in made:
            await send(kept, url, b"{}", {}, row, begin_s=0.0)
    return made


def test_a_request_that_meets_a_closed_connection_is_sent_again() -> None:
    server = Server(answers=1)
    made = asyncio.run(rows(server, 3))
    assert [row.end for row in made] == [DONE] * 3
    assert [row.what for row in made] == [""] * 3
    assert server.connections == 3
    assert server.requests == 3 + 2  # two of them were sent twice


def test_connections_are_kept() -> None:
    server = Server(answers=10)
    assert {row.end for row in asyncio.run(rows(server, 5))} == {DONE}
    assert server.connections == 1


def test_a_new_connection_that_is_closed_is_a_failure_at_once() -> None:
    server = Server(answers=0)
    (row,) = asyncio.run(rows(server, 1))
    assert row.end == "disconnect"
    assert server.requests == 1 <= SENT_AGAIN
