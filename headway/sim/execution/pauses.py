"""A rank's processor: one thing after the other, and now and then it is away. Pure, from a seed."""

from __future__ import annotations

import random


class Processor:
    """Handles what a rank has to do, in the order in which it comes.

    Args:
        pauses_per_s: how often it is away, at random times, per second.
        pause_s: for how long, on average; exponential.
        draw: where random times come from.
        now_s: the clock at the start.
    """

    def __init__(self, *, pauses_per_s: float, pause_s: float, draw: random.Random, now_s: float) -> None:
        self._rate, self._pause_s, self._draw = pauses_per_s, pause_s, draw
        self._free_s = now_s
        self._next_s = now_s + draw.expovariate(pauses_per_s) if pauses_per_s > 0 and pause_s > 0 else float("inf")

    def done_s(self, now_s: float, work_s: float) -> float:
        """When it has done `work_s` of work that comes now."""
        begin_s = max(self._free_s, now_s)
        while self._next_s <= begin_s:
            back_s = self._next_s + self._draw.expovariate(1 / self._pause_s)
            begin_s = max(begin_s, back_s)
            self._next_s = back_s + self._draw.expovariate(self._rate)
        self._free_s = begin_s + work_s
        return self._free_s
