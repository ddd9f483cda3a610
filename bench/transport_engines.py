"""What our event loop costs, beside one thread per direction and beside bare blocking sockets, on loopback.

Every rank sends to the next and receives from the one before, as a ring does: `outstanding` messages are under way, and
each one that has arrived lets the next one go. The round trip is that between two ranks with one message.

    python -m bench.transport_engines [--ranks 4] [--repeats 3] [--sndbuf 0] [--rcvbuf 0]

Columns: rate in GB/s (1e9 bytes per second) that one rank sends; CPU in seconds of all ranks per GB that all sent.
Medians over the repeats, the engines in turn within each.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

from headway.errors import DeadlineError, TransportError
from headway.transport.options import TcpOptions
from headway.transport.tcp import TcpTransport

LIMIT_S = 120.0
MESSAGE_BYTES = 256 << 10
OUTSTANDING = 8
HEADER = struct.Struct("<IQ")


class FileRendezvous:
    """`Rendezvous` on files of one machine."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def put(self, key: str, value: bytes) -> None:
        """See `Rendezvous`."""
        name = key.replace("/", "_")
        part = self._folder / f".{name}.{os.getpid()}"
        part.write_bytes(value)
        part.rename(self._folder / name)

    def get(self, key: str, timeout_s: float) -> bytes:
        """See `Rendezvous`."""
        path = self._folder / key.replace("/", "_")
        end_s = time.monotonic() + timeout_s
        while not path.exists():
            if time.monotonic() > end_s:
                raise DeadlineError(f"nobody put {key}")
            time.sleep(0.002)
        return path.read_bytes()


