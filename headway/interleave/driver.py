"""From a job's sockets to its controller, and from the controller to the actuator: one tick at a time.

A tick reads what each connection has had acknowledged, adds it up, and pushes all adopted connections as the controller
says. Who calls it, owns the time: a progress thread, or the thread of `Background`.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable

from headway.interleave.actuator import Actuator, ActuatorError
from headway.interleave.aggressiveness import Aggressiveness
from headway.interleave.controller import Controller, Report
from headway.transport import tcp_info

TICK_S = 0.005
"""Half of the shortest pause that can end an iteration."""
_CHEAP = 16
"""So many connections cost about 1 % of a core; with more, ticks are rarer."""
_IDLE = 2.0
"""Ticks are so much rarer while nothing moves: the weight of the next iteration's first bytes is set already."""
_LOG = logging.getLogger("headway")


class Driver:
    """Interleaves the connections of one job on this host. All calls come from one thread.

    A connection that the system will not let the actuator push is plain TCP from then on, and a line is logged once.

    Args:
        actuator: closed with the driver.
        aggressiveness: of the job.
    """

    def __init__(self, actuator: Actuator, aggressiveness: Aggressiveness) -> None:
        self.actuator = actuator
        self._controller = Controller(aggressiveness)
        self._pushed: set[socket.socket] = set()
        self._counted: dict[socket.socket, int] = {}
        self._total = 0
        self._idle = True
        self._complained = False

    @property
    def report(self) -> Report:
        """What was learnt of the job."""
        return self._controller.report

    def adopt(self, connection: socket.socket, *, count_only: bool = False) -> None:
        """Take charge of a connection.

        Args:
            count_only: its bytes are the job's, but the actuator has nothing to do with it (a parallel stream).
        """
        if connection in self._counted:
            return
        if not count_only:
            try:
                self.actuator.adopt(connection)
            except ActuatorError as error:
                self._complain(error)
                return
            self._pushed.add(connection)
        self._counted[connection] = tcp_info.read(connection).arrived_bytes

    def release(self, connection: socket.socket) -> None:
        """Leave a connection as it was; call before it is closed. Its bytes stay in the account."""
        self._counted.pop(connection, None)
        if connection in self._pushed:
            self._pushed.remove(connection)
            try:
                self.actuator.release(connection)
            except (ActuatorError, OSError) as error:
                if connection.fileno() >= 0:  # else it is closed already, and nothing is left to be undone
                    self._complain(error)

    def tick(self, now_s: float) -> float:
        """Look at all connections and push them; returns after how many seconds to call again."""
        waiting, told_bytes = False, self._total
        for connection, before in self._counted.items():
            info = tcp_info.read(connection)
            if info.arrived_bytes > before:
                self._total += info.arrived_bytes - before
                self._counted[connection] = info.arrived_bytes
            waiting = waiting or bool(info.unacked or info.notsent_bytes)
        weight = self._controller.sent(now_s, self._total, idle=self._idle)
        # A pause was idle if there was any moment in it with nothing on the way.
        self._idle = not waiting or (self._idle and self._total == told_bytes)
        if self.actuator.name == "pacing" and len(self._pushed) > 1 and not self._controller.worth_capping:
            weight = None
        if not self.actuator.self_driven:
            for connection in self._pushed:
                try:
                    self.actuator.push(connection, weight)
                except ActuatorError as error:
                    self._complain(error)
        many = max(1.0, len(self._counted) / _CHEAP)
        return TICK_S * many * (1.0 if waiting or self._total > told_bytes else _IDLE)

    def close(self) -> None:
        """Release every connection and close the actuator. Idempotent."""
        self._counted.clear()
        self._pushed.clear()
        self.actuator.close()

    def _complain(self, error: Exception) -> None:
        if not self._complained:
            self._complained = True
            _LOG.warning("interleaving goes on without some connections: %s", error)


class Background:
    """Ticks a driver on a thread of its own, until `close`.

    Args:
        driver: closed at the end.
        connections: adopted on the thread, since all calls to an actuator come from one.
        counted: adopted with `count_only`.
        alive: whether a connection is still what it was; asked before each tick, and one that is not is let go.
        at_end: called on the thread after everything else.
        name: of the thread.
    """

    def __init__(
        self,
        driver: Driver,
        connections: Iterable[socket.socket],
        counted: Iterable[socket.socket] = (),
        *,
        alive: Callable[[socket.socket], bool] = lambda connection: True,
        at_end: Callable[[], None] = lambda: None,
        name: str = "headway interleave",
    ) -> None:
        self._driver = driver
        self._connections, self._count_only = list(connections), list(counted)
        self._alive, self._at_end = alive, at_end
        self._stop = threading.Event()
        self._adopted = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._adopted.wait()

    @property
    def report(self) -> Report:
        """What was learnt of the job."""
        return self._driver.report

    def close(self) -> None:
        """End the thread and leave the connections as they were. Idempotent; any thread."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        driver = self._driver
        try:
            try:
                for connection in self._connections:
                    driver.adopt(connection)
                for connection in self._count_only:
                    driver.adopt(connection, count_only=True)
            finally:
                self._adopted.set()
            again_s = TICK_S
            while not self._stop.wait(again_s):
                for mine in (self._connections, self._count_only):
                    for connection in [each for each in mine if not self._alive(each)]:
                        mine.remove(connection)
                        connection.detach()
                        driver.release(connection)
                again_s = driver.tick(time.monotonic())
        finally:
            driver.close()
            self._at_end()
