"""The simulated clock: callbacks in order of time, and of their making at one instant. Pure and deterministic."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol

from headway.errors import HeadwayError

MOST_AT_ONE_INSTANT = 5_000_000
"""Callbacks at one instant after which the run is taken for one whose clock will never move on."""

Callback = Callable[[], None]


class Timer:
    """A callback that is due at some time, and can be taken back."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callback) -> None:
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        """Never call it. Harmless afterwards."""
        self.callback = None


class Source(Protocol):
    """Something whose next event depends on everything that happens at one instant, like a network's flows."""

    def settle(self) -> float:
        """Called when nothing more happens at this instant: take it in, and say when the next event is due."""
        ...

    def advance(self) -> None:
        """The clock stands at that time: let it happen."""
        ...


class Loop:
    """Runs callbacks at their simulated times.

    Attributes:
        now_s: the clock, seconds from 0.
        events: callbacks and source events so far, for the cost per event.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, Timer]] = []
        self._made = 0
        self._sources: list[Source] = []
        self._stopped = False

    def add_source(self, source: Source) -> None:
        """Let `source` take part."""
        self._sources.append(source)

    def at(self, when_s: float, callback: Callback) -> Timer:
        """Call `callback` at `when_s`, or at this instant if that has passed."""
        timer = Timer(callback)
        self._made += 1
        heapq.heappush(self._heap, (max(when_s, self.now_s), self._made, timer))
        return timer

    def after(self, delay_s: float, callback: Callback) -> Timer:
        """Call `callback` in `delay_s` seconds."""
        return self.at(self.now_s + delay_s, callback)

    def stop(self) -> None:
        """End `run` after the callback that runs now."""
        self._stopped = True

    def run(self, until_s: float = float("inf")) -> None:
        """Run until nothing is left to happen, `until_s`, or `stop`. May be called again to go on.

        Raises HeadwayError when the clock stands still.
        """
        self._stopped = False
        at_instant = 0
        while True:
            while self._heap and self._heap[0][0] <= self.now_s:
                callback = heapq.heappop(self._heap)[2].callback
                if callback is not None:
                    self.events += 1
                    at_instant += 1
                    callback()
                    if self._stopped:
                        return
            dues_s = [source.settle() for source in self._sources]
            next_s = min(dues_s, default=float("inf"))
            if self._heap:
                next_s = min(next_s, self._heap[0][0])
            if next_s > until_s or next_s == float("inf"):
                if until_s != float("inf"):
                    self.now_s = max(self.now_s, until_s)
                return
            if next_s > self.now_s:
                self.now_s, at_instant = next_s, 0
            elif at_instant > MOST_AT_ONE_INSTANT:
                raise HeadwayError(f"the simulated clock stands still at {self.now_s:.6g} s: something takes no time")
            for source, due_s in zip(self._sources, dues_s, strict=True):
                if due_s <= self.now_s:
                    self.events += 1
                    at_instant += 1
                    source.advance()
                    if self._stopped:
                        return
