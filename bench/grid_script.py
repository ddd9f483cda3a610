"""What the scripts that fill a grid share: run it, go on where an earlier run stopped, print the table."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from headway.bench.grid import Grid, run_grid
from headway.bench.markdown import algbw_table
from headway.bench.results import load
from headway.bench.run import new_results
from headway.bench.table import line
from headway.errors import HeadwayError, UsageError


def chosen(text: str, conditions: dict[str, str]) -> dict[str, str]:
    """The conditions that the user named, with their scenarios. UsageError names an unknown one."""
    names = text.split(",")
    unknown = [name for name in names if name not in conditions]
    if unknown:
        raise UsageError(
            f"unknown condition {unknown[0]}", where="--conditions", hint=f"known: {', '.join(conditions)}"
        )
    return {name: conditions[name] for name in names}


def run_and_print(grid: Grid, out: Path, *, where: str) -> None:
    """Measure what `out` lacks of `grid`, and print all of it as markdown. HeadwayError when a result was wrong."""
    out.parent.mkdir(parents=True, exist_ok=True)
    results = load(out) if out.exists() else new_results(where)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    run_grid(grid, results, out, say=say, on_row=lambda row: say(line(row)))
    print(algbw_table(results.rows, grid.backends))
    if results.failed:
        raise HeadwayError("a result was wrong or missing: see the table")


def as_script(name: str, main: Callable[[], None]) -> None:
    """Run `main`; one line and exit code 2 for a wrong command line or file, 1 for a run that failed."""
    try:
        main()
    except HeadwayError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)
