"""How stable models' shares of workflows' time are: `python -m bench.workflow_shares [--runs 400] [--seed 1]`.

Scepsy rests on it that a run's latency swings, while each model's share of it hardly does. Here: every named workflow
on simulated A100s, one for each model, first come first served, at shares of the highest rate that they sustain. For
each model the spread over runs (standard deviation over mean) of its share, beside that of its busy time and of the
run's latency. A small share is relative to little, so that its deviation is given in points too.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from headway.bench.markdown import table
from headway.serving.allocation.types import Shape, Share
from headway.serving.simulate.instances import instances, unplaced
from headway.serving.simulate.peak import highest_rate
from headway.serving.simulate.workflow_summary import summarise
from headway.serving.simulate.workflows import Simulated, Traffic, run_workflows
from headway.serving.workflows.aggregate import figures, variation
from headway.serving.workflows.programs.named import NAMED
from headway.serving.workflows.record import runs_of

DEVICE = "a100"
MODELS = (
    *("llama-3.2-1b", "llama-3.2-3b", "llama-3-8b", "deepseek-7b"),
    *("qwen2.5-1.5b", "qwen2.5-7b", "qwen2.5-14b", "qwen2.5-32b"),
)
LOADS = (0.1, 0.5, 0.8)
"""Of the highest rate that is sustained (1)."""
WARM_UP = 50
SEARCH_RUNS = 200
START_RATE = 0.2
"""Where the search for the highest rate begins, runs per second."""


@dataclass(frozen=True, slots=True)
class Spread:
    """One model of a workflow at a load.

    Attributes:
        model: which.
        share: mean (1).
        share_deviation: standard deviation over runs (1).
        busy_cv: of its busy time, standard deviation over mean (1).
    """

    model: str
    share: float
    share_deviation: float
    busy_cv: float

    @property
    def share_cv(self) -> float:
        """Standard deviation over mean (1)."""
        return self.share_deviation / self.share


@dataclass(frozen=True, slots=True)
class Spreads:
    """A workflow at a load.

    Attributes:
        latencies_s: of its runs.
        models: largest share first.
    """

    latencies_s: Sequence[float]
    models: Sequence[Spread]


def simulate(workflow: str, rate: float, *, runs: int, warm_up: int, seed: int, keep_calls: bool) -> Simulated:
    """Runs of a workflow, each model on a GPU of its own."""
    shares = [Share(model, Shape(1, 1), 1) for model in MODELS]
    serve = instances(unplaced(shares, device=DEVICE, slices_per_gpu=1))
    traffic = Traffic(workflow, NAMED[workflow], rate, warm_up, runs)
    return run_workflows(serve, [traffic], seed=seed, most_in_flight=runs, keep_calls=keep_calls)


def sustained_rate(workflow: str, *, seed: int) -> float:
    """The highest rate at which runs do not pile up, per second."""

    def holds(rate: float) -> bool:
        found = simulate(workflow, rate, runs=SEARCH_RUNS, warm_up=WARM_UP, seed=seed, keep_calls=False)
        return summarise(found, workflow).stable

    return highest_rate(holds, start=START_RATE, within=0.1)


def spreads(simulated: Simulated) -> Spreads:
    """The spreads over the counted runs."""
    counted = {row.id for row in simulated.rows if row.counted}
    found = [figures(run) for run in runs_of(simulated.calls) if run.id in counted]
    result = []
    for model in sorted({model for run in found for model in run.uses}):
        shares = [run.share(model) for run in found]
        busy_s = [run.uses[model].busy_s if model in run.uses else 0.0 for run in found]
        result.append(Spread(model, fmean(shares), pstdev(shares), variation(busy_s)))
    return Spreads([run.latency_s for run in found], sorted(result, key=lambda each: -each.share))


def lines(workflow: str, load: float, found: Spreads) -> list[list[str]]:
    """The table's rows for a workflow at a load."""
    latency_cv = variation(found.latencies_s)
    rows = []
    for number, each in enumerate(found.models):
        first = [workflow, f"{load:.0%}", f"{min(found.latencies_s):.1f}-{max(found.latencies_s):.0f}"]
        rows.append(
            [
                *(first if number == 0 else ["", "", ""]),
                f"{latency_cv:.0%}" if number == 0 else "",
                each.model,
                f"{each.share:.1%}",
                f"{100 * each.share_deviation:.1f}",
                f"{each.share_cv:.0%}",
                f"{each.busy_cv:.0%}",
                f"{each.busy_cv / each.share_cv:.1f}" if each.share_cv else "",
                f"{latency_cv / each.share_cv:.1f}" if each.share_cv else "",
            ]
        )
    return rows


HEADS = (
    *("workflow", "load", "latency, s", "cv of latency", "model", "share", "± points"),
    *("cv of share", "cv of busy time", "busy / share", "latency / share"),
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Spread of models' shares against spread of latency.")
    parser.add_argument("--runs", type=int, default=400, help="Counted runs for each line.")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    rows = []
    for workflow in NAMED:
        most = sustained_rate(workflow, seed=asked.seed)
        for load in LOADS:
            found = simulate(workflow, most * load, runs=asked.runs, warm_up=WARM_UP, seed=asked.seed, keep_calls=True)
            rows += lines(f"{workflow} ({most:.3g}/s)", load, spreads(found))
    print(table(HEADS, rows))


if __name__ == "__main__":
    main()
