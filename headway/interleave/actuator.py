"""What makes a flow push as hard as its F says: one protocol, and the drivers that stand behind it.

| name | how | needs |
| --- | --- | --- |
| `bpf-reno`, `bpf-cubic` | a TCP congestion control in BPF, which follows iterations by itself | root once, Linux 6.4 |
| `streams` | a flow's bytes go over as many connections as its weight says | our own transport |
| `pacing` | SO_MAX_PACING_RATE, set only while contention is seen | Linux |

Who drives: a `self_driven` actuator finds iterations by itself, once a connection is adopted; for the others a
controller follows the bytes and calls `push` every few milliseconds.
"""

from __future__ import annotations

import importlib
import socket
from dataclasses import dataclass
from typing import Protocol, cast

from headway.errors import HeadwayError, UsageError
from headway.interleave.aggressiveness import Aggressiveness

AUTO = "auto"
NAMES = ("bpf-reno", "bpf-cubic", "streams", "pacing")
"""All actuators, in the order in which `auto` tries them."""

_DRIVERS = {
    "bpf-reno": "headway.interleave.bpf",
    "bpf-cubic": "headway.interleave.bpf",
    "streams": "headway.interleave.streams",
    "pacing": "headway.interleave.pacing",
}
"""Each module has `why_not(name, aggressiveness)` and `open_actuator(name, aggressiveness)`, as the functions below."""


@dataclass(frozen=True, slots=True)
class FlowState:
    """What an actuator knows of one connection.

    Attributes:
        weight: F now; 1 is plain TCP.
        ratio: part of this iteration's bytes that has been sent, 0 to 1; None while traffic is not periodic.
        iterations: how many have ended since the connection was adopted.
        iteration_bytes: bytes per iteration; None while not periodic.
        period_s: from the beginning of one iteration to the next; None while not periodic.
    """

    weight: float
    ratio: float | None = None
    iterations: int = 0
    iteration_bytes: float | None = None
    period_s: float | None = None


class ActuatorError(HeadwayError):
    """The system refused what an actuator asked of it."""


class Actuator(Protocol):
    """Makes adopted connections push as hard as F says, until they are released.

    Connections may be any TCP sockets of this process, also ones that a library opened: a dup of the descriptor is
    as good as the socket itself. An actuator keeps no connection open: what it needs, it duplicates and closes.
    All calls come from one thread. A connection that the peer has closed may be released, and does no harm if not.
    """

    @property
    def name(self) -> str:
        """One of `NAMES`."""

    @property
    def self_driven(self) -> bool:
        """Whether it follows iterations by itself; else nothing changes until `push` is called."""

    def adopt(self, connection: socket.socket) -> None:
        """Take charge of a connected TCP socket. ActuatorError says what the system refused."""

    def release(self, connection: socket.socket) -> None:
        """Plain TCP again, as it was before `adopt`. A connection that was never adopted is left alone."""

    def push(self, connection: socket.socket, weight: float | None) -> None:
        """Hold an adopted connection's F at `weight`, above 0, until the next call.

        None: plain TCP, or for a self-driven actuator, follow iterations again.
        """

    def state(self, connection: socket.socket) -> FlowState:
        """What is known of an adopted connection now."""

    def close(self) -> None:
        """Release every connection, and leave nothing behind on the machine."""


class _Driver(Protocol):
    """What a driver's module has."""

    def why_not(self, name: str, aggressiveness: Aggressiveness | None = None) -> str | None: ...

    def open_actuator(self, name: str, aggressiveness: Aggressiveness) -> Actuator: ...


def why_not(name: str, *, foreign: bool = False, aggressiveness: Aggressiveness | None = None) -> str | None:
    """Why this actuator cannot be used here, as one line with what to do; None if it can.

    Args:
        name: one of `NAMES`.
        foreign: the connections belong to a library (gloo), so none can be added.
        aggressiveness: what it is to be opened with; None: the default.
    """
    if foreign and name == "streams":
        return "the connections belong to another library, which opens no second one"
    return _driver(name).why_not(name, aggressiveness)


def choose(name: str = AUTO, *, foreign: bool = False, aggressiveness: Aggressiveness | None = None) -> str:
    """The actuator to use: `name` itself, or for `auto` the first of `NAMES` that works here with this F.

    Raises:
        UsageError: if it does not work here, with the reason; for `auto` with all reasons.
    """
    if name != AUTO:
        reason = why_not(name, foreign=foreign, aggressiveness=aggressiveness)
        if reason is not None:
            raise UsageError(f"{name} cannot be used here: {reason}", where="interleave: actuator", hint=f"try {AUTO}")
        return name
    reasons: list[str] = []
    for each in NAMES:
        reason = why_not(each, foreign=foreign, aggressiveness=aggressiveness)
        if reason is None:
            return each
        reasons.append(f"{each}: {reason}")
    raise UsageError(f"no actuator can be used here: {'; '.join(reasons)}", where="interleave: actuator")


def open_actuator(name: str, aggressiveness: Aggressiveness, *, foreign: bool = False) -> Actuator:
    """The actuator of that name (or `auto`), ready to adopt connections; see `choose` for the errors."""
    chosen = choose(name, foreign=foreign, aggressiveness=aggressiveness)
    return _driver(chosen).open_actuator(chosen, aggressiveness)


def _driver(name: str) -> _Driver:
    if name not in _DRIVERS:
        raise UsageError(
            f"there is no actuator {name!r}", where="interleave: actuator", hint=f"one of {', '.join((AUTO, *NAMES))}"
        )
    # A module is loaded when it is asked for: the sockets' and the kernel's side stay out of programs that only plan.
    return cast(_Driver, importlib.import_module(_DRIVERS[name]))
