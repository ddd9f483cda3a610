"""How hard a flow pushes, as a function of how far its iteration is. Pure.

F(ratio) = slope * ratio + intercept, ratio = bytes sent in this iteration / bytes per iteration (MLTCP, arXiv
2402.09589, section 3). A link shared by flows is split in proportion to their F, so the job that began earlier gets
more, ends earlier and begins its next iteration earlier still, until the jobs no longer meet. F must increase: a
decreasing one pulls jobs together.

Two jobs of period T that each send for a part a of it, the second D seconds after the first, D < a*T, are
D + slope*D*(a*T - D) / (intercept*a*T + slope*D) apart one iteration later (the paper's shift; see `shift_s`).
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.errors import UsageError

LARGEST = 16.0


@dataclass(frozen=True, slots=True)
class Aggressiveness:
    """F and the dial that limits it.

    The defaults are the paper's for Reno: F runs from 0.25 to 2.

    Attributes:
        slope: of F, above 0.
        intercept: F at the beginning of an iteration, above 0.
        most: the job's dial: F is never above it. 1 keeps the job at what plain TCP takes.
    """

    slope: float = 1.75
    intercept: float = 0.25
    most: float = LARGEST

    def __post_init__(self) -> None:
        if not self.slope > 0:
            hint = "a falling F pulls jobs together instead of apart"
            raise UsageError(f"slope {self.slope} must be above 0", where="interleave: slope", hint=hint)
        if not self.intercept > 0:
            hint = "with 0 a flow would never begin"
            raise UsageError(f"intercept {self.intercept} must be above 0", where="interleave: intercept", hint=hint)
        if not self.intercept < self.most <= LARGEST:
            hint = f"above the intercept, at most {LARGEST:g}"
            raise UsageError(f"most {self.most} does not fit", where="interleave: most", hint=hint)

    def weight(self, ratio: float | None) -> float:
        """F; 1 (plain TCP) while `ratio` is unknown. A ratio above 1 counts as 1."""
        if ratio is None:
            return 1.0
        return min(self.most, self.slope * min(1.0, max(0.0, ratio)) + self.intercept)


def shift_s(aggressiveness: Aggressiveness, offset_s: float, *, period_s: float, share: float) -> float:
    """How much farther apart two equal jobs are one iteration later, seconds (the paper's Shift; see the module).

    Args:
        offset_s: how much later the second begins to send, 0 to share * period_s.
        period_s: one iteration alone.
        share: part of it in which the job sends.
    """
    busy_s = share * period_s
    slope, intercept = aggressiveness.slope, aggressiveness.intercept
    return slope * offset_s * (busy_s - offset_s) / (intercept * busy_s + slope * offset_s)
