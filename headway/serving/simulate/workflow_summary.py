"""What runs of workflows came to, and whether the engines kept up. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headway.serving.simulate.workflows import PILING_UP, RunRow, Simulated


@dataclass(frozen=True, slots=True)
class WorkflowSummary:
    """Of the counted runs of one workflow.

    Attributes:
        runs, done: counts; they differ only where all was stopped for too many in flight.
        arrival_rate: of the counted runs, per second.
        completed_rate: runs that ended between the first and the last counted arrival, per second.
        mean_s, p50_s, p99_s: latency, seconds; NaN where none ended. Of those done only.
        piled_up: by how much the runs in flight grew from the first half of the counted arrivals to the second, as a
            share of the arrivals in between (1): near 0 where the engines keep up, above 0 where they do not.
        stable: it is at most `PILING_UP`, and nothing was stopped.
    """

    runs: int
    done: int
    arrival_rate: float
    completed_rate: float
    mean_s: float
    p50_s: float
    p99_s: float
    piled_up: float
    stable: bool


def summarise(simulated: Simulated, workflow: str) -> WorkflowSummary:
    """The counted runs of a workflow in sum."""
    rows = [row for row in simulated.rows if row.workflow == workflow]
    counted = [row for row in rows if row.counted]
    latencies_s = [row.end_s - row.arrived_s for row in counted if row.end_s is not None]
    if not latencies_s or len(counted) < 2:
        nan = float("nan")
        mean_s = latencies_s[0] if latencies_s else nan
        return WorkflowSummary(
            len(counted), len(latencies_s), nan, nan, mean_s, mean_s, mean_s, 0.0, not simulated.overrun
        )
    begin_s, last_s = counted[0].arrived_s, counted[-1].arrived_s
    span_s = last_s - begin_s
    completed = sum(1 for row in rows if row.end_s is not None and begin_s < row.end_s <= last_s)
    piled_up = _piled_up(rows, counted)
    return WorkflowSummary(
        runs=len(counted),
        done=len(latencies_s),
        arrival_rate=(len(counted) - 1) / span_s,
        completed_rate=completed / span_s,
        mean_s=float(np.mean(latencies_s)),
        p50_s=float(np.percentile(latencies_s, 50)),
        p99_s=float(np.percentile(latencies_s, 99)),
        piled_up=piled_up,
        stable=not simulated.overrun and piled_up <= PILING_UP,
    )


def _piled_up(rows: Sequence[RunRow], counted: Sequence[RunRow]) -> float:
    """Mean runs in flight at the arrivals of the second half less that of the first, over half the arrivals."""
    arrivals_s = np.array([row.arrived_s for row in rows])
    ends_s = np.sort([row.end_s for row in rows if row.end_s is not None])
    at_s = np.array([row.arrived_s for row in counted])
    in_flight = np.searchsorted(arrivals_s, at_s) - np.searchsorted(ends_s, at_s)
    half = len(at_s) // 2
    return float((in_flight[half:].mean() - in_flight[:half].mean()) / half)
