"""What the user's settings make of a group's connections."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

import pytest

from headway.errors import UsageError
from headway.interleave import actuator, bpf
from headway.interleave.actuator import AUTO, NAMES, ActuatorError, FlowState, choose, open_actuator
from headway.interleave.aggressiveness import Aggressiveness
from headway.interleave.driver import TICK_S, Background, Driver
from headway.interleave.steering import Interleaver, aggressiveness_from, check, steering_from
from headway.lab.jobs import Interleave
from headway.settings import INTERLEAVE, Settings
from headway.transport.lanes import FixedStreams


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection on loopback."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as mine,
        server.accept()[0] as other,
    ):
        yield mine, other


class TestSettings:
    def test_names_are_the_same_everywhere(self) -> None:
        assert ("off", AUTO, *NAMES) == INTERLEAVE
        assert set(get_args(Interleave.model_fields["actuator"].annotation)) == {AUTO, *NAMES}

    @pytest.mark.parametrize("settings", [Settings(), Settings(interleave="off"), Settings(streams="1")])
    def test_by_default_nobody_steers(self, settings: Settings) -> None:
        check(settings)
        assert steering_from(settings) is None

    def test_a_number_of_streams_is_held(self) -> None:
        steering = steering_from(Settings(streams="3"))
        assert isinstance(steering, FixedStreams)
        with socket.socket() as connection:
            assert (steering.widest, steering.width(connection)) == (3, 3)
            assert steering.tick(0.0) is None

    def test_every_number_of_f_counts(self) -> None:
        settings = Settings(interleave_slope="2", interleave_intercept="0.5", interleave_most="1.5")
        assert aggressiveness_from(settings) == Aggressiveness(slope=2.0, intercept=0.5, most=1.5)
        assert aggressiveness_from(Settings()) == Aggressiveness()
        steering = steering_from(replace(settings, interleave="streams", interleave_most="4"))
        assert isinstance(steering, Interleaver)
        assert steering.widest == 4
        steering.close()

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            (Settings(interleave="streams", interleave_most="0.1"), "^HEADWAY_INTERLEAVE_MOST: "),
            (Settings(interleave_slope="-1"), "^HEADWAY_INTERLEAVE_SLOPE: "),
            (Settings(interleave_intercept="much"), "^HEADWAY_INTERLEAVE_INTERCEPT: 'much' is no number"),
            (Settings(streams="0"), "^HEADWAY_STREAMS: '0' is no whole number"),
            (Settings(streams="2.5"), "^HEADWAY_STREAMS: "),
            (Settings(streams="2", interleave="pacing"), "^HEADWAY_STREAMS: "),
        ],
    )
    def test_a_mistake_names_its_variable(self, settings: Settings, words: str) -> None:
        with pytest.raises(UsageError, match=words):
            check(settings)

    def test_what_does_not_work_here_is_said_before_the_ranks_meet(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(actuator, "why_not", lambda name, foreign=False, aggressiveness=None: "not today")
        with pytest.raises(UsageError, match=r"^HEADWAY_INTERLEAVE: .*not today"):
            check(Settings(interleave="pacing"))

    def test_the_public_algorithm_is_for_the_default_f_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bpf, "requirements", lambda name: {"rights": "no rights"})
        monkeypatch.setattr(bpf, "public", lambda name: True)
        other = Settings(interleave="bpf-reno", interleave_most="4")
        with pytest.raises(UsageError, match=r"^HEADWAY_INTERLEAVE: .*default slope"):
            check(other)
        check(Settings(interleave="bpf-reno"))
        check(replace(other, interleave=AUTO))
        f = aggressiveness_from(other)
        assert choose() == "bpf-reno"
        assert choose(aggressiveness=f) == "streams"
        assert choose(aggressiveness=f, foreign=True) == "pacing"
        with contextlib.closing(open_actuator(AUTO, f)) as opened:
            assert opened.name == "streams"

    @pytest.mark.parametrize("name", ["bpf-reno", "bpf-cubic", AUTO])
    def test_one_congestion_control_excludes_another(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bpf, "why_not", lambda name, aggressiveness=None: None)
        with pytest.raises(UsageError, match=r"^HEADWAY_INTERLEAVE: .*excludes HEADWAY_CONGESTION_CONTROL"):
            check(Settings(interleave=name, congestion_control="cubic"))
        check(Settings(interleave=name))
        check(Settings(interleave="streams", congestion_control="cubic"))


class Noting:
    """An actuator that notes what it is told."""

    name = "noting"
    self_driven = False

    def __init__(self, *, refuses: bool = False) -> None:
        self.pushed: list[float | None] = []
        self.held: set[socket.socket] = set()
        self.closed = 0
        self._refuses = refuses

    def adopt(self, connection: socket.socket) -> None:
        if self._refuses:
            raise ActuatorError("no")
        self.held.add(connection)

    def release(self, connection: socket.socket) -> None:
        self.held.discard(connection)

    def push(self, connection: socket.socket, weight: float | None) -> None:
        self.pushed.append(weight)

    def state(self, connection: socket.socket) -> FlowState:
        return FlowState(weight=1.0)

    def close(self) -> None:
        self.held.clear()
        self.closed += 1


def iterate(driver: Driver, mine: socket.socket, other: socket.socket, now_s: float) -> float:
    """One iteration on a clock of our own: 0.3 s of nothing, then ten bursts."""
    for _ in range(60):
        now_s += TICK_S
        driver.tick(now_s)
    for _ in range(10):
        mine.sendall(bytes(50_000))
        other.recv(50_000, socket.MSG_WAITALL)
        now_s += TICK_S
        driver.tick(now_s)
    return now_s


class TestDriver:
    def test_f_follows_the_bytes_of_real_sockets(self, pair: tuple[socket.socket, socket.socket]) -> None:
        noting = Noting()
        driver = Driver(noting, Aggressiveness())
        driver.adopt(pair[0])
        driver.adopt(pair[0])
        now_s = 10.0
        for _ in range(4):
            now_s = iterate(driver, *pair, now_s)
        noting.pushed.clear()
        iterate(driver, *pair, now_s)
        assert noting.pushed[50] == 0.25
        assert noting.pushed[-1] == pytest.approx(2.0, abs=0.2)
        assert driver.report.iteration_bytes == pytest.approx(500_000, rel=0.15)
        driver.release(pair[0])
        assert noting.held == set()
        driver.close()
        assert noting.closed == 1

    def test_parallel_streams_are_counted_and_not_pushed(self, pair: tuple[socket.socket, socket.socket]) -> None:
        noting = Noting()
        driver = Driver(noting, Aggressiveness())
        driver.adopt(pair[0], count_only=True)
        now_s = 10.0
        for _ in range(4):
            now_s = iterate(driver, *pair, now_s)
        assert driver.report.iteration_bytes == pytest.approx(500_000, rel=0.15)
        assert noting.pushed == []
        driver.close()

    def test_it_looks_more_rarely_while_nothing_moves_and_with_many_connections(
        self, pair: tuple[socket.socket, socket.socket]
    ) -> None:
        driver = Driver(Noting(), Aggressiveness())
        driver.adopt(pair[0])
        idle_s = driver.tick(1.0)
        pair[0].sendall(bytes(1000))
        pair[1].recv(1000, socket.MSG_WAITALL)
        assert driver.tick(1.005) == TICK_S < idle_s
        driver.close()

    def test_a_refused_connection_is_left_alone_and_told_once(
        self, pair: tuple[socket.socket, socket.socket], caplog: pytest.LogCaptureFixture
    ) -> None:
        driver = Driver(Noting(refuses=True), Aggressiveness())
        driver.adopt(pair[0])
        driver.adopt(pair[1])
        driver.tick(1.0)
        driver.close()
        assert len(caplog.records) == 1


class TestBackground:
    def test_it_ends_cleanly_and_closes_what_it_has(self, pair: tuple[socket.socket, socket.socket]) -> None:
        noting, ended = Noting(), [0]
        background = Background(
            Driver(noting, Aggressiveness()), [pair[0]], [pair[1]], at_end=lambda: ended.append(noting.closed)
        )
        assert noting.held == {pair[0]}
        background.close()
        background.close()
        assert ended == [0, 1]
        assert pair[0].fileno() >= 0

    def test_a_connection_that_is_not_ours_any_more_is_let_go(self) -> None:
        noting = Noting()
        with socket.socket() as gone:
            number = gone.fileno()
            borrowed = socket.socket(fileno=number)
            background = Background(Driver(noting, Aggressiveness()), [borrowed], alive=lambda connection: False)
            while noting.held:
                pass
            background.close()
            assert borrowed.fileno() == -1
            assert gone.fileno() == number
