"""Several connections to one peer: everything arrives, adds up, ends, and is not there unless asked for."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.observe.samples import FlowSample
from headway.transport.lanes import FixedStreams, Steering, add_up
from headway.transport.tcp import TcpTransport
from headway.transport.wire import Purpose
from tests.fakes.rendezvous import DictRendezvous
from tests.transport.harness import CollectingSink, group, on_loop

MESSAGES = 40
SIZE_BYTES = 300_000


class Dial(FixedStreams):
    """As many connections as a test says, and a note of what it was told."""

    def __init__(self) -> None:
        super().__init__(6)
        self.now = 1
        self.opened_first: list[bool] = []
        self.ended = 0
        self.ticks = 0
        self.closes = 0
        self.changed = threading.Event()

    def width(self, connection: object) -> int:
        """What `now` says."""
        return self.now

    def opened(self, connection: object, *, first: bool) -> None:
        """Note it."""
        self.opened_first.append(first)
        self.changed.set()

    def closed(self, connection: object) -> None:
        """Note it."""
        self.ended += 1

    def tick(self, now_s: float) -> float | None:
        """Again soon."""
        self.ticks += 1
        return 0.002

    def close(self) -> None:
        """Note it."""
        self.closes += 1


@contextmanager
def steered(size: int, *steerings: Steering | None) -> Iterator[list[TcpTransport]]:
    """`size` transports, each with its steering."""
    meeting = DictRendezvous()

    def build(rank: int) -> TcpTransport:
        return TcpTransport(rank=rank, size=size, rendezvous=meeting, steering=steerings[rank])

    with ThreadPoolExecutor(size) as pool:
        transports = list(pool.map(build, range(size)))
    try:
        yield transports
    finally:
        for transport in transports:
            transport.close()


def payload(tag: int) -> bytes:
    return bytes([tag]) * (SIZE_BYTES + tag)


def send_all(transport: TcpTransport, channel: int, sink: CollectingSink) -> None:
    transport.open_channel(channel, sink)
    for tag in range(MESSAGES):
        transport.send_message(1, channel, tag, memoryview(payload(tag)))


def pass_channel(sender: TcpTransport, receiver: TcpTransport, channel: int) -> None:
    """All messages of a channel, sent and received."""
    sink, incoming = CollectingSink(), CollectingSink()
    on_loop(receiver, partial(receiver.open_channel, channel, incoming))
    on_loop(sender, partial(send_all, sender, channel, sink))
    sink.wait_for(lambda: len(sink.sent_tags) == MESSAGES)
    incoming.wait_for(lambda: len(incoming.messages) == MESSAGES)
    assert sorted(tag for _, tag, _ in incoming.messages) == list(range(MESSAGES))
    assert all(data == payload(tag) for _, tag, data in incoming.messages)
    for transport in (sender, receiver):
        on_loop(transport, partial(transport.close_channel, channel))


def lanes_of(transport: TcpTransport) -> int:
    assert transport._outflows._lanes is not None
    return len(transport._outflows._lanes.to(1))


def test_connections_are_opened_when_they_are_asked_for_and_everything_arrives() -> None:
    dial = Dial()
    with steered(2, dial, None) as (sender, receiver):
        assert (sender.streams, receiver.streams) == (6, 1)
        pass_channel(sender, receiver, 0)
        assert lanes_of(sender) == 0
        for channel, width in enumerate((4, 6, 2, 1, 5), start=1):
            dial.now = width
            pass_channel(sender, receiver, channel)
        assert lanes_of(sender) == 5
        while len(dial.opened_first) < 6:
            dial.changed.clear()
            assert dial.changed.wait(5)
        assert sorted(dial.opened_first) == [False] * 5 + [True]


def test_all_connections_carry_bytes_and_they_add_up() -> None:
    with steered(2, FixedStreams(4), None) as (sender, receiver):
        pass_channel(sender, receiver, 0)
        sender.flow_samples()
        for channel in range(1, 4):
            pass_channel(sender, receiver, channel)
        meters = [outflow for outflow in sender._outflows._meters if outflow.purpose is Purpose.STREAM]
        assert len(meters) == 4
        samples = on_loop(sender, sender._outflows.sample)
        expected = 3 * sum(len(payload(tag)) + 24 for tag in range(MESSAGES))
        assert [(sample.src, sample.dst) for sample in samples] == [(0, 1)]
        assert samples[0].acked_bytes == pytest.approx(expected, rel=0.05)
        assert sum(bool(outflow.sock.getsockname()) for outflow in meters) == 4


def test_without_steering_there_is_one_connection_and_no_timer() -> None:
    with group(2) as (sender, receiver):
        pass_channel(sender, receiver, 0)
        assert sender.streams == 1
        assert sender._outflows._lanes is None
        assert [each.dst for each in sender._outflows.every() if each.purpose is Purpose.STREAM] == [1]
        assert receiver._inflows._beside == set()
        assert not any("tick" in str(entry[2]) for entry in sender._loop._timers)


def test_another_path_takes_all_connections_along() -> None:
    dial = Dial()
    dial.now = 3
    with steered(2, dial, None) as (sender, receiver):
        pass_channel(sender, receiver, 0)
        pass_channel(sender, receiver, 1)
        ports = _ports(sender)
        assert len(ports) == 3
        on_loop(sender, partial(sender.reroute, 1))
        assert lanes_of(sender) == 0
        pass_channel(sender, receiver, 2)
        pass_channel(sender, receiver, 3)
        assert not ports & _ports(sender)
        assert len(_ports(sender)) == 3


def _ports(transport: TcpTransport) -> set[int]:
    return {
        outflow.sock.getsockname()[1] for outflow in transport._outflows.every() if outflow.purpose is Purpose.STREAM
    }


def test_a_peer_that_leaves_is_no_loss_and_one_that_breaks_is() -> None:
    lost: list[int] = []
    left = threading.Event()
    with steered(3, FixedStreams(3), FixedStreams(3), FixedStreams(3)) as (first, second, third):
        pass_channel(first, second, 0)
        first.on_peer_lost(lambda rank, what: lost.append(rank))
        first.on_peer_left(lambda rank: left.set())
        second.close()
        assert left.wait(10)
        assert lost == []
        assert third.streams == 3


def test_one_connection_that_breaks_loses_the_peer() -> None:
    gone = threading.Event()
    sink = CollectingSink()
    with steered(2, FixedStreams(3), None) as (sender, receiver):
        pass_channel(sender, receiver, 0)
        pass_channel(sender, receiver, 1)
        sender.on_peer_lost(lambda rank, what: gone.set())
        on_loop(sender, partial(sender.open_channel, 2, sink))

        def break_one() -> None:
            inflow = next(iter(receiver._inflows._beside))
            inflow._sock.shutdown(2)

        on_loop(receiver, break_one)
        assert gone.wait(10)
        sink.wait_for(lambda: bool(sink.errors))


def test_nothing_is_left_after_the_end() -> None:
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    dial, other = Dial(), Dial()
    dial.now = other.now = 5
    with steered(2, dial, other) as (sender, receiver):
        pass_channel(sender, receiver, 0)
        pass_channel(sender, receiver, 1)
    assert (dial.closes, other.closes) == (1, 1)
    ticks = dial.ticks
    assert len(os.listdir("/proc/self/fd")) <= before
    assert threading.active_count() == threads
    assert dial.ticks == ticks


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 10**9), st.floats(0, 1), st.floats(0, 1), st.integers(0, 50)),
        max_size=12,
    )
)
def test_sums(flows: list[tuple[int, int, float, float, int]]) -> None:
    samples = [
        FlowSample(
            src=0, dst=dst, start_s=1.0, end_s=2.0, acked_bytes=acked, busy_s=busy_s, rwnd_limited_s=busy_s * part,
            sndbuf_limited_s=0.0, rtt_s=0.01, min_rtt_s=0.01, retransmits=again,
        )
        for dst, acked, busy_s, part, again in flows
    ]  # fmt: skip
    added = {sample.dst: sample for sample in add_up(samples)}
    assert added.keys() == {sample.dst for sample in samples}
    for dst, sample in added.items():
        mine = [each for each in samples if each.dst == dst]
        assert sample.acked_bytes == sum(each.acked_bytes for each in mine)
        assert sample.retransmits == sum(each.retransmits or 0 for each in mine)
        assert sample.network_limited_s == max(each.network_limited_s for each in mine)
