"""Latency against what comes, for some ways to share GPUs out, from the rows of the workflow study. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from bench.scale_picture import Curve, Plot, draw_plots
from bench.workflow_known import WORKLOADS, number
from headway.sim.studies.cells import Row

DRAWN = ("plan", "each alone", "equal", "by hand", "pool")
TOP = 4.0
"""Latencies beyond that, in those of the same runs alone, are left out (1)."""


def picture(rows: Sequence[Row], workloads: Sequence[str], gpus: int) -> str:
    """An SVG file: a plot for each workload on so many GPUs."""
    plots = [_plot(rows, workload, gpus) for workload in workloads]
    return draw_plots(plots, label=f"Mean latency against runs per second on {gpus} GPUs, by how they are shared out")


def _plot(rows: Sequence[Row], workload: str, gpus: int) -> Plot:
    of_method = {
        str(row.parameters["method"]): row
        for row in rows
        if row.parameters["workload"] == workload and row.parameters["gpus"] == gpus
    }
    curves = tuple(Curve(method, _points(of_method[method], workload)) for method in DRAWN if method in of_method)
    return Plot(f"{workload}, {gpus} GPUs", "runs/s", "mean latency over alone", curves, linear=True, even=True)


def _points(row: Row, workload: str) -> tuple[tuple[float, float], ...]:
    """(runs per second of all workflows, mean over them of the latency over that of the same runs alone)."""
    points = []
    tried = row.values["points"]
    assert isinstance(tried, list)
    for point in tried:
        assert isinstance(point, dict)
        rate = slowdown = 0.0
        whole = True
        for workflow in WORKLOADS[workload]:
            seen = point[workflow]
            assert isinstance(seen, dict)
            whole = whole and bool(seen["whole"])
            if whole:
                rate += number(seen["arrival_rate"])
                slowdown += number(seen["mean_s"]) / number(seen["alone_s"]) / len(WORKLOADS[workload])
        if whole and slowdown <= TOP:
            points.append((rate, slowdown))
    return tuple(points)
