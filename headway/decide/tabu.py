"""Waiting times that grow with each failure, and a list of options that failed. Pure.

Two tuners that share links must not move in step, so every waiting time is stretched by a factor that depends on the
tuner's name alone: the same run gives the same times, and two groups get different ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass, field


def stretch(name: str, step: int) -> float:
    """A factor between 0.75 and 1.5 drawn from `name` and `step`, always the same one."""
    digest = hashlib.sha256(f"{name}/{step}".encode()).digest()
    return 0.75 + 0.75 * int.from_bytes(digest[:4], "big") / 2**32


@dataclass
class BackOff:
    """A waiting time that doubles with each failure and halves with each stretch of calm.

    Attributes:
        name: whose; decides the stretch.
        base_s: first waiting time, seconds.
        most_s: longest waiting time before the stretch, seconds.
        calm_s: a time without failure after which one failure is forgiven, seconds.
    """

    name: str
    base_s: float
    most_s: float
    calm_s: float
    _level: int = field(default=0, init=False)
    _steps: int = field(default=0, init=False)
    _changed_s: float = field(default=0.0, init=False)

    def fail(self, now_s: float) -> None:
        """One more failure."""
        self._forgive(now_s)
        self._level += 1
        self._steps += 1
        self._changed_s = now_s

    def wait_s(self, now_s: float) -> float:
        """How long to wait from now on."""
        self._forgive(now_s)
        doubled = self.base_s * 2.0 ** min(self._level, 60)
        return min(self.most_s, doubled) * stretch(self.name, self._steps)

    def _forgive(self, now_s: float) -> None:
        while self._level > 0 and now_s - self._changed_s >= self.calm_s:
            self._level -= 1
            self._changed_s += self.calm_s
        if self._level == 0:
            self._changed_s = max(self._changed_s, now_s)


class Tabu:
    """Options that failed, each barred for a time that doubles with every failure of it."""

    def __init__(self, name: str, *, base_s: float, most_s: float, calm_s: float) -> None:
        self._name, self._base_s, self._most_s, self._calm_s = name, base_s, most_s, calm_s
        self._back_offs: dict[Hashable, BackOff] = {}
        self._until_s: dict[Hashable, float] = {}

    def bar(self, option: Hashable, now_s: float) -> float:
        """Bar `option`; returns until when."""
        back_off = self._back_offs.setdefault(option, BackOff(self._name, self._base_s, self._most_s, self._calm_s))
        until_s = now_s + back_off.wait_s(now_s)
        back_off.fail(now_s)
        self._until_s[option] = until_s
        return until_s

    def barred(self, option: Hashable, now_s: float) -> bool:
        """Whether `option` may not be tried now."""
        return now_s < self._until_s.get(option, float("-inf"))

    def prune(self, now_s: float) -> None:
        """Forget options whose bar ended so long ago that their failures are forgiven."""
        for option, until_s in list(self._until_s.items()):
            if now_s - until_s > self._most_s + self._calm_s:
                del self._until_s[option], self._back_offs[option]
