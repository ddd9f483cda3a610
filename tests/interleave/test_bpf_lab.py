"""The congestion controls on a shared link of real TCP: a larger F takes more."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time

import pytest

from headway.interleave.actuator import open_actuator
from headway.interleave.aggressiveness import Aggressiveness
from headway.lab import kernel
from headway.lab.files import load_scenario
from headway.lab.lab import Lab
from headway.transport import tcp_info

SECONDS = 5.0


@pytest.mark.lab
@pytest.mark.usefixtures("loadable")
@pytest.mark.parametrize("name", ["bpf-reno", "bpf-cubic"])
def test_the_flow_with_the_larger_f_gets_more_of_a_shared_link(name: str) -> None:
    if not kernel.privileged():
        pytest.skip("making network namespaces needs root")
    actuator = open_actuator(name, Aggressiveness())
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
