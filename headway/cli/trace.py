"""`headway trace`: a journal as Chrome trace JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.journals import read_runs, write_text
from headway.report.trace import trace_json


def trace(
    journals: Annotated[list[Path], typer.Argument(help="Journals; the lab's events may be a file of their own.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The JSON file to write.")] = Path("trace.json"),
) -> None:
    """Write a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open."""
    runs, _ = read_runs(journals)
    write_text(output, trace_json(runs))
    print(f"wrote {output}")
