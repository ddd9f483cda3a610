"""A scenario's events as a sequence of beginnings and ends. Pure: a lab and a simulator play the same sequence."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

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

    def record(self, t_s: float) -> EventRecord:
        """What the journal says of it. `t_s`: when it happened, on the journal's clock."""
        links = sorted({name for effect in self.effects for name in effect.link_names})
        return EventRecord(t_s=t_s, event=self.event_id, phase=self.phase, what=self.what, links=links)


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
