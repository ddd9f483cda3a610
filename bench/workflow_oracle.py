"""How far a plan is from the best there is in the simulator: `python -m bench.workflow_oracle --out DIR`.

Every way to share out a few GPUs that leaves no room for another instance is run on the simulated clock, half loaded,
with the same runs: no predictor takes part in that. Then: where the plan comes in that order, and how much longer runs
take than under the best of all.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import scipy.stats
from pydantic import JsonValue

from bench.grid_script import as_script
from bench.workflow_cell import FEWEST_RUNS, MOST_RUNS, SPAN
from bench.workflow_known import DOMAIN_GPUS, Json, Known, number, whole_number
from bench.workflow_methods import METHODS, nodes, run_plan, words
from bench.workflow_study import known_cells, rows_in
from headway.serving.allocation.packing import shares_fit
from headway.serving.allocation.place import place
from headway.serving.allocation.types import Plan, Shape, Share
from headway.serving.simulate.steady import Coming, Length, most_in_flight, steady
from headway.serving.simulate.workflow_summary import summarise
from headway.serving.simulate.workflows import run_workflows
from headway.serving.workflows.programs.named import named
from headway.sim.studies.cells import Cell, Row

WORKLOADS = ("react", "rag")
SLICES = 4
LOADS = (0.5,)
"""In GPUs' worth of work for each GPU (1)."""
LIMIT = 6.0
"""Mean latency, in that of the recorded runs, from which on a plan is out of the question (1)."""
TRACED_RUNS = 300
COMPARED = ("plan", "paper's search", "each alone", "equal", "by hand")


def every_plan(known: Known, gpus: int) -> list[tuple[Share, ...]]:
    """All shares that can be packed and leave no room for another instance of any model."""
    domains = tuple(len(domain) for node in nodes(gpus) for domain in node.domains)
    models = list(known.profiles)

    def options(model: str) -> Iterator[Share]:
        for shape in known.profiles[model].curves:
            for replicas in itertools.count(1):
                share = Share(model, shape, replicas)
                if not shares_fit([share], domains, known.slices):
                    break
                yield share

    def fits(shares: Sequence[Share]) -> bool:
        slices = sum(share.slices() for share in shares)
        return slices <= gpus * known.slices and shares_fit(shares, domains, known.slices)

    def full(shares: tuple[Share, ...]) -> bool:
        more = (
            (*shares[:at], replace(it, replicas=it.replicas + 1), *shares[at + 1 :]) for at, it in enumerate(shares)
        )
        return not any(fits(shares) for shares in more)

    found: list[tuple[Share, ...]] = [()]
    for model in models:
        found = [(*some, it) for some in found for it in options(model) if fits((*some, it))]
    return [shares for shares in found if full(shares)]


def run_one(work: Json) -> Json:
    """`Known.of`'s, `{"gpus", "load", "shares", "seed"}` -> the mean latency, in that of the same runs alone."""
    known, gpus = Known.of(work), whole_number(work["gpus"])
    listed = work["shares"]
    assert isinstance(listed, list)
    shares = []
    for row in listed:
        assert isinstance(row, list)
        model, degree, slices, replicas = row
        shares.append(Share(str(model), Shape(whole_number(degree), whole_number(slices)), whole_number(replicas)))
    demands = known.demands(number(work["load"]) * gpus)
    plan = place(Plan(known.slices, tuple(shares)), nodes(gpus))
    chosen = run_plan(known, demands, plan)
    (said,) = chosen.forecasts
    coming = [
        Coming(it.aggregate.workflow, named(it.aggregate.workflow), it.rate, it.aggregate.latency_s) for it in demands
    ]
    traffic = steady(coming, Length(SPAN, FEWEST_RUNS, MOST_RUNS), limit=LIMIT)
    simulated = run_workflows(
        chosen.serve,
        traffic,
        seed=whole_number(work["seed"]),
        most_in_flight=most_in_flight(coming, limit=LIMIT),
        keep_calls=False,
    )
    found = summarise(simulated, coming[0].workflow)
    return {
        "mean_s": found.mean_s if found.done == found.runs else None,
        "said_s": said.latency_s if said.latency_s < float("inf") else None,
    }


