"""A cheap open-loop client for measuring proxies; `python -m bench.raw_client --help`.

It sends the same streamed chat completions, at the same times, to whatever it is pointed at: arrivals are Poisson, and
times and prompts come from the seed. Connections are kept and taken up again, the last used first. What it
writes is `Heard`, as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import cast

import uvloop

DOCUMENTS = 32
"""Prompts begin with one of so many texts, so that routers which look for shared prefixes find some."""
SHARED = 0.5
"""Share of each prompt that is this text."""


@dataclass(frozen=True)
class Load:
    """What is sent.

    Attributes:
        rate_Hz: mean requests per second.
        warm_s, time_s: requests that begin within `warm_s` aren't counted; those of the `time_s` after it are.
        prompt_bytes: of each prompt's text.
        chunks: tokens that a whole answer has.
    """

    rate_Hz: float
    warm_s: float
    time_s: float
    prompt_bytes: int
    chunks: int
    seed: int


@dataclass
class Heard:
    """What came back, of the requests that count.

    Attributes:
        ttft_s, e2e_s: from sending to the first token and to the end of whole answers.
        late_s: how much later than planned each was sent: the client's own trouble.
        errors: how often each went wrong.
        sent: requests, answered or not.
        all_sent: with those of the warm-up.
    """

    ttft_s: list[float] = field(default_factory=list)
    e2e_s: list[float] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    sent: int = 0
    all_sent: int = 0

    def failed(self, fault: str) -> None:
        """One more."""
        self.errors[fault] = self.errors.get(fault, 0) + 1


def arrivals_s(load: Load) -> list[float]:
    """When each request is sent, seconds from the begin."""
    chance = random.Random(load.seed)
    times: list[float] = []
    at_s = chance.expovariate(load.rate_Hz)
    while at_s < load.warm_s + load.time_s:
        times.append(at_s)
        at_s += chance.expovariate(load.rate_Hz)
    return times


def words(chance: random.Random, size_bytes: int) -> str:
    """So much text, of seven letters and a space over and over."""
    drawn = chance.getrandbits(4 * (size_bytes // 8 + 1) * 7)
    letters = f"{drawn:x}".translate(str.maketrans("0123456789", "ghijklmnop"))
    return " ".join(letters[k : k + 7] for k in range(0, len(letters), 7))[:size_bytes].ljust(size_bytes, "x")


def prompts(load: Load, count: int) -> list[str]:
    """The text of each request."""
    chance = random.Random(load.seed + 1)
    shared_bytes = int(load.prompt_bytes * SHARED)
    documents = [words(chance, shared_bytes) for _ in range(DOCUMENTS)]
    return [chance.choice(documents) + words(chance, load.prompt_bytes - shared_bytes) for _ in range(count)]


def request(prompt: str, key: str) -> bytes:
    """As it goes over the wire."""
    body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": prompt}]}).encode()
    bearer = f"authorization: Bearer {key}\r\n" if key else ""
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        f"{bearer}content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def unchunked(data: bytes) -> bytes:
    """The body in the chunked transfer coding `data`. ValueError when it isn't whole."""
    parts: list[bytes] = []
    at = 0
    while True:
        end = data.index(b"\r\n", at)
        size = int(data[at:end].split(b";", 1)[0], 16)
        if size == 0:
            return b"".join(parts)
        parts.append(data[end + 2 : end + 2 + size])
        at = end + 2 + size + 2


