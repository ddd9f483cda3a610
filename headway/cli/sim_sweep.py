"""`headway sim sweep`: one scenario with some of its fields varied, on all cores or on Ray."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from pydantic import JsonValue
from rich.console import Console
from rich.table import Table

from headway.cli.journals import check_writable, write_text
from headway.cli.tables import plain_table, print_table
from headway.cluster.units import format_time, parse_time
from headway.errors import UsageError
from headway.sim.studies.cells import Row

MOST_LINES = 60
"""Rows of the table beyond this are only in the file."""
PLAIN_WIDTH = 160  # columns where the output is no terminal


def sweep(
    file: Annotated[Path, typer.Argument(metavar="SWEEP.yaml", help="What to vary; see docs/sim-sweep.md.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the rows; a run that was ended goes on there.")],
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Processes; default: one per core.")] = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS|auto", help="Run on this Ray cluster instead of local processes.")
    ] = None,
    limit: Annotated[
        str | None, typer.Option(metavar="TIME", help="End a cell that takes longer, e.g. 10min; it fails.")
    ] = None,
    page: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a page with pictures.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only check the file and say how many cells there are.")
    ] = False,
) -> None:
    """Run every cell of a sweep. Exit code 1 when one failed or the run was ended early; its rows are kept."""
    # Imported here, so that the other verbs start fast.
    from headway.bench.pool import ROWS, run_cells
    from headway.bench.progress import Shown
    from headway.bench.sim_cell import run_cell
    from headway.report.words import counted
    from headway.sim.studies.sweep import load_sweep

    if ray is not None and (jobs is not None or limit is not None):
        raise UsageError("is for local processes, not for Ray", where="--jobs" if jobs is not None else "--limit")
    found = load_sweep(file)
    axes = ", ".join(f"{axis.name} ({len(axis.values)})" for axis in found.axes)
    print(f"{found.name}: {counted(len(found.cells), 'cell')} over {axes}", flush=True)
    if check:
        return
    check_writable(page)
    rows = run_cells(
        found.cells,
        run_cell,
        workers=jobs if jobs is not None else cores(),
        out=out,
        progress=Shown(Console(stderr=True)),
        ray=ray,
        limit_s=parse_time(limit, where="--limit") if limit is not None else None,
    )
    names = [axis.name for axis in found.axes]
    print_table(table(rows, names), plain_width=PLAIN_WIDTH)
    print(f"{counted(len(rows), 'row')} in {out / ROWS}", flush=True)
    if page is not None:
        from headway.report.sweep_page import render_sweep

        write_text(page, render_sweep(rows, title=found.name))
        print(f"wrote {page}")
    failed = [row for row in rows if row.error]
    for row in failed:
        print(f"failed: {in_words(row)}: {row.error}")
    if failed:
        raise typer.Exit(1)


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_words(row: Row) -> str:
    """Which cell it is of."""
    from headway.sim.studies.sweep import label

    return ", ".join(f"{name} {label(value)}" for name, value in row.parameters.items())


def table(rows: Sequence[Row], axes: Sequence[str]) -> Table:
    """A line for each job of each row."""
    from headway.sim.studies.sweep import label

    made = plain_table()
    for name in axes:
        made.add_column(name)
    made.add_column("job")
    for name in ("mean", "p50", "p99", "algbw MB/s", "limit %", "switches", "events", "wall"):
        made.add_column(name, justify="right", no_wrap=True)
    lines = 0
    for row in rows:
        varied = [label(row.parameters[name]) for name in axes]
        jobs = row.values.get("jobs")
        for name, figures in jobs.items() if isinstance(jobs, dict) else ():
            lines += 1
            if isinstance(figures, dict) and lines <= MOST_LINES:
                cost = [str(row.values["events"]), format_time(row.wall_s)]
                made.add_row(*varied, name, *_figures(figures), *cost)
        if row.error:
            made.add_row(*varied, "failed")
    if lines > MOST_LINES:
        made.caption = f"and {lines - MOST_LINES} more"
        made.caption_justify = "left"
    return made


def _figures(job: dict[str, JsonValue]) -> list[str]:
    def number(name: str, factor: float, digits: int) -> str:
        value = job[name]
        return f"{value * factor:.{digits}f}" if isinstance(value, (int, float)) else "-"

    times = [job[name] for name in ("mean_s", "p50_s", "p99_s")]
    shown = [format_time(value) if isinstance(value, (int, float)) else "-" for value in times]
    return [*shown, number("algbw_Bps", 1e-6, 2), number("limit", 100, 1), number("switches", 1, 0)]
