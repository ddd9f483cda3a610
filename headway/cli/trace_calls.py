"""`headway trace import` and `headway trace calls`: the calls that agents' workflows make to models."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.called import read_all_calls, read_text, spare_inputs
from headway.cli.journals import write_text
from headway.cli.shown import cell, print_line, shown
from headway.cli.tables import plain_table, print_table
from headway.errors import UsageError
from headway.report.words import counted
from headway.report.workflow_trace import workflow_trace_json
from headway.serving.allocation.drift import rate_of
from headway.serving.allocation.files import write_aggregates
from headway.serving.workflows.aggregate import aggregate
from headway.serving.workflows.aggregate_types import Aggregate
from headway.serving.workflows.files import write_calls
from headway.serving.workflows.importing import Source, import_calls
from headway.serving.workflows.record import by_workflow, runs_of

PLAIN_WIDTH = 120  # columns where the output is no terminal


def import_(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Gateways' journals, OpenTelemetry spans (OTLP JSON, or as the SDK for Python prints them), or calls; "
            "all go into one file."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file of calls to write.")] = Path("calls.jsonl"),
    kind: Annotated[
        str,
        typer.Option(
            "--kind-attribute",
            metavar="NAME",
            help="Attribute of spans that names the kind of workflow; default: the root span's name.",
        ),
    ] = "",
) -> None:
    """Take the calls of workflows from journals or spans; a file's kind is told by what is in it."""
    spare_inputs([output], files)
    found = import_calls([Source(str(path), read_text(path)) for path in files], kind_attribute=kind)
    for why, count in sorted(found.left_out.items(), key=lambda item: (-item[1], item[0])):
        print(f"left out: {counted(count, 'call')} ({shown(why)})", file=sys.stderr)
    if found.no_tokens:
        print(f"{counted(found.no_tokens, 'call')} without token counts: taken as 0", file=sys.stderr)
    if not found.calls:
        raise UsageError(
            "hold no call of a workflow",
            where=", ".join(map(str, files)),
            hint="docs/workflows.md says how calls name their workflow",
        )
    write_text(output, write_calls(found.calls))
    runs = runs_of(found.calls)
    kinds = ", ".join(f"{name} ({len(own)})" for name, own in by_workflow(runs).items())
    print_line(f"wrote {output}: {counted(len(found.calls), 'call')} of {counted(len(runs), 'run')}: {kinds}")


def calls(
    files: Annotated[
        list[Path], typer.Argument(help="Recorded calls: from `headway trace import`, or what that takes.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the runs as a trace for Perfetto, too.")
    ] = None,
    aggregates: Annotated[
        Path | None,
        typer.Option(help="Write the figures as a file for `headway plan`, too; YAML, or JSON by its name."),
    ] = None,
) -> None:
    """Say what each kind of workflow is on average: which models it calls, how often, and how much of its time."""
    spare_inputs([output, aggregates], files)
    runs = runs_of(read_all_calls(files))
    found = {name: aggregate(own) for name, own in by_workflow(runs).items()}
    rates = {name: rate_of([run.start_s for run in own]) for name, own in by_workflow(runs).items()}
    if output is not None:
        write_text(output, workflow_trace_json(runs))
    if aggregates is not None:
        write_aggregates(aggregates, list(found.values()))
    if as_json:
        told = [{**asdict(each), "overlap_s": each.overlap_s, "rate": rates[name]} for name, each in found.items()]
        print(json.dumps({"workflows": told}, indent=1))
        return
    _print_tables(list(found.values()), rates)
    for path in (output, aggregates):
        if path is not None:
            print(f"wrote {path}")


def _print_tables(aggregates: Sequence[Aggregate], rates: Mapping[str, float]) -> None:
    for number, each in enumerate(aggregates):
        if number:
            print()
        rate = rates[each.workflow]
        often = f" at {rate:.3g}/s" if rate else ""
        print_line(
            f"{each.workflow}: {counted(each.runs, 'run')}{often}, {each.latency_s:.3g} s ±{each.latency_cv:.0%}, "
            f"of these {each.other_s:.3g} s without a call; {each.overlap_s:.3g} s are two models' at once"
        )
        table = plain_table()
        table.add_column("model", no_wrap=True)
        for name in ("calls", "in flight", "call s", "busy s", "share", "± of it", "tokens in", "out"):
            table.add_column(name, justify="right", no_wrap=True)
        for use in each.uses:
            table.add_row(
                cell(use.model),
                f"{use.calls:.4g}",
                f"{use.concurrency:.3g}",
                f"{use.busy_s * use.concurrency / use.calls:.3g}",
                f"{use.busy_s:.3g}",
                f"{use.share:.1%}",
                f"{use.share_cv:.0%}",
                f"{use.input_tokens:.0f}",
                f"{use.output_tokens:.0f}",
            )
        print_table(table, plain_width=PLAIN_WIDTH)
