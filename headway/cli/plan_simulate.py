"""`headway plan simulate`: recorded workflows on a plan's engines, before any of them is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.cells import cell_len

from headway.cli.called import read_all_calls
from headway.cli.engine_model import EngineModels, check_context, check_longest, engine_models
from headway.cli.plan_figures import interference_of, plain
from headway.cli.shown import print_line, shown
from headway.errors import UsageError
from headway.serving.allocation.files import read_nodes, read_plan
from headway.serving.allocation.interference import PER_NEIGHBOUR
from headway.serving.allocation.place import check_places
from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import Forecast, Plan
from headway.serving.deploy.context import cache_bytes, longest
from headway.serving.engine import hardware
from headway.serving.policies import NAMES
from headway.serving.simulate.instances import Running, instances, placed
from headway.serving.simulate.steady import Coming, Length, most_in_flight, steady
from headway.serving.simulate.workflow_summary import WorkflowSummary, summarise
from headway.serving.simulate.workflows import Serve, run_workflows
from headway.serving.workflows.calls import Call, Run
from headway.serving.workflows.programs.recorded import Recorded
from headway.serving.workflows.record import by_workflow, runs_of

POLICY = "prefix-and-load"
POLICIES = tuple(name for name in NAMES if name != "learned")
"""The learned one needs a process that trains it, and a clock."""
LIMIT = 20.0
"""Mean latency, in that of the recorded runs, from which on a run is stopped: it does not keep up (1)."""
SPAN, MOST = 14.0, 20_000
"""As in `Length`."""
MOST_LOAD = 10.0
"""Of the rates that the plan is for (1): more tells nothing about it, and takes long."""
MORE = 4
"""Where chance alone may be what piled up, so many times as many runs are measured, once (1)."""
COLUMNS = ("load", "runs/s", "mean s", "median s", "p99 s", "planned s")
WIDTHS = (6, 8, 7, 8, 7, 9)
"""Columns of figures and how wide they are: lines are printed before the widths of the next ones are known."""


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
    engine_model: EngineModels = None,
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
    names = _names(old, there, programs, engine_model or [])
    running = _engines(old, there, programs, names)
    _check_lengths(old, there, [call for own in recorded.values() for it in own for call in it.calls], names)
    start = instances(running, policy=policy, interference=interference_of(interference))
    lonely_s = {name: sum(it.end_s - it.start_s for it in own) / len(own) for name, own in recorded.items()}
    width = max(cell_len(shown(name)) for name in ("workflow", *programs))
    _print_row([COLUMNS[0], "workflow", *COLUMNS[1:], "keeps up"], width)
    kept, notes = True, []
    for part in loads:
        coming = [
            Coming(it.workflow, programs[it.workflow], it.rate * part, lonely_s[it.workflow]) for it in old.forecasts
        ]
        found = _measured(start, coming, runs, seed=seed, part=part)
        for forecast, summary in zip(old.forecasts, found, strict=True):
            _print_row(_row(part, forecast, summary), width)
            if summary.unclear:
                notes.append(
                    f"note: at load {part:g} {summary.piled_up:.0%} of the runs of {forecast.workflow} piled up, which "
                    f"may be chance: a larger --runs tells"
                )
        kept = all(summary.stable for summary in found)
    for note in notes:
        print_line(note)
    if not kept:
        print(f"At load {loads[-1]:g} runs pile up: the plan does not carry it")
        raise typer.Exit(1)


def _measured(start: Serve, coming: Sequence[Coming], runs: int, *, seed: int, part: float) -> list[WorkflowSummary]:
    """What became of each workflow's runs at a part of the rates; of more runs than `runs` where these do not tell.

    More in flight than the limit allows at the rates that the plan is for pile up, also where more come.
    """
    most = most_in_flight([replace(it, rate=it.rate / max(1.0, part)) for it in coming], limit=LIMIT)
    fewest = runs
    while True:
        traffic = steady(coming, Length(SPAN, fewest, MOST), limit=LIMIT)
        simulated = run_workflows(start, traffic, seed=seed, most_in_flight=most, keep_calls=False)
        found = [summarise(simulated, it.workflow) for it in coming]
        clear = not any(it.unclear for it in found)
        if clear or fewest > runs or MORE * max(it.runs for it in traffic) > MOST:
            return found
        fewest = max(runs + 1, MORE * min(it.runs for it in traffic))


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
    if loads[-1] > MOST_LOAD:
        raise UsageError(f"{loads[-1]:g} is more than {MOST_LOAD:g} times what the plan is for", where="--load")
    return loads


def _names(
    plan: Plan, nodes: Sequence[Node], programs: Mapping[str, Recorded], known_as: Sequence[str]
) -> dict[str, str]:
    """What the engine model knows models as. UsageError: it, or the plan, does not know one; or a GPU is not known."""
    planned = {it.model for it in plan.instances}
    unplanned = sorted({model for program in programs.values() for model in program.block_tokens} - planned)
    if unplanned:
        raise UsageError(
            f"the recorded runs call {', '.join(unplanned)}, which the plan has not",
            where="--calls",
            hint=f"planned: {', '.join(sorted(planned))}",
        )
    devices = {node.name: node.device for node in nodes}
    for it in plan.instances:
        hardware.known(hardware.DEVICES, devices[it.node], "device")
    return engine_models(known_as, sorted(planned))


def _engines(
    plan: Plan, nodes: Sequence[Node], programs: Mapping[str, Recorded], names: Mapping[str, str]
) -> list[Running]:
    """The plan's instances as engines."""
    block_tokens: dict[str, int] = {}
    for program in programs.values():
        for model, size in program.block_tokens.items():
            block_tokens[model] = max(size, block_tokens.get(model, 0))
    return placed(
        plan.instances,
        devices={node.name: node.device for node in nodes},
        slices_per_gpu=plan.slices_per_gpu,
        block_tokens=block_tokens,
        engine_models=names,
    )


