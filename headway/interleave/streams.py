"""The actuator `streams`: weight by the number of parallel connections, in user space alone.

TCP shares a full link about equally among connections, whoever they belong to, so a job that sends over k of them gets
k shares. k = F / intercept: 1 when an iteration begins, 1 + slope/intercept (8 with the defaults) at its end,
as in the sheet's k = 1 + round(7 * ratio). It counts in whole shares of plain TCP, so the dial `most` is the largest
number of connections; with 1 the job never takes more than plain TCP does.

Between two whole numbers it goes to and fro, from push to push, so that on average it is F / intercept: rounded, two
jobs that began a moment apart would have the same number until one of them is far ahead, and would not slide apart.

Whoever owns the connections spreads the bytes: it opens the further ones, adopts the first, and asks `width` how many
to use. Connections that are not in use are idle and cost a descriptor and some kernel memory at both ends.
"""

from __future__ import annotations

import math
import socket

from headway.interleave.actuator import FlowState
from headway.interleave.aggressiveness import LARGEST, Aggressiveness


def exact_width(aggressiveness: Aggressiveness, weight: float | None) -> float:
    """How many connections stand for F, on average; 1 for plain TCP (None)."""
    if weight is None:
        return 1.0
    return max(1.0, min(weight / aggressiveness.intercept, float(widest(aggressiveness))))


def widest(aggressiveness: Aggressiveness) -> int:
    """The most connections that F can ask for."""
    top = round(aggressiveness.weight(1.0) / aggressiveness.intercept)
    return max(1, min(top, math.floor(min(aggressiveness.most, LARGEST))))


class Streams:
    """See `actuator.Actuator`. The adopted connection stands for all that go to the same place."""

    name = "streams"
    self_driven = False

    def __init__(self, aggressiveness: Aggressiveness) -> None:
        self._aggressiveness = aggressiveness
        self._widths: dict[socket.socket, int] = {}
        self._owed: dict[socket.socket, float] = {}

    @property
    def widest(self) -> int:
        """The most connections that it will ask for."""
        return widest(self._aggressiveness)

    def adopt(self, connection: socket.socket) -> None:
        """See `Actuator`."""
        self._widths.setdefault(connection, 1)

    def release(self, connection: socket.socket) -> None:
        """See `Actuator`."""
        self._widths.pop(connection, None)
        self._owed.pop(connection, None)

    def push(self, connection: socket.socket, weight: float | None) -> None:
        """See `Actuator`; the owner sees it in `width` when it sends next."""
        if connection not in self._widths:
            return
        exact = exact_width(self._aggressiveness, weight)
        owed = exact + (0.0 if weight is None else self._owed.get(connection, 0.0))
        width = min(max(1, round(owed)), self.widest)
        self._widths[connection], self._owed[connection] = width, min(0.5, max(-0.5, owed - width))

    def width(self, connection: socket.socket) -> int:
        """How many connections to use now, the adopted one included; 1 for one that is not adopted."""
        return self._widths.get(connection, 1)

    def state(self, connection: socket.socket) -> FlowState:
        """See `Actuator`; the weight is the number of connections in use."""
        return FlowState(weight=float(self.width(connection)))

    def close(self) -> None:
        """See `Actuator`."""
        self._widths.clear()
        self._owed.clear()


def why_not(name: str, aggressiveness: Aggressiveness | None = None) -> str | None:
    """See `actuator.why_not`: it needs nothing of the system."""
    return None


def open_actuator(name: str, aggressiveness: Aggressiveness) -> Streams:
    """See `actuator.open_actuator`."""
    return Streams(aggressiveness)
