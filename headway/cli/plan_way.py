"""In which way a plan is made: on all GPUs, on the fewest that keep limits, or of parts of one size.

`plan make` makes plans, and `plan watch` proposes them: with the same options both find the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import typer

from headway.cli.plan_profiles import gpu_bytes
from headway.cli.plan_within import enough_words, limits_of
from headway.errors import UsageError
from headway.serving.allocation.equal_parts import search_equal_parts
from headway.serving.allocation.fewest import fewest, first_gpus
from headway.serving.allocation.neighbours import placed_neighbours
from headway.serving.allocation.place import place
from headway.serving.allocation.predict import Predictor
from headway.serving.allocation.search import explore, room
from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import Demand, Plan

Within = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=TIME",
        help="Mean latency that a workflow may have: take the fewest GPUs that keep it; repeatable.",
    ),
]
EqualParts = Annotated[
    bool,
    typer.Option(
        "--equal-parts", help="For `plan manifests --sharing mps` or time-slicing: on each node one size of part."
    ),
]


@dataclass(frozen=True, slots=True)
class Way:
    """What is asked of a plan beside its rates.

    Attributes:
        limits_s: of the mean latency, by workflow, seconds: the plan is on the fewest GPUs that keep them; empty: on
            all.
        equal_parts: on each node whole instances, or parts of one size.
    """

    limits_s: dict[str, float] = field(default_factory=dict)
    equal_parts: bool = False


@dataclass(frozen=True, slots=True)
class Best:
    """The best plan in some way.

    Attributes:
        plan: placed, with forecasts and without reasons.
        nodes: with the GPUs that it may use.
        enough: how few GPUs are enough, in words; empty where that was not asked.
        missed: whether it misses a limit, or a rate that goes with one.
    """

    plan: Plan
    nodes: tuple[Node, ...]
    enough: str = ""
    missed: bool = False


def way_of(within: Sequence[str] | None, equal_parts: bool, planned: Iterable[str], *, by: str) -> Way:
    """From a command line.

    Args:
        within: as `--within` is given.
        equal_parts: as `--equal-parts` is.
        planned: workflows that limits may be of.
        by: what says so: "--rate".

    Raises:
        UsageError: the two do not go together, or a limit is none.
    """
    limits_s = limits_of(within or [], planned, by=by)
    if limits_s and equal_parts:
        raise UsageError("does not go with --within yet: take nodes away from the file by hand", where="--equal-parts")
    return Way(limits_s, equal_parts)


def best(demands: Sequence[Demand], predictor: Predictor, nodes: Sequence[Node], way: Way, slices_per_gpu: int) -> Best:
    """The best plan there is. UsageError where there is none."""
    memory_bytes = gpu_bytes(nodes)
    if way.limits_s:
        few = fewest(demands, predictor, nodes, way.limits_s, slices_per_gpu=slices_per_gpu, gpu_bytes=memory_bytes)
        return Best(few.plan, first_gpus(nodes, few.gpus), enough_words(few), bool(few.missed))
    if way.equal_parts:
        plan = search_equal_parts(demands, predictor, nodes, slices_per_gpu=slices_per_gpu, gpu_bytes=memory_bytes)
        return Best(plan, tuple(nodes))
    domains = [len(domain) for node in nodes for domain in node.domains]
    found = explore(demands, predictor, room(sum(domains), slices_per_gpu, domains, memory_bytes))
    plan = place(Plan(slices_per_gpu, found.shares), nodes)
    return Best(
        replace(plan, forecasts=predictor.forecast(demands, plan.shares, plan.instances)),
        tuple(nodes),
    )


def with_reasons(plan: Plan, nodes: Sequence[Node], demands: Sequence[Demand], predictor: Predictor, way: Way) -> Plan:
    """The plan with why each neighbour lost; of parts of one size nothing is said.

    Args:
        plan: placed.
        nodes: with the GPUs that it may use.
        demands: what it is for.
        predictor: predicts.
        way: in which it was made.
    """
    if way.equal_parts:
        return plan
    return replace(plan, rejected=placed_neighbours(plan, nodes, demands, predictor, limits_s=way.limits_s))
