"""The actuator `pacing`: a cap on a flow's rate (SO_MAX_PACING_RATE), only while somebody else is on its way.

    cap = F / (slope + intercept) * (its rate when it was alone)

A cap is not a weight: it takes from this job what F does not allow, and gives to the other whatever is left. With the
cap always on, jobs are slower than with plain TCP, since nobody uses what a cap leaves free; so a flow is capped only
while `contention` sees somebody else. A flow that never meets anybody is never capped, and its socket never touched.
The kernel paces by itself where the queue discipline is not fq.
"""

from __future__ import annotations

import socket
import sys
import time

from headway.interleave.actuator import ActuatorError, FlowState
from headway.interleave.aggressiveness import Aggressiveness
from headway.interleave.contention import ContentionSettings, ContentionWatch, Reading
from headway.transport import tcp_info

SO_MAX_PACING_RATE = 47
_NO_CAP = 0xFFFFFFFF
_LEAST_BPS = 64_000
"""No lower cap: a packet of 64 KiB a second keeps the flow alive, so that it hears when the link is free again."""
_STEP = 0.02
"""A cap is set anew when it has moved by this part: a call to the kernel for less changes nothing that matters."""


class _Flow:
    def __init__(self, settings: ContentionSettings | None) -> None:
        self.watch = ContentionWatch(settings)
        self.cap_Bps: float | None = None
        self.weight: float | None = None


class Pacing:
    """See `actuator.Actuator`. `push` also reads the flow's counters, so it is to be called all the time.

    Attributes:
        caps: how often a flow that was free has been capped.
    """

    name = "pacing"
    self_driven = False

    def __init__(self, aggressiveness: Aggressiveness, settings: ContentionSettings | None = None) -> None:
        self._top = aggressiveness.weight(1.0)
        self._settings = settings
        self._flows: dict[socket.socket, _Flow] = {}
        self.caps = 0

    def adopt(self, connection: socket.socket) -> None:
        """See `Actuator`."""
        self._flows.setdefault(connection, _Flow(self._settings))

    def release(self, connection: socket.socket) -> None:
        """See `Actuator`."""
        flow = self._flows.pop(connection, None)
        if flow is not None and flow.cap_Bps is not None and connection.fileno() >= 0:
            _set_cap(connection, None)

    def push(self, connection: socket.socket, weight: float | None) -> None:
        """See `Actuator`."""
        flow = self._flows.get(connection)
        if flow is None or connection.fileno() < 0:
            return
        flow.weight = weight
        contended = flow.watch.read(_reading(connection), capped=flow.cap_Bps is not None)
        if weight is None or not contended or weight >= self._top:
            wanted = None
        else:
            wanted = max(_LEAST_BPS, weight / self._top * flow.watch.best_Bps)
        if _moved(flow.cap_Bps, wanted):
            self.caps += flow.cap_Bps is None
            flow.cap_Bps = wanted
            _set_cap(connection, wanted)

    def state(self, connection: socket.socket) -> FlowState:
        """See `Actuator`; 1 for a flow that is free."""
        flow = self._flows.get(connection)
        if flow is None or flow.cap_Bps is None or flow.weight is None:
            return FlowState(weight=1.0)
        return FlowState(weight=flow.weight)

    def cap_Bps(self, connection: socket.socket) -> float | None:
        """The cap in force; None: free."""
        flow = self._flows.get(connection)
        return None if flow is None else flow.cap_Bps

    def close(self) -> None:
        """See `Actuator`."""
        for connection in list(self._flows):
            self.release(connection)


def _moved(before: float | None, now: float | None) -> bool:
    if before is None or now is None:
        return before is not now
    return abs(now - before) > _STEP * before


def _reading(connection: socket.socket) -> Reading:
    info = tcp_info.read(connection)
    return Reading(
        now_s=time.monotonic(),
        arrived_bytes=info.arrived_bytes,
        flight_bytes=((info.unacked or 0) - (info.sacked or 0)) * (info.snd_mss or 0),
        busy=bool(info.unacked or info.notsent_bytes),
        rtt_s=info.rtt_s,
        min_rtt_s=info.min_rtt_s,
        lost=(info.total_retrans or 0) + (info.delivered_ce or 0),
    )


def _set_cap(connection: socket.socket, cap_Bps: float | None) -> None:
    value = _NO_CAP if cap_Bps is None else max(1, round(cap_Bps))
    wide = cap_Bps is not None and value >= _NO_CAP  # from Linux 4.20 on
    try:
        connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, value.to_bytes(8 if wide else 4, sys.byteorder))
    except OSError as error:
        raise ActuatorError(f"the kernel does not take a pacing rate: {error.strerror}") from None


def why_not(name: str, aggressiveness: Aggressiveness | None = None) -> str | None:
    """See `actuator.why_not`."""
    if not sys.platform.startswith("linux") or not hasattr(socket, "TCP_INFO"):
        return "it needs Linux"
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            _set_cap(probe, None)
        except ActuatorError as error:
            return str(error)
    return None


def open_actuator(name: str, aggressiveness: Aggressiveness) -> Pacing:
    """See `actuator.open_actuator`."""
    return Pacing(aggressiveness)
