"""What the kernel says of a flow."""

from __future__ import annotations

import socket
import struct
import sys

import pytest

from headway.transport import tcp_info
from tests.transport.harness import CollectingSink, group, on_loop


def whole_struct() -> bytes:
    raw = bytearray(280)
    for offset, form, value in (
        (16, "I", 1448), (24, "I", 3), (28, "I", 2),
        (68, "I", 1500), (100, "I", 7), (120, "Q", 1 << 40), (144, "I", 99), (148, "I", 1000),
        (160, "Q", 25_000_000), (168, "Q", 4_000_000), (176, "Q", 1_000_000), (184, "Q", 500_000), (196, "I", 11),
    ):  # fmt: skip
        struct.pack_into("=" + form, raw, offset, value)
    return bytes(raw)


def test_every_field_is_where_the_kernel_puts_it() -> None:
    info = tcp_info.decode(whole_struct())
    assert (info.unacked, info.total_retrans, info.bytes_acked, info.notsent_bytes) == (3, 7, 1 << 40, 99)
    assert (info.rtt_s, info.min_rtt_s) == pytest.approx((0.0015, 0.001))
    assert info.delivery_rate_Bps == 25e6
    assert (info.busy_s, info.rwnd_limited_s, info.sndbuf_limited_s) == pytest.approx((4.0, 1.0, 0.5))
    assert (info.snd_mss, info.sacked, info.delivered_ce) == (1448, 2, 11)
    assert info.arrived_bytes == (1 << 40) + 2 * 1448


@pytest.mark.parametrize(
    ("length", "missing"),
    [
        (200, set()),
        (192, {"delivered_ce"}),
        (168, {"busy_s", "rwnd_limited_s", "sndbuf_limited_s", "delivered_ce"}),
        (160, {"delivery_rate_Bps", "busy_s", "rwnd_limited_s", "sndbuf_limited_s", "delivered_ce"}),
        (104, {"bytes_acked", "notsent_bytes", "min_rtt_s", "delivery_rate_Bps", "busy_s", "rwnd_limited_s",
               "sndbuf_limited_s", "delivered_ce"}),
        (0, set(tcp_info.TcpInfo.__slots__)),
    ],
)  # fmt: skip
def test_what_an_older_kernel_lacks_is_none(length: int, missing: set[str]) -> None:
    info = tcp_info.decode(whole_struct()[:length])
    assert {name for name in tcp_info.TcpInfo.__slots__ if getattr(info, name) is None} == missing


def test_no_round_trip_yet_is_none() -> None:
    raw = bytearray(whole_struct())
    struct.pack_into("=I", raw, 148, 0xFFFFFFFF)
    assert tcp_info.decode(bytes(raw)).min_rtt_s is None


def test_a_system_without_it_or_a_closed_socket_reads_none(monkeypatch: pytest.MonkeyPatch) -> None:
    sock = socket.socket()
    sock.close()
    assert tcp_info.read(sock) == tcp_info.TcpInfo()
    monkeypatch.delattr(socket, "TCP_INFO", raising=False)
    with socket.socket() as other:
        meter = tcp_info.FlowMeter(other, 3, 4)
        sample = meter.sample(sent_bytes=10)
    assert (sample.src, sample.dst, sample.acked_bytes, sample.busy_s) == (3, 4, 10, None)
    assert sample.network_limited_s == sample.end_s - sample.start_s


@pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO as Linux has it")
def test_a_real_flow() -> None:
    size = 3 << 20
    with group(3) as (first, second, _):
        sink = CollectingSink()
        on_loop(second, lambda: second.open_channel(0, sink))
        assert first.flow_samples() == []
        on_loop(first, lambda: first.send_message(1, 0, 0, memoryview(bytes(size))))
        sink.wait_for(lambda: len(sink.messages) == 1)
        samples = first.flow_samples()
        assert len(samples) == 1
        (sample,) = samples
        assert (sample.src, sample.dst) == (0, 1)
        assert size * 0.5 < sample.acked_bytes < size + 1000
        assert sample.busy_s is not None
        assert 0 <= sample.busy_s <= sample.end_s - sample.start_s + 0.1
        assert sample.rtt_s is not None
        assert sample.min_rtt_s is not None
        assert 0 < sample.min_rtt_s <= 1
        assert sample.retransmits is not None
        # Nothing more happens on this flow, apart from acknowledgements of what was sent.
        assert sum(each.acked_bytes for each in first.flow_samples()) < size * 0.5 + 1000
        assert second.flow_samples() == []