def _check_lengths(plan: Plan, nodes: Sequence[Node], calls: Sequence[Call], names: Mapping[str, str]) -> None:
    """UsageError where a call is longer than what one of its model's engines would take, started for this plan."""
    devices = {node.name: hardware.DEVICES[node.device] for node in nodes if node.device in hardware.DEVICES}
    for it in plan.instances:
        check_context(calls, it.model, names.get(it.model, it.model))
        net = hardware.MODELS[names.get(it.model, it.model)]
        memory_bytes = int(devices[it.node].memory_bytes * (it.shape.slices / plan.slices_per_gpu))
        degree = it.shape.tensor_parallel
        bound = longest(it.model, net, cache_bytes(net, memory_bytes, degree), degree, ())
        if bound.said_tokens is not None:
            because = (
                f"#{it.number} of the plan takes {bound.said_tokens} at most: its cache does not hold the model's "
                f"context of {bound.context_tokens}"
            )
            check_longest(calls, it.model, bound.said_tokens, because)


def _row(part: float, forecast: Forecast, found: WorkflowSummary) -> list[str]:
    """What was measured at a part of the rate, and at the whole what was planned."""
    measured = [plain(it) if it == it else "-" for it in (found.mean_s, found.p50_s, found.p99_s)]
    planned = plain(forecast.latency_s) if part == 1 and forecast.latency_s < float("inf") else "-"
    keeps_up = "yes" if found.stable else "no"
    return [f"{part:g}", forecast.workflow, plain(forecast.rate * part), *measured, planned, keeps_up]


def _print_row(cells: Sequence[str], width: int) -> None:
    """A line, at once: the workflow's name in `width` columns, before and after it figures, then a word."""
    load, name, *figures, last = cells
    name = shown(name)
    texts = [text.rjust(size) for text, size in zip((load, *figures), WIDTHS, strict=True)]
    print("  ".join([texts[0], name + " " * (width - cell_len(name)), *texts[1:], last]), flush=True)
