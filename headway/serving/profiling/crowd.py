"""How many calls an engine ends per second at most: a crowd of them is kept in it (closed loop), and grows.

Each call that ends is followed by the next one at once, so that as many are always under way, whatever the engine's
batch. The crowd doubles until that no longer brings more: then the batch is full, or the device is. That is measured
twice and the better one counts, since whatever disturbs an engine makes it slower. Sent all at once
and never replaced, calls of one batch would end together, and their ends would say nothing of how many come after them.

Calls that are cut by the edges of what is measured count by the part of their time that lies within it, so that ends
that fall together (equal lengths, begun together) don't matter. For that the crowd is kept until the last of those that
were under way at the end has ended.

Cost: about 3 calls for each of the crowd at each of its sizes and two more at the last one, so some 8 times the last
crowd in all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from headway.errors import HeadwayError

Span = tuple[float, float]
"""When a call was sent and when it had ended, monotonic seconds."""


@dataclass(frozen=True, slots=True)
class Ramp:
    """How a crowd grows.

    Attributes:
        first: calls at once to begin with (count).
        most: calls at once at most (count): more than engines have in a batch.
        growth: that doubling it must bring, of the best so far, to be doubled again (1).
        turnovers: for how many calls of each in the crowd it is measured (count), after one to warm up.
        least_calls: that are measured with a small crowd (count).
        busy: part of the time that this process may compute before what is found may be its own limit (1).
    """

    first: int = 16
    most: int = 2048
    growth: float = 0.05
    turnovers: float = 1.0
    least_calls: int = 96
    busy: float = 0.8


@dataclass(frozen=True, slots=True)
class Level:
    """A crowd of one size: calls at once, calls per second, and the part of the time that this process computed."""

    crowd: int
    calls_per_s: float
    busy: float


async def levels(
    send: Callable[[], Awaitable[Span]],
    ramp: Ramp,
    told: Callable[[Level], None],
    begins: Callable[[int, int], None] = lambda crowd, calls: None,
) -> list[Level]:
    """Measure with growing crowds until that no longer brings more, or `ramp.most` is reached.

    Args:
        send: sends the next call and waits for its end; it has a limit of its own.
        ramp: how the crowd grows.
        told: gets each size when it is measured.
        begins: gets each size beforehand, and how many calls it takes at least (counts).

    Raises:
        HeadwayError: from `send`; the others are cancelled then.
    """
    found: list[Level] = []
    held = _Held(send)
    try:
        async with asyncio.TaskGroup() as slots:
            while not found or (grows(found, ramp) and found[-1].crowd < ramp.most):
                crowd = min(2 * found[-1].crowd if found else ramp.first, ramp.most)
                begins(crowd, crowd + measured_calls(crowd, ramp))
                held.grow(crowd, slots)
                level = await held.measured(ramp)
                if found and not grows([*found, level], ramp):
                    again = await held.measured(ramp, warm_up=False)
                    level = max(level, again, key=lambda it: it.calls_per_s)
                found.append(level)
                told(level)
            held.stop()
    except BaseExceptionGroup as group:
        first: BaseException = group.subgroup(HeadwayError) or group.exceptions[0]
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None
    return found


def grows(found: Sequence[Level], ramp: Ramp) -> bool:
    """Whether the last one did more than all before it, so that a larger one may do still more."""
    *before, last = found
    return last.calls_per_s > max((it.calls_per_s for it in before), default=0.0) * (1 + ramp.growth)


def measured_calls(crowd: int, ramp: Ramp) -> int:
    """Calls that must end while a crowd is measured, after its warm-up (count)."""
    return max(round(ramp.turnovers * crowd), ramp.least_calls)


def calls_within(spans: Iterable[Span], begin_s: float, end_s: float) -> float:
    """Calls between two instants, each by the part of its time that lies there (count)."""
    total = 0.0
    for sent_s, ended_s in spans:
        overlap_s = min(ended_s, end_s) - max(sent_s, begin_s)
        if overlap_s > 0:
            total += overlap_s / (ended_s - sent_s)
    return total


class _Held:
    """Keeps as many calls under way."""

    def __init__(self, send: Callable[[], Awaitable[Span]]) -> None:
        self._send = send
        self._slots: list[asyncio.Task[None]] = []
        self._sent_s: dict[int, float] = {}
        self._spans: list[Span] = []
        self._one_ended = asyncio.Event()

    def grow(self, crowd: int, slots: asyncio.TaskGroup) -> None:
        for number in range(len(self._slots), crowd):
            self._slots.append(slots.create_task(self._one_after_the_other(number)))

    def stop(self) -> None:
        for slot in self._slots:
            slot.cancel()

    async def measured(self, ramp: Ramp, *, warm_up: bool = True) -> Level:
        """Of the crowd as it is."""
        crowd = len(self._slots)
        await self._ended(crowd if warm_up else 0)
        self._spans.clear()
        begin_s, computed_s = time.monotonic(), time.process_time()
        await self._ended(measured_calls(crowd, ramp))
        end_s, busy_s = time.monotonic(), time.process_time() - computed_s
        while min(self._sent_s.values()) < end_s:
            await self._next_end()
        calls = calls_within(self._spans, begin_s, end_s)
        return Level(crowd, calls / (end_s - begin_s), busy_s / (end_s - begin_s))

    async def _ended(self, calls: int) -> None:
        """Wait until so many more have ended."""
        wanted = len(self._spans) + calls
        while len(self._spans) < wanted:
            await self._next_end()

    async def _next_end(self) -> None:
        self._one_ended.clear()
        await self._one_ended.wait()

    async def _one_after_the_other(self, number: int) -> None:
        while True:
            self._sent_s[number] = time.monotonic()
            self._spans.append(await self._send())
            self._one_ended.set()
