"""`headway sim compare`: plans side by side on scenarios with their events in force."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from headway.cli.journals import check_writable, write_text
from headway.cli.tables import plain_table, print_table
from headway.cluster.units import format_time, parse_bytes
from headway.collectives.plan import Collective
from headway.errors import UsageError
from headway.lab.files import load_scenario
from headway.report.words import counted, size_in_words
from headway.sim.execution.collective import Execution
from headway.sim.studies.compare import CHOSEN, ONLY_ALL_REDUCE, PLANS, Compared, check_asked
from headway.sim.studies.compare import compare as compared

SIZES = "1MB,16MB"
PATHS = "(paths): predictions count all paths of a rack as one link, flows take one each; do not trust the prediction."
PLAIN_WIDTH = 160  # columns where the output is no terminal


def compare(
    scenarios: Annotated[list[str], typer.Argument(metavar="SCENARIO...", help="Shipped scenarios' names, or files.")],
    plans: Annotated[str | None, typer.Option(help=f"Of {', '.join(PLANS)}; default: all that fit.")] = None,
    sizes: Annotated[str, typer.Option(help="Sizes of the whole vector, with commas between.")] = SIZES,
    collective: Annotated[Collective, typer.Option(help="What is computed.")] = Collective.ALL_REDUCE,
    execution: Annotated[Execution, typer.Option(help="How plans are carried out.")] = Execution.PIECES,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write it as JSON too.")] = None,
) -> None:
    """Predict and simulate one operation of each plan on each scenario, with all its events in force.

    One rank on each host; a scenario's own jobs do not run.
    """
    asked = _names(plans) if plans is not None else _fitting(collective)
    check_asked(asked, collective)
    sizes_bytes = [parse_bytes(size, where="--sizes") for size in sizes.split(",")]
    if min(sizes_bytes) <= 0:
        raise UsageError("must be above 0", where="--sizes")
    check_writable(json_file)
    rows: list[Compared] = []
    for scenario in [load_scenario(name) for name in scenarios]:
        hosts = len(scenario.host_names)
        if collective in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER) and any(s % hosts for s in sizes_bytes):
            raise UsageError(f"must divide by the {hosts} ranks of {scenario.name}", where="--sizes")
        mine = list(compared(scenario, asked, collective, sizes_bytes, execution=execution))
        words = "; ".join(e.what(name) for e in scenario.events for name in scenario.targets_of(e)) or "idle"
        print(f"{scenario.name}: {counted(hosts, 'host')}, {collective.value}, {execution.value}; {words}")
        print_table(table(mine), plain_width=PLAIN_WIDTH)
        if any(row.several_paths for row in mine):
            print(PATHS)
        rows += mine
    if json_file is not None:
        write_text(json_file, comparison_json(rows, collective, execution))


def table(rows: Sequence[Compared]) -> Table:
    """One line per plan, in groups of one size; the fastest simulated plan of a group has a star."""
    made = plain_table()
    made.add_column("size", justify="right", no_wrap=True)
    made.add_column("", no_wrap=True)
    made.add_column("plan")
    for name in ("predicted", "simulated", "algbw MB/s", "limit %"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("bottleneck by prediction")
    made.add_column("busiest when simulated")
    for before, row in zip((None, *rows), rows, strict=False):
        fresh = before is None or before.size_bytes != row.size_bytes
        if fresh and before is not None:
            made.add_row()
        made.add_row(
            size_in_words(row.size_bytes) if fresh else "",
            "*" if row.best else "",
            row.plan if row.asked not in CHOSEN else f"{row.asked}: {row.plan}",
            format_time(row.predicted_s),
            format_time(row.simulated_s),
            f"{row.algbw_Bps / 1e6:.2f}" if row.algbw_Bps is not None else "-",
            f"{100 * row.limit:.1f}" if row.limit is not None else "-",
            f"{row.bottleneck} (paths)" if row.several_paths else row.bottleneck,
            row.busiest,
        )
    return made


def comparison_json(rows: Sequence[Compared], collective: Collective, execution: Execution) -> str:
    """All of it for programs: seconds, bytes, bytes per second."""
    found = [{**asdict(row), "algbw_Bps": row.algbw_Bps, "limit": row.limit} for row in rows]
    return json.dumps({"collective": collective.value, "execution": execution.value, "rows": found}, indent=1)


def _names(given: str) -> list[str]:
    names = [name.strip() for name in given.split(",")]
    if len(set(names)) < len(names):
        raise UsageError("names a plan twice", where="--plans")
    return names


def _fitting(collective: Collective) -> list[str]:
    if collective in (Collective.BROADCAST, Collective.REDUCE):
        return list(CHOSEN)
    return [name for name in PLANS if collective is Collective.ALL_REDUCE or name not in ONLY_ALL_REDUCE]
