"""A plan as people read it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from headway.cli.plan_figures import plain
from headway.cli.shown import cell, print_line
from headway.cli.tables import plain_table, print_table
from headway.errors import UsageError
from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import Forecast, Plan, Shape

PLAIN_WIDTH = 120


def shape_words(shape: Shape, slices_per_gpu: int) -> str:
    """ "0.3 GPU", "1 GPU", "2 GPUs"."""
    if shape.tensor_parallel > 1:
        return f"{shape.tensor_parallel} GPUs"
    return f"{shape.slices / slices_per_gpu:g} GPU"


def check_most(most: int) -> None:
    """UsageError: so many rejected neighbours cannot be printed."""
    if most < 0:
        raise UsageError(f"{most} is below 0", where="--most")


def print_plan(plan: Plan, nodes: Sequence[Node], *, most_rejected: int) -> None:
    """Forecasts, shares, places, and what was rejected."""
    for forecast in plan.forecasts:
        print_line(forecast_words(forecast))
    print()
    _print_shares(plan)
    if plan.instances:
        print()
        _print_places(plan, nodes)
    if plan.rejected and most_rejected > 0:
        print("\nRejected, each for one step away from this plan:")
        for each in plan.rejected[:most_rejected]:
            print_line(f"{each.what}: {each.why}", indent="  ")
        if len(plan.rejected) > most_rejected:
            print(f"  and {len(plan.rejected) - most_rejected} more, in the file")


def carries(plan: Plan) -> bool:
    """Whether all workflows are served at their rates."""
    return all(forecast.latency_s < float("inf") for forecast in plan.forecasts)


def forecast_words(forecast: Forecast) -> str:
    """One workflow in a sentence."""
    error = f" ±{forecast.error:.0%}" if forecast.error is not None else ""
    if not forecast.bottleneck:
        return f"{forecast.workflow} at {plain(forecast.rate)}/s: calls no model of the plan"
    if forecast.latency_s == float("inf"):
        return (
            f"{forecast.workflow}: cannot be served at {plain(forecast.rate)}/s: "
            f"at most {plain(forecast.throughput)}/s, which {forecast.bottleneck} limits"
        )
    return (
        f"{forecast.workflow} at {plain(forecast.rate)}/s: {plain(forecast.latency_s)} s{error} in the mean; "
        f"at most {plain(forecast.throughput)}/s, which {forecast.bottleneck} limits"
    )


def _print_shares(plan: Plan) -> None:
    table = plain_table()
    table.add_column("model", no_wrap=True)
    table.add_column("instances", justify="right")
    table.add_column("each", no_wrap=True)
    table.add_column("GPUs in all", justify="right")
    workflows = [forecast.workflow for forecast in plan.forecasts]
    for workflow in workflows:
        table.add_column(cell(f"of {workflow}"), justify="right")
    for share in plan.shares:
        parts = []
        for forecast in plan.forecasts:
            part_s = forecast.latency_by_model_s.get(share.model)
            parts.append("" if part_s is None else "-" if part_s == float("inf") else f"{plain(part_s)} s")
        table.add_row(
            cell(share.model),
            str(share.replicas),
            shape_words(share.shape, plan.slices_per_gpu),
            f"{share.slices() / plan.slices_per_gpu:g}",
            *parts,
        )
    print_table(table, plain_width=PLAIN_WIDTH)


def _print_places(plan: Plan, nodes: Sequence[Node]) -> None:
    on_gpu: dict[tuple[str, int], list[str]] = defaultdict(list)
    used: dict[tuple[str, int], int] = defaultdict(int)
    for it in plan.instances:
        for gpu in it.gpus:
            part = "" if it.shape.slices == plan.slices_per_gpu else f" {it.shape.slices / plan.slices_per_gpu:g}"
            on_gpu[it.node, gpu].append(f"{it.model} #{it.number}{part}")
            used[it.node, gpu] += it.shape.slices
    places = [(node.name, gpu) for node in nodes for domain in node.domains for gpu in domain] or sorted(on_gpu)
    table = plain_table()
    table.add_column("node", no_wrap=True)
    table.add_column("GPU", justify="right")
    table.add_column("has")
    table.add_column("free", justify="right")
    before = ""
    for node, gpu in places:
        free = (plan.slices_per_gpu - used[node, gpu]) / plan.slices_per_gpu
        has = ", ".join(on_gpu[node, gpu]) or "-"
        table.add_row(cell(node if node != before else ""), str(gpu), cell(has), f"{free:g}" if free else "")
        before = node
    print_table(table, plain_width=PLAIN_WIDTH)
