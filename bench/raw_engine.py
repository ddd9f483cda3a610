"""A cheap engine for measuring proxies: `python -m bench.raw_engine PORT [PORT...]`.

Each port stands for a replica. Whatever is asked, it streams so many chunks of OpenAI's chat completions at fixed times
after the request, the first one at once: what a client sees beyond that is the proxy's (and a little the harness's).
It speaks just enough HTTP/1.1 for that, written by hand, since a framework here would use up the core that it shares
with the client. `GET` answers what proxies ask before they send anything: health, models, and vLLM's metrics.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from functools import partial
from typing import cast

import uvloop

CHUNKS = 50
GAP_S = 0.02
MODEL = "m"


def chunk(data: bytes) -> bytes:
    """One chunk of the chunked transfer coding."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(token: str, finish: str | None) -> bytes:
    """One event of a streamed chat completion."""
    said = {"index": 0, "delta": {"content": token} if token else {}, "finish_reason": finish}
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": [said]}
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TOKEN = chunk(event(" tok", None))
END = chunk(event("", "stop")) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def plain(status: str, kind: str, body: bytes) -> bytes:
    """A whole answer."""
    return b"HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (
        status.encode(),
        kind.encode(),
        len(body),
        body,
    )


class Replica:
    """What the connections of one port share."""

    def __init__(self, loop: asyncio.AbstractEventLoop, chunks: int, gap_s: float) -> None:
        self.loop, self.chunks, self.gap_s = loop, chunks, gap_s
        self.running = 0

    def asked(self, path: bytes) -> bytes:
        """The answer to a GET."""
        if path == b"/metrics":
            names = (("num_requests_running", self.running), ("num_requests_waiting", 0), ("kv_cache_usage_perc", 0))
            text = "".join(f'# TYPE vllm:{n} gauge\nvllm:{n}{{model_name="{MODEL}"}} {v}\n' for n, v in names)
            return plain("200 OK", "text/plain; version=0.0.4", text.encode())
        known: object = {"status": "ok", "model_path": MODEL, "tokenizer_path": MODEL}
        if path == b"/v1/models":
            model = {"id": MODEL, "object": "model", "created": 1, "owned_by": "bench", "root": MODEL}
            known = {"object": "list", "data": [model]}
        return plain("200 OK", "application/json", json.dumps(known).encode())


class Connection(asyncio.Protocol):
    """One connection: a request, its stream, the next request."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.received = bytearray()
        self.needed = 0
        self.sent = 0
        self.next_s = 0.0
        self.streaming = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A proxy has connected."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name

    def connection_lost(self, exc: Exception | None) -> None:
        """It has gone."""
        if self.streaming:
            self.streaming = False
            self.replica.running -= 1

    def data_received(self, data: bytes) -> None:
        """A piece of a request."""
        self.received += data
        if len(self.received) < self.needed:
            return
        end = self.received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self.received[:end])
        if head.startswith(b"GET "):
            del self.received[: end + 4]
            self.transport.write(self.replica.asked(head.split(b" ", 2)[1]))
            if b" HTTP/1.0\r\n" in head:
                self.transport.close()
            return
        lower = head.lower()
        at = lower.find(b"content-length:")
        if at >= 0:
            length = int(lower[at + 15 :].split(b"\r\n", 1)[0])
            self.needed = end + 4 + length
            if len(self.received) < self.needed:
                return
            body = bytes(self.received[end + 4 : self.needed])
            del self.received[: self.needed]
        else:
            # Some proxies send the body in chunks; its own text never holds this end.
            if not self.received.endswith(b"0\r\n\r\n"):
                return
            body = bytes(self.received[end + 4 :])
            self.received.clear()
        self.needed = 0
        self.begin(body)

    def begin(self, body: bytes) -> None:
        """Answer a request."""
        self.streaming = True
        self.replica.running += 1
        self.sent = 1
        self.transport.write(HEAD + TOKEN)
        self.next_s = self.replica.loop.time() + self.replica.gap_s
        self.replica.loop.call_at(self.next_s, self._tick)

    def _tick(self) -> None:
        if not self.streaming:
            return
        self.sent += 1
        if self.sent < self.replica.chunks:
            self.transport.write(TOKEN)
            self.next_s += self.replica.gap_s
            self.replica.loop.call_at(self.next_s, self._tick)
        else:
            self.streaming = False
            self.replica.running -= 1
            self.transport.write(TOKEN + END)


async def serve(ports: list[int], chunks: int, gap_s: float) -> None:
    """Until the process ends."""
    loop = asyncio.get_running_loop()
    for port in ports:
        replica = Replica(loop, chunks, gap_s)
        await loop.create_server(partial(Connection, replica), "127.0.0.1", port, backlog=4096)
    print("ready", flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ports", type=int, nargs="+", metavar="PORT")
    parser.add_argument("--chunks", type=int, default=CHUNKS, help="of each answer, one token in each")
    parser.add_argument("--gap-ms", type=float, default=GAP_S * 1e3, help="between chunks")
    options = parser.parse_args()
    uvloop.run(serve(options.ports, options.chunks, options.gap_ms / 1e3))


if __name__ == "__main__":
    main()
