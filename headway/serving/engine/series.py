"""Steps of an engine that have begun: one, or several alike. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headway.serving.engine.sequence import Sequence


@dataclass(slots=True)
class Series:
    """Steps that have begun: one, or several that only decode. Lengths grow evenly from step to step."""

    begin_s: float
    steps: int
    first_s: float
    more_s: float
    chunks: list[tuple[Sequence, int, int]]
    """Sequence, its `moves`, and how many tokens of it are computed."""

    def elapsed_s(self, steps: int) -> float:
        """How long so many steps take in all, seconds."""
        return steps * self.first_s + self.more_s * (steps * (steps - 1) / 2)

    def begun(self, now_s: float) -> int:
        """The number of the step that runs at `now_s`, from 1; at the end of a step: that one."""
        low, high = 1, self.steps
        while low < high:
            middle = (low + high) // 2
            if self.begin_s + self.elapsed_s(middle) >= now_s:
                high = middle
            else:
                low = middle + 1
        return low


def even_steps(
    most: int, *, compute_s: float, compute_more_s: float, memory_s: float, memory_more_s: float
) -> tuple[int, float]:
    """How many steps that only decode may be one series, and by how much each is longer than the one before it.

    Compute and memory time grow evenly with the context, so the greater of the two does until they cross.

    Args:
        most: no more steps than these, 1 at least.
        compute_s, memory_s: of the first step, seconds.
        compute_more_s, memory_more_s: what each step has more than the one before it, seconds.
    """
    ahead_s = memory_s - compute_s
    gains_s = compute_more_s - memory_more_s
    if ahead_s < 0:
        ahead_s, gains_s, more_s = -ahead_s, -gains_s, compute_more_s
    else:
        more_s = memory_more_s
    if gains_s > 0 and ahead_s < most * gains_s:
        most = max(min(most, math.floor(ahead_s / gains_s) + 1), 1)
    return most, more_s
