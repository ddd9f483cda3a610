"""Where `bench.gateway_faults` plays: a gateway in a process of its own, engines in front of which it stands, leaks."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.fault_client import get
from bench.proxies import free_ports
from bench.rude_engine import Rude
from headway.errors import HeadwayError

START_LIMIT_S = 30.0
SETTLE_LIMIT_S = 6.0
"""How long what a fault left behind may take to go. Idle connections to engines are kept for 4 s."""
BODY_BYTES = 2**20
TIMEOUTS = {
    "connect_s": 1.0,
    "first_byte_s": 2.0,
    "stall_s": 2.0,
    "total_s": 30.0,
    "body_s": 2.0,
    "client_s": 2.0,
    "drain_s": 3.0,
}
"""Short, so that a row takes seconds; the order among them is that of the defaults."""
Settings = Mapping[str, Mapping[str, object]]
"""Parts of the gateway's file; `pool` is its only pool."""
SHOWN = ("requests", "refused", "cancelled", "retries", "fleet_events")
"""The gateway's counters that say what it recorded."""
_LINE = re.compile(r"headway_gateway_(\w+?)(?:_total)?(?:\{(.*)\})? ([0-9.e+-]+)$")


def counters(page: str) -> Counter[str]:
    """What a page of the gateway's metrics says, by `name label label`; gauges too. Pure."""
    found: Counter[str] = Counter()
    for line in page.splitlines():
        match = _LINE.match(line)
        if match is None or "_created" in match[1] or "_bucket" in match[1]:
            continue
        labels = re.findall(r'(\w+)="([^"]*)"', match[2] or "")
        values = [value for name, value in labels if name not in ("model", "replica")]
        found[" ".join([match[1], *values])] += int(float(match[3]))
    return found


def recorded(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """What the counters gained, in words. Pure."""
    gained = {name: after[name] - before.get(name, 0) for name in after if name.split(" ")[0] in SHOWN}
    return ", ".join(f"{name} {count}" for name, count in sorted(gained.items()) if count > 0)


class Process:
    """A process of ours, ended with this block."""

    def __init__(self, argv: Sequence[str], log: Path, *, most_files: int | None = None) -> None:
        self.argv, self.log, self.most_files = argv, log, most_files

    async def start(self) -> None:
        """Start it."""
        limit = ["prlimit", f"--nofile={self.most_files}:{self.most_files}"] if self.most_files else []
        with self.log.open("wb") as file:
            self.process = await asyncio.create_subprocess_exec(
                *limit, *self.argv, stdin=asyncio.subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )

    @property
    def pid(self) -> int:
        """Its id."""
        return self.process.pid

    def kill(self) -> None:
        """SIGKILL."""
        if self.process.returncode is None:
            self.process.kill()

    async def stop(self) -> None:
        """Ask it to end, and make it."""
        if self.process.returncode is None:
            self.process.terminate()
        try:
            async with asyncio.timeout(10):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()

    def said(self) -> str:
        """All that it wrote."""
        return self.log.read_text(errors="replace").strip()

    def files(self) -> int:
        """Its open file descriptors."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def rss_kB(self) -> float:
        """Its memory, 1e3 bytes."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e3


class Lab:
    """A gateway in front of some engines, for one row.

    Args:
        ports: of the engines, in the gateway's order.
        settings: parts of the gateway's file that replace ours.
        most_files: its limit of file descriptors; None: that of this process.
    """

    def __init__(self, ports: Sequence[int], settings: Settings, *, most_files: int | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="headway-faults-"))
        self.port = free_ports(1)[0]
        pool: dict[str, object] = {"policy": "round-robin", "models": ["m"]}
        pool["replicas"] = [f"http://127.0.0.1:{port}" for port in ports]
        pool.update(settings.get("pool", {}))
        config: dict[str, object] = {
            "listen": {"port": self.port},
            "pools": [pool],
            "timeouts": TIMEOUTS,
            "limits": {"body_bytes": BODY_BYTES},
            "journal": {"path": str(self.folder / "journal")},
        }
        config.update({name: value for name, value in settings.items() if name != "pool"})
        file = self.folder / "gateway.yaml"
        file.write_text(json.dumps(config, indent=1))
        headway = str(Path(sys.executable).with_name("headway"))
        self.gateway = Process((headway, "gateway", str(file)), self.folder / "gateway.log", most_files=most_files)
        self.ports = list(ports)
        self._stack = AsyncExitStack()
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)

    async def __aenter__(self) -> Self:
        await self.gateway.start()
        self._stack.push_async_callback(self.gateway.stop)
        until_s = time.monotonic() + START_LIMIT_S
        try:
            while (got := await self._first()) is None:
                if self.gateway.process.returncode is not None or time.monotonic() > until_s:
                    raise HeadwayError(f"the gateway does not start: {self.gateway.said()[-500:]}")
                await asyncio.sleep(0.05)
            self.before = counters(got)
            self.files_before = self.own_files()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _first(self) -> str | None:
        try:
            page = await self.page()
        except (OSError, TimeoutError):
            return None
        return page if "headway_gateway_replica_up{" in page else None

    async def page(self) -> str:
        """The gateway's metrics."""
        return await get(self.port, "/metrics")

    async def recorded(self) -> str:
        """What the gateway has recorded since it started."""
        return recorded(self.before, counters(await self.page()))

    def sockets(self) -> tuple[int, int]:
        """The gateway's connections with clients, and with engines; those that the other side has closed count too."""
        clients = engines = 0
        mine = socket_inodes(self.gateway.pid)
        for local, remote, inode in connections():
            if inode in mine:
                clients += local == self.port
                engines += remote in self.ports
        return clients, engines

    def own_files(self) -> int:
        """Its file descriptors, without connections with engines."""
        return self.gateway.files() - self.sockets()[1]

    async def left_behind(self, rude: Sequence[Rude]) -> str:
        """What is still open some seconds after everybody has gone; empty: nothing."""
        until_s = time.monotonic() + SETTLE_LIMIT_S
        while True:
            left = await self._left(rude)
            if not left or time.monotonic() > until_s:
                return left
            await asyncio.sleep(0.1)

    async def _left(self, rude: Sequence[Rude]) -> str:
        if self.gateway.process.returncode is not None:
            return f"the gateway has ended ({self.gateway.process.returncode})"
        try:
            now = counters(await self.page())
        except (OSError, TimeoutError) as error:
            return f"the gateway does not answer ({type(error).__name__})"
        left = {
            "open requests": now["open_requests"],
            "sent to replicas": now["replica_requests prefill"] + now["replica_requests decode"],
            "connections with clients": self.sockets()[0],
            "file descriptors": max(0, self.own_files() - self.files_before),
            "open at engines": sum(engine.running for engine in rude),
        }
        return ", ".join(f"{count} {what}" for what, count in left.items() if count)

    def complaints(self) -> str:
        """Tracebacks and unhandled errors in what the gateway wrote."""
        said = self.gateway.said()
        marks = ("Traceback", "never retrieved", "was destroyed", "Unclosed", "never awaited")
        return ", ".join(f"{said.count(mark)} {mark!r} in its log" for mark in marks if mark in said)


