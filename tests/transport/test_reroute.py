"""A connection is replaced by another one between two operations, and nothing is lost or overtaken."""

from __future__ import annotations

from functools import partial

from headway.transport.tcp import TcpTransport
from headway.transport.wire import Purpose
from tests.transport.harness import CollectingSink, group, on_loop

SIZE_BYTES = 20_000
CHANNELS = 5
MESSAGES = 4


def _send(transport: TcpTransport, channel: int, sink: CollectingSink) -> int:
    """Send one channel's messages to rank 1; the port that they leave from."""
    transport.open_channel(channel, sink)
    for tag in range(MESSAGES):
        transport.send_message(1, channel, tag, memoryview(bytes([channel]) * SIZE_BYTES))
    return int(transport._outflows.to(1, Purpose.STREAM).sock.getsockname()[1])


def _all_sent(sink: CollectingSink) -> bool:
    return len(sink.sent_tags) == MESSAGES


def _all_here(sink: CollectingSink) -> bool:
    return len(sink.messages) == MESSAGES


def test_messages_arrive_in_order_over_a_new_connection_each_time() -> None:
    gone: list[int] = []
    with group(2) as (sender, receiver):
        receiver.on_peer_left(gone.append)
        ports = set()
        for channel in range(CHANNELS):
            sink = CollectingSink()
            ports.add(on_loop(sender, partial(_send, sender, channel, sink)))
            sink.wait_for(partial(_all_sent, sink))
            on_loop(sender, partial(sender.close_channel, channel))
            on_loop(sender, partial(sender.reroute, 1))
        assert len(ports) == CHANNELS
        # All five connections wait, each with another channel, until the receiver comes to it.
        for channel in range(CHANNELS):
            incoming = CollectingSink()
            on_loop(receiver, partial(receiver.open_channel, channel, incoming))
            incoming.wait_for(partial(_all_here, incoming))
            assert [tag for _, tag, _ in incoming.messages] == list(range(MESSAGES))
            assert {payload for _, _, payload in incoming.messages} == {bytes([channel]) * SIZE_BYTES}
            on_loop(receiver, partial(receiver.close_channel, channel))
        assert gone == []


def test_without_a_connection_or_with_something_queued_it_does_nothing() -> None:
    with group(2) as (sender, receiver):
        on_loop(sender, partial(sender.reroute, 1))
        sink, incoming = CollectingSink(), CollectingSink()

        def send() -> None:
            _send(sender, 0, sink)
            sender.reroute(1)

        on_loop(sender, send)
        on_loop(receiver, partial(receiver.open_channel, 0, incoming))
        incoming.wait_for(partial(_all_here, incoming))
        assert not sink.errors
