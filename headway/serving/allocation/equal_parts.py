"""Plans for sharing by NVIDIA's device plugin, which cuts all GPUs of a node into equal parts, or none. Pure.

So a node has whole instances, or parts of one size 1/r of a GPU. For each such size that profiles have curves of, the
best plans are searched for (`search`) with this size and whole GPUs, with this size alone, and with whole GPUs alone.
Those are placed with whole instances on the first nodes and parts on the others, for as few of the first as will do.
The best of what can be placed so is taken.

May be missed: two sizes on different nodes, and a plan that is worse than one which would have to mix on a node.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace

from headway.errors import UsageError
from headway.serving.allocation.neighbours import gpus_in_words, shape_in_words
from headway.serving.allocation.place import place
from headway.serving.allocation.predict import Predictor
from headway.serving.allocation.search import Room, explore, room
from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import Demand, Plan, Shape


def search_equal_parts(
    demands: Sequence[Demand],
    predictor: Predictor,
    nodes: Sequence[Node],
    *,
    slices_per_gpu: int,
    gpu_bytes: int | None = None,
) -> Plan:
    """The best plan that the device plugin can share out, placed, with forecasts; no neighbours.

    Args:
        demands: the workflows and their rates.
        predictor: predicts.
        nodes: the machines.
        slices_per_gpu: f.
        gpu_bytes: as for `search.search`.

    Raises:
        UsageError: there is none; says so where parts of several sizes would have room. Else as `search.search`.
    """
    domains = [len(domain) for node in nodes for domain in node.domains]
    there = room(sum(domains), slices_per_gpu, domains, gpu_bytes)
    found: list[Plan] = []
    for sizes in _choices(predictor, slices_per_gpu):
        try:
            shares = explore(demands, _only(predictor, sizes), there).shares
        except UsageError:  # too large or too small for this choice of sizes; another one may do
            continue
        placed = place_apart(Plan(slices_per_gpu, shares), nodes)
        if placed is not None:
            forecasts = predictor.forecast(demands, placed.shares, placed.instances)
            found.append(replace(placed, forecasts=forecasts))
    if not found:
        raise _none(demands, predictor, there)
    return _best(found)


def _none(demands: Sequence[Demand], predictor: Predictor, there: Room) -> UsageError:
    """Why no plan has parts of one size, where plans with any have room. UsageError, as `search`: they have not."""
    shares = explore(demands, predictor, there).shares
    return UsageError(
        f"parts of one size have no room on {gpus_in_words(sum(there.domains))}, where parts of several sizes would: "
        + ", ".join(f"{share.model} {shape_in_words(share, there.slices_per_gpu)}" for share in shares),
        hint="plan without equal parts, and share with DRA; or take more GPUs",
    )


def place_apart(plan: Plan, nodes: Sequence[Node]) -> Plan | None:
    """The plan placed with whole instances on the first nodes and parts on the others; None: that has no room."""
    whole = tuple(share for share in plan.shares if share.shape.slices == plan.slices_per_gpu)
    parts = tuple(share for share in plan.shares if share.shape.slices < plan.slices_per_gpu)
    for first in range(1 if whole else 0, len(nodes) + (0 if parts else 1)):
        try:
            instances = [
                it
                for shares, there in ((whole, nodes[:first]), (parts, nodes[first:]))
                if shares
                for it in place(replace(plan, shares=shares), there).instances
            ]
        except UsageError:  # more nodes for one kind, or fewer for the other, may do
            continue
        order = {share.model: at for at, share in enumerate(plan.shares)}
        return replace(plan, instances=tuple(sorted(instances, key=lambda it: (order[it.model], it.number))))
    return None


def _choices(predictor: Predictor, slices_per_gpu: int) -> Iterator[frozenset[int]]:
    """Sets of sizes, in slices, that a plan may have: whole GPUs first."""
    shapes: set[Shape] = set().union(*(profile.curves for profile in predictor.profiles.values()))
    sizes = sorted({shape.slices for shape in shapes if slices_per_gpu % shape.slices == 0})
    yield frozenset({slices_per_gpu})
    for size in sizes:
        if size < slices_per_gpu:
            yield frozenset({size, slices_per_gpu})
            yield frozenset({size})


def _only(predictor: Predictor, sizes: frozenset[int]) -> Predictor:
    """A predictor that knows no other sizes."""
    known = copy.copy(predictor)
    known.profiles = {
        model: replace(
            profile,
            curves={shape: curve for shape, curve in profile.curves.items() if shape.slices in sizes},
            spread_curves={
                spread: {shape: curve for shape, curve in curves.items() if shape.slices in sizes}
                for spread, curves in profile.spread_curves.items()
            },
        )
        for model, profile in predictor.profiles.items()
    }
    return known


def _best(plans: Sequence[Plan]) -> Plan:
    """What carries most of the rates, then what has the least latencies, each workflow counted alike (as `goal`)."""
    least_s = [
        min(each.latency_s for each in forecasts) for forecasts in zip(*(p.forecasts for p in plans), strict=True)
    ]

    def missed(plan: Plan) -> tuple[float, float]:
        carried = min(min(1.0, each.throughput / each.rate) for each in plan.forecasts)
        slower = sum(
            each.latency_s / best_s if best_s > 0 and each.latency_s < float("inf") else 0.0
            for each, best_s in zip(plan.forecasts, least_s, strict=True)
        )
        return -carried, slower

    return min(plans, key=missed)
