"""Runs an engine core on the real clock."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import replace

from headway.errors import UsageError
from headway.serving.engine.core import EngineCore
from headway.serving.engine.types import EngineProfile, Job, Token

MOST_BEHIND_S = 1.0
"""How late a step may end before the schedule is moved: beyond it, catching up would send tokens in bursts that no
engine sends. Ours."""
TIMER_S = 1e-3
"""Resolution of uvloop's timers, seconds. Delays are rounded up to it, so no token comes before its time."""


def sped_up(profile: EngineProfile, speed: float) -> EngineProfile:
    """The same engine with all its times divided by `speed`."""
    if not speed > 0:
        raise UsageError(f"a speed of {speed:g} is not above 0", where="--speed")
    return replace(
        profile,
        step_s=profile.step_s / speed,
        token_s=profile.token_s / speed,
        attention_s=profile.attention_s / speed,
        weights_s=profile.weights_s / speed,
        context_s=profile.context_s / speed,
    )


class Pace:
    """Begins a core's steps, ends them when they are due, and hands out their tokens.

    A step begins when the one before it was due, not when the timer fired, so rounding never adds up. What this costs:
    tokens are up to `TIMER_S` late. Where the machine cannot keep up, steps end later and later; beyond `MOST_BEHIND_S`
    the schedule moves and `lost_s` says by how much in all. Results with `lost_s` above zero are the machine's, not
    the model's.

    Args:
        core: what is run.
        on_tokens: called at the end of each step with its tokens.
        on_failure: called when the core or `on_tokens` raised; nothing runs afterwards, and the error goes to the loop.

    Attributes:
        behind_s: how late the last step ended, seconds.
        lost_s: time by which the schedule was moved, seconds.
        steps: that have ended (count).
    """

    def __init__(
        self, core: EngineCore, on_tokens: Callable[[list[Token]], None], on_failure: Callable[[Exception], None]
    ) -> None:
        self._core = core
        self._on_tokens = on_tokens
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._in_step = False
        self._due_s = 0.0
        self._stalled = False
        self._closed = False
        self.behind_s = 0.0
        self.lost_s = 0.0
        self.steps = 0

    def submit(self, job: Job) -> None:
        """Queue a job; its first step may begin at once."""
        self._core.submit(job, time.monotonic())
        if not self._in_step and self._timer is None and not self._closed:
            # Not now: what else has arrived by then goes into the same step.
            self._timer = self._loop.call_soon(self._begin_from_idle)

    def cancel(self, job_id: str) -> bool:
        """Take a job out; False where it is not in (any more)."""
        return self._core.cancel(job_id, time.monotonic())

    def stall(self, stalled: bool) -> None:
        """Let the step that runs not end until this is taken back. The time of a stall is not caught up."""
        if stalled == self._stalled or self._closed:
            return
        self._stalled = stalled
        if not stalled and self._in_step and self._timer is None:
            self._due_s = max(self._due_s, time.monotonic())
            self._arm()

    def slow_down(self, factor: float) -> None:
        """Let steps take `factor` times as long as the profile says, from the next one on."""
        self._core.slow_down(factor, time.monotonic())

    def close(self) -> None:
        """Stop for good."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin_from_idle(self) -> None:
        self._timer = None
        self._guarded(self._begin, time.monotonic())

    def _begin(self, now_s: float) -> None:
        duration_s = self._core.begin_step(now_s)
        self._in_step = duration_s is not None
        if duration_s is not None:
            self._due_s = now_s + duration_s
            self._arm()

    def _arm(self) -> None:
        wait_s = self._due_s - time.monotonic()
        if wait_s <= 0:
            self._timer = self._loop.call_soon(self._end_if_due)
        else:
            self._timer = self._loop.call_later(math.ceil(wait_s / TIMER_S) * TIMER_S, self._end_if_due)

    def _end_if_due(self) -> None:
        self._timer = None
        now_s = time.monotonic()
        if self._stalled:
            return
        if now_s < self._due_s:  # a timer that counts in whole milliseconds of a clock read earlier
            self._arm()
            return
        self._guarded(self._end, now_s)

    def _end(self, now_s: float) -> None:
        self.behind_s = now_s - self._due_s
        if self.behind_s > MOST_BEHIND_S:
            self.lost_s += self.behind_s
            self._due_s = now_s
        self._in_step = False
        self.steps += 1
        self._on_tokens(self._core.end_step(self._due_s))
        self._begin(self._due_s)

    def _guarded(self, call: Callable[[float], None], now_s: float) -> None:
        try:
            call(now_s)
        except Exception as error:
            self.close()
            self._on_failure(error)
            raise
