"""Recorded runs that come again, beside the program that they were recorded of: `python -m bench.workflow_replay`.

Runs are recorded where they hardly meet, on a GPU for each model, and come again on an equal split of four GPUs at
loads at which they meet: as their program, which knows which call waits for which, and as `plan simulate` sees them,
which reads it off the recorded times. Latencies are over those of the same runs alone.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from bench.workflow_cell import FEWEST_RUNS, MOST_RUNS, SPAN
from bench.workflow_known import DEVICE, POLICY, WORKLOADS, lonely, models_of
from headway.serving.allocation.baselines.static import equal_split
from headway.serving.simulate.instances import instances, placed
from headway.serving.simulate.steady import Coming, Length, most_in_flight, steady
from headway.serving.simulate.workflow_summary import summarise
from headway.serving.simulate.workflows import run_workflows
from headway.serving.workflows.programs.form import Workflow
from headway.serving.workflows.programs.named import named
from headway.serving.workflows.programs.recorded import Recorded
from headway.serving.workflows.record import runs_of

GPUS = 4
RECORDED = 1100
"""At least as many as any rate here has: a run of the program that was not recorded is not known alone (count)."""
RATES = {"beam-search": (0.4, 0.9), "rag": (6.0, 11.0), "debate": (1.3, 2.3), "react": (2.3, 4.5)}
"""Runs per second: where runs begin to wait for each other, and where they do so for most of the time."""
LIMIT = 8.0
"""In latencies of runs alone: no rate here comes near it (1)."""


@dataclass(frozen=True)
class Slowdown:
    """Latency over that of the same runs alone: mean, and 99th percentile (1)."""

    mean: float
    p99: float


def slowdown(name: str, program: Workflow, alone_s: list[float], rate: float, seed: int) -> Slowdown:
    """Of a program on the equal split; `alone_s` by the number of its runs."""
    mean_s = sum(alone_s) / len(alone_s)
    coming = [Coming(name, program, rate, mean_s)]
    (traffic,) = steady(coming, Length(SPAN, FEWEST_RUNS, MOST_RUNS), limit=LIMIT)
    plan = equal_split(models_of(name), gpus=GPUS, slices_per_gpu=1)
    simulated = run_workflows(
        instances(placed(plan.instances, devices={"node0": DEVICE}, slices_per_gpu=1), policy=POLICY),
        [traffic],
        seed=seed,
        most_in_flight=most_in_flight(coming, limit=LIMIT),
        keep_calls=False,
    )
    counted = range(traffic.warm_up, traffic.warm_up + traffic.runs)
    counted_s = sum(alone_s[number] for number in counted) / len(counted)
    found = summarise(simulated, name)
    return Slowdown(found.mean_s / counted_s, found.p99_s / counted_s)


def main() -> None:
    """Record, run again both ways, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.workflow_replay", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    seed = parser.parse_args().seed
    print("| workflow | runs/s | program: mean, p99 | recorded: mean, p99 | recorded / program: mean, p99 |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, rates in RATES.items():
        recorded = lonely(name, WORKLOADS[name], RECORDED, seed)
        runs = runs_of(recorded.counted_calls())
        alone_s = [row.latency_s or 0.0 for row in recorded.rows[:RECORDED]]
        again = Recorded(runs)  # first of all in the order in which they were recorded
        for rate in rates:
            first = slowdown(name, named(name), alone_s, rate, seed)
            second = slowdown(name, again, alone_s, rate, seed)
            print(
                f"| {name} | {rate:g} | {first.mean:.2f}, {first.p99:.2f} | {second.mean:.2f}, {second.p99:.2f} | "
                f"{second.mean / first.mean:.3f}, {second.p99 / first.p99:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
