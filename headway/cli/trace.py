"""`headway trace`: what was recorded, as pictures, files and tables. `headway trace J` is `headway trace journal J`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.journals import read_journals, write_text
from headway.cli.trace_calls import calls, import_
from headway.cli.trace_sample import sample
from headway.report.trace import trace_json

app = typer.Typer(no_args_is_help=True, help="A journal as a picture; the calls of agents' workflows.")


@app.command("journal")
def trace(
    journals: Annotated[
        list[Path], typer.Argument(help="Journals of jobs or gateways; the lab's events may be a file of their own.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The JSON file to write.")] = Path("trace.json"),
) -> None:
    """Write a journal as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open."""
    found = read_journals(journals)
    write_text(output, trace_json(found.runs, serving=found.serving))
    print(f"wrote {output}")


app.command("import")(import_)
app.command("calls")(calls)
app.command("sample")(sample)
