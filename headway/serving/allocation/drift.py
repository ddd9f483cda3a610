"""What was measured against what a plan was made for. Pure.

A figure has drifted when it is off by more than its tolerance: a part of the expected value, or twice the standard
error that so many runs leave (from the spread of the runs' latency), whichever is more. So a handful of runs of an
uneven workflow does not cry wolf.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from headway.serving.allocation.types import Forecast
from headway.serving.workflows.aggregate_types import Aggregate

LEAST_RUNS = 10
"""Runs of a workflow below which nothing is said of it (count)."""
TOLERANCE = {
    "rate": 0.25,
    "calls": 0.2,
    "concurrency": 0.25,
    "latency": 0.25,
    "input tokens": 0.25,
    "output tokens": 0.25,
}
"""Of the expected value (1). Ours."""
SHARE_TOLERANCE = 0.1
"""Of a model's share of a run's time, absolute (1). Ours."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of a workflow, or of a model's part in it.

    Attributes:
        workflow: which.
        model: whose part; empty: of whole runs.
        what: "rate", "latency", "calls", "concurrency", "share", "input tokens", "output tokens".
        expected, measured: in the figure's unit: 1/s, s, counts, 1.
        tolerance: by how much it may be off, in the same unit.
    """

    workflow: str
    model: str
    what: str
    expected: float
    measured: float
    tolerance: float

    @property
    def drifted(self) -> bool:
        """Whether it is off by more than that."""
        return not abs(self.measured - self.expected) <= self.tolerance


def compare(expected: Aggregate, forecast: Forecast, measured: Aggregate, *, rate: float) -> list[Compared]:
    """All figures of one workflow.

    Args:
        expected: what the plan was made for.
        forecast: what it promised at its rate.
        measured: of the runs that have been seen since.
        rate: of those runs, per second.
    """
    workflow = measured.workflow
    chance = 2 * max(measured.latency_cv, expected.latency_cv) / math.sqrt(measured.runs)

    def figure(model: str, what: str, was: float, now: float, spread: float = chance) -> Compared:
        tolerance = was * max(TOLERANCE[what], spread) if was < math.inf else 0.0
        return Compared(workflow, model, what, was, now, tolerance)

    found = [
        figure("", "rate", forecast.rate, rate, 2 / math.sqrt(measured.runs)),  # Poisson
        figure("", "latency", forecast.latency_s, measured.latency_s, max(chance, 2 * (forecast.error or 0.0))),
    ]
    was = {use.model: use for use in expected.uses}
    now = {use.model: use for use in measured.uses}
    for model in sorted({*was, *now}):
        before, after = was.get(model), now.get(model)
        if before is None or after is None:
            found.append(
                Compared(workflow, model, "calls", before.calls if before else 0.0, after.calls if after else 0.0, 0.0)
            )
            continue
        found += [
            figure(model, "calls", before.calls, after.calls),
            figure(model, "concurrency", before.concurrency, after.concurrency),
            figure(model, "input tokens", before.input_tokens, after.input_tokens),
            figure(model, "output tokens", before.output_tokens, after.output_tokens),
            Compared(workflow, model, "share", before.share, after.share, SHARE_TOLERANCE),
        ]
    return found


def rate_of(starts_s: Sequence[float]) -> float:
    """Runs per second, from the first start to the last; 0 where that is no time."""
    span_s = max(starts_s, default=0.0) - min(starts_s, default=0.0)
    return (len(starts_s) - 1) / span_s if span_s > 0 else 0.0