def socket_inodes(pid: int) -> set[str]:
    """The sockets of a process."""
    found = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            link = os.readlink(f"/proc/{pid}/fd/{name}")
        except FileNotFoundError:
            continue
        if link.startswith("socket:["):
            found.add(link[8:-1])
    return found


def connections() -> list[tuple[int, int, str]]:
    """TCP connections over IPv4, but those that only wait for their time: local port, remote port, inode."""
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        parts = line.split()
        if parts[3] != "0A":  # listening
            found.append((int(parts[1].split(":")[1], 16), int(parts[2].split(":")[1], 16), parts[9]))
    return found


async def real_engine(port: int, folder: Path) -> Process:
    """`headway engine` in a process of its own, on this port, once it answers."""
    headway = str(Path(sys.executable).with_name("headway"))
    argv = (headway, "engine", "--port", str(port), "--served-model-name", "m", "--faults", "--output-tokens", "400")
    process = Process(argv, folder / f"engine-{port}.log")
    await process.start()
    until_s = time.monotonic() + START_LIMIT_S
    while True:
        try:
            await get(port, "/health")
        except (OSError, TimeoutError):
            if process.process.returncode is not None or time.monotonic() > until_s:
                process.kill()
                raise HeadwayError(f"the engine does not start: {process.said()[-500:]}") from None
            await asyncio.sleep(0.05)
        else:
            return process


async def fault(port: int, **values: object) -> None:
    """Let a `headway engine` have a fault."""
    content = json.dumps(values).encode()
    head = f"POST /admin/faults HTTP/1.0\r\nContent-Length: {len(content)}\r\n\r\n".encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head + content)
        status = (await reader.read(-1)).split(b" ", 2)[1]
    finally:
        writer.transport.abort()
    if status != b"200":
        raise HeadwayError(f"the engine takes no fault {values}: {status!r}")
