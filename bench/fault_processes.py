"""The rows of `bench.gateway_faults` that need more than a request: engines that are killed, thousands of clients."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench.fault_cases import ERROR_EVENT, SOON_S, WHOLE, Expected, worst
from bench.fault_client import Got, ask, body, exchange, post, told
from bench.fault_lab import START_LIMIT_S, TIMEOUTS, Lab, Process, Settings, fault, real_engine
from bench.proxies import free_ports
from bench.rude_engine import Rude

FEW_FILES = 300
"""File descriptors of a gateway that is to run out of them."""
LINGER_S = 1.0
"""What an engine may take until it has noticed that nobody waits for its answer."""


@dataclass(frozen=True)
class Told:
    """What a row gave.

    Attributes:
        got: what the client got.
        recorded: by the gateway.
        left: behind; empty: nothing.
        note: more to say, for the table.
    """

    got: Got
    recorded: str
    left: str
    note: str = ""


@dataclass(frozen=True)
class Play:
    """A row that sets up its own lab.

    Attributes:
        name, expected: as of `Case`.
        run: plays it.
    """

    name: str
    expected: Expected
    run: Callable[[], Awaitable[Told]]


@asynccontextmanager
async def rude_ones(letters: str) -> AsyncIterator[list[Rude]]:
    """Engines of this process: R does wrong as it is asked to, G never does."""
    loop = asyncio.get_running_loop()
    engines = [Rude(loop, polite=letter == "G") for letter in letters]
    try:
        for engine in engines:
            await engine.start()
        yield engines
    finally:
        for engine in engines:
            engine.stop()


@asynccontextmanager
async def real_ones(count: int) -> AsyncIterator[list[tuple[Process, int]]]:
    """`headway engine` processes and their ports."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headway-engines-")))
        found = []
        for port in free_ports(count):
            process = await real_engine(port, folder)
            stack.push_async_callback(process.stop)
            found.append((process, port))
        yield found


async def told_of(lab: Lab, got: Got, rude: Sequence[Rude] = (), note: str = "") -> Told:
    """A row's outcome, once things have settled."""
    left = await lab.left_behind(rude)
    return Told(got, await lab.recorded(), ", ".join(filter(None, (left, lab.complaints()))), note)


async def killed(*, stalled: bool, replicas: int) -> Told:
    """The engine that answers is killed, before the first byte (`stalled`) or in the middle of its stream."""
    async with real_ones(replicas) as engines, Lab([port for _, port in engines], {}) as lab:
        first, port = engines[0]
        if stalled:
            await fault(port, stall=True)
        asking = [asyncio.create_task(ask(lab.port, "Hi")) for _ in range(replicas)]
        await asyncio.sleep(1.0)
        begun_s = time.perf_counter()
        first.kill()
        outcomes = await asyncio.gather(*asking)
        after_s = time.perf_counter() - begun_s
        return await told_of(lab, replace(worst(outcomes), after_s=after_s))


async def metrics(*, kind: str) -> Told:
    """One of two engines answers nonsense when its load is asked for."""
    async with real_ones(2) as engines:
        await fault(engines[0][1], metrics=kind)
        async with Lab([port for _, port in engines], {"pool": {"policy": "prefix-and-load"}}) as lab:
            asked = post(body("Hi", max_tokens=20))
            outcomes = [await exchange(lab.port, [asked]) for _ in range(6)]
            await asyncio.sleep(2.5)  # what was known of its load is out of date by then
            outcomes += [await exchange(lab.port, [asked]) for _ in range(6)]
            return await told_of(lab, worst(outcomes))


async def all_down(*, known: bool) -> Told:
    """All replicas' ports are closed; what the first requests get, or the last, when that is `known`."""
    async with rude_ones("GG") as rude, Lab([engine.port for engine in rude], {}) as lab:
        for engine in rude:
            engine.stop()
        first = [await ask(lab.port, "Hi") for _ in range(8)]
        return await told_of(lab, worst(first[-1:] if known else first))


async def slow_client() -> Told:
    """A client reads a byte a second of a stream without end; what the gateway holds for it must stay small."""
    async with rude_ones("R") as rude, Lab([rude[0].port], {}) as lab:
        before_kB = lab.gateway.rss_kB()
        begun_s = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", lab.port, limit=1)
        writer.write(post(body("#flood")))
        raw = b""
        most_kB = 0.0
        end = "hangs"
        while time.perf_counter() - begun_s < 20:
            most_kB = max(most_kB, lab.gateway.rss_kB())
            if rude[0].asked_for and not rude[0].running:
                end = "cut"
                break
            try:
                raw += await asyncio.wait_for(reader.read(1), 1.0)
            except TimeoutError:
                pass
            except ConnectionError:
                end = "cut"
                break
            await asyncio.sleep(1.0)
        after_s = time.perf_counter() - begun_s
        writer.transport.abort()
        got = Got(200 if raw.startswith(b"H") else 0, end, "", 0, after_s)
        return await told_of(lab, got, rude, f"the gateway grew by {(most_kB - before_kB) / 1e3:.1f} MB")


