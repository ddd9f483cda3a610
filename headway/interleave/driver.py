"""From a job's sockets to its controller, and from the controller to the actuator: one tick at a time.

A tick reads what each connection has had acknowledged, adds it up, and pushes all adopted connections as the controller
says. Who calls it, owns the time: a progress thread, or the thread of `Background`.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterable

from headway.interleave.actuator import Actuator, ActuatorError
from headway.interleave.aggressiveness import Aggressiveness
from headway.interleave.controller import Controller, Report
from headway.transport import tcp_info

TICK_S = 0.005
"""Half of the shortest pause that can end an iteration."""
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
            except ActuatorError as error:
                self._complain(error)

    def tick(self, now_s: float) -> None:
        """Look at all connections and push them. Call every `TICK_S` while bytes may move."""
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
        if not self.actuator.self_driven:
            for connection in self._pushed:
                try:
                    self.actuator.push(connection, weight)
                except ActuatorError as error:
                    self._complain(error)

    def close(self) -> None:
        """Release every connection and close the actuator. Idempotent."""
        self._counted.clear()
        self._pushed.clear()
        self.actuator.close()

    def _complain(self, error: ActuatorError) -> None:
        if not self._complained:
            self._complained = True
            _LOG.warning("interleaving goes on without some connections: %s", error)


class Background:
    """Ticks a driver on a thread of its own, until `close`.

    Args:
        driver: closed at the end.
        connections: adopted on the thread, since all calls to an actuator come from one; `counted` as `count_only`.
        counted: see above.
        name: of the thread.
        own: the connections are dups of ours, to be closed at the end.
    """

    def __init__(
        self, driver: Driver, connections: Iterable[socket.socket], counted: Iterable[socket.socket] = (), *,
        name: str = "headway interleave", own: bool = False,
    ) -> None:  # fmt: skip
        self._driver = driver
        self._connections, self._count_only, self._own = tuple(connections), tuple(counted), own
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._ready.wait()

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
                self._ready.set()
            while not self._stop.wait(TICK_S):
                driver.tick(time.monotonic())
        finally:
            driver.close()
            if self._own:
                for connection in (*self._connections, *self._count_only):
                    connection.close()
