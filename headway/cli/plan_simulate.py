"""`headway plan simulate`: recorded workflows on a plan's engines, before any of them is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from headway.cli.called import read_all_calls
from headway.cli.plan_profiles import engine_models
from headway.cli.shown import cell
from headway.cli.tables import plain_table, print_table
from headway.errors import UsageError
from headway.serving.allocation.files import read_nodes, read_plan
from headway.serving.allocation.interference import PER_NEIGHBOUR, Interference
from headway.serving.allocation.place import check_places
from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import Forecast, Plan
from headway.serving.engine import hardware
from headway.serving.policies import NAMES
from headway.serving.simulate.instances import Running, instances, placed
from headway.serving.simulate.steady import Coming, Length, most_in_flight, steady
from headway.serving.simulate.workflow_summary import WorkflowSummary, summarise
from headway.serving.simulate.workflows import run_workflows
from headway.serving.workflows.calls import Run
from headway.serving.workflows.programs.recorded import Recorded
from headway.serving.workflows.record import by_workflow, runs_of

PLAIN_WIDTH = 120
POLICY = "prefix-and-load"
POLICIES = tuple(name for name in NAMES if name != "learned")
"""The learned one needs a process that trains it, and a clock."""
LIMIT = 20.0
"""Mean latency, in that of the recorded runs, from which on a run is stopped: it does not keep up (1)."""
SPAN, MOST = 14.0, 20_000
"""As in `Length`."""


def simulate(
    calls: Annotated[
        list[Path], typer.Option(help="Recorded calls: from `headway trace import`, or a journal; repeatable.")
    ],
    plan: Annotated[Path, typer.Option(help="From `headway plan make`.")] = Path("plan.yaml"),
    nodes: Annotated[Path, typer.Option(help="The machines.")] = Path("nodes.yaml"),
    load: Annotated[
        str, typer.Option(metavar="LOADS", help="Parts of the rates that the plan is for, separated by commas.")
    ] = "0.5,0.8,1",
    runs: Annotated[int, typer.Option(help="Runs of each workflow to measure, at least.")] = 300,
    policy: Annotated[str, typer.Option(help=f"Of the routers: {', '.join(POLICIES)}.")] = POLICY,
    engine_model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=MODEL", help="What the engine model knows a model as, where that differs."),
    ] = None,
    interference: Annotated[float, typer.Option(help="As for `plan make`.")] = PER_NEIGHBOUR,
    seed: Annotated[int, typer.Option(help="Of arrivals, and of which recorded run comes when.")] = 1,
) -> None:
    """Run recorded workflows on the plan's engines on a simulated clock: mean, median, p99, and whether they keep up.

    Exit code 1: at the highest load some workflow does not keep up.
    """
    loads = _loads(load)
    if runs < 2:
        raise UsageError(f"{runs} are too few to measure", where="--runs")
    if policy not in POLICIES:
        raise UsageError(f"{policy!r} is none of {', '.join(POLICIES)}", where="--policy")
    old, there = _placed_plan(plan), read_nodes(nodes)
    check_places(old, there, where=str(plan))
    recorded = _recorded(old, calls)
    programs = {name: Recorded(own, seed=seed) for name, own in recorded.items()}
    running = _engines(old, there, programs, engine_model or [])
    start = instances(running, policy=policy, interference=Interference(interference))
    lonely_s = {name: sum(it.end_s - it.start_s for it in own) / len(own) for name, own in recorded.items()}
    table, kept = _table(), True
    for part in loads:
        coming = [
            Coming(it.workflow, programs[it.workflow], it.rate * part, lonely_s[it.workflow]) for it in old.forecasts
        ]
        simulated = run_workflows(
            start,
            steady(coming, Length(SPAN, runs, MOST), limit=LIMIT),
            seed=seed,
            most_in_flight=most_in_flight(coming, limit=LIMIT),
            keep_calls=False,
        )
        found = [summarise(simulated, forecast.workflow) for forecast in old.forecasts]
        for forecast, summary in zip(old.forecasts, found, strict=True):
            _add(table, part, forecast, summary)
        kept = all(summary.stable for summary in found)
    print_table(table, plain_width=PLAIN_WIDTH)
    if not kept:
        print(f"At load {loads[-1]:g} runs pile up: the plan does not carry it")
        raise typer.Exit(1)


def _placed_plan(path: Path) -> Plan:
    """UsageError: it is not placed."""
    plan = read_plan(path)
    if not plan.instances or not plan.forecasts:
        raise UsageError("is not placed", where=str(path), hint="headway plan make places what it makes")
    return plan


def _recorded(plan: Plan, calls: Sequence[Path]) -> dict[str, list[Run]]:
    """The runs of the plan's workflows. UsageError: there are none of some."""
    seen = by_workflow(runs_of(read_all_calls(calls)))
    missing = [it.workflow for it in plan.forecasts if it.workflow not in seen]
    if missing:
        raise UsageError(
            f"no run of {', '.join(missing)} was recorded",
            where="--calls",
            hint=f"recorded: {', '.join(seen)}",
        )
    return {it.workflow: list(seen[it.workflow]) for it in plan.forecasts}


def _loads(text: str) -> list[float]:
    try:
        loads = sorted({float(it) for it in text.split(",")})
    except ValueError:
        loads = []
    if not loads or not all(0 < it < float("inf") for it in loads):
        raise UsageError(f"{text!r} is no list of numbers above 0", where="--load", hint="0.5,0.8,1")
    return loads


def _engines(
    plan: Plan, nodes: Sequence[Node], programs: Mapping[str, Recorded], known_as: Sequence[str]
) -> list[Running]:
    """The plan's instances as engines."""
    devices = {node.name: node.device for node in nodes}
    block_tokens: dict[str, int] = {}
    for program in programs.values():
        for model, size in program.block_tokens.items():
            block_tokens[model] = max(size, block_tokens.get(model, 0))
    planned = {it.model for it in plan.instances}
    unplanned = sorted(set(block_tokens) - planned)
    if unplanned:
        raise UsageError(
            f"the recorded runs call {', '.join(unplanned)}, which the plan has not",
            where="--calls",
            hint=f"planned: {', '.join(sorted(planned))}",
        )
    names = engine_models(known_as, sorted(planned))
    for it in plan.instances:
        hardware.known(hardware.DEVICES, devices[it.node], "device")
        if names.get(it.model, it.model) not in hardware.MODELS:
            raise UsageError(
                f"the engine model does not know {it.model}",
                hint=f"--engine-model {it.model}=NAME, one of {', '.join(hardware.MODELS)}",
            )
    return placed(
        plan.instances,
        devices=devices,
        slices_per_gpu=plan.slices_per_gpu,
        block_tokens=block_tokens,
        engine_models=names,
    )


def _table() -> Table:
    table = plain_table()
    for column in ("load", "workflow", "runs/s", "mean s", "median s", "p99 s", "planned s", "keeps up"):
        table.add_column(column, justify="left" if column in ("workflow", "keeps up") else "right", no_wrap=True)
    return table


def _add(table: Table, part: float, forecast: Forecast, found: WorkflowSummary) -> None:
    """A line: what was measured at a part of the rate, and at the whole what was planned."""
    measured = [f"{it:.3g}" if it == it else "-" for it in (found.mean_s, found.p50_s, found.p99_s)]
    planned = f"{forecast.latency_s:.3g}" if part == 1 else ""
    rate, keeps_up = f"{forecast.rate * part:.3g}", "yes" if found.stable else "no"
    table.add_row(f"{part:g}", cell(forecast.workflow), rate, *measured, planned, keeps_up)