async def gone_client(*, first: bool) -> Told:
    """A client goes away, before the first token or in the middle; the engine must hear of it."""
    async with rude_ones("R") as rude, Lab([rude[0].port], {}) as lab:
        if first:
            await exchange(lab.port, [post(body("#stall-first"))], limit_s=0.5)
        else:
            await exchange(lab.port, [post(body("#slow"))], tokens=5)
        begun_s = time.perf_counter()
        while rude[0].running and time.perf_counter() - begun_s < 10:
            await asyncio.sleep(0.005)
        after_s = time.perf_counter() - begun_s
        got = Got(0, "hangs" if rude[0].running else "the engine was told", "", 0, after_s)
        return await told_of(lab, got, rude)


class Holder(asyncio.Protocol):
    """A client of an open stream, as small as can be."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self.raw = b""
        self.closed = False
        self.ended = ended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self.transport = transport
        transport.write(post(body("#hold")))  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        """A piece of the answer."""
        self.raw += data
        if b'" tok"' in self.raw or self.raw.endswith(b"}"):
            self.ended()

    def connection_lost(self, exc: Exception | None) -> None:
        """The gateway has closed it."""
        self.closed = True
        self.ended()


async def holders(port: int, count: int, at_once: int = 200) -> list[Holder]:
    """So many streams, each with its first token, or refused."""
    loop = asyncio.get_running_loop()
    found: list[Holder] = []
    for start in range(0, count, at_once):
        events = [asyncio.Event() for _ in range(min(at_once, count - start))]
        for event in events:
            _, holder = await loop.create_connection(partial(Holder, event.set), "127.0.0.1", port)
            found.append(holder)
        waits = [asyncio.wait_for(event.wait(), 30) for event in events]
        await asyncio.gather(*waits, return_exceptions=True)
    return found


def stream_count(wanted: int) -> int:
    """As many streams as the limit of file descriptors lets one gateway have, at most `wanted`: each takes two."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return wanted if most == resource.RLIM_INFINITY else min(wanted, (most - 200) // 2)


async def open_streams(*, wanted: int) -> Told:
    """Thousands of streams at once: all get their first token, all end whole."""
    count = stream_count(wanted)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    port = free_ports(1)[0]
    engine = Process((sys.executable, "-m", "bench.rude_engine", str(port)), Path(os.devnull))
    await engine.start()
    settings: Settings = {
        "limits": {"open_requests": 20_000, "requests_per_replica": 20_000},
        "timeouts": {"total_s": 600.0, "stall_s": 300.0, "first_byte_s": 60.0},
    }
    try:
        async with Lab([port], settings) as lab:
            await ask(lab.port, "Hi")
            before_kB, before_files = lab.gateway.rss_kB(), lab.gateway.files()
            begun_s = time.perf_counter()
            clients = await holders(lab.port, count)
            opened_s = time.perf_counter() - begun_s
            held_kB, held_files = lab.gateway.rss_kB() - before_kB, lab.gateway.files() - before_files
            begun_s = time.perf_counter()
            await exchange(port, [post(body("#go-on"))])
            outcomes = [told(client.raw, 0.0, closed=client.closed) for client in clients]
            while any(got.end == "hangs" for got in outcomes) and time.perf_counter() - begun_s < 60:
                await asyncio.sleep(0.1)
                outcomes = [told(client.raw, 0.0, closed=client.closed) for client in clients]
            after_s = time.perf_counter() - begun_s
            for client in clients:
                client.transport.abort()  # type: ignore[attr-defined]
            whole = sum(got.end == "whole" and got.status == 200 for got in outcomes)
            note = (
                f"{whole} of {count} whole; opened in {opened_s:.1f} s; {held_kB / count:.1f} kB and "
                f"{held_files / count:.2f} file descriptors per stream"
            )
            return await told_of(lab, replace(worst(outcomes), after_s=after_s), note=note)
    finally:
        await engine.stop()


async def out_of_files() -> Told:
    """More clients than file descriptors: whoever is refused is told so, and afterwards all is as before."""
    async with rude_ones("R") as rude, Lab([rude[0].port], {}, most_files=FEW_FILES) as lab:
        clients = await holders(lab.port, FEW_FILES)
        outcomes = [told(client.raw, 0.0, closed=client.closed) for client in clients]
        served = sum(got.tokens > 0 for got in outcomes)
        for client in clients:
            client.transport.abort()  # type: ignore[attr-defined]
        rude[0].go_on.set()
        await asyncio.sleep(3.0)  # a circuit breaker may have opened
        begun_s = time.perf_counter()
        got = await ask(lab.port, "Hi")
        kinds = sorted({got.words for got in outcomes if not got.tokens})
        note = f"{served} of {FEW_FILES} served; others: {', '.join(kinds)}; the row is the request after it"
        return await told_of(lab, replace(got, after_s=time.perf_counter() - begun_s), rude, note)


