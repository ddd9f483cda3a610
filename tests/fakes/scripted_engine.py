"""An engine that answers with exactly the bytes that a test wrote down, and notices when it is left alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

RESET = "reset"
"""A step: the connection is reset."""
HOLD = "hold"
"""A step: nothing more is sent; the engine waits until the other side closes."""
Step = bytes | float | str
"""Bytes to send, seconds to wait, RESET or HOLD."""

SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(text: str) -> bytes:
    """A chat's event with some content."""
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n"


def whole(body: bytes, *, status: str = "200 OK", headers: str = "") -> bytes:
    """An answer of JSON that isn't a stream."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


@dataclass(slots=True)
class ScriptedEngine:
    """What it does, and what was done to it.

    Attributes:
        script: the steps of each answer.
        url: where it is.
        requests: head and body of each call, as they came; not those for /v1/models and /metrics.
        left: how many calls were closed by the other side before the script's end.
        sent_bytes: of the answers so far.
    """

    script: Sequence[Step]
    url: str = ""
    requests: list[tuple[bytes, bytes]] = field(default_factory=list)
    left: int = 0
    sent_bytes: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def was_left(self, count: int = 1, *, limit_s: float = 5.0) -> None:
        """Wait until so many calls were closed by the other side. TimeoutError."""
        async with asyncio.timeout(limit_s):
            while self.left < count:
                self.changed.clear()
                await self.changed.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                low = head.lower()
                size = 0
                if b"content-length:" in low:
                    size = int(low.split(b"content-length:")[1].split(b"\r\n")[0])
                body = await reader.readexactly(size)
                if head.startswith(b"GET /v1/models"):
                    writer.write(whole(b'{"object":"list","data":[{"id":"test-model"}]}'))
                elif head.startswith(b"GET /metrics"):
                    writer.write(whole(b"", status="404 Not Found"))
                else:
                    self.requests.append((head, body))
                    if not await self._play(reader, writer):
                        return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _play(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Send the script; False where the connection is over."""
        gone = asyncio.ensure_future(reader.read(1))
        try:
            for step in self.script:
                if isinstance(step, bytes):
                    writer.write(step)
                    self.sent_bytes += len(step)
                    await asyncio.sleep(0)
                    await writer.drain()
                elif step == RESET:
                    writer.transport.abort()
                    return False
                else:
                    limit_s = None if step == HOLD else float(step)
                    await asyncio.wait([gone], timeout=limit_s)
                if gone.done():
                    raise ConnectionResetError
        except ConnectionError:
            self.left += 1
            self.changed.set()
            return False
        finally:
            gone.cancel()
            await asyncio.wait([gone])
        return True


@asynccontextmanager
async def scripted(*script: Step) -> AsyncIterator[ScriptedEngine]:
    """An engine on a free port that plays this script for each call."""
    engine = ScriptedEngine(script)
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await engine.serve(reader, writer)
        except asyncio.CancelledError:
            pass  # the test is over
        finally:
            tasks.discard(task)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield engine
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
