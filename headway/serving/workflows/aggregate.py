"""From recorded runs to the stages of an Aggregate LLM Pipeline (Scepsy, arXiv 2604.15186). Pure.

Of run r and model m: N_rm calls, whose durations sum to D_rm, and whose intervals have a union of length U_rm (the time
in which the run has at least one call to m in flight). Of R runs:

    n_m = sum_r N_rm / R                 calls per run
    p_m = sum_r D_rm / sum_r U_rm        calls in flight, averaged over the time in which there is one
    L_m = sum_r D_rm / sum_r N_rm        mean latency of a call

The pipeline's stage time is then exactly the mean busy time:

    L_m * n_m / p_m = (sum D / sum N) * (sum N / R) * (sum U / sum D) = sum_r U_rm / R

This holds for p_m as the ratio of sums, and for no other mean of the runs' own D_rm / U_rm: those weigh each run alike,
and so a long run too little. (As time averages p_m is the runs' mean weighted by U_rm.) A model's shares are a mean of
ratios: they say how alike the runs are, whatever their length; so they sum to 1, and `busy_s` need not go with them.

The pipeline takes models to be busy one after another. Where two are at the same time its sum is too large, by
`overlap_s`; what it leaves out (tools, the application) is `other_s`; so that, exactly,

    latency_s = sum_m busy_s - overlap_s + other_s

Standard deviations are those of the runs themselves (divisor R).

Cost: O(C log C) for C calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from headway.serving.workflows.aggregate_types import CLOCK_S, Aggregate, ModelUse
from headway.serving.workflows.calls import Run


@dataclass(frozen=True, slots=True)
class RunUse:
    """One model in one run.

    Attributes:
        calls: how many (N_rm).
        call_s: sum of their durations (D_rm), seconds.
        busy_s: length of their intervals' union (U_rm), seconds.
        input_tokens, output_tokens: sums.
    """

    calls: int
    call_s: float
    busy_s: float
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class RunFigures:
    """One run: each model's part, its latency, and the time in which any call was in flight, seconds."""

    uses: dict[str, RunUse]
    latency_s: float
    busy_s: float

    def share(self, model: str) -> float:
        """The model's busy time over the sum of all models' busy times (1); 0 where it was not called."""
        use = self.uses.get(model)
        return use.busy_s / sum(each.busy_s for each in self.uses.values()) if use is not None else 0.0


def union_s(intervals: Iterable[tuple[float, float]]) -> float:
    """Length of the union of intervals (start, end), seconds."""
    length_s = 0.0
    until_s = float("-inf")
    for start_s, end_s in sorted(intervals):
        if end_s > until_s:
            length_s += end_s - max(start_s, until_s)
            until_s = end_s
    return length_s


def figures(run: Run) -> RunFigures:
    """One run's figures."""
    groups = defaultdict(list)
    for call in run.calls:
        groups[call.model].append(call)
    uses = {
        model: RunUse(
            calls=len(calls),
            call_s=sum(call.end_s - call.start_s for call in calls),
            busy_s=union_s((call.start_s, call.end_s) for call in calls),
            input_tokens=sum(call.input_tokens for call in calls),
            output_tokens=sum(call.output_tokens for call in calls),
        )
        for model, calls in groups.items()
    }
    return RunFigures(uses, run.end_s - run.start_s, union_s((call.start_s, call.end_s) for call in run.calls))


def aggregate(runs: Sequence[Run]) -> Aggregate:
    """What runs of one kind of workflow are on average; each call must take some time.

    Raises:
        ValueError: there are no runs, or they are of several kinds.
    """
    kinds = {run.workflow for run in runs}
    if len(kinds) != 1:
        raise ValueError(f"an aggregate is of one kind of workflow, not of {len(kinds)}: {', '.join(sorted(kinds))}")
    all_figures = [figures(run) for run in runs]
    models = sorted({model for each in all_figures for model in each.uses})
    uses = sorted((_use(model, all_figures) for model in models), key=lambda use: (-use.share, use.model))
    latencies_s = [each.latency_s for each in all_figures]
    other_s = fmean(latencies_s) - fmean(each.busy_s for each in all_figures)
    return Aggregate(
        workflow=kinds.pop(),
        runs=len(runs),
        uses=tuple(uses),
        other_s=other_s if other_s > CLOCK_S else 0.0,
        latency_s=fmean(latencies_s),
        latency_cv=variation(latencies_s),
    )


def variation(values: Sequence[float]) -> float:
    """Standard deviation over mean (1); 0 where the mean is."""
    mean = fmean(values)
    return pstdev(values, mean) / mean if mean else 0.0


def _use(model: str, runs: Sequence[RunFigures]) -> ModelUse:
    mine = [use for run in runs if (use := run.uses.get(model)) is not None]
    calls = sum(use.calls for use in mine)
    busy_s = sum(use.busy_s for use in mine)
    shares = [run.share(model) for run in runs]
    return ModelUse(
        model=model,
        calls=calls / len(runs),
        concurrency=sum(use.call_s for use in mine) / busy_s,
        busy_s=busy_s / len(runs),
        share=fmean(shares),
        share_cv=variation(shares),
        input_tokens=sum(use.input_tokens for use in mine) / calls,
        output_tokens=sum(use.output_tokens for use in mine) / calls,
    )
