"""Runs a program: gives each step to a host, and goes on when it has ended. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from headway.serving.workflows.calls import Call
from headway.serving.workflows.programs.form import All, CallModel, Program, Sleep, Step

Done: TypeAlias = Callable[[object, int], None]
"""Gets a result, and how many calls the longest way to it went through."""


class Host(Protocol):
    """Where a run's steps happen."""

    def call(self, step: CallModel, depth: int, done: Callable[[Call], None]) -> None:
        """Ask a model; `depth` calls of the run came before this one, one after the other. `done` is called later."""
        ...

    def after(self, seconds: float, done: Callable[[], None]) -> None:
        """Call `done` in so many seconds."""
        ...


def drive(program: Step | Program, host: Host, done: Done, *, depth: int = 0) -> None:
    """Begin a program; `done` is called when it has ended, at once where there is nothing to wait for."""
    match program:
        case CallModel():
            host.call(program, depth, lambda call: done(call, depth + 1))
        case Sleep(seconds):
            host.after(seconds, lambda: done(None, depth))
        case All(parts):
            if parts:
                _Gather(len(parts), depth, done).begin(program, host)
            else:
                done([], depth)
        case _:
            _go_on(program, None, host, done, depth)


def _go_on(program: Program, result: object, host: Host, done: Done, depth: int) -> None:
    try:
        step = program.send(result)
    except StopIteration as end:
        done(end.value, depth)
        return
    drive(step, host, lambda value, at: _go_on(program, value, host, done, at), depth=depth)


class _Gather:
    """The barrier at the end of an `All`."""

    def __init__(self, parts: int, depth: int, done: Done) -> None:
        self._missing = parts
        self._results: list[object] = [None] * parts
        self._depth = depth
        self._done = done

    def begin(self, step: All, host: Host) -> None:
        depth = self._depth
        for index, part in enumerate(step.parts):
            drive(part, host, self._of(index), depth=depth)

    def _of(self, index: int) -> Done:
        def ended(result: object, depth: int) -> None:
            self._results[index] = result
            self._depth = max(self._depth, depth)
            self._missing -= 1
            if not self._missing:
                self._done(self._results, self._depth)

        return ended
