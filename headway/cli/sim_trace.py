"""`headway sim trace`: Chakra execution traces on a network of ASTRA-sim's format."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from headway.cli.journals import write_text
from headway.cli.tables import plain_table, print_table
from headway.cluster.units import format_rate, format_time, parse_rate
from headway.collectives.plan_book import PINNABLE
from headway.errors import UsageError
from headway.report.npu_trace import npu_trace_json
from headway.sim.execution.collective import Execution
from headway.sim.formats.astra_network import fabric_of, read_network
from headway.sim.formats.astra_system import AstraSystem, read_system
from headway.sim.formats.chakra import read_groups, read_traces
from headway.sim.traces.astra import run_astra
from headway.sim.traces.messages import Forwarding
from headway.sim.traces.trace_run import TraceResult

BEST = "best"
SHOWN = 16
"""NPUs and links that the tables show; all are in the JSON file."""
PLAIN_WIDTH = 120  # columns where the output is no terminal


def trace(
    prefix: Annotated[Path, typer.Argument(metavar="PREFIX", help="Traces are PREFIX.0.et, PREFIX.1.et, ...")],
    network: Annotated[Path, typer.Option(metavar="FILE", help="ASTRA-sim's network YAML.")],
    system: Annotated[
        Path | None, typer.Option(metavar="FILE", help="ASTRA-sim's system JSON; default: rings, one chunk.")
    ] = None,
    groups: Annotated[
        Path | None, typer.Option(metavar="FILE", help='Process groups as JSON: {"1": [0, 1], ...}.')
    ] = None,
    forwarding: Annotated[
        Forwarding, typer.Option(help="store: whole messages, link by link, to the nanosecond as ASTRA-sim does.")
    ] = Forwarding.CUT_THROUGH,
    plan: Annotated[
        str | None,
        typer.Option(metavar="|".join((BEST, *PINNABLE)), help="Our plans instead of the system's algorithms."),
    ] = None,
    execution: Annotated[Execution | None, typer.Option(help="How plans are carried out; default: pieces.")] = None,
    rate: Annotated[
        list[str] | None,
        typer.Option(metavar="LINK=RATE", help="Another rate for a link, e.g. 'uplink of npu3=10GB/s'; repeatable."),
    ] = None,
    trace_file: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="Write a trace for Perfetto.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write times and links as JSON.")
    ] = None,
) -> None:
    """Run one execution trace per NPU: when each ends, and how much of that was communication beside no computing."""
    if plan is not None and plan not in (BEST, *PINNABLE):
        raise UsageError(f"{plan!r} is no plan", where="--plan", hint=f"one of {', '.join((BEST, *PINNABLE))}")
    if execution is not None and plan is None:
        raise UsageError("is for plans", where="--execution", hint=f"give --plan, for example --plan {BEST}")
    parsed = read_network(network)
    begun = time.perf_counter()
    result = run_astra(
        read_traces(prefix, parsed.npus),
        parsed,
        read_system(system) if system is not None else AstraSystem(),
        forwarding=forwarding,
        plan="" if plan == BEST else plan,
        execution=execution or Execution.PIECES,
        groups=read_groups(groups) if groups is not None else None,
        rates_Bps=dict(_rate(text) for text in rate or ()),
    )
    took_s = time.perf_counter() - begun
    if trace_file is not None:
        write_text(trace_file, npu_trace_json(result))
    if json_file is not None:
        write_text(json_file, _json(result))
    _print_npus(result)
    capacities = {link.name: link.capacity_Bps for link in fabric_of(parsed).links}
    capacities.update(_rate(text) for text in rate or ())
    _print_links(result, capacities)
    how = (
        f"plans ({', '.join(result.plans) or 'none'})"
        if plan is not None
        else f"system's algorithms, {forwarding.value}"
    )
    print(f"{result.end_s * 1e9:.0f} ns, {how}, {result.events} events, simulated in {format_time(took_s)}")


def _rate(text: str) -> tuple[str, float]:
    name, equals, value = text.rpartition("=")
    if not equals:
        raise UsageError(f"{text!r} is no LINK=RATE", where="--rate")
    return name.strip(), parse_rate(value, where="--rate")


def _json(result: TraceResult) -> str:
    data = {
        "end_s": result.end_s,
        "npu_end_s": list(result.ends_s),
        "npu_compute_s": list(result.compute_s),
        "carried_bytes": dict(result.carried_bytes),
    }
    return json.dumps(data, indent=1) + "\n"


def _print_npus(result: TraceResult) -> None:
    table = _columns("npu", "end ns", "computing ns", "exposed ns", "exposed %")
    for npu, (end_s, compute_s) in enumerate(zip(result.ends_s, result.compute_s, strict=True)):
        if npu < SHOWN:
            exposed_s = end_s - compute_s
            share = f"{100 * exposed_s / end_s:.1f}" if end_s > 0 else "-"
            table.add_row(f"npu{npu}", *(f"{each * 1e9:.0f}" for each in (end_s, compute_s, exposed_s)), share)
    print_table(table, plain_width=PLAIN_WIDTH)
    if len(result.ends_s) > SHOWN:
        print(f"and {len(result.ends_s) - SHOWN} more NPUs")


def _print_links(result: TraceResult, capacities_Bps: dict[str, float]) -> None:
    used = {
        name: carried / (capacities_Bps[name] * result.end_s)
        for name, carried in result.carried_bytes.items()
        if carried > 0 and capacities_Bps[name] > 0 and result.end_s > 0
    }
    table = _columns("busiest links", "rate", "in use %")
    for name in sorted(used, key=lambda name: (-used[name], name))[:5]:
        table.add_row(name, format_rate(capacities_Bps[name]), f"{100 * used[name]:.1f}")
    if used:
        print_table(table, plain_width=PLAIN_WIDTH)


def _columns(first: str, *others: str) -> Table:
    table = plain_table()
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table
