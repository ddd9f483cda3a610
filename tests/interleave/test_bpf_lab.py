"""The congestion controls on links of real TCP: a larger F gives up less at a loss, and takes more of a shared link."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import time

import pytest

from headway.interleave.actuator import open_actuator
from headway.interleave.aggressiveness import Aggressiveness
from headway.lab import kernel
from headway.lab.files import load_scenario
from headway.lab.lab import Lab
from headway.transport import tcp_info

SECONDS = 5.0
SSTHRESH_AT = 76
"""Offset of tcpi_snd_ssthresh in struct tcp_info (linux/tcp.h)."""


@pytest.mark.lab
@pytest.mark.usefixtures("loadable")
def test_the_flow_with_the_larger_f_gets_more_of_a_shared_link() -> None:
    """CUBIC only: Reno's losses are too few and too uneven for that, even in twenty seconds (docs/interleave.md)."""
    if not kernel.privileged():
        pytest.skip("making network namespaces needs root")
    actuator = open_actuator("bpf-cubic", Aggressiveness())
    star = load_scenario("star8").model_copy(update={"queue": 192 * 1024})
    with contextlib.ExitStack() as kept, Lab.up(star) as lab:
        kept.callback(actuator.close)
        with kernel.inside(lab.hosts[0].namespace):
            server = kept.enter_context(socket.create_server((lab.hosts[0].address, 0)))
        senders, receivers = [], []
        for host in lab.hosts[1:3]:
            with kernel.inside(host.namespace):
                senders.append(kept.enter_context(socket.create_connection(server.getsockname(), timeout=10)))
            receivers.append(kept.enter_context(server.accept()[0]))
        for connection, weight in zip(senders, (8.0, 0.5), strict=True):
            actuator.adopt(connection)
            actuator.push(connection, weight)
        _move(senders, receivers)
        heavy, light = (tcp_info.read(connection).bytes_acked or 0 for connection in senders)
        assert heavy + light > 10_000_000
        assert heavy > 1.5 * light
        assert actuator.state(senders[0]).weight == 8.0
        assert actuator.state(senders[1]).weight == 0.5


@pytest.mark.lab
@pytest.mark.usefixtures("loadable")
def test_a_flow_with_a_larger_f_keeps_more_of_its_window_at_a_loss() -> None:
    """One flow alone fills the same path and queue every time, so where slow start ends tells what was kept."""
    if not kernel.privileged():
        pytest.skip("making network namespaces needs root")
    ends = {weight: _slow_start_end(weight) for weight in (8.0, 0.5)}
    assert ends[8.0] > 1.5 * ends[0.5]


def _slow_start_end(weight: float) -> int:
    """Packets, after `SECONDS` of one Reno flow at that F."""
    actuator = open_actuator("bpf-reno", Aggressiveness())
    star = load_scenario("star8").model_copy(update={"queue": 192 * 1024})
    with contextlib.ExitStack() as kept, Lab.up(star) as lab:
        kept.callback(actuator.close)
        with kernel.inside(lab.hosts[0].namespace):
            server = kept.enter_context(socket.create_server((lab.hosts[0].address, 0)))
        with kernel.inside(lab.hosts[1].namespace):
            sender = kept.enter_context(socket.create_connection(server.getsockname(), timeout=10))
        receiver = kept.enter_context(server.accept()[0])
        actuator.adopt(sender)
        actuator.push(sender, weight)
        _move([sender], [receiver])
        data = sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 84)
        (end,) = struct.unpack_from("I", data, SSTHRESH_AT)
        assert isinstance(end, int)
        return end


def _move(senders: list[socket.socket], receivers: list[socket.socket]) -> None:
    data = bytes(256 * 1024)
    with selectors.DefaultSelector() as selector:
        for each in (*senders, *receivers):
            each.setblocking(False)
            selector.register(each, selectors.EVENT_WRITE if each in senders else selectors.EVENT_READ)
        end_s = time.monotonic() + SECONDS
        while time.monotonic() < end_s:
            for key, events in selector.select(0.1):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                if events & selectors.EVENT_WRITE:
                    connection.send(data)
                else:
                    connection.recv(len(data))