def shares_of(method: str, known: Known, gpus: int, load: float) -> tuple[Share, ...]:
    """What a method gives to whom."""
    plan = METHODS[method](known, known.demands(load * gpus), gpus).plan
    assert plan is not None
    return plan.shares


def named_by(shares: Sequence[Share], known: Known) -> str:
    """The same shares have the same name, in whatever order."""
    return words(sorted(shares, key=lambda it: it.model), known.slices)


def cells_of(facts: Json, gpus: int, load: float, seed: int) -> list[Cell]:
    """A cell for each plan, those of the methods that are compared among them."""
    known = Known.of(facts)
    plans = {named_by(shares, known): shares for shares in every_plan(known, gpus)}
    for method in COMPARED:  # which may leave something unused
        shares = shares_of(method, known, gpus, load)
        plans.setdefault(named_by(shares, known), shares)
    cells = []
    for name, shares in plans.items():
        shown: dict[str, JsonValue] = {
            "workload": known.workload,
            "gpus": gpus,
            "load": load,
            "plan": name,
            "seed": seed,
        }
        listed: list[JsonValue] = [[it.model, it.shape.tensor_parallel, it.shape.slices, it.replicas] for it in shares]
        cells.append(Cell(shown, {**facts, **shown, "shares": listed}))
    return cells


@dataclass(frozen=True)
class Judged:
    """How a method's plan does among all: its mean latency, its place from 1, and its latency over the best (1)."""

    mean_s: float
    place: int
    over_best: float


def judged(rows: Sequence[Row], plan: str) -> Judged | None:
    """None where it does not keep up."""
    means_s = {str(row.parameters["plan"]): number(row.values["mean_s"]) for row in rows if row.values["mean_s"]}
    if plan not in means_s:
        return None
    mean_s = means_s[plan]
    return Judged(mean_s, 1 + sum(it < mean_s for it in means_s.values()), mean_s / min(means_s.values()))


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.workflow_oracle", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the rows")
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    if not 1 <= asked.gpus <= DOMAIN_GPUS:
        parser.error(f"--gpus: 1 to {DOMAIN_GPUS}")
    run = rows_in(asked.out, asked.workers)
    known = known_cells(run, WORKLOADS, slices=SLICES, runs=TRACED_RUNS, seed=asked.seed)
    print("| workload | load | plans, of these keep up | best, s | " + " | ".join(COMPARED) + " | rank correlation |")
    print("| --- | ---: | ---: | ---: |" + " --- |" * len(COMPARED) + " ---: |")
    for workload, facts in known.items():
        for load in LOADS:
            rows = run(f"{workload}-{load:g}", cells_of(facts, asked.gpus, load, asked.seed), run_one)
            print(line(Known.of(facts), rows, asked.gpus, load))


def line(known: Known, rows: Sequence[Row], gpus: int, load: float) -> str:
    """A line of the table: each method's latency over the best, and its place."""
    shown = []
    for method in COMPARED:
        found = judged(rows, named_by(shares_of(method, known, gpus, load), known))
        shown.append("-" if found is None else f"{found.over_best:.3f} ({found.place})")
    whole = [row.values for row in rows if row.values["mean_s"] is not None]
    both = [it for it in whole if it["said_s"] is not None]
    tau = scipy.stats.kendalltau([number(it["said_s"]) for it in both], [number(it["mean_s"]) for it in both]).statistic
    best_s = min(number(it["mean_s"]) for it in whole)
    return (
        f"| {known.workload} | {load:g} | {len(rows)}, {len(whole)} | {best_s:.2f} | "
        + " | ".join(shown)
        + f" | {tau:.2f} |"
    )


if __name__ == "__main__":
    as_script("bench.workflow_oracle", main)