def wrong(answer: bytes, chunks: int) -> str:
    """What is wrong with a whole answer; empty when nothing is."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head[9:12].decode("latin-1")
    if status != "200":
        return f"status {status}"
    try:
        tokens = unchunked(body).count(b'"content":" tok"')
    except ValueError:
        return "broken chunks"
    return "" if tokens == chunks else f"{tokens} of {chunks} tokens"


class Connection(asyncio.Protocol):
    """One connection to a target, used for one request after the other."""

    def __init__(self, idle: list[Connection], heard: Heard, chunks: int) -> None:
        self.idle, self.heard, self.chunks = idle, heard, chunks
        self.busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ready to send."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name

    def send(self, data: bytes, counts: bool) -> None:
        """Begin a request."""
        self.busy, self.counts = True, counts
        self.first_s = 0.0
        self.parts: list[bytes] = []
        self.tail = b""
        self.begun_s = time.perf_counter()
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        """A piece of the answer."""
        if not self.busy:
            return
        if not self.first_s and b"data:" in data:
            self.first_s = time.perf_counter()
        self.parts.append(data)
        self.tail = (self.tail + data)[-7:]
        if self.tail.endswith(b"0\r\n\r\n"):
            self._ended(time.perf_counter())
        elif len(self.parts) == 1 and not data.startswith(b"HTTP/1.1 200"):
            self._failed(f"status {data[9:12].decode('latin-1')}")

    def _ended(self, now_s: float) -> None:
        self.busy = False
        fault = wrong(b"".join(self.parts), self.chunks)
        if fault:
            self._failed(fault)
            return
        if self.counts:
            self.heard.ttft_s.append(self.first_s - self.begun_s)
            self.heard.e2e_s.append(now_s - self.begun_s)
        self.idle.append(self)

    def _failed(self, fault: str) -> None:
        self.busy = False
        if self.counts:
            self.heard.failed(fault)
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The target has closed it."""
        if self.busy:
            self._failed("closed")
        if self in self.idle:
            self.idle.remove(self)


async def run(load: Load, ports: Sequence[int], key: str, wait_s: float) -> Heard:
    """Send the load to the ports in turn, and wait until all is answered, at most `wait_s` beyond the last one."""
    loop = asyncio.get_running_loop()
    times = arrivals_s(load)
    requests = [request(prompt, key) for prompt in prompts(load, len(times))]
    heard = Heard()
    pools: list[list[Connection]] = [[] for _ in ports]
    everyone: list[Connection] = []
    connecting: set[asyncio.Task[None]] = set()

    async def connect(port: int, pool: list[Connection], data: bytes, counts: bool) -> None:
        try:
            _, connection = await loop.create_connection(
                lambda: Connection(pool, heard, load.chunks), "127.0.0.1", port
            )
        except OSError as error:
            if counts:
                heard.failed(f"connect: {error.strerror}")
            return
        everyone.append(connection)
        connection.send(data, counts)

    gc.collect()
    gc.freeze()
    begun_s = loop.time() + 0.1
    for number, (at_s, data) in enumerate(zip(times, requests, strict=True)):
        due_s = begun_s + at_s
        if due_s > loop.time():
            await asyncio.sleep(due_s - loop.time())
        counts = at_s >= load.warm_s
        heard.all_sent += 1
        if counts:
            heard.sent += 1
            heard.late_s.append(loop.time() - due_s)
        turn = number % len(ports)
        pool = pools[turn]
        if pool:
            pool.pop().send(data, counts)
        else:
            task = loop.create_task(connect(ports[turn], pool, data, counts))
            connecting.add(task)
            task.add_done_callback(connecting.discard)
    until_s = loop.time() + wait_s
    while (connecting or any(connection.busy for connection in everyone)) and loop.time() < until_s:
        await asyncio.sleep(0.05)
    for connection in everyone:
        if connection.busy:
            connection.busy = False
            if connection.counts:
                heard.failed("no end")
        connection.transport.abort()
    return heard


def main() -> None:
    """Send and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ports", type=int, nargs="+", metavar="PORT", help="of 127.0.0.1, taken in turn")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rate", type=float, required=True, help="requests per second")
    parser.add_argument("--warm", type=float, default=2.0, help="seconds that are not counted")
    parser.add_argument("--time", type=float, default=10.0, help="seconds that are")
    parser.add_argument("--prompt-bytes", type=int, default=2048)
    parser.add_argument("--chunks", type=int, default=50, help="tokens of a whole answer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--key", default="", help="bearer token")
    parser.add_argument("--wait", type=float, default=10.0, help="seconds to wait for the last answers")
    options = parser.parse_args()
    load = Load(options.rate, options.warm, options.time, options.prompt_bytes, options.chunks, options.seed)
    heard = uvloop.run(run(load, options.ports, options.key, options.wait))
    options.out.write_text(json.dumps(asdict(heard)))


if __name__ == "__main__":
    main()
