"""The highest rate at which something still holds. Pure."""

from __future__ import annotations

from collections.abc import Callable

from headway.errors import UsageError

FARTHEST = 1024.0
"""How many times above or below its first guess a rate is looked for (1)."""


def highest_rate(holds: Callable[[float], bool], *, start: float, within: float = 0.05, step: float = 2.0) -> float:
    """The highest rate for which `holds` is true, by steps up or down from `start` and then bisection.

    `holds` should be true up to some rate and false above it. With the same random numbers at every rate it nearly is;
    where it is not, the result is one of the places where it changes.

    Args:
        holds: whether the system keeps its promise at that rate; dear. Called once a step, and then some
            log2(log(step) / within) times.
        start: a guess, above 0.
        within: how exactly (1).
        step: factor from one rate to the next before the bisection: small where the guess is good (1).

    Returns the highest rate that was seen to hold; 0 where none did down to `start / FARTHEST`.
    """
    if start <= 0 or within <= 0 or step <= 1:
        raise UsageError("a search of a rate needs a start and an exactness above 0, and a step above 1")
    low = high = start
    if holds(start):
        while low == high:
            high = step * low
            if high > start * FARTHEST:
                return low
            if holds(high):
                low = high
    else:
        while low == high:
            low = high / step
            if low < start / FARTHEST:
                return 0.0
            if not holds(low):
                high = low
    while high > low * (1 + within):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
