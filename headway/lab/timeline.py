"""A scenario's events as a sequence of beginnings and ends. The sequence is pure; `Player` plays it on a lab."""

from __future__ import annotations

import heapq
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from headway.decide.journal import EventRecord
from headway.lab.effects import Effect, effects_of
from headway.lab.scenario import Event, LoadEvent, Scenario


@dataclass(frozen=True, slots=True)
class Step:
    """Something begins or ends, `at_s` after the timeline's begin. `key` pairs a beginning with its end."""

    at_s: float
    phase: Literal["begin", "end"]
    key: str
    effects: tuple[Effect, ...]

    @property
    def event_id(self) -> str:
        """The event's id, as the scenario has it."""
        return self.effects[0].event.id

    @property
    def what(self) -> str:
        """In words."""
        return "; ".join(effect.what for effect in self.effects)


def steps(scenario: Scenario) -> Iterator[Step]:
    """Everything that happens, in order of time; endless when a pattern is. At the same time ends come first."""
    streams = [_event_steps(event, scenario.targets_of(event)) for event in scenario.events]
    return heapq.merge(*streams, key=lambda step: (step.at_s, step.phase == "begin"))


def _event_steps(event: Event, targets: tuple[str, ...]) -> Iterator[Step]:
    for number, (begin, end, whom) in enumerate(_intervals(event, targets)):
        if begin >= event.end:
            return
        effects = effects_of(event, whom)
        key = f"{event.id}#{number}"
        yield Step(begin, "begin", key, effects)
        end = min(end, event.end)
        if end == float("inf"):
            return
        yield Step(end, "end", key, effects)


def _intervals(event: Event, targets: tuple[str, ...]) -> Iterator[tuple[float, float, tuple[str, ...]]]:
    """(begin, end, targets) of each stretch in which an event is in force, before it is cut off at its end."""
    if isinstance(event, LoadEvent) and event.move is not None:
        chance = random.Random(event.seed) if event.seed is not None else None
        at, last = event.start, ""
        for turn in itertools.count():
            if chance is None:
                target = targets[turn % len(targets)]
            else:
                target = chance.choice([name for name in targets if name != last] or list(targets))
            yield at, at + event.move, (target,)
            at, last = at + event.move, target
    elif isinstance(event, LoadEvent) and event.on is not None and event.off is not None:
        chance = random.Random(event.seed) if event.seed is not None else None
        at = event.start
        while True:
            on, off = event.on, event.off
            if chance is not None:
                on, off = chance.expovariate(1 / on), chance.expovariate(1 / off)
            yield at, at + on, targets
            at += on + off
    else:
        yield event.start, float("inf"), targets


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
        links = sorted({name for effect in step.effects for name in effect.link_names})
        self._written(EventRecord(t_s=time.time(), event=step.event_id, phase=step.phase, what=step.what, links=links))
