"""`headway bench`: collectives measured side by side, with nccl-tests' flags and columns."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from headway.cluster.units import parse_bytes, parse_time
from headway.collectives.plan import Collective
from headway.errors import UsageError

DEFAULT_MAX_BYTES = 32 * 2**20
DEFAULT_LOOPBACK_RANKS = 4


def bench(
    collective: Annotated[Collective, typer.Argument(help="What to measure.", show_default=False)],
    minbytes: Annotated[str, typer.Option("-b", "--minbytes", help="First size: 4KiB, 1M (MiB), 8MB.")] = "32MiB",
    maxbytes: Annotated[
        str, typer.Option("-e", "--maxbytes", help="Last size; default 32MiB, or the first size if that is larger.")
    ] = "",
    stepfactor: Annotated[
        float | None, typer.Option("-f", "--stepfactor", help="Next size = this times the last; default 2.")
    ] = None,
    stepbytes: Annotated[
        str, typer.Option("-i", "--stepbytes", help="Next size = this many bytes more than the last.")
    ] = "",
    iters: Annotated[int, typer.Option("-n", "--iters", help="Timed iterations.")] = 20,
    warmup_iters: Annotated[int, typer.Option("-w", "--warmup_iters", help="Iterations before, not counted.")] = 1,
    check: Annotated[
        int, typer.Option("-c", "--check", help="Iterations whose result is checked, element by element; 0: none.")
    ] = 1,
    datatype: Annotated[
        str, typer.Option("-d", "--datatype", help="int8 uint8 int32 int64 half bfloat16 float double.")
    ] = "float",
    op: Annotated[str, typer.Option("-o", "--op", help="sum prod min max avg.")] = "sum",
    root: Annotated[int, typer.Option("-r", "--root", help="Root of broadcast and reduce.")] = 0,
    output_file: Annotated[
        Path | None, typer.Option("-J", "--output_file", help="Write JSON with every iteration's time here.")
    ] = None,
    backends: Annotated[
        str, typer.Option(help="headway[:packing|:react|:off], gloo, openmpi, mpich; side by side.")
    ] = "headway,gloo",
    ranks: Annotated[
        int | None, typer.Option(help=f"Local processes on loopback; default {DEFAULT_LOOPBACK_RANKS}.")
    ] = None,
    scenario: Annotated[str, typer.Option(help="Build this lab and run inside it, with all its events in force.")] = "",
    timeout: Annotated[str, typer.Option(help="Limit of each operation.")] = "60s",
    journal: Annotated[
        Path | None, typer.Option(help="Folder for the journals of headway groups, headway-POLICY.jsonl.")
    ] = None,
) -> None:
    """Measure a collective over sizes and backends.

    Runs in place under torchrun (torch backends only), in a lab with --scenario, else as local processes on loopback.
    Exit code 1 when an element was wrong or a backend gave no figure.
    """
    # Imported here, so that the other verbs start fast.
    from headway.bench.measures import sizes
    from headway.bench.place import in_job as in_this_job
    from headway.bench.place import in_scenario, loopback
    from headway.bench.results import Row
    from headway.bench.run import Request, new_results, run_request
    from headway.bench.session import Measurement, parse_backends
    from headway.bench.table import header, line
    from headway.lab.files import load_scenario

    first_bytes = parse_bytes(minbytes, where="-b")
    last_bytes = parse_bytes(maxbytes, where="-e") if maxbytes else max(first_bytes, DEFAULT_MAX_BYTES)
    step = parse_bytes(stepbytes, where="-i") if stepbytes else None
    request = Request(
        collective=collective,
        sizes_bytes=sizes(first_bytes, last_bytes, factor=stepfactor, step_bytes=step),
        type=datatype,
        redop=op,
        root=root,
        backends=parse_backends(backends),
        how=Measurement(iterations=iters, warmup=warmup_iters, checks=check),
    )
    timeout_s = parse_time(timeout, where="--timeout")
    in_job = "RANK" in os.environ
    if sum((in_job, bool(scenario), ranks is not None)) > 1:
        raise UsageError("torchrun, --scenario and --ranks exclude each other")
    if ranks is not None and ranks < 1:
        raise UsageError("needs at least one rank", where="--ranks")
    if journal is not None:
        journal.mkdir(parents=True, exist_ok=True)
    journals = str(journal.resolve()) if journal is not None else ""
    if output_file is not None and not output_file.parent.is_dir():
        raise UsageError(f"there is no folder {output_file.parent}", where="-J")
    # What cannot be measured is refused before anything starts.
    if in_job:
        if os.environ.get("WORLD_SIZE", "").isdigit():  # else joining says what is wrong with it
            request.cells(int(os.environ["WORLD_SIZE"]))
        place = in_this_job(request.backends, timeout_s=timeout_s, journals=journals)
    elif scenario:
        request.cells(len(load_scenario(scenario).host_names))
        place = in_scenario(scenario, request.backends, timeout_s=timeout_s, journals=journals)
    else:
        count = DEFAULT_LOOPBACK_RANKS if ranks is None else ranks
        request.cells(count)
        place = loopback(count, request.backends, timeout_s=timeout_s, journals=journals)
    with place as here:
        results = new_results(here.where)
        if here.speaks:
            print(header(results), flush=True)

        def on_row(row: Row) -> None:
            results.rows.append(row)
            if not here.speaks:
                return
            print(line(row), flush=True)
            if output_file is not None:
                results.save(output_file)

        run_request(here.ranks, here.world_size, request, cluster=here.cluster, condition=here.condition, on_row=on_row)
    if results.failed:
        raise typer.Exit(1)
