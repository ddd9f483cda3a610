"""How a transport ends, and what its peers see of that."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from headway.errors import PeerLostError, TransportError
from headway.transport.options import TcpOptions
from headway.transport.tcp import TcpTransport
from headway.transport.wire import Purpose
from tests.fakes.rendezvous import DictRendezvous
from tests.transport.harness import LIMIT_S, CollectingSink, group, on_loop
from tests.transport.raw_peer import join


class Ends:
    """What the handlers for ended peers were told."""

    def __init__(self, transport: TcpTransport) -> None:
        self.lost: list[tuple[int, str]] = []
        self.left: list[int] = []
        self._changed = threading.Event()
        transport.on_peer_lost(self._on_lost)
        transport.on_peer_left(self._on_left)

    def _on_lost(self, rank: int, what: str) -> None:
        self.lost.append((rank, what))
        self._changed.set()

    def _on_left(self, rank: int) -> None:
        self.left.append(rank)
        self._changed.set()

    def wait(self) -> None:
        assert self._changed.wait(LIMIT_S)


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc/self/fd")
def test_nothing_is_left_after_close() -> None:
    gc.collect()
    descriptors, threads = open_descriptors(), threading.active_count()
    with group(3, TcpOptions(close_timeout_s=0.2)) as transports:
        sinks = [CollectingSink() for _ in transports]
        for transport, sink in zip(transports, sinks, strict=True):
            on_loop(transport, lambda t=transport, s=sink: t.open_channel(0, s))  # type: ignore[misc]
        for transport in transports:
            for dst in range(3):
                if dst != transport.rank:
                    on_loop(transport, lambda t=transport, d=dst: t.send_message(d, 0, 0, memoryview(b"x" * 5000)))  # type: ignore[misc]
                    transport.send_control(dst, b"control")
        for sink in sinks:
            sink.wait_for(lambda s=sink: len(s.messages) == 2)  # type: ignore[misc]
        received = memoryview(bytearray(3))
        transports[0].send(1, 9, memoryview(b"abc")).wait(LIMIT_S)
        transports[1].receive(0, 9, received).wait(LIMIT_S)
        # Messages that nobody takes, and a connection that is under way, end too.
        on_loop(transports[0], lambda: transports[0].send_message(1, 7, 0, memoryview(bytes(8 << 20))))
        on_loop(transports[2], lambda: transports[2].send_message(1, 8, 0, memoryview(b"y")))
    for transport in transports:
        transport.close()
    assert open_descriptors() == descriptors
    assert threading.active_count() == threads


def test_close_fails_what_is_open_and_later_calls() -> None:
    with group(2) as (first, _):
        sink = CollectingSink()
        on_loop(first, lambda: first.open_channel(0, sink))
        receive = first.receive(1, 0, memoryview(bytearray(4)))
        first.close()
        assert len(sink.errors) == 1
        assert "is closed" in sink.errors[0].what
        with pytest.raises(TransportError, match="is closed"):
            receive.wait(LIMIT_S)
        for call in (
            lambda: first.run_soon(lambda: None),
            lambda: first.send_control(1, b""),
            lambda: first.send(1, 0, memoryview(b"")),
            lambda: first.receive(1, 0, memoryview(bytearray())),
            first.flow_samples,
        ):
            with pytest.raises(TransportError, match="is closed"):
                call()


def test_close_from_the_progress_thread() -> None:
    with group(1) as (only,):
        on_loop(only, only.close)
        only.close()
        with pytest.raises(TransportError, match="is closed"):
            only.run_soon(lambda: None)


def test_a_constructor_that_fails_leaves_nothing() -> None:
    gc.collect()
    descriptors, threads = open_descriptors(), threading.active_count()
    with pytest.raises(TransportError):
        TcpTransport(rank=0, size=2, rendezvous=DictRendezvous(), options=TcpOptions(connect_timeout_s=0.05))
    assert open_descriptors() == descriptors
    assert threading.active_count() == threads


def test_what_was_sent_before_an_orderly_close_arrives_and_nobody_fails() -> None:
    payload = bytes(range(256)) * 4096
    with group(3) as (first, second, third):
        ends = Ends(second)
        out, sink = CollectingSink(), CollectingSink()

        def send() -> None:
            first.open_channel(0, out)
            for tag in range(4):
                first.send_message(1, 0, tag, memoryview(payload))

        # A connection in the other direction, whose goodbye overtakes the data.
        on_loop(second, lambda: second.send_message(0, 1, 0, memoryview(b"never read")))
        on_loop(first, send)
        on_loop(second, lambda: second.open_channel(0, sink))
        out.wait_for(lambda: len(out.sent_tags) == 4)
        first.send_control(2, b"last words")
        first.close()
        sink.wait_for(lambda: len(sink.messages) == 4)
        ends.wait()
        assert ends.left == [0]
        assert ends.lost == []
        assert not sink.errors
        # Who still wants something from it is told.
        later = CollectingSink()

        def send_back() -> None:
            second.open_channel(2, later)
            second.send_message(0, 2, 0, memoryview(b"too late"))

        on_loop(second, send_back)
        later.wait_for(lambda: bool(later.errors))
        assert isinstance(later.errors[0], PeerLostError)
        assert later.errors[0].rank == 0
        heard: list[bytes] = []
        came = threading.Event()

        def hear(src: int, words: bytes) -> None:
            heard.append(words)
            came.set()

        third.on_control(hear)
        assert came.wait(LIMIT_S)
        assert heard == [b"last words"]


def test_a_connection_that_ends_without_a_goodbye_is_a_lost_peer() -> None:
    meeting = DictRendezvous()
    with group(3, rendezvous=meeting) as (first, _, _):
        ends = Ends(first)
        sink = CollectingSink()
        on_loop(first, lambda: first.open_channel(0, sink))
        sock = join(first, meeting.values["headway/default/token"], src=2, purpose=Purpose.CONTROL)
        sock.close()
        sink.wait_for(lambda: bool(sink.errors))
        assert isinstance(sink.errors[0], PeerLostError)
        assert sink.errors[0].rank == 2
        ends.wait()
        assert [rank for rank, _ in ends.lost] == [2]
        # Later channels fail at once, and late handlers hear of it.
        later = CollectingSink()
        on_loop(first, lambda: first.open_channel(1, later))
        later.wait_for(lambda: bool(later.errors))
        assert later.errors[0].rank == 2
        again = Ends(first)
        again.wait()
        assert again.lost == ends.lost


class PipeRendezvous:
    """`Rendezvous` of a child process: its parent answers."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def put(self, key: str, value: bytes) -> None:
        """See `Rendezvous`."""
        self._pipe.send(("put", key, value))

    def get(self, key: str, timeout_s: float) -> bytes:
        """See `Rendezvous`."""
        self._pipe.send(("get", key, timeout_s))
        value: bytes = self._pipe.recv()
        return value


