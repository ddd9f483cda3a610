"""One-sided messages between ranks that are threads."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.errors import TransportError, UsageError
from headway.transport import wire
from headway.transport.options import TcpOptions
from headway.transport.poller import Poller, SelectorPoller, make_poller
from headway.transport.sockets import available_congestion_controls
from headway.transport.tcp import TcpTransport
from headway.transport.wire import Purpose
from tests.fakes.rendezvous import DictRendezvous
from tests.transport.harness import LIMIT_S, CollectingSink, group, on_loop
from tests.transport.raw_peer import join

# Around the header's size and the two sizes at which reading changes its way.
SIZES = [0, 1, 23, 24, 25, 4096, 40_959, 40_960, 131_049, 131_072, 3_000_001]


def open_channels(transports: list[TcpTransport], channel: int = 0) -> list[CollectingSink]:
    sinks = [CollectingSink() for _ in transports]
    for transport, sink in zip(transports, sinks, strict=True):
        on_loop(transport, lambda t=transport, s=sink: t.open_channel(channel, s))  # type: ignore[misc]
    return sinks


def test_a_message_of_every_size_arrives_as_it_was_sent() -> None:
    with group(2) as transports:
        first, _ = transports
        out, sink = open_channels(transports)

        def send() -> None:
            for tag, size in enumerate(SIZES):
                first.send_message(1, 0, tag, memoryview(bytes([tag]) * size))

        on_loop(first, send)
        sink.wait_for(lambda: len(sink.messages) == len(SIZES))
        out.wait_for(lambda: len(out.sent_tags) == len(SIZES))
    assert sink.messages == [(0, tag, bytes([tag]) * size) for tag, size in enumerate(SIZES)]
    assert out.sent_tags == [(1, tag) for tag in range(len(SIZES))]


@pytest.mark.parametrize("make", [make_poller, SelectorPoller])
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_every_poller_and_address_family(make: type[Poller], address: str) -> None:
    meeting = DictRendezvous()
    options = TcpOptions(interface=address)
    built: list[TcpTransport] = []

    def build(rank: int) -> None:
        built.append(TcpTransport(rank=rank, size=2, rendezvous=meeting, options=options, poller=make()))

    threads = [threading.Thread(target=build, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    transports = sorted(built, key=lambda transport: transport.rank)
    sinks = open_channels(transports)
    payload = bytes(range(256)) * 40_000

    def send(transport: TcpTransport) -> None:
        for tag in range(3):
            transport.send_message(1 - transport.rank, 0, tag, memoryview(payload))

    for transport in transports:
        on_loop(transport, lambda t=transport: send(t))  # type: ignore[misc]
    for rank, sink in enumerate(sinks):
        sink.wait_for(lambda s=sink: len(s.messages) == 3)  # type: ignore[misc]
        assert sink.messages == [(1 - rank, tag, payload) for tag in range(3)]
    for transport in transports:
        assert transport.address[0] == address
        transport.close()


def wait_for_messages(sink: CollectingSink, src: int, count: int) -> None:
    sink.wait_for(lambda: sum(message[0] == src for message in sink.messages) == count)


@st.composite
def schedules(draw: st.DrawFn) -> tuple[int, list[tuple[int, int, int, int]]]:
    """A number of ranks, and (src, dst, channel, size) in the order of sending; channels do not go backwards."""
    size = draw(st.integers(2, 4))
    pair = st.tuples(st.integers(0, size - 1), st.integers(0, size - 2))
    lengths = st.one_of(st.sampled_from(SIZES[:-1]), st.integers(0, 200_000))
    messages = draw(st.lists(st.tuples(pair, st.integers(0, 3), lengths), max_size=40))
    flat = [(src, dst + (dst >= src), channel, length) for (src, dst), channel, length in messages]
    return size, sorted(flat, key=lambda message: message[2])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schedules())
def test_any_schedule_is_delivered_once_and_in_order(schedule: tuple[int, list[tuple[int, int, int, int]]]) -> None:
    size, messages = schedule
    payloads = [bytes([index % 251]) * length for index, (_, _, _, length) in enumerate(messages)]
    with group(size) as transports:

        def send(transport: TcpTransport) -> None:
            for tag, (src, dst, channel, _) in enumerate(messages):
                if src == transport.rank:
                    transport.send_message(dst, channel, tag, memoryview(payloads[tag]))

        # Everything is sent before a channel is open; channels then open at every rank one after the other.
        for transport in transports:
            on_loop(transport, lambda t=transport: send(t))  # type: ignore[misc]
        for channel in range(4):
            sinks = open_channels(transports, channel)
            for rank, sink in enumerate(sinks):
                for src in range(size):
                    expected = [
                        (src, tag, payloads[tag])
                        for tag, message in enumerate(messages)
                        if message[:3] == (src, rank, channel)
                    ]
                    wait_for_messages(sink, src, len(expected))
                    assert [message for message in sink.messages if message[0] == src] == expected
                assert not sink.errors


def test_a_channel_that_is_not_open_holds_back_its_connection_and_no_other() -> None:
    with group(3) as transports:
        first, second, third = transports
        big = memoryview(bytes(64 << 20))
        out = CollectingSink()

        def send() -> None:
            first.open_channel(5, out)
            first.send_message(2, 5, 1, big)

        on_loop(first, send)
        on_loop(second, lambda: second.send_message(2, 4, 2, memoryview(b"ahead")))
        early = CollectingSink()
        on_loop(third, lambda: third.open_channel(4, early))
        early.wait_for(lambda: early.messages == [(1, 2, b"ahead")])
        # Control messages pass what waits, too.
        heard: list[tuple[int, bytes]] = []
        came = threading.Event()

        def hear(src: int, payload: bytes) -> None:
            heard.append((src, payload))
            came.set()

        third.on_control(hear)
        first.send_control(2, b"hello")
        assert came.wait(LIMIT_S)
        assert heard == [(0, b"hello")]
        assert out.sent_tags == []
        late = CollectingSink()
        on_loop(third, lambda: third.open_channel(5, late))
        late.wait_for(lambda: len(late.messages) == 1)
        out.wait_for(lambda: out.sent_tags == [(2, 1)])
        assert len(late.messages[0][2]) == len(big)


def test_control_messages_flow_beside_bulk_and_keep_their_order() -> None:
    with group(2) as transports:
        first, second = transports
        out, sink = open_channels(transports)
        heard: list[bytes] = []
        all_heard = threading.Event()

        def hear(src: int, payload: bytes) -> None:
            heard.append(payload)
            if len(heard) == 200:
                all_heard.set()

        # The first ones come before anybody listens.
        first.send_control(1, b"0")
        second.on_control(hear)

        def send() -> None:
            for tag in range(32):
                first.send_message(1, 0, tag, memoryview(bytes(1 << 20)))

        on_loop(first, send)
        for number in range(1, 200):
            first.send_control(1, str(number).encode())
        assert all_heard.wait(LIMIT_S)
        sink.wait_for(lambda: len(sink.messages) == 32)
        out.wait_for(lambda: len(out.sent_tags) == 32)
    assert heard == [str(number).encode() for number in range(200)]


def test_control_to_oneself_and_its_limit() -> None:
    with group(1, TcpOptions(max_control_bytes=10)) as (only,):
        heard: list[tuple[int, bytes]] = []
        came = threading.Event()

        def hear(src: int, payload: bytes) -> None:
            heard.append((src, payload))
            came.set()

        only.on_control(hear)
        only.send_control(0, b"0123456789")
        assert came.wait(LIMIT_S)
        assert heard == [(0, b"0123456789")]
        with pytest.raises(TransportError, match="limit is 10"):
            only.send_control(0, b"0123456789a")
        with pytest.raises(TransportError, match="no rank 1"):
            only.send_control(1, b"")


def frame(channel: int, tag: int, size: int, kind: int = wire.MESSAGE) -> bytes:
    return wire.HEADER.pack(kind, channel, tag, size)


@pytest.mark.parametrize(
    ("purpose", "data", "what"),
    [
        (Purpose.STREAM, b"x" * wire.HEADER_BYTES, "malformed frame"),
        (Purpose.STREAM, frame(0, 0, 5) + b"abcde" + bytes(24), "malformed frame"),
        (Purpose.STREAM, frame(0, 0, 1 << 40), "announced a message of 1099511627776 bytes"),
        (Purpose.CONTROL, frame(0, 0, 1 << 30), "announced a control message of 1073741824 bytes"),
        (Purpose.MATCHED, frame(0, 0, 1 << 40), "announced a message of 1099511627776 bytes"),
    ],
)
def test_a_malformed_or_oversized_frame_names_the_peer(purpose: Purpose, data: bytes, what: str) -> None:
    meeting = DictRendezvous()
    with group(2, rendezvous=meeting) as (first, _):
        sink = CollectingSink()
        on_loop(first, lambda: first.open_channel(0, sink))
        lost: list[tuple[int, str]] = []
        first.on_peer_lost(lambda rank, why: lost.append((rank, why)))
        with join(first, meeting.values["headway/default/token"], src=1, purpose=purpose) as sock:
            sock.sendall(data)
            sink.wait_for(lambda: bool(sink.errors))
        assert sink.errors[0].rank == 1
        assert what in sink.errors[0].what
        on_loop(first, lambda: None)
        assert [rank for rank, _ in lost] == [1]


def test_a_message_for_a_closed_channel_is_an_error_of_its_sender() -> None:
    with group(2) as (first, second):
        sink, later = CollectingSink(), CollectingSink()

        def close_early() -> None:
            second.open_channel(0, sink)
            second.close_channel(0)
            second.open_channel(1, later)

        on_loop(second, close_early)
        on_loop(first, lambda: first.send_message(1, 0, 0, memoryview(b"late")))
        later.wait_for(lambda: bool(later.errors))
        assert later.errors[0].rank == 0
        assert "channel 0 after it was complete" in later.errors[0].what
        assert not sink.errors


def test_a_message_for_a_closed_channel_may_be_reported_instead() -> None:
    with group(2) as (first, second):
        sink, later = CollectingSink(), CollectingSink()
        strays: list[tuple[int, int]] = []
        second.on_stray(lambda src, channel: strays.append((src, channel)))

        def close_early() -> None:
            second.open_channel(0, sink)
            second.close_channel(0)
            second.open_channel(1, later)

        on_loop(second, close_early)
        on_loop(first, lambda: first.send_message(1, 0, 0, memoryview(b"late")))
        on_loop(first, lambda: first.send_message(1, 1, 0, memoryview(b"next")))
        later.wait_for(lambda: bool(later.messages))
        on_loop(second, lambda: None)
        assert strays == [(0, 0)]
        assert not later.errors
        assert not sink.errors


class Refusing(CollectingSink):
    """Refuses tag 1, breaks on tag 2."""

    def buffer_for(self, src: int, tag: int, size: int) -> memoryview:
        if tag == 1:
            raise TransportError("no room for it", rank=src)
        return super().buffer_for(src, tag, size)

    def received(self, src: int, tag: int, buffer: memoryview) -> None:
        if tag == 2:
            raise ZeroDivisionError("a bug")
        super().received(src, tag, buffer)


@pytest.mark.parametrize(("tag", "what"), [(1, "no room for it"), (2, "ZeroDivisionError while handling a message")])
def test_a_sink_that_raises_fails_its_channel_only(tag: int, what: str) -> None:
    with group(2) as (first, second):
        sink, following = Refusing(), CollectingSink()

        def send() -> None:
            for each in (0, tag, 3):
                first.send_message(1, 0, each, memoryview(bytes(100_000)))
            first.send_message(1, 1, 4, memoryview(b"next channel"))

        on_loop(second, lambda: second.open_channel(0, sink))
        on_loop(second, lambda: second.open_channel(1, following))
        on_loop(first, send)
        following.wait_for(lambda: following.messages == [(0, 4, b"next channel")])
        assert [message[1] for message in sink.messages] == [0]
        assert len(sink.errors) == 1
        assert what in sink.errors[0].what
        assert isinstance(sink.errors[0].__cause__, ZeroDivisionError) == (tag == 2)
        assert not following.errors


@pytest.mark.parametrize("abandoned", [False, True])
def test_a_channel_given_up_lets_go_of_buffers_half_sent_and_half_received(abandoned: bool) -> None:
    size = 32 << 20
    source, target = bytearray(size), bytearray(size)
    begun, given_up = threading.Event(), threading.Event()

    class Whole(CollectingSink):
        def buffer_for(self, src: int, tag: int, size: int) -> memoryview:
            begun.set()
            assert given_up.wait(LIMIT_S)
            return memoryview(target)

    def give_up(transport: TcpTransport) -> None:
        if abandoned:
            transport.abandon_channel(0)
        else:
            transport._channels.fail(0, TransportError("given up"))

    with group(2) as (first, second):
        out, whole, following = CollectingSink(), Whole(), CollectingSink()

        def send() -> None:
            first.open_channel(0, out)
            first.send_message(1, 0, 0, memoryview(source))

        on_loop(second, lambda: second.open_channel(0, whole))
        on_loop(first, send)
        assert begun.wait(LIMIT_S)
        on_loop(first, lambda: give_up(first))
        source[:] = b"\xaa" * size
        second.run_soon(lambda: give_up(second))
        given_up.set()
        on_loop(second, lambda: None)
        target[:] = bytes(size)
        # The connection itself is in order: the next channel works.
        on_loop(second, lambda: second.open_channel(1, following))
        on_loop(first, lambda: first.send_message(1, 1, 1, memoryview(b"next")))
        following.wait_for(lambda: following.messages == [(0, 1, b"next")])
        assert not whole.messages
        assert target == bytes(size)
        assert [len(sink.errors) for sink in (out, whole)] == ([0, 0] if abandoned else [1, 1])
    source.clear()  # raises while somebody still has a view of it
    target.clear()


def test_an_exception_in_a_callback_fails_the_channels_and_spares_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    with group(2) as transports:
        sinks = open_channels(transports)
        first = transports[0]

        def bug() -> None:
            raise KeyError("callback")

        first.run_soon(bug)
        sinks[0].wait_for(lambda: bool(sinks[0].errors))
        assert isinstance(sinks[0].errors[0].__cause__, KeyError)
        on_loop(first, lambda: first.run_at(time.monotonic(), bug))
        assert on_loop(first, lambda: 5) == 5
        assert not sinks[1].errors
    assert "a callback raised" in caplog.text


def test_timers_run_in_the_order_of_their_times_and_functions_in_that_of_the_calls() -> None:
    with group(1) as (only,):
        ran: list[int] = []
        over = threading.Event()

        def begin() -> None:
            now_s = time.monotonic()
            only.run_at(now_s + 0.06, over.set)
            for delay in (3, 1, 2):
                only.run_at(now_s + delay / 100, lambda d=delay: ran.append(d))  # type: ignore[misc]

        on_loop(only, begin)
        assert over.wait(LIMIT_S)
        for number in range(10, 1000):
            only.run_soon(lambda n=number: ran.append(n))  # type: ignore[misc]
        on_loop(only, lambda: None)
        assert ran == [1, 2, 3, *range(10, 1000)]


def test_channels_open_once_and_in_order() -> None:
    with group(1) as (only,):
        on_loop(only, lambda: only.open_channel(3, CollectingSink()))
        with pytest.raises(TransportError, match="channel 3 was open before"):
            on_loop(only, lambda: only.open_channel(3, CollectingSink()))


@pytest.mark.parametrize("name", available_congestion_controls() or ["reno"])
def test_congestion_control_is_what_was_asked_for(name: str) -> None:
    if not available_congestion_controls():
        pytest.skip("the kernel does not say which congestion controls it has")
    try:
        with group(2, TcpOptions(congestion_control=name, send_buffer_bytes=65536, unsent_bytes=16384)) as transports:
            first, _ = transports
            _, sink = open_channels(transports)
            on_loop(first, lambda: first.send_message(1, 0, 0, memoryview(bytes(1 << 20))))
            sink.wait_for(lambda: len(sink.messages) == 1)
            flow = first._outflows.to(1, Purpose.STREAM)
            chosen = flow.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            assert chosen.rstrip(b"\0").decode() == name
    except UsageError as error:
        pytest.skip(f"not allowed here: {error}")


def test_an_unknown_congestion_control_is_a_usage_error() -> None:
    with (
        pytest.raises(UsageError, match=r"congestion control 'nosuch'.*available"),
        group(1, TcpOptions(congestion_control="nosuch")),
    ):
        pass


def test_a_rank_that_does_not_come_is_named() -> None:
    with pytest.raises(TransportError, match=r"rank 1 did not join group trio within 0\.1 s") as caught:
        TcpTransport(
            rank=0,
            size=2,
            rendezvous=DictRendezvous(),
            options=TcpOptions(connect_timeout_s=0.1),
            group="trio",
        )
    assert caught.value.rank == 1
