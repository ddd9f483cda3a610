"""One-sided messages between ranks that are threads."""

from __future__ import annotations

from tests.transport.harness import CollectingSink, group, on_loop


def test_a_message_of_every_size_arrives_as_it_was_sent() -> None:
    sizes = [0, 1, 23, 24, 25, 4096, 12288, 32767, 65536, 3_000_001]
    with group(2) as (first, second):
        sink, out = CollectingSink(), CollectingSink()
        on_loop(second, lambda: second.open_channel(0, sink))

        def send() -> None:
            first.open_channel(0, out)
            for tag, size in enumerate(sizes):
                first.send_message(1, 0, tag, memoryview(bytes([tag]) * size))

        on_loop(first, send)
        sink.wait_for(lambda: len(sink.messages) == len(sizes))
        out.wait_for(lambda: len(out.sent_tags) == len(sizes))
    assert sink.messages == [(0, tag, bytes([tag]) * size) for tag, size in enumerate(sizes)]
    assert out.sent_tags == [(1, tag) for tag in range(len(sizes))]