def serve(pipe: Connection, meeting: DictRendezvous) -> None:
    """Answer a `PipeRendezvous` until its process ends."""
    try:
        while True:
            verb, key, argument = pipe.recv()
            if verb == "put":
                meeting.put(key, argument)
            else:
                pipe.send(meeting.get(key, argument))
    except EOFError:
        return


def doomed(pipe: Connection, sends: bool) -> None:
    """Rank 2: joins, perhaps sends for ever, and waits for its end."""
    transport = TcpTransport(rank=2, size=3, rendezvous=PipeRendezvous(pipe))
    transport.send_control(0, b"here")
    transport.send_control(1, b"here")
    if sends:
        big = memoryview(bytes(64 << 20))
        transport.run_soon(lambda: transport.send_message(0, 0, 0, big))
    time.sleep(LIMIT_S)


def announce(event: threading.Event) -> Callable[[int, bytes], None]:
    """A handler of control messages that sets `event`."""

    def handle(src: int, payload: bytes) -> None:
        event.set()

    return handle


@pytest.mark.ranks
@pytest.mark.parametrize("sends", [False, True])
def test_a_killed_process_is_noticed_by_every_rank(sends: bool) -> None:
    meeting = DictRendezvous()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=doomed, args=(theirs, sends))
    child.start()
    theirs.close()
    server = threading.Thread(target=serve, args=(ours, meeting))
    server.start()
    transports: list[TcpTransport] = []
    try:
        with ThreadPoolExecutor(2) as pool:
            transports += pool.map(lambda rank: TcpTransport(rank=rank, size=3, rendezvous=meeting), range(2))
        sinks, here = [CollectingSink(), CollectingSink()], [threading.Event(), threading.Event()]
        for transport, sink, event in zip(transports, sinks, here, strict=True):
            transport.on_control(announce(event))
            on_loop(transport, lambda t=transport, s=sink: t.open_channel(0, s))  # type: ignore[misc]
        for event in here:
            assert event.wait(LIMIT_S)
        # One of them only writes to it.
        writer = transports[1]
        on_loop(writer, lambda: writer.send_message(2, 0, 0, memoryview(bytes(1000))))
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        for sink in sinks:
            sink.wait_for(lambda s=sink: bool(s.errors))  # type: ignore[misc]
            assert isinstance(sink.errors[0], PeerLostError)
            assert sink.errors[0].rank == 2
            assert len(sink.errors) == 1
    finally:
        for transport in transports:
            transport.close()
        child.kill()
        child.join(LIMIT_S)
        server.join(LIMIT_S)
        ours.close()
        child.close()
