"""Plays a scenario's events on a lab, in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from headway.decide.journal import EventRecord
from headway.lab.effects import Effect
from headway.lab.scenario import Scenario
from headway.lab.steps import Step, steps


class Stage(Protocol):
    """What a player needs of a lab."""

    def begin(self, key: str, effects: tuple[Effect, ...]) -> None:
        """Put effects in force."""
        ...

    def end(self, key: str) -> None:
        """Take them back."""
        ...


class Player:
    """Plays a scenario's events on a lab, in a thread, from `start` to `stop`.

    Args:
        written: gets a record of each beginning and end just after it happened.
    """

    def __init__(self, stage: Stage, scenario: Scenario, written: Callable[[EventRecord], None]) -> None:
        self._stage, self._written = stage, written
        self._steps = steps(scenario)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._play, name="headway-lab-events", daemon=True)
        self._in_force: dict[str, Step] = {}
        self.error: Exception | None = None

    def start(self) -> None:
        """The timeline's zero is now."""
        self._thread.start()

    def stop(self) -> None:
        """No more events; what is in force is taken back. Raises what went wrong in the thread. Idempotent."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self.check()

    def check(self) -> None:
        """Raise what went wrong in the thread, if anything did."""
        if self.error is not None:
            raise self.error

    def _play(self) -> None:
        zero = time.monotonic()
        try:
            for step in self._steps:
                if self._stop.wait(max(0.0, zero + step.at_s - time.monotonic())):
                    break
                self._do(step)
            else:
                self._stop.wait()
            for step in list(self._in_force.values()):
                self._do(Step(step.at_s, "end", step.key, step.effects))
        except Exception as error:  # it is raised again where somebody waits: in `stop`
            self.error = error

    def _do(self, step: Step) -> None:
        if step.phase == "begin":
            self._stage.begin(step.key, step.effects)
            self._in_force[step.key] = step
        else:
            self._stage.end(step.key)
            del self._in_force[step.key]
        self._written(step.record(time.time()))
