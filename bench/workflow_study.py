"""The workflow study, simulated: `python -m bench.workflow_study --out DIR [--quick]`.

Beam search, RAG, debate, ReAct, and two at once, on 4, 8 and 16 A100s: the most runs per second within a limit of the
mean latency, and latencies below that, for a plan, the paper's own search, each model scaled alone, an equal split, a
user's split, that with calls in the order of their runs, and a pool of GPUs that change between models. Then how far
the predictor was off in all these runs, and how stable models' shares of the time are. A run goes on where an earlier
one with the same code stopped.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue
from rich.console import Console

from bench.grid_script import as_script
from bench.workflow_cell import SPAN, find_peak
from bench.workflow_known import WORKLOADS, models_of, prepare, profile_model
from bench.workflow_methods import METHODS
from bench.workflow_picture import picture
from bench.workflow_tables import (
    BASE,
    error_table,
    latency_table,
    peak_table,
    share_table,
    slower_table,
    throughput_table,
)
from headway.bench.pool import run_cells
from headway.bench.progress import Shown
from headway.errors import HeadwayError
from headway.sim.studies.cells import Cell, Row

GPUS = (4, 8, 16)
LIMITS = "3"
"""Of the mean latency, in that of the same runs alone, on one GPU for each model (1)."""
SLICES = 10
"""Parts of a GPU, as in the paper's example."""
TRACED_RUNS = 300
QUICK_METHODS = ("plan", "each alone", "equal", "by hand", "pool")
QUICK_WORKLOADS = ("beam-search", "rag", "react", "beam-search + rag")
QUICK_SLICES, QUICK_SPAN, QUICK_TRACED_RUNS = 4, 5.0, 150
DRAWN = ("beam-search", "rag", "beam-search + rag")

Json = Mapping[str, JsonValue]
Function = Callable[[Json], Json]
Run = Callable[[str, list[Cell], Function], list[Row]]


def rows_in(folder: Path, workers: int) -> Run:
    """Runs cells and keeps their rows in parts of `folder`. HeadwayError where any failed."""
    console = Console(stderr=True)

    def run(part: str, cells: list[Cell], function: Function) -> list[Row]:
        rows = run_cells(cells, function, workers=workers, out=folder / part, progress=Shown(console))
        failed = [row for row in rows if row.error]
        if failed:
            raise HeadwayError(
                f"{len(failed)} cells failed, the first: {dict(failed[0].parameters)}: {failed[0].error}"
            )
        return rows

    return run


def known_cells(run: Run, workloads: Sequence[str], *, slices: int, runs: int, seed: int) -> dict[str, Json]:
    """Traces and profiles every workload: what `Known.of` reads, by workload."""
    traced = run(
        "traces",
        [Cell({"workload": it, "seed": seed}, {"workload": it, "runs": runs, "seed": seed}) for it in workloads],
        prepare,
    )
    cells = []
    for workload in workloads:
        for model in models_of(workload):
            shown: dict[str, JsonValue] = {"workload": workload, "model": model, "slices": slices, "seed": seed}
            cells.append(Cell(shown, {**shown, "runs": runs}))
    profiles: dict[str, dict[str, JsonValue]] = {workload: {} for workload in workloads}
    for row in run("profiles", cells, profile_model):
        profiles[str(row.parameters["workload"])][str(row.parameters["model"])] = dict(row.values)
    return {
        str(row.parameters["workload"]): {
            "workload": row.parameters["workload"],
            "slices": slices,
            "aggregates": row.values["aggregates"],
            "alone_s": row.values["alone_s"],
            "profiles": profiles[str(row.parameters["workload"])],
        }
        for row in traced
    }


def peak_cells(
    known: Mapping[str, Json],
    gpus: Sequence[int],
    methods: Sequence[str],
    limits: Sequence[float],
    *,
    span: float,
    seed: int,
) -> list[Cell]:
    """The grid; the slow ones first, so that all cores end together."""
    cells = []
    for count in sorted(gpus, reverse=True):
        for workload, facts in known.items():
            for method in methods:
                shown: dict[str, JsonValue] = {"workload": workload, "gpus": count, "method": method, "seed": seed}
                cells.append(Cell(shown, {**facts, **shown, "limits": list(limits), "span": span}))
    return cells


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.workflow_study", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the rows")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gpus", help="numbers of GPUs, separated by commas")
    parser.add_argument("--workloads", help="names, separated by commas")
    parser.add_argument("--methods", help="names, separated by commas; plan, each alone, equal and by hand always are")
    parser.add_argument("--limits", default=LIMITS, help="of the mean latency, in lonely ones, separated by commas")
    parser.add_argument("--quick", action="store_true", help="fewer cells, shorter runs, coarser parts of a GPU")
    parser.add_argument("--plot", type=Path, help="draw some of it, as SVG")
    parser.add_argument("--latencies", action="store_true", help="print every rate that was tried, too")
    asked = parser.parse_args()
    quick = asked.quick
    workloads = asked.workloads.split(",") if asked.workloads else (QUICK_WORKLOADS if quick else tuple(WORKLOADS))
    gpus = [int(it) for it in asked.gpus.split(",")] if asked.gpus else ((4, 8) if quick else GPUS)
    wanted = asked.methods.split(",") if asked.methods else (QUICK_METHODS if quick else tuple(METHODS))
    methods = [method for method in METHODS if method in wanted or method in ("plan", BASE, "equal", "by hand")]
    limits = [float(it) for it in asked.limits.split(",")]
    run = rows_in(asked.out, asked.workers)
    known = known_cells(
        run,
        workloads,
        slices=QUICK_SLICES if quick else SLICES,
        runs=QUICK_TRACED_RUNS if quick else TRACED_RUNS,
        seed=asked.seed,
    )
    print("Shares of the time of lonely runs\n\n" + share_table(known))
    cells = peak_cells(known, gpus, methods, limits, span=QUICK_SPAN if quick else SPAN, seed=asked.seed)
    rows = run("peaks", cells, find_peak)
    for limit in limits:
        print(f"\nMost work with a mean latency of at most {limit:g} lonely ones, in parts of the GPUs\n")
        print(peak_table(rows, limit, methods))
    print("\nLatency of the plan over that of the same runs alone, mean and p99; of the others over the plan's\n")
    print(slower_table(rows, methods))
    print("\nPredicted mean latency\n\n" + error_table(rows))
    print("\nPredicted throughput\n\n" + throughput_table(rows))
    if asked.plot:
        drawn = [workload for workload in DRAWN if workload in workloads]
        asked.plot.write_text(picture(rows, drawn, 8 if 8 in gpus else gpus[-1]), encoding="utf-8")
    if asked.latencies:
        print("\nEvery rate that was tried\n\n" + latency_table(rows))


if __name__ == "__main__":
    as_script("bench.workflow_study", main)
