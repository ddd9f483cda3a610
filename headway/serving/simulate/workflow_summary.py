"""What runs of workflows came to, and whether the engines kept up. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headway.serving.simulate.workflows import RunRow, Simulated

PILING_UP = 0.02
"""Share of the arrivals by which runs in flight may grow in a system that keeps up, however much is counted (1). Below
it `noise` is not to be believed: near its limit a system that keeps up wanders more than M/G/infinity does."""
SURE = 4.0
"""Standard deviations that are no chance any more (count). With three, one in a hundred short runs at 0.6 of what the
engines take was said to pile up."""
PIECES = 10
"""Of the counted time, for the waves of runs in flight (count): few, so that each is longer than a wave."""


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
        noise: by how much chance alone may make `piled_up` differ from 0, `SURE` standard deviations (1). These are the
            larger of two. Runs in flight as in M/G/infinity: N in the mean and in variance, correlated over
            (1 + cv^2) / 2 latencies of variation cv; with n latencies in half the time the difference of two halves
            has the variance 2 N (1 + cv^2) / n. And as they are: what the means of `PIECES` pieces of the time are off
            a straight line, since queues make longer waves. Large where little more time than a latency was counted.
        stable: `piled_up` is at most `PILING_UP`, or `noise` where that is more, and nothing was stopped. A growth that
            hides in the noise is seen where more runs are counted (`unclear`): noise falls with their number to the
            power 1.5.
    """

    runs: int
    done: int
    arrival_rate: float
    completed_rate: float
    mean_s: float
    p50_s: float
    p99_s: float
    piled_up: float
    noise: float
    stable: bool

    @property
    def unclear(self) -> bool:
        """Counts as stable, since chance alone may be what piled up; where more runs are counted it is known."""
        return self.stable and self.piled_up > PILING_UP


def summarise(simulated: Simulated, workflow: str) -> WorkflowSummary:
    """The counted runs of a workflow in sum."""
    rows = [row for row in simulated.rows if row.workflow == workflow]
    counted = [row for row in rows if row.counted]
    latencies_s = [row.end_s - row.arrived_s for row in counted if row.end_s is not None]
    if not latencies_s or len(counted) < 2:
        nan = float("nan")
        mean_s = latencies_s[0] if latencies_s else nan
        return WorkflowSummary(
            len(counted), len(latencies_s), nan, nan, mean_s, mean_s, mean_s, 0.0, nan, not simulated.overrun
        )
    begin_s, last_s = counted[0].arrived_s, counted[-1].arrived_s
    span_s = last_s - begin_s
    completed = sum(1 for row in rows if row.end_s is not None and begin_s < row.end_s <= last_s)
    mean_s = float(np.mean(latencies_s))
    in_flight = _in_flight(rows, counted)
    half = len(counted) // 2
    piled_up = float((in_flight[half:].mean() - in_flight[:half].mean()) / half)
    times = max(1.0, span_s / 2 / mean_s)
    spread = 1 + (float(np.std(latencies_s)) / mean_s) ** 2
    free = float(np.sqrt(2 * in_flight.mean() * spread / times))
    noise = SURE * max(free, _waves(in_flight)) / half
    return WorkflowSummary(
        runs=len(counted),
        done=len(latencies_s),
        arrival_rate=(len(counted) - 1) / span_s,
        completed_rate=completed / span_s,
        mean_s=mean_s,
        p50_s=float(np.percentile(latencies_s, 50)),
        p99_s=float(np.percentile(latencies_s, 99)),
        piled_up=piled_up,
        noise=noise,
        stable=not simulated.overrun and piled_up <= max(PILING_UP, noise),
    )


def _in_flight(rows: Sequence[RunRow], counted: Sequence[RunRow]) -> npt.NDArray[np.int64]:
    """Runs in flight at each counted arrival, that one not included."""
    arrivals_s = np.array([row.arrived_s for row in rows])
    ends_s = np.sort([row.end_s for row in rows if row.end_s is not None])
    at_s = np.array([row.arrived_s for row in counted])
    return np.searchsorted(arrivals_s, at_s) - np.searchsorted(ends_s, at_s)


def _waves(in_flight: npt.NDArray[np.int64]) -> float:
    """Standard deviation of the difference of the halves' means, from what pieces are off a straight line (runs)."""
    if len(in_flight) < PIECES:
        return 0.0
    means = np.array([piece.mean() for piece in np.array_split(in_flight, PIECES)])
    at = np.arange(PIECES) - (PIECES - 1) / 2
    off = means - means.mean() - at * (at @ means) / (at @ at)
    return float(np.sqrt(off @ off / (PIECES - 2) * 4 / PIECES))
