"""A cap that is there only while somebody else is."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from headway.interleave import pacing
from headway.interleave.aggressiveness import Aggressiveness
from headway.interleave.contention import Reading

NO_CAP = 0xFFFFFFFF


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    """One end of a connection on loopback."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as mine,
        server.accept()[0],
    ):
        yield mine


def cap_of(connection: socket.socket) -> int:
    return connection.getsockopt(socket.SOL_SOCKET, pacing.SO_MAX_PACING_RATE) & NO_CAP


class Kernel:
    """Stands for TCP_INFO."""

    def __init__(self) -> None:
        self.reading = Reading(0.0, 0, 400_000, True, 0.015, 0.0002)

    def pass_by(self, seconds: float, rate_Bps: float) -> None:
        now_s, arrived = self.reading.now_s + seconds, self.reading.arrived_bytes + int(rate_Bps * seconds)
        self.reading = replace(self.reading, now_s=now_s, arrived_bytes=arrived)

    def read(self, connection: socket.socket) -> Reading:
        return self.reading


def test_capped_while_contended_at_f_s_part_of_what_it_had(
    connection: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel()
    monkeypatch.setattr(pacing, "_reading", kernel.read)
    actuator = pacing.Pacing(Aggressiveness())
    actuator.adopt(connection)
    untouched = cap_of(connection)

    def run(seconds: float, rate_Bps: float, weight: float | None) -> float | None:
        for _ in range(round(seconds / 0.005)):
            kernel.pass_by(0.005, rate_Bps)
            actuator.push(connection, weight)
        return actuator.cap_Bps(connection)

    assert run(0.5, 20e6, 0.25) is None
    assert cap_of(connection) == untouched
    assert actuator.state(connection).weight == 1.0
    cap_Bps = run(0.1, 10e6, 0.25)
    assert cap_Bps == pytest.approx(20e6 / 8, rel=0.02)
    assert cap_of(connection) == round(cap_Bps or 0)
    assert actuator.state(connection).weight == 0.25
    assert run(0.005, 2.5e6, 1.0) == pytest.approx(20e6 / 2, rel=0.02)
    assert run(0.005, 2.5e6, 2.0) is None
    run(0.1, 10e6, 0.25)
    assert run(0.005, 10e6, None) is None
    assert cap_of(connection) == NO_CAP
    assert actuator.caps == 3 - 1


def test_it_is_given_back_as_it_was(connection: socket.socket) -> None:
    assert pacing.why_not("pacing") is None
    actuator = pacing.open_actuator("pacing", Aggressiveness())
    actuator.adopt(connection)
    for _ in range(20):
        actuator.push(connection, 0.25)
    assert actuator.cap_Bps(connection) is None
    actuator.release(connection)
    actuator.release(connection)
    actuator.push(connection, 0.5)
    actuator.adopt(connection)
    connection.close()
    actuator.push(connection, 0.5)
    actuator.close()


def test_rates_beyond_32_bits_are_caps_too(connection: socket.socket) -> None:
    pacing._set_cap(connection, 12.5e9)
    assert int.from_bytes(connection.getsockopt(socket.SOL_SOCKET, pacing.SO_MAX_PACING_RATE, 8), "little") == 12.5e9
