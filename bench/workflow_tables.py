"""The tables of the workflow study, in Markdown. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from pydantic import JsonValue

from bench.workflow_known import WORKLOADS, Json
from headway.sim.studies.cells import Row

CALM = 0.8
"""Part of the predicted throughput up to which latencies are expected to be predicted well (1)."""
COMPARED_LOADS = (0.1, 0.3, 0.5)
"""At which all methods are measured, in GPUs' worth of work for each GPU (1)."""
BASE = "each alone"


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


def slower_table(rows: Sequence[Row], methods: Sequence[str]) -> str:
    """Markdown: mean and p99 latency of the plan at some loads, the others' over it; "-" where that was not reached."""
    lines = [
        "| workload | GPUs | load | " + " | ".join(methods) + " |",
        "| --- | ---: | ---: |" + " ---: |" * len(methods),
    ]
    for (workload, gpus), by_method in by_cell(rows).items():
        for load in COMPARED_LOADS:
            seen = {method: _slowdown(row, workload, load * gpus) for method, row in by_method.items()}
            plan = seen["plan"]
            shown = []
            for method in methods:
                own = seen[method]
                if own is None or plan is None:
                    shown.append("-")
                elif method == "plan":
                    shown.append(f"{own[0]:.2f}, {own[1]:.1f}")
                else:
                    shown.append(f"{own[0] / plan[0]:.2f}, {own[1] / plan[1]:.2f}")
            lines.append(f"| {workload} | {gpus} | {load:g} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def _slowdown(row: Row, workload: str, scale: float) -> tuple[float, float] | None:
    """(mean, p99) latency over the mean of the same runs alone, averaged over the workflows."""
    point = next((it for it in items(row.values["points"]) if abs(number(it["scale"]) - scale) < 1e-9 * scale), None)
    if point is None:
        return None
    seen = [fields(point[workflow]) for workflow in WORKLOADS[workload]]
    if not all(it["whole"] for it in seen):
        return None
    mean, last = (
        statistics.fmean(number(it[figure]) / number(it["alone_s"]) for it in seen) for figure in ("mean_s", "p99_s")
    )
    return mean, last


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
    """Markdown: the throughput that was predicted, and the most that comes through, however many are under way."""
    lines = [
        "| workload | GPUs | method | predicted, runs/s | most, runs/s (with so many under way) | predicted / most |",
        "| --- | ---: | --- | ---: | ---: | ---: |",
    ]
    errors = []
    for (workload, gpus), by_method in by_cell(rows).items():
        for method, row in by_method.items():
            full = {int(lanes): number(rate) for lanes, rate in fields(row.values["full"]).items()}
            if not full:
                continue
            said, lanes = number(row.values["said_full"]), max(full, key=lambda it: full[it])
            most = full[lanes]
            errors.append(abs(said / most - 1))
            lines.append(f"| {workload} | {gpus} | {method} | {said:.3g} | {most:.3g} ({lanes}) | {said / most:.2f} |")
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
