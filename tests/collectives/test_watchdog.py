"""Whoever holds an operation up is named by every rank, by messages alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from headway.collectives.control import Control, FailureNotice, decode_message, encode_message
from headway.collectives.liveness import Diagnosis, LivenessMessage
from headway.collectives.watchdog import Watchdog
from headway.errors import TransportError

LIMIT_S = 10.0


class _Wire:
    """Control messages between ranks in one thread; messages to and from `cut` ranks vanish."""

    def __init__(self, size: int, cut: set[int]) -> None:
        self.size = size
        self.cut = cut
        self.queue: deque[Callable[[], None]] = deque()
        self.handlers: dict[int, Callable[[int, bytes], None]] = {}

    def pump(self) -> None:
        while self.queue:
            self.queue.popleft()()


class _Port:
    def __init__(self, wire: _Wire, rank: int) -> None:
        self._wire = wire
        self.rank = rank
        self.size = wire.size

    def send_control(self, dst: int, payload: bytes) -> None:
        if not {self.rank, dst} & self._wire.cut:
            self._wire.queue.append(lambda: self._wire.handlers[dst](self.rank, payload))

    def on_control(self, handler: Callable[[int, bytes], None]) -> None:
        self._wire.handlers[self.rank] = handler

    def run_soon(self, function: Callable[[], None]) -> None:
        self._wire.queue.append(function)


class _World:
    """`called[r]` is the last operation that rank r's user asked for; operation 5 is stuck on all who called it."""

    def __init__(self, called: list[int], cut: set[int]) -> None:
        self.wire = _Wire(len(called), cut)
        self.called = called
        self.now_s = 0.0
        self.dogs: list[Watchdog] = []
        for rank in range(len(called)):
            self.dogs.append(self._dog(rank))

    def _dog(self, rank: int) -> Watchdog:
        def receive(src: int, message: object) -> None:
            assert isinstance(message, LivenessMessage)
            self.dogs[rank].receive(src, message, now_s=self.now_s, called=self.called[rank])

        return Watchdog(Control(_Port(self.wire, rank), receive), rank=rank, size=len(self.called))

    def run_to(self, end_s: float) -> None:
        while self.now_s < end_s:
            self.now_s += 0.5
            for rank, dog in enumerate(self.dogs):
                stuck = 5 if self.called[rank] >= 5 else None
                dog.tick(now_s=self.now_s, operation=stuck, started_s=0.0, timeout_s=LIMIT_S, called=self.called[rank])
                self.wire.pump()


@pytest.mark.parametrize("victim", [0, 1, 3])
def test_a_silent_rank_is_named_by_every_other(victim: int) -> None:
    world = _World([5, 5, 5, 5], cut={victim})
    world.run_to(LIMIT_S - 1)
    for rank, dog in enumerate(world.dogs):
        if rank != victim:
            assert dog.diagnosis(5).culprit == (victim if rank != 0 or victim != 0 else None)


@pytest.mark.parametrize("late", [0, 2])
def test_a_rank_that_has_not_called_the_operation_is_named(late: int) -> None:
    called = [5, 5, 5, 5]
    called[late] = 4
    world = _World(called, cut=set())
    world.run_to(LIMIT_S - 1)
    for dog in world.dogs:
        assert dog.diagnosis(5) == Diagnosis(5, silent=(), behind=(late,))
    assert "has not called it" in world.dogs[1].diagnosis(5).sentence()


def test_nobody_is_blamed_when_all_answer_and_all_called() -> None:
    world = _World([5, 5], cut=set())
    world.run_to(LIMIT_S - 1)
    assert world.dogs[1].diagnosis(5).culprit is None
    assert "network" in world.dogs[1].diagnosis(5).sentence()


def test_nothing_is_asked_before_half_the_limit() -> None:
    world = _World([5, 5], cut=set())
    world.run_to(LIMIT_S * 0.4)
    assert world.dogs[0].diagnosis(5) == Diagnosis(5, (), ())


def test_messages_survive_the_wire_and_garbage_names_its_sender() -> None:
    notice = FailureNotice(blamed_rank=3, lost=True, what="rank 3 is lost: reset")
    assert decode_message(encode_message(notice), src=1) == notice
    with pytest.raises(TransportError, match="rank 2"):
        decode_message(b"?{}", src=2)
    with pytest.raises(TransportError, match="rank 2"):
        decode_message(b"R{}", src=2)
