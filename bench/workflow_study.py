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
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue
from rich.console import Console

from bench.grid_script import as_script
from bench.workflow_cell import SPAN, find_peak
from bench.workflow_known import WORKLOADS, models_of, prepare, profile_model
from bench.workflow_methods import METHODS
from bench.workflow_picture import picture
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
CALM = 0.8
"""Part of the predicted throughput up to which latencies are expected to be predicted well (1)."""
BASE = "each alone"
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


def number(value: JsonValue) -> float:
    """A figure; infinite where there is none."""
    return float(value) if isinstance(value, int | float) else float("inf")


def fields(value: JsonValue) -> dict[str, JsonValue]:
    """An object of a row."""
    assert isinstance(value, dict)
    return value


def items(value: JsonValue) -> list[dict[str, JsonValue]]:
    """A list of objects of a row."""
    assert isinstance(value, list)
    return [fields(it) for it in value]


def by_cell(rows: Sequence[Row]) -> dict[tuple[str, int], dict[str, Row]]:
    """The rows by workload and GPUs, then by method; small fleets first."""
    cells: dict[tuple[str, int], dict[str, Row]] = {}
    for row in sorted(rows, key=lambda it: (list(WORKLOADS).index(str(it.parameters["workload"])), _gpus(it))):
        cells.setdefault((str(row.parameters["workload"]), _gpus(row)), {})[str(row.parameters["method"])] = row
    return cells


def _gpus(row: Row) -> int:
    return int(number(row.parameters["gpus"]))


def peak_of(row: Row, limit: float) -> float:
    """GPUs' worth of work at a row's peak."""
    return next(number(it["scale"]) for it in items(row.values["peaks"]) if it["limit"] == limit)


def peak_table(rows: Sequence[Row], limit: float, methods: Sequence[str]) -> str:
    """Markdown: the most work within a latency limit, in parts of the GPUs; the plan's gain over each alone."""
    lines = [
        "| workload | GPUs | " + " | ".join(methods) + f" | plan / {BASE} | plan / best other |",
        "| --- | ---: |" + " ---: |" * (len(methods) + 2),
    ]
    for (workload, gpus), by_method in by_cell(rows).items():
        peaks = {method: peak_of(by_method[method], limit) for method in methods}
        others = [peak for method, peak in peaks.items() if method not in ("plan", "paper's search")]
        best = max(peaks.values())
        shown = [f"**{it / gpus:.2f}**" if it == best else f"{it / gpus:.2f}" for it in peaks.values()]
        gains = [_ratio(peaks["plan"], peaks[BASE]), _ratio(peaks["plan"], max(others))]
        lines.append(f"| {workload} | {gpus} | " + " | ".join([*shown, *gains]) + " |")
    return "\n".join(lines)


def _ratio(one: float, other: float) -> str:
    return f"{one / other:.2f}" if other else "-"