def connect_ring(rank: int, size: int, meeting: FileRendezvous) -> tuple[socket.socket, socket.socket]:
    """Blocking sockets: to the next rank, and from the one before."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        meeting.put(f"port/{rank}", str(listening.getsockname()[1]).encode())
        port = int(meeting.get(f"port/{(rank + 1) % size}", LIMIT_S))
        following = socket.create_connection(("127.0.0.1", port))
        before, _ = listening.accept()
    for sock in (following, before):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return following, before


def read_exactly(sock: socket.socket, into: memoryview) -> None:
    """Fill `into`."""
    while into:
        got = sock.recv_into(into)
        if not got:
            raise TransportError("the rank before has gone")
        into = into[got:]


class Counter:
    """Sink of the benchmark: each arrival lets the next message go, until `count` have come and gone."""

    def __init__(self, count: int, send: Callable[[int], None], outstanding: int) -> None:
        self._count, self._send = count, send
        self._received = self._sent = 0
        self._next = outstanding
        self.over = threading.Event()
        self.scratch = memoryview(bytearray(1 << 20))
        self._lock = threading.Lock()

    def buffer_for(self, src: int, tag: int, size: int) -> memoryview:
        """One scratch buffer for all: the data is not looked at."""
        return self.scratch[:size]

    def received(self, src: int, tag: int, buffer: memoryview) -> None:
        """Let the next one go."""
        with self._lock:
            self._received += 1
            number, self._next = self._next, self._next + 1
        if number < self._count:
            self._send(number)
        self._check()

    def sent(self, dst: int, tag: int) -> None:
        """Count."""
        with self._lock:
            self._sent += 1
        self._check()

    def failed(self, error: TransportError) -> None:
        """Nobody expects it here."""
        raise error

    def _check(self) -> None:
        if self._received == self._count and self._sent == self._count:
            self.over.set()


def run_loop(
    rank: int, size: int, folder: str, count: int, message: int, outstanding: int, options: TcpOptions
) -> Timed:
    """The engine of the product."""
    transport = TcpTransport(rank=rank, size=size, rendezvous=FileRendezvous(folder), options=options)
    following = (rank + 1) % size
    payload = memoryview(bytes(message))
    sink = Counter(count, lambda tag: transport.send_message(following, 1, tag, payload), outstanding)
    warm = Counter(1, lambda tag: transport.send_message(following, 0, tag, payload), 1)

    def begin(channel: int, sink: Counter, number: int) -> None:
        transport.open_channel(channel, sink)
        for tag in range(number):
            transport.send_message(following, channel, tag, payload)

    def act() -> None:
        transport.run_soon(lambda: begin(1, sink, min(outstanding, count)))
        assert sink.over.wait(LIMIT_S)
        transport.run_soon(lambda: transport.close_channel(1))

    transport.run_soon(lambda: begin(0, warm, 1))
    assert warm.over.wait(LIMIT_S)
    transport.run_soon(lambda: transport.close_channel(0))
    return Timed(act, transport.close)


class Timed:
    """What is measured, and what is done afterwards."""

    def __init__(self, act: Callable[[], None], close: Callable[[], None]) -> None:
        self.act, self.close = act, close


def run_threads(
    rank: int, size: int, folder: str, count: int, message: int, outstanding: int, options: TcpOptions
) -> Timed:
    """One thread per direction, blocking sockets, a queue in front of the writer."""
    following, before = connect_ring(rank, size, FileRendezvous(folder))
    payload = memoryview(bytes(message))
    outbox: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    sink = Counter(count, outbox.put, outstanding)

    def write() -> None:
        while (tag := outbox.get()) is not None:
            header = HEADER.pack(len(payload), tag)
            written = following.sendmsg([header, payload])
            if written < len(header) + len(payload):
                following.sendall(payload[written - len(header) :])
            sink.sent(0, tag)

    def read() -> None:
        header = memoryview(bytearray(HEADER.size))
        for _ in range(count):
            read_exactly(before, header)
            length, tag = HEADER.unpack(header)
            into = sink.buffer_for(0, tag, length)
            read_exactly(before, into)
            sink.received(0, tag, into)

    threads = [threading.Thread(target=write), threading.Thread(target=read)]
    for thread in threads:
        thread.start()

    def act() -> None:
        for tag in range(min(outstanding, count)):
            outbox.put(tag)
        assert sink.over.wait(LIMIT_S)

    def close() -> None:
        outbox.put(None)
        for thread in threads:
            thread.join(LIMIT_S)
        following.close()
        before.close()

    return Timed(act, close)


def run_bare(
    rank: int, size: int, folder: str, count: int, message: int, outstanding: int, options: TcpOptions
) -> Timed:
    """Blocking sockets without messages: what the machine gives. Two threads, or one where messages go in turn."""
    following, before = connect_ring(rank, size, FileRendezvous(folder))
    payload = memoryview(bytes(message))
    into = memoryview(bytearray(message))

    def write() -> None:
        for _ in range(count):
            following.sendall(payload)

    def act() -> None:
        if outstanding == 1:
            for _ in range(count):
                following.sendall(payload)
                read_exactly(before, into)
            return
        writer = threading.Thread(target=write)
        writer.start()
        for _ in range(count):
            read_exactly(before, into)
        writer.join(LIMIT_S)

    def close() -> None:
        following.close()
        before.close()

    return Timed(act, close)


ENGINES: dict[str, Callable[[int, int, str, int, int, int, TcpOptions], Timed]] = {
    "event loop": run_loop,
    "threads": run_threads,
    "bare": run_bare,
}


def rank_main(
    engine: str,
    rank: int,
    size: int,
    folder: str,
    count: int,
    message: int,
    outstanding: int,
    options: TcpOptions,
    pipe: Connection,
) -> None:
    """One rank of one run: reports (seconds, CPU seconds)."""
    timed = ENGINES[engine](rank, size, folder, count, message, outstanding, options)
    pipe.send("ready")
    pipe.recv()
    cpu_s, start_s = time.process_time(), time.monotonic()
    timed.act()
    pipe.send((time.monotonic() - start_s, time.process_time() - cpu_s))
    pipe.recv()
    timed.close()


def measure(
    engine: str, size: int, count: int, message: int, outstanding: int, options: TcpOptions
) -> tuple[float, float]:
    """(seconds of the slowest rank, CPU seconds of all ranks)."""
    context = multiprocessing.get_context("fork")
    with TemporaryDirectory() as folder:
        ranks = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=rank_main, args=(engine, rank, size, folder, count, message, outstanding, options, theirs)
            )
            process.start()
            ranks.append((process, ours))
        for _, pipe in ranks:
            pipe.recv()
        for _, pipe in ranks:
            pipe.send("go")
        results: list[tuple[float, float]] = [pipe.recv() for _, pipe in ranks]
        for _, pipe in ranks:
            pipe.send("end")
        for process, _ in ranks:
            process.join(LIMIT_S)
    return max(wall for wall, _ in results), sum(cpu for _, cpu in results)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--total", type=int, default=1 << 30, help="bytes that one rank sends in the large cases")
    parser.add_argument("--sndbuf", type=int, default=TcpOptions().send_buffer_bytes)
    parser.add_argument("--rcvbuf", type=int, default=TcpOptions().receive_buffer_bytes)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    arguments = parser.parse_args()
    options = TcpOptions(
        send_buffer_bytes=arguments.sndbuf,
        receive_buffer_bytes=arguments.rcvbuf,
    )
    engines: list[str] = arguments.engines.split(",")
    print(f"{'case':>24} {'engine':>12} {'rate GB/s':>10} {'CPU s/GB':>9} {'us/message':>11}")
    cases = [
        ("4 KiB, two ranks", 2, 4096, 1, 4000),
        ("4 KiB ring, 1 at a time", arguments.ranks, 4096, 1, 4000),
        ("4 KiB ring", arguments.ranks, 4096, OUTSTANDING, 20000),
        ("64 KiB ring", arguments.ranks, 64 << 10, OUTSTANDING, arguments.total // 4 // (64 << 10)),
        ("256 KiB ring", arguments.ranks, MESSAGE_BYTES, OUTSTANDING, arguments.total // MESSAGE_BYTES),
        ("1 MiB ring", arguments.ranks, 1 << 20, OUTSTANDING, arguments.total // (1 << 20)),
    ]
    for name, size, message, outstanding, count in cases:
        if arguments.only not in name:
            continue
        runs: dict[str, list[tuple[float, float]]] = {engine: [] for engine in engines}
        for _ in range(arguments.repeats):
            for engine in engines:
                runs[engine].append(measure(engine, size, count, message, outstanding, options))
        for engine in engines:
            wall_s = statistics.median(wall for wall, _ in runs[engine])
            cpu_s = statistics.median(cpu for _, cpu in runs[engine])
            total = count * message
            print(
                f"{name:>24} {engine:>12} {total / wall_s / 1e9:10.3f} {cpu_s / (size * total / 1e9):9.2f} "
                f"{wall_s / count * 1e6:11.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