async def changing_replicas() -> Told:
    """The list of replicas changes ten times while streams run; those that leave end what they have."""
    with tempfile.TemporaryDirectory(prefix="headway-list-") as name:
        async with rude_ones("GGG") as rude:
            return await _changing(rude, Path(name) / "replicas.json")


async def _changing(rude: Sequence[Rude], file: Path) -> Told:
    urls = [f"http://127.0.0.1:{engine.port}" for engine in rude]
    file.write_text(json.dumps(urls))
    pool = {"replicas": [], "discovery": [{"kind": "file", "path": str(file), "poll_s": 0.05}]}
    async with Lab([engine.port for engine in rude], {"pool": pool}) as lab:
        asking = []
        for turn in range(10):
            file.with_suffix(".new").write_text(json.dumps(urls[turn % 3 :][:2] if turn < 9 else urls))
            file.with_suffix(".new").rename(file)
            for _ in range(20):
                asking.append(asyncio.create_task(ask(lab.port, "Hi")))
                await asyncio.sleep(0.02)
        outcomes = await asyncio.gather(*asking)
        answered = [engine.asked_for for engine in rude]
        note = f"{sum(got.end == 'whole' for got in outcomes)} of {len(outcomes)} whole; by replica {answered}"
        return await told_of(lab, worst(outcomes), rude, note)


async def stopped(*, way: str) -> Told:
    """SIGTERM while 20 streams run, which end within the time for that, or don't."""
    async with rude_ones("R") as rude, Lab([rude[0].port], {}) as lab:
        content = post(body(f"#{way}"))
        asking = [asyncio.create_task(exchange(lab.port, [content])) for _ in range(20)]
        await asyncio.sleep(0.7)
        begun_s = time.perf_counter()
        lab.gateway.process.send_signal(signal.SIGTERM)
        if way == "hold":
            await asyncio.sleep(0.5)
            rude[0].go_on.set()
        outcomes = await asyncio.gather(*asking)
        after_s = time.perf_counter() - begun_s
        late = await ask(lab.port, "Hi")
        async with asyncio.timeout(START_LIMIT_S):
            code = await lab.gateway.process.wait()
        took_s = time.perf_counter() - begun_s
        await asyncio.sleep(LINGER_S)
        left = f"{rude[0].running} open at engines" if rude[0].running else ""
        if code:
            left = f"{left} exit code {code}".strip()
        note = f"exit code {code} after {took_s:.1f} s; a new request: {late.words}"
        left = ", ".join(filter(None, (left, lab.complaints())))
        return Told(replace(worst(outcomes), after_s=after_s), "", left, note)


def plays(streams: int) -> list[Play]:
    """All of them. `streams`: that are open at once in the row about that."""
    drain_s = TIMEOUTS["drain_s"]
    fine = Expected((200,), WHOLE, 10.0)
    rows = [
        Play(
            "engine process killed before the first byte; no other",
            Expected((502,), WHOLE),
            partial(killed, stalled=True, replicas=1),
        ),
        Play(
            "engine process killed before the first byte; another there",
            Expected((200,), WHOLE, 20.0, recorded=("retries",)),
            partial(killed, stalled=True, replicas=2),
        ),
        Play(
            "engine process killed in the middle of a stream",
            Expected((200,), ERROR_EVENT, tokens=5),
            partial(killed, stalled=False, replicas=1),
        ),
        Play("every replica's port is closed", Expected((502, 503), WHOLE), partial(all_down, known=False)),
        Play(
            "the same, once that is known",
            Expected((503,), WHOLE, header="retry-after"),
            partial(all_down, known=True),
        ),
        Play(
            "client reads a byte a second",
            Expected((200,), ("cut",), TIMEOUTS["client_s"] + 5.0, recorded=("cancelled",)),
            slow_client,
        ),
        Play(
            "client goes away before the first token",
            Expected((0,), ("the engine was told",), recorded=("cancelled 1",)),
            partial(gone_client, first=True),
        ),
        Play(
            "client goes away in the middle",
            Expected((0,), ("the engine was told",), recorded=("cancelled 1",)),
            partial(gone_client, first=False),
        ),
        Play(
            f"{stream_count(streams)} open streams",
            Expected((200,), WHOLE, 60.0),
            partial(open_streams, wanted=streams),
        ),
        Play("more clients than file descriptors", Expected((200,), WHOLE), out_of_files),
        Play("the list of replicas changes ten times", Expected((200,), WHOLE, 10.0), changing_replicas),
        Play("SIGTERM, streams end in time", Expected((200,), WHOLE, drain_s), partial(stopped, way="hold")),
        Play(
            "SIGTERM, streams do not end in time",
            Expected((200,), ERROR_EVENT, drain_s + SOON_S, drain_s),
            partial(stopped, way="slow"),
        ),
    ]
    kinds = ("garbage", "html", "error", "slow", "frozen")
    return rows + [Play(f"/metrics of an engine: {kind}", fine, partial(metrics, kind=kind)) for kind in kinds]
