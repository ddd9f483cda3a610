"""A circuit breaker: keeps requests from a replica that fails, and tries it again now and then. Pure.

After a number of failures in sequence a replica takes no requests for a back-off that doubles from time to time, then
one on trial. The trial's first token closes the breaker; only an answer that came to its end clears the failures, so
that a replica that fails after the first token is soon out again.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """When a breaker opens, and for how long.

    Attributes:
        failures: failures in sequence at which it opens (count).
        backoff_s: how long it lets no request through then, seconds; doubled by every trial that fails.
        most_backoff_s: and never longer than this, seconds.
    """

    failures: int = 3
    backoff_s: float = 1.0
    most_backoff_s: float = 60.0


class Breaker:
    """That of one replica.

    Attributes:
        failures: in sequence (count).
        until_s: while the breaker is open: when it lets one request on trial through; infinite until `reset`. None
            while it is closed.

    Args:
        rules: when it opens, and for how long.
    """

    __slots__ = ("_openings", "_rules", "_trial", "failures", "until_s")

    def __init__(self, rules: BreakerRules) -> None:
        self.failures = 0
        self.until_s: float | None = None
        self._rules = rules
        self._openings = 0
        self._trial = ""  # the request on trial

    def due(self, now_s: float) -> bool:
        """Whether it is open and its back-off over."""
        return self.until_s is not None and now_s >= self.until_s

    def admits(self, now_s: float) -> bool:
        """Whether a request may go to the replica now."""
        return self.until_s is None or (now_s >= self.until_s and not self._trial)

    def dispatched(self, request_id: str) -> None:
        """A request goes to the replica: on trial where the breaker is open."""
        if self.until_s is not None:
            self._trial = request_id

    def first_token(self, request_id: str) -> bool:
        """A request got its first token: whether that closes the breaker, until the next failure at the least."""
        if self._trial != request_id:
            return False
        self.until_s, self._trial = None, ""
        self.failures = self._rules.failures - 1
        return True

    def ended(self, request_id: str) -> bool:
        """A request has ended, well or not: whether it was still on trial. Now another one may be."""
        on_trial = self._trial == request_id
        if on_trial:
            self._trial = ""
        return on_trial

    def succeeded(self, *, on_trial: bool) -> bool:
        """An answer came to its end: whether that closes the breaker. An open one only heeds the trial's."""
        was_open = self.until_s is not None
        if was_open and not on_trial:
            return False
        self.reset()
        return was_open

    def failed(self, now_s: float, *, on_trial: bool) -> float | None:
        """A request failed: the back-off where that opens the breaker, seconds. An open one only heeds the trial's."""
        if self.until_s is not None and not on_trial:
            return None
        self.failures += 1
        if not on_trial and self.failures < self._rules.failures:
            return None
        wait_s = min(self._rules.backoff_s * 2.0**self._openings, self._rules.most_backoff_s)
        self._openings += 1
        self.hold(now_s + wait_s)
        return wait_s

    def hold(self, until_s: float) -> None:
        """Let none through until then; whoever is on trial is so no longer."""
        self.until_s, self._trial = until_s, ""

    def reset(self) -> bool:
        """Close it and forget the failures: whether it was open."""
        was_open = self.until_s is not None
        self.until_s, self._trial = None, ""
        self.failures = self._openings = 0
        return was_open
