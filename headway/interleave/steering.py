"""Interleaving for our own transport: what the user's settings ask for, as the steering of a group's connections."""

from __future__ import annotations

import math
import socket
import time

from headway.decide.journal import InterleaveRecord
from headway.errors import UsageError
from headway.interleave.actuator import choose, open_actuator
from headway.interleave.aggressiveness import LARGEST, Aggressiveness
from headway.interleave.controller import Report
from headway.interleave.driver import Driver
from headway.interleave.streams import Streams
from headway.settings import Settings
from headway.transport.lanes import FixedStreams, Steering

_CONTROLS = "bpf-"
"""How the names of actuators begin that are congestion controls."""


class Interleaver:
    """Interleaves the bulk connections of one group; see `transport.lanes.Steering`.

    With `streams` one connection stands for all to the same peer; else each is pushed by itself. All count.

    Args:
        actuator: its name, or `auto`; see `actuator.choose` for the errors.
        aggressiveness: of the job.
    """

    def __init__(self, actuator: str, aggressiveness: Aggressiveness) -> None:
        opened = open_actuator(actuator, aggressiveness)
        self.actuator = opened.name
        self._streams = opened if isinstance(opened, Streams) else None
        self._driver = Driver(opened, aggressiveness)

    @property
    def widest(self) -> int:
        """See `Steering`."""
        return 1 if self._streams is None else self._streams.widest

    @property
    def report(self) -> Report:
        """What was learnt of the job."""
        return self._driver.report

    def record(self, *, group: str, rank: int) -> InterleaveRecord:
        """`report` for the journal, as of now."""
        report = self.report
        return InterleaveRecord(
            t_s=time.time(),
            group=group,
            rank=rank,
            actuator=self.actuator,
            iterations=report.iterations,
            iteration_bytes=None if report.iteration_bytes is None else round(report.iteration_bytes),
            period_s=report.period_s,
            isolated_s=report.isolated_s,
            overlap=report.overlap,
            settled_after=report.settled_after,
            settled=report.settled,
        )

    def width(self, connection: socket.socket) -> int:
        """See `Steering`."""
        return 1 if self._streams is None else self._streams.width(connection)

    def opened(self, connection: socket.socket, *, first: bool) -> None:
        """See `Steering`."""
        self._driver.adopt(connection, count_only=self._streams is not None and not first)

    def closed(self, connection: socket.socket) -> None:
        """See `Steering`."""
        self._driver.release(connection)

    def tick(self, now_s: float) -> float | None:
        """See `Steering`."""
        return self._driver.tick(now_s)

    def close(self) -> None:
        """See `Steering`."""
        self._driver.close()


def aggressiveness_from(settings: Settings) -> Aggressiveness:
    """F as HEADWAY_INTERLEAVE_SLOPE, _INTERCEPT and _MOST say. UsageError names the variable."""
    given = {
        name: _number(f"HEADWAY_INTERLEAVE_{name.upper()}", text)
        for name, text in (
            ("slope", settings.interleave_slope),
            ("intercept", settings.interleave_intercept),
            ("most", settings.interleave_most),
        )
        if text
    }
    try:
        return Aggressiveness(**given)
    except UsageError as error:
        name = error.where.rpartition(" ")[2].upper()
        raise UsageError(error.what, where=f"HEADWAY_INTERLEAVE_{name}", hint=error.hint) from None


def check(settings: Settings) -> None:
    """UsageError where interleaving is asked for in a way that is wrong, or that does not work here."""
    aggressiveness = aggressiveness_from(settings)
    streams = _streams(settings)
    if settings.interleave in ("", "off"):
        return
    if streams != 1:
        raise UsageError("interleaving decides how many connections are used", where="HEADWAY_STREAMS")
    if settings.interleave.startswith(_CONTROLS):
        _check_control(settings, settings.interleave)
    try:
        chosen = choose(settings.interleave, aggressiveness=aggressiveness)
    except UsageError as error:
        raise UsageError(error.what, where="HEADWAY_INTERLEAVE", hint=error.hint) from None
    if chosen.startswith(_CONTROLS):
        _check_control(settings, chosen)


def _check_control(settings: Settings, actuator: str) -> None:
    """UsageError if the user names a congestion control besides the one that the actuator is."""
    if settings.congestion_control:
        asked = actuator if settings.interleave == actuator else f"{settings.interleave} (here {actuator})"
        raise UsageError(
            f"{asked} is a congestion control itself and excludes HEADWAY_CONGESTION_CONTROL",
            where="HEADWAY_INTERLEAVE", hint="unset one of them, or interleave by streams or pacing",
        )  # fmt: skip


def steering_from(settings: Settings) -> Steering | None:
    """What steers a group's bulk connections; None: nobody, as is the default. `check` first."""
    if settings.interleave not in ("", "off"):
        return Interleaver(settings.interleave, aggressiveness_from(settings))
    streams = _streams(settings)
    return FixedStreams(streams) if streams > 1 else None


def _streams(settings: Settings) -> int:
    if not settings.streams:
        return 1
    value = _number("HEADWAY_STREAMS", settings.streams)
    if value != round(value) or not 1 <= value <= LARGEST:
        raise UsageError(f"{settings.streams!r} is no whole number from 1 to {LARGEST:g}", where="HEADWAY_STREAMS")
    return round(value)


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{text!r} is no number", where=name)
    return value