def latency_table(rows: Sequence[Row]) -> str:
    """Markdown: every rate that was run to its end: mean and 99th percentile of the latency, and what was predicted."""
    lines = [
        "| workload | GPUs | method | workflow | runs/s | mean, s | p99, s | alone, s | predicted mean, s | plan |",
        "| --- | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for row, point, workflow, seen in seen_points(rows):
        if not seen["whole"]:
            continue
        at = row.parameters
        said = seen["said_s"]
        lines.append(
            f"| {at['workload']} | {at['gpus']} | {at['method']} | {workflow} | {number(seen['arrival_rate']):.3g} | "
            f"{number(seen['mean_s']):.1f} | {number(seen['p99_s']):.1f} | {number(seen['alone_s']):.1f} | "
            f"{'-' if said is None else f'{number(said):.1f}'} | {point.get('plan', '')} |"
        )
    return "\n".join(lines)


def seen_points(
    rows: Sequence[Row],
) -> Iterator[tuple[Row, dict[str, JsonValue], str, dict[str, JsonValue]]]:
    """Row, point, workflow, and what was seen of it there."""
    for by_method in by_cell(rows).values():
        for row in by_method.values():
            for point in items(row.values["points"]):
                for workflow in WORKLOADS[str(row.parameters["workload"])]:
                    yield row, point, workflow, fields(point[workflow])


def error_table(rows: Sequence[Row]) -> str:
    """Markdown: relative errors of the predicted mean latency up to CALM of the predicted throughput.

    Measured latencies are brought to the size of the recorded runs: the predictor knows these, and that the runs of a
    measurement are larger or smaller by chance is no error of its. Also with one factor for each workflow, the median
    of measured over predicted on the other numbers of GPUs.
    """
    pairs: dict[str, list[tuple[int, float, float]]] = {}
    for row, _, workflow, there in seen_points(rows):
        if there["said_s"] is None or not there["whole"]:
            continue
        if number(there["rate"]) <= CALM * number(there["said_rate"]):
            name = f"{workflow} in {row.parameters['workload']}"
            seen_s = number(there["mean_s"]) / number(there["size"])
            pairs.setdefault(name, []).append((_gpus(row), number(there["said_s"]), seen_s))
    lines = [
        "| workflow | points | median error, % | p95, % | bias, % | with a factor: median, % | p95, % |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    every: list[float] = []
    every_with: list[float] = []
    for name, points in pairs.items():
        errors = [abs(said / seen - 1) for _, said, seen in points]
        bias = statistics.median(said / seen - 1 for _, said, seen in points)
        corrected = []
        for gpus, said, seen in points:
            others = [it[2] / it[1] for it in points if it[0] != gpus]
            if others:
                corrected.append(abs(said * statistics.median(others) / seen - 1))
        every += errors
        every_with += corrected
        lines.append(f"| {name} | {len(points)} | {_errors(errors)} | {100 * bias:+.1f} | {_errors(corrected)} |")
    lines.append(f"| all | {len(every)} | {_errors(every)} | | {_errors(every_with)} |")
    return "\n".join(lines)


def _errors(errors: Sequence[float]) -> str:
    if len(errors) < 2:
        return "- | -"
    return f"{100 * statistics.median(errors):.1f} | {100 * statistics.quantiles(errors, n=20)[-1]:.1f}"


def throughput_table(rows: Sequence[Row]) -> str:
    """Markdown: the throughput that was predicted, and what comes through with many runs under way, and with very many.

    Errors are of the larger one.
    """
    lines = [
        "| workload | GPUs | method | predicted, runs/s | measured (with so many under way) | predicted / most |",
        "| --- | ---: | --- | ---: | ---: | ---: |",
    ]
    errors = []
    for (workload, gpus), by_method in by_cell(rows).items():
        for method, row in by_method.items():
            full = {int(lanes): number(rate) for lanes, rate in fields(row.values["full"]).items()}
            if not full:
                continue
            said, most = number(row.values["said_full"]), max(full.values())
            errors.append(abs(said / most - 1))
            measured = ", ".join(f"{rate:.3g} ({lanes})" for lanes, rate in sorted(full.items()))
            lines.append(f"| {workload} | {gpus} | {method} | {said:.3g} | {measured} | {said / most:.2f} |")
    median, _, last = _errors(errors).partition(" | ")
    lines.append(f"\nMedian error {median} %, p95 {last} %")
    return "\n".join(lines)


def share_table(known: Mapping[str, Json]) -> str:
    """Markdown: how much a run's latency varies, and how much models' shares of it do."""
    lines = [
        "| workload | workflow | mean, s | latency cv | model | calls | in flight | share | share cv | cv / share cv |",
        "| --- | --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for workload, facts in known.items():
        for it in items(facts["aggregates"]):
            for use in items(it["uses"]):
                cv, share_cv = number(it["latency_cv"]), number(use["share_cv"])
                lines.append(
                    f"| {workload} | {it['workflow']} | {number(it['latency_s']):.1f} | {cv:.2f} | {use['model']} | "
                    f"{number(use['calls']):.1f} | {number(use['concurrency']):.1f} | {number(use['share']):.2f} | "
                    f"{share_cv:.2f} | {_ratio(cv, share_cv)} |"
                )
    return "\n".join(lines)


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
    print("\nPredicted mean latency\n\n" + error_table(rows))
    print("\nPredicted throughput\n\n" + throughput_table(rows))
    if asked.plot:
        drawn = [workload for workload in DRAWN if workload in workloads]
        asked.plot.write_text(picture(rows, drawn, 8 if 8 in gpus else gpus[-1]), encoding="utf-8")
    if asked.latencies:
        print("\nEvery rate that was tried\n\n" + latency_table(rows))


if __name__ == "__main__":
    as_script("bench.workflow_study", main)
