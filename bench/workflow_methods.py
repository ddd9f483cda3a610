"""What the workflow study's methods make of the GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from bench.workflow_known import DEVICE, DOMAIN_GPUS, POLICY, Known, models_of
from headway.serving.allocation.baselines.autoscaled import autoscaled
from headway.serving.allocation.baselines.in_order import OldestRunFirst
from headway.serving.allocation.baselines.pooling import HOST_LINK_Bps, pool, pooled
from headway.serving.allocation.baselines.static import by_parameters, equal_split
from headway.serving.allocation.interference import Interference
from headway.serving.allocation.place import place
from headway.serving.allocation.predict import Predictor
from headway.serving.allocation.scepsy import explore_scepsy
from headway.serving.allocation.search import Found, Room, explore, room
from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import Demand, Forecast, Plan, Shape, Share
from headway.serving.simulate.instances import instances, placed
from headway.serving.simulate.workflows import Order, Serve

SPARE = 0.95
"""See `_searched` (1)."""


@dataclass(frozen=True)
class Chosen:
    """What a method does with the GPUs at some rates."""

    serve: Serve
    order: Order | None = None
    plan: Plan | None = None
    forecasts: tuple[Forecast, ...] = ()


Method = Callable[[Known, Sequence[Demand], int], Chosen]
Explored = Callable[[Sequence[Demand], Predictor, Room], Found]


def words(shares: Sequence[Share], slices: int) -> str:
    """As `2 x 3/4` and `1 x 2`: so many instances, on which part of a GPU or on how many."""
    return ", ".join(
        f"{it.model} {it.replicas} x "
        + (f"{it.shape.slices}/{slices}" if it.shape.slices < slices else f"{it.shape.tensor_parallel}")
        for it in shares
    )


def nodes(gpus: int) -> list[Node]:
    """Nodes of up to DOMAIN_GPUS GPUs."""
    sizes = [min(DOMAIN_GPUS, gpus - first) for first in range(0, gpus, DOMAIN_GPUS)]
    return [Node(f"node{number}", DEVICE, (tuple(range(size)),)) for number, size in enumerate(sizes)]


def _predictor(known: Known) -> Predictor:
    return Predictor(known.profiles, interference=Interference())


def run_plan(known: Known, demands: Sequence[Demand], plan: Plan) -> Chosen:
    """The engines of a placed plan, and what the predictor says of them."""
    devices = {it.node: DEVICE for it in plan.instances}
    running = placed(plan.instances, devices=devices, slices_per_gpu=known.slices)
    return Chosen(
        instances(running, policy=POLICY, interference=Interference()),
        plan=plan,
        forecasts=_predictor(known).forecast(demands, plan.shares, plan.instances),
    )


def _whole(known: Known) -> dict[str, float]:
    return {model: it.curves[Shape(1, known.slices)].saturation for model, it in known.profiles.items()}


def _searched(explored: Explored) -> Method:
    """A plan by a search. Where the rate is more than can be carried, it is made for SPARE times the most that can be:
    the last per cent of throughput may cost any latency."""

    def method(known: Known, demands: Sequence[Demand], gpus: int) -> Chosen:
        predictor = _predictor(known)
        there = room(gpus, known.slices, min(DOMAIN_GPUS, gpus))
        found = explored(demands, predictor, there)
        if found.fraction < 1:
            less = [replace(it, rate=it.rate * found.fraction * SPARE) for it in demands]
            found = explored(less, predictor, there)
        return run_plan(known, demands, place(Plan(known.slices, found.shares), nodes(gpus)))

    return method


def _equal(known: Known, demands: Sequence[Demand], gpus: int) -> Chosen:
    plan = equal_split(models_of(known.workload), gpus=gpus, slices_per_gpu=known.slices)
    return run_plan(known, demands, plan)


def _by_hand(known: Known, demands: Sequence[Demand], gpus: int) -> Chosen:
    plan = by_parameters(models_of(known.workload), gpus=gpus, slices_per_gpu=known.slices)
    return run_plan(known, demands, plan)


def _ordered(known: Known, demands: Sequence[Demand], gpus: int) -> Chosen:
    return replace(_by_hand(known, demands, gpus), order=OldestRunFirst())


def _alone(known: Known, demands: Sequence[Demand], gpus: int) -> Chosen:
    saturation = _whole(known)
    in_order = {model: saturation[model] for model in models_of(known.workload)}
    return run_plan(known, demands, autoscaled(demands, in_order, gpus=gpus, slices_per_gpu=known.slices))


def _pooling(host_link_Bps: float) -> Method:
    def method(known: Known, demands: Sequence[Demand], gpus: int) -> Chosen:
        models = {model: pooled(DEVICE, model, host_link_Bps=host_link_Bps) for model in known.profiles}
        return Chosen(pool(models, gpus=gpus))

    return method


METHODS: Mapping[str, Method] = {
    "plan": _searched(explore),
    "paper's search": _searched(explore_scepsy),
    "each alone": _alone,
    "equal": _equal,
    "by hand": _by_hand,
    "oldest first": _ordered,
    "pool": _pooling(HOST_LINK_Bps),
    "pool, free switch": _pooling(math.inf),
}
