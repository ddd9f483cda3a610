"""When to stop trying: a cap on failures in a row, then a pause that doubles (REACT caps its rounds). Pure."""

from __future__ import annotations

from collections.abc import Hashable

from headway.decide.tabu import BackOff


class Patience:
    """Counts failed trials of one tuner.

    Args:
        rounds: failures in a row before a pause.
        pause: how long pauses are.
    """

    def __init__(self, rounds: int, pause: BackOff) -> None:
        self._rounds = rounds
        self._pause = pause
        self._failures = 0
        self._until_s = float("-inf")
        self._causes: frozenset[Hashable] = frozenset()

    def failed(self, now_s: float) -> None:
        """One more trial failed; the last one allowed begins the pause."""
        self._failures += 1
        if self._failures >= self._rounds:
            self._failures = 0
            self._until_s = now_s + self._pause.wait_s(now_s)
            self._pause.fail(now_s)

    def succeeded(self) -> None:
        """A trial was worth it: what comes next starts afresh."""
        self._failures = 0
        self._causes = frozenset()

    def allows(self, causes: frozenset[Hashable], now_s: float) -> bool:
        """Whether another trial may begin. A pause is about its causes: a cause not seen before ends it, once each."""
        if causes - self._causes:
            self._failures, self._until_s = 0, float("-inf")
            self._causes |= causes
        return now_s >= self._until_s
