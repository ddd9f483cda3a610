"""`headway plan make`: from what workflows are like, latency curves and machines to a placed plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.called import read_all_calls, spare_inputs
from headway.cli.plan_figures import figures_of, interference_of, plain, rates_of
from headway.cli.plan_files import check_output
from headway.cli.plan_profiles import check_profiles, workflows_of
from headway.cli.plan_way import EqualParts, Within, best, way_of, with_reasons
from headway.cli.plan_words import carries, check_most, print_plan
from headway.cli.shown import print_line
from headway.errors import UsageError
from headway.report.words import counted
from headway.serving.allocation.drift import LEAST_RUNS, rate_of
from headway.serving.allocation.files import (
    AGGREGATES,
    PLAN,
    read_aggregates,
    read_nodes,
    read_profiles,
    write_aggregates,
    write_plan,
)
from headway.serving.allocation.interference import PER_NEIGHBOUR
from headway.serving.allocation.predict import Predictor
from headway.serving.allocation.types import Demand
from headway.serving.workflows.aggregate import aggregate
from headway.serving.workflows.aggregate_types import Aggregate
from headway.serving.workflows.record import by_workflow, runs_of


def make(
    rate: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=RATE", help="Runs of a workflow per second, or with a unit: ask=30/min; repeatable."
        ),
    ],
    calls: Annotated[
        list[Path] | None, typer.Option(help="Recorded calls: from `headway trace import`, or a journal; repeatable.")
    ] = None,
    workflows: Annotated[
        Path | None, typer.Option(help="Instead: what `headway trace calls --aggregates` wrote.")
    ] = None,
    profiles: Annotated[Path, typer.Option(help="From `headway profile`.")] = Path("profiles.yaml"),
    nodes: Annotated[Path, typer.Option(help="The machines; `headway plan nodes` writes such a file.")] = Path(
        "nodes.yaml"
    ),
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The plan; what it was made for goes beside it.")
    ] = Path("plan.yaml"),
    calibrate: Annotated[
        list[str] | None, typer.Option(metavar="NAME=FACTOR", help="Measured over predicted latency of a workflow.")
    ] = None,
    interference: Annotated[
        float, typer.Option(help="Slowdown by a busy neighbour that has a whole GPU's worth; 0 for MIG.")
    ] = PER_NEIGHBOUR,
    most: Annotated[int, typer.Option(help="Rejected neighbours to print; all are in the file.")] = 8,
    within: Within = None,
    equal_parts: EqualParts = False,
) -> None:
    """Find the shares with which workflows are served at their rates, soonest; place them; and say why.

    With --within: on the fewest GPUs that will do. Exit code 1: the plan is written, and does not carry all rates, or
    does not keep all limits.
    """
    check_most(most)
    rates = rates_of(rate, "--rate")
    way = way_of(within, equal_parts, rates, by="--rate")
    beside = workflows_of(output, by="--output")
    spare_inputs([output, beside], [*(calls or []), workflows, profiles, nodes])
    check_output(output, PLAN)
    check_output(beside, AGGREGATES)
    seen = _seen(calls or [], workflows)
    unknown = sorted(set(rates) - set(seen))
    if unknown:
        raise UsageError(
            f"no run of {', '.join(unknown)} was recorded", where="--rate", hint=f"recorded: {', '.join(seen)}"
        )
    demands = [Demand(seen[name].aggregate, each) for name, each in rates.items()]
    slices, known = read_profiles(profiles)
    there = read_nodes(nodes)
    factors = figures_of(calibrate or [], "--calibrate")
    others = sorted(set(factors) - set(rates))
    if others:
        raise UsageError(f"{others[0]} is not planned for", where="--calibrate", hint=f"by --rate: {', '.join(rates)}")
    if not any(node.gpus for node in there):
        raise UsageError("has no GPUs", where=str(nodes))
    check_profiles(known, there, demands, profiles=profiles, nodes=nodes)
    predictor = Predictor(known, interference=interference_of(interference), calibration=factors, slices_per_gpu=slices)
    found = best(demands, predictor, there, way, slices)
    if found.enough:
        print_line(found.enough)
        print()
    placed = with_reasons(found.plan, found.nodes, demands, predictor, way)
    write_plan(output, placed)
    write_aggregates(beside, [demand.aggregate for demand in demands])
    print_plan(placed, there, most_rejected=most)
    print()
    _print_notes(seen, rates)
    print(f"wrote {output} and {beside}")
    if found.missed or not carries(placed):
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A workflow on average, and how many runs per second were recorded; None: averages do not say."""

    aggregate: Aggregate
    rate: float | None


def _seen(calls: Sequence[Path], workflows: Path | None) -> dict[str, _Seen]:
    """What is known, by workflow. UsageError: both ways, or none."""
    if bool(calls) == (workflows is not None):
        raise UsageError("say what the workflows are like: by --calls, or by --workflows")
    if workflows is not None:
        return {each.workflow: _Seen(each, None) for each in read_aggregates(workflows)}
    return {
        name: _Seen(aggregate(runs), rate_of([run.start_s for run in runs]))
        for name, runs in by_workflow(runs_of(read_all_calls(calls))).items()
    }


def _print_notes(seen: Mapping[str, _Seen], rates: Mapping[str, float]) -> None:
    """What was recorded of the workflows, and which are left out."""
    for name in rates:
        runs, rate = seen[name].aggregate.runs, seen[name].rate
        if rate:
            print_line(f"recorded: {counted(runs, 'run')} of {name}, at {plain(rate)}/s")
        if runs < LEAST_RUNS:
            print_line(f"note: {name}: {counted(runs, 'run')} recorded: averages of less than {LEAST_RUNS} say little")
    others = [name for name in seen if name not in rates]
    if others:
        print_line(f"not planned for: {', '.join(others)} (their calls will meet the same engines)")
