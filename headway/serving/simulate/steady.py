"""How many runs to simulate so that their mean latency is that of a steady state. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from headway.serving.simulate.workflows import Traffic
from headway.serving.workflows.programs.form import Workflow

WARM_UP, COOL_DOWN = 5.0, 2.0
"""Runs come for so many latencies of a lonely run before those that are counted, and after (1); with several workflows
that of the longest."""
HOPELESS = 1.5
"""Runs in flight, over what Little's law says of the rate and the latency limit, from which on a run is stopped (1)."""


@dataclass(frozen=True, slots=True)
class Coming:
    """A workflow to be simulated.

    Attributes:
        workflow: its name.
        program: makes a run.
        rate: runs per second.
        lonely_s: mean latency of a run that meets no other, or a guess of it, seconds.
    """

    workflow: str
    program: Workflow
    rate: float
    lonely_s: float


@dataclass(frozen=True, slots=True)
class Length:
    """For how long runs are counted: `span` latencies of a lonely run (1), but `fewest` runs of each workflow at least,
    and `most` of each at most, which wins (counts)."""

    span: float
    fewest: int
    most: int


def steady(coming: Sequence[Coming], length: Length, *, limit: float) -> list[Traffic]:
    """What `run_workflows` is to be given.

    Args:
        coming: the workflows; they are counted for the same time.
        length: that time.
        limit: mean latency, in lonely ones, above which nobody wants to know how much more it is (1).
    """
    lonely_s = max(it.lonely_s for it in coming)
    rates = [it.rate for it in coming]
    counted_s = min(max(length.span * lonely_s, length.fewest / min(rates)), length.most / max(rates))
    return [
        Traffic(
            it.workflow,
            it.program,
            it.rate,
            warm_up=math.ceil(WARM_UP * lonely_s * it.rate),
            runs=math.ceil(counted_s * it.rate),
            cool_down=math.ceil(COOL_DOWN * lonely_s * it.rate),
            most_mean_s=limit * it.lonely_s,
        )
        for it in coming
    ]


def most_in_flight(coming: Sequence[Coming], *, limit: float) -> int:
    """Runs from which on the limit cannot be kept any more, whatever comes (count)."""
    return math.ceil(100 + HOPELESS * limit * sum(it.rate * it.lonely_s for it in coming))
