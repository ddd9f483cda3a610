"""An engine on the simulated clock. Pure."""

from __future__ import annotations

from collections.abc import Callable

from headway.serving.engine.core import EngineCore
from headway.serving.engine.types import EngineProfile, Job, Token
from headway.sim.engine.loop import Loop, Timer


class TimedEngine:
    """Runs an engine's steps at their times, those that only decode many at once.

    Attributes:
        core: the engine.
        events: series of steps that it ran (count).

    Args:
        loop: the clock.
        profile: of the engine.
        produced: called for the first and the last token of each request, when the step that makes it ends.
    """

    def __init__(self, loop: Loop, profile: EngineProfile, produced: Callable[[Token], None]) -> None:
        self.core = EngineCore(profile)
        self.events = 0
        self._loop = loop
        self._produced = produced
        self._due_s: float | None = None
        self._timer: Timer | None = None

    def submit(self, job: Job) -> None:
        """A request is there. UsageError where the engine refuses it."""
        self.core.submit(job, self._loop.now_s)
        self._set()

    def slow_down(self, factor: float) -> None:
        """From the next step on, each takes `factor` times as long as the profile says."""
        self.core.slow_down(factor, self._loop.now_s)
        self._set()

    def stop(self) -> None:
        """Nothing more happens."""
        if self._timer is not None:
            self._timer.cancel()

    def _set(self) -> None:
        core = self.core
        if core.due_s is None and core.begin_steps(self._loop.now_s) is None:
            return
        if core.due_s != self._due_s:
            if self._timer is not None:
                self._timer.cancel()
            assert core.due_s is not None
            self._due_s = core.due_s
            self._timer = self._loop.at(core.due_s, self._due)

    def _due(self) -> None:
        self._due_s = self._timer = None
        self.events += 1
        for token in self.core.end_steps(self._loop.now_s):
            self._produced(token)
        self._set()
