"""An engine that does wrong as its request asks: `python -m bench.rude_engine PORT`, or inside `bench.gateway_faults`.

The prompt holds the name of one of `WAYS` after a `#`: `#reset` resets the connection, and so on. Anything else is
answered properly, with twenty tokens 5 ms apart.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import socket
import struct
from functools import partial
from typing import cast

import uvloop

from bench.raw_engine import END, HEAD, TOKEN, Connection, Replica, chunk, event, plain

FEW = 5
"""Tokens before something happens in the middle of a stream."""
WAYS = {
    "garbage": "bytes that are no HTTP",
    "html": "a page of HTML with status 200",
    "html-502": "a page of HTML with status 502",
    "500": "status 500 and a JSON error",
    "429": "status 429, Retry-After 7",
    "close": "the connection closed before a byte",
    "reset": "the connection reset before a byte",
    "stall-first": "nothing, for ever",
    "stall-head": "a head, then nothing",
    "stall-mid": "five tokens, then nothing",
    "close-mid": "five tokens, then the connection closed",
    "reset-mid": "five tokens, then the connection reset",
    "bad-chunk": "five tokens, then a chunk without a size",
    "half-event": "five tokens and half an event, then the connection closed",
    "bad-events": "a stream of events that hold no JSON",
    "no-done": "a stream that ends in order without [DONE]",
    "short": "a whole answer that is shorter than its content-length",
    "long-head": "a head of a megabyte",
    "endless-head": "a head that never ends",
    "flood": "tokens without end, as fast as they are read",
    "slow": "500 tokens, one each 20 ms",
    "hold": "one token, and the rest after a `#go-on`",
    "go-on": "a proper answer, and all that is held back goes on",
    "flaky": "an answer, and the connection closed right after half of them",
}
_WAY = re.compile(rb"#([a-z0-9-]+)")


class Rude(Replica):
    """A replica that does wrong, and knows what is open.

    Attributes:
        polite: it does nothing wrong, whatever it is asked for.
        asked_for: requests so far.
        go_on: what `hold` waits for.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, polite: bool = False) -> None:
        super().__init__(loop, chunks=20, gap_s=0.005)
        self.polite = polite
        self.asked_for = 0
        self.go_on = asyncio.Event()
        self.chance = random.Random(1)
        self.connections: set[RudeConnection] = set()
        self.port = 0
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0) -> None:
        """Listen."""
        factory = partial(RudeConnection, self)
        self._server = await self.loop.create_server(factory, "127.0.0.1", port, backlog=4096)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """Close the port and all connections."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.transport.abort()


class RudeConnection(Connection):
    """One connection to it."""

    replica: Rude

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A gateway has connected."""
        super().connection_made(transport)
        self.task: asyncio.Task[None] | None = None
        self.drained = asyncio.Event()
        self.drained.set()
        self.replica.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has gone."""
        super().connection_lost(exc)
        self.replica.connections.discard(self)
        self.drained.set()
        if self.task is not None:
            self.task.cancel()

    def pause_writing(self) -> None:
        """The gateway reads too slowly."""
        self.drained.clear()

    def resume_writing(self) -> None:
        """It has read."""
        self.drained.set()

    def begin(self, body: bytes) -> None:
        """Do wrong as asked."""
        self.replica.asked_for += 1
        found = _WAY.search(body)
        way = found[1].decode() if found else ""
        if way == "go-on":
            self.replica.go_on.set()
        if self.replica.polite or way == "go-on" or way not in WAYS:
            super().begin(body)
            return
        self.streaming = True
        self.replica.running += 1
        self.task = self.replica.loop.create_task(self._answer(way))

    def _ended(self) -> None:
        if self.streaming:
            self.streaming = False
            self.replica.running -= 1

    def _reset(self) -> None:
        its_socket = cast(socket.socket, self.transport.get_extra_info("socket"))
        its_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    async def _answer(self, way: str) -> None:
        write = self.transport.write
        whole = {
            "html": plain("200 OK", "text/html", b"<html><body>Sign in</body></html>"),
            "html-502": plain("502 Bad Gateway", "text/html", b"<html><body>Bad gateway</body></html>"),
            "500": plain("500 Internal Server Error", "application/json", b'{"error":{"message":"out of memory"}}'),
            "429": plain(
                "429 Too Many Requests\r\nretry-after: 7", "application/json", b'{"error":{"message":"busy"}}'
            ),
            "bad-events": HEAD + chunk(b"data: {]\n\ndata: \xff\xfe\n\n" * FEW) + END,
            "no-done": HEAD + TOKEN * FEW + chunk(event("", "stop")) + b"0\r\n\r\n",
        }
        if way in whole:
            write(whole[way])
            self._ended()
        elif way == "stall-first":
            await asyncio.Event().wait()
        elif way == "stall-head":
            write(HEAD)
            await asyncio.Event().wait()
        elif way == "close":
            self.transport.close()
        elif way == "reset":
            self._reset()
        elif way == "garbage":
            write(bytes(range(256)) * 4)
            self.transport.close()
        elif way == "short":
            write(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{"id":')
            self.transport.close()
        elif way == "long-head":
            write(b"HTTP/1.1 200 OK\r\nx-long: " + b"a" * 2**20 + b"\r\ncontent-length: 2\r\n\r\n{}")
            self._ended()
        else:
            await self._stream(way)

    async def _stream(self, way: str) -> None:
        write = self.transport.write
        if way == "endless-head":
            write(b"HTTP/1.1 200 OK\r\n")
            while True:
                await self.drained.wait()
                write(b"x-more: " + b"a" * 1000 + b"\r\n")
                await asyncio.sleep(0.001)
        if way == "flood":
            write(HEAD)
            while True:
                await self.drained.wait()
                write(TOKEN * 200)
                await asyncio.sleep(0)
        if way == "slow":
            write(HEAD)
            for _ in range(500):
                write(TOKEN)
                await asyncio.sleep(0.02)
            write(END)
            self._ended()
        elif way == "hold":
            write(HEAD + TOKEN)
            await self.replica.go_on.wait()
            write(TOKEN * (FEW - 1) + END)
            self._ended()
        elif way == "flaky":
            write(HEAD + TOKEN * FEW + END)
            self._ended()
            if self.replica.chance.random() < 0.5:
                self.transport.close()
        else:
            write(HEAD + TOKEN * FEW)
            await asyncio.sleep(0.05)
            if way == "stall-mid":
                await asyncio.Event().wait()
            if way == "bad-chunk":
                write(b"zz\r\n" + event(" tok", None) + b"\r\n")
            if way == "half-event":
                write(chunk(event(" tok", None)[:40]))
                await asyncio.sleep(0.05)
            if way == "reset-mid":
                self._reset()
            self.transport.close()


async def serve(port: int) -> None:
    """Until the process ends."""
    await Rude(asyncio.get_running_loop()).start(port)
    await asyncio.Event().wait()


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    uvloop.run(serve(parser.parse_args().port))


if __name__ == "__main__":
    main()
