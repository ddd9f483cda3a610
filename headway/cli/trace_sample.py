"""`headway trace sample`: recorded calls of a well-known workflow, to try plans with where nothing was recorded yet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.journals import write_text
from headway.errors import UsageError
from headway.report.words import counted
from headway.serving.allocation.types import Shape, Share
from headway.serving.engine import hardware
from headway.serving.simulate.instances import instances, unplaced
from headway.serving.simulate.workflows import Traffic, run_workflows
from headway.serving.workflows.files import write_calls
from headway.serving.workflows.programs.named import NAMED, named

POLICY = "prefix-and-load"
RATE = 0.02
"""Runs per second: few meet another, so that what is recorded is the workflow and not the queues (1/s)."""
MOST_RUNS = 5000


def sample(
    workflow: Annotated[str, typer.Argument(help=f"One of {', '.join(NAMED)}.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file of calls to write.")] = Path("calls.jsonl"),
    runs: Annotated[int, typer.Option(help="Runs to record.")] = 100,
    device: Annotated[
        str, typer.Option(help=f"GPU that each model has for itself: {', '.join(hardware.DEVICES)}.")
    ] = "a100",
    seed: Annotated[int, typer.Option(help="Another one gives other runs.")] = 1,
) -> None:
    """Run a workflow's program on simulated engines, a GPU for each model, and write its calls."""
    program = named(workflow)
    if not 1 <= runs <= MOST_RUNS:
        raise UsageError(f"{runs} is not from 1 to {MOST_RUNS}", where="--runs")
    hardware.known(hardware.DEVICES, device, "device")
    whole = [Share(model, Shape(1, 1), 1) for model in program.models]
    simulated = run_workflows(
        instances(unplaced(whole, device=device, slices_per_gpu=1), policy=POLICY),
        [Traffic(workflow, program, RATE, 0, runs)],
        seed=seed,
    )
    calls = simulated.counted_calls()
    write_text(output, write_calls(calls))
    print(f"wrote {output}: {counted(len(calls), 'call')} of {counted(runs, 'run')} to {', '.join(program.models)}")
