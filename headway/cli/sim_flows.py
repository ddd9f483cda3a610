"""`headway sim flows`: a connection matrix of htsim on one of its topologies."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from headway.cli.journals import check_writable, write_text
from headway.cli.tables import plain_table, print_table
from headway.cluster.units import format_rate, format_time
from headway.report.words import counted, size_in_words
from headway.sim.engine.loop import Loop
from headway.sim.engine.network import Network
from headway.sim.formats.htsim import read_topology
from headway.sim.formats.htsim_cm import read_connections
from headway.sim.formats.htsim_run import ConnectionTime, run_connections

SLOWEST = 10
PLAIN_WIDTH = 120  # columns where the output is no terminal


class StartUnit(Enum):
    """Of `start` in the matrix."""

    PS = "ps"
    US = "us"


def flows(
    matrix: Annotated[Path, typer.Argument(metavar="FILE.cm", help="htsim's connection matrix.")],
    network: Annotated[Path, typer.Option(metavar="FILE.topo", help="htsim's fat tree.")],
    subflows: Annotated[
        int, typer.Option(min=1, help="Equal parts of each connection, each with a route of its own.")
    ] = 1,
    start_unit: Annotated[
        StartUnit, typer.Option(help="Unit of start in the matrix; old files have us.")
    ] = StartUnit.PS,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all times as JSON.")] = None,
) -> None:
    """Run htsim's connections as fluids with max-min fair rates: when each is complete (docs/sim-formats.md)."""
    connections = read_connections(matrix, start_unit=start_unit.value)
    topology = read_topology(network)
    check_writable(json_file)
    fabric = topology.fabric(failures=connections.failures)
    loop = Loop()
    begun = time.perf_counter()
    times = run_connections(Network(loop, fabric), connections, subflows=subflows)
    took_s = time.perf_counter() - begun
    ended = [each for each in times if each.end_s is not None]
    print(f"{matrix.stem}: {counted(len(times), 'connection')} on {topology.name}, {counted(topology.hosts, 'host')}")
    _print_summary(ended)
    _print_slowest(ended)
    if len(ended) < len(times):
        print(f"{counted(len(times) - len(ended), 'connection')} of size 0 without end")
    print(f"{loop.now_s:.6g} s of network, {loop.events} events, simulated in {format_time(took_s)}")
    if json_file is not None:
        write_text(json_file, _json(times, subflows))


def _print_summary(ended: Sequence[ConnectionTime]) -> None:
    durations_s = np.array([each.duration_s for each in ended], dtype=np.float64)
    table = plain_table()
    for name in ("complete", "mean", "p50", "p99", "longest", "last at"):
        table.add_column(name, justify="right", no_wrap=True)
    figures = (durations_s.mean(), *np.percentile(durations_s, (50, 99, 100)), max(each.end_s or 0.0 for each in ended))
    table.add_row(str(len(ended)), *(format_time(float(each)) for each in figures))
    print_table(table, plain_width=PLAIN_WIDTH)


def _print_slowest(ended: Sequence[ConnectionTime]) -> None:
    table = plain_table()
    table.add_column("slowest", no_wrap=True)
    for name in ("line", "size", "start", "time", "rate"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in sorted(ended, key=lambda each: -(each.duration_s or 0.0))[:SLOWEST]:
        connection, duration_s = each.connection, each.duration_s or 0.0
        table.add_row(
            f"{connection.src}->{connection.dst}",
            str(connection.line),
            size_in_words(int(connection.size_bytes)),
            format_time(each.start_s or 0.0),
            format_time(duration_s),
            format_rate(connection.size_bytes / duration_s) if duration_s > 0 else "-",
        )
    print_table(table, plain_width=PLAIN_WIDTH)


def _json(times: Sequence[ConnectionTime], subflows: int) -> str:
    rows = [
        {
            "line": each.connection.line,
            "src": each.connection.src,
            "dst": each.connection.dst,
            "id": each.connection.id,
            "size_bytes": each.connection.size_bytes if each.end_s is not None else None,
            "start_s": each.start_s,
            "end_s": each.end_s,
        }
        for each in times
    ]
    return json.dumps({"subflows": subflows, "connections": rows}, indent=1) + "\n"
