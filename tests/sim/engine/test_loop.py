"""The simulated clock."""

from __future__ import annotations

import pytest

from headway.errors import HeadwayError
from headway.sim.engine import loop as loop_module
from headway.sim.engine.loop import Loop


def test_callbacks_come_in_order_of_time_and_then_of_being_made() -> None:
    loop, seen = Loop(), list[tuple[float, str]]()

    def note(name: str) -> None:
        seen.append((loop.now_s, name))

    def note_later(name: str) -> None:
        loop.after(0.0, lambda: note(name))

    loop.at(2.0, lambda: note("late"))
    loop.at(1.0, lambda: note("first"))
    loop.at(1.0, lambda: note("second"))
    loop.after(1.0, lambda: note_later("made at that instant"))
    loop.at(1.0, lambda: note("third"))
    loop.run()
    assert seen == [(1.0, "first"), (1.0, "second"), (1.0, "third"), (1.0, "made at that instant"), (2.0, "late")]
    assert loop.events == 6


def test_time_that_has_passed_is_now() -> None:
    loop, seen = Loop(), list[float]()

    def too_late() -> None:
        loop.at(1.0, lambda: seen.append(loop.now_s))

    loop.at(3.0, too_late)
    loop.run()
    assert seen == [3.0]


def test_cancelled_timer_is_not_called() -> None:
    loop, seen = Loop(), list[str]()
    timer = loop.at(2.0, lambda: seen.append("cancelled"))
    loop.at(1.0, timer.cancel)
    loop.run()
    timer.cancel()
    assert seen == []
    assert loop.events == 1


def test_run_until_some_time_and_on() -> None:
    loop, seen = Loop(), list[float]()
    for when_s in (1.0, 2.0, 3.0):
        loop.at(when_s, lambda: seen.append(loop.now_s))
    loop.run(until_s=2.0)
    assert seen == [1.0, 2.0]
    loop.run(until_s=2.5)
    assert loop.now_s == 2.5
    loop.run()
    assert seen == [1.0, 2.0, 3.0]
    assert loop.now_s == 3.0


def test_stop_ends_the_run_after_the_callback_and_it_may_go_on() -> None:
    loop, seen = Loop(), list[str]()

    def last() -> None:
        seen.append("a")
        loop.stop()

    loop.at(1.0, last)
    loop.at(1.0, lambda: seen.append("b"))
    loop.run()
    assert seen == ["a"]
    loop.run()
    assert seen == ["a", "b"]


class Ticks:
    """A source that is due every second, and notes when it was asked."""

    def __init__(self, loop: Loop, most: int) -> None:
        self.loop, self.most = loop, most
        self.seen: list[float] = []
        self.settled: list[float] = []
        loop.add_source(self)

    def settle(self) -> float:
        """The next second."""
        self.settled.append(self.loop.now_s)
        return len(self.seen) + 1.0 if len(self.seen) < self.most else float("inf")

    def advance(self) -> None:
        """Note it."""
        self.seen.append(self.loop.now_s)


def test_sources_are_settled_when_an_instant_is_over() -> None:
    loop = Loop()
    ticks = Ticks(loop, 3)
    for _ in range(3):
        loop.at(1.5, lambda: None)
    loop.run()
    assert ticks.seen == [1.0, 2.0, 3.0]
    assert ticks.settled == [0.0, 1.0, 1.5, 2.0, 3.0]


def test_clock_that_stands_still_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "MOST_AT_ONE_INSTANT", 100)
    loop = Loop()

    class Stuck:
        def settle(self) -> float:
            return loop.now_s

        def advance(self) -> None:
            pass

    loop.add_source(Stuck())
    with pytest.raises(HeadwayError, match="stands still at 0 s"):
        loop.run()
