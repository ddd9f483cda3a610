"""What a workflow is on average: the stages of its Aggregate LLM Pipeline. Pure."""

from __future__ import annotations

from dataclasses import dataclass

CLOCK_S = 1e-6
"""Seconds since the epoch are no more exact than this as floats: less time is none."""


@dataclass(frozen=True, slots=True)
class ModelUse:
    """One model's part in a workflow (Scepsy, ALP stage).

    Attributes:
        model: which.
        calls: calls per run, mean (n_m).
        concurrency: calls in flight within a run, averaged over the time in which at least one is: the sum of the
            calls' durations over the length of their union (p_m), each summed over all runs. Not the fan-out: a barrier
            waits for the slowest.
        busy_s: length of that union, mean over runs, seconds.
        share: of the run's time with any call in flight, the part that this model's busy time is of the sum of all
            models' busy times; mean over runs (1).
        share_cv: its standard deviation over its mean (1).
        input_tokens, output_tokens: per call, mean.
    """

    model: str
    calls: float
    concurrency: float
    busy_s: float
    share: float
    share_cv: float
    input_tokens: float
    output_tokens: float


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A kind of workflow on average.

    Attributes:
        workflow: which kind.
        runs: how many were recorded.
        uses: one per model, largest share first.
        other_s: time of a run in which no call was in flight (tools, the application itself), mean, seconds.
        latency_s, latency_cv: of whole runs: mean in seconds, and standard deviation over mean (1).
    """

    workflow: str
    runs: int
    uses: tuple[ModelUse, ...]
    other_s: float
    latency_s: float
    latency_cv: float

    @property
    def overlap_s(self) -> float:
        """By how much the sum of `busy_s` is too long because several models are busy at once, mean, seconds."""
        twice_s = sum(use.busy_s for use in self.uses) - (self.latency_s - self.other_s)
        return twice_s if twice_s > CLOCK_S else 0.0
