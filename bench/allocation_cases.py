"""Seeded cases for the search for shares of GPUs: models, profiles and workflows of plausible shape."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headway.serving.allocation.interference import Interference
from headway.serving.allocation.predict import Predictor
from headway.serving.allocation.search import Room, explore, room
from headway.serving.allocation.types import Curve, Demand, ModelProfile, Shape
from headway.serving.workflows.aggregate_types import Aggregate, ModelUse

GPU_BYTES = 80_000_000_000
"""Memory of a GPU."""
POINTS = (0.02, 0.2, 0.4, 0.55, 0.7, 0.8, 0.9)
"""Of saturation, where curves have points (1)."""


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to search.

    Attributes:
        demands: workflows and rates.
        predictor: knows the models.
        there: the GPUs.
        load: the rates over those of the best plan for throughput (1).
    """

    demands: tuple[Demand, ...]
    predictor: Predictor
    there: Room
    load: float


def case(
    seed: int, *, models: int, gpus: int, slices_per_gpu: int, workflows: int = 1, load: float | None = None
) -> Case:
    """A case; the same seed gives the same. Fast domains of 8 GPUs, or all where there are fewer."""
    rng = random.Random(f"{seed}/{models}/{gpus}/{slices_per_gpu}/{workflows}")
    there = room(gpus, slices_per_gpu, min(8, gpus))
    names = [f"model-{number}" for number in range(models)]
    sizes = _sizes(rng, models, gpus)
    profiles = {
        name: made_profile(rng, name, size, slices_per_gpu=slices_per_gpu, largest=min(8, gpus))
        for name, size in zip(names, sizes, strict=True)
    }
    predictor = Predictor(profiles, interference=Interference())
    demands = [
        Demand(made_aggregate(rng, f"workflow-{number}", _called(rng, names, number, workflows), profiles), 1.0)
        for number in range(workflows)
    ]
    if workflows > 1:  # so that each takes a comparable part of the GPUs
        alone = [most_common_rates(predictor, [demand], there) for demand in demands]
        demands = [
            replace(demand, rate=most * rng.uniform(0.3, 1.0)) for demand, most in zip(demands, alone, strict=True)
        ]
    loaded = rng.uniform(0.25, 1.1) if load is None else load
    most = most_common_rates(predictor, demands, there)
    demands = [replace(demand, rate=demand.rate * most * loaded) for demand in demands]
    return Case(tuple(demands), predictor, there, loaded)


def most_common_rates(predictor: Predictor, demands: Sequence[Demand], there: Room) -> float:
    """How many times the demands' rates can be carried at most."""
    many = [replace(demand, rate=demand.rate * 1e6) for demand in demands]
    return explore(many, predictor, there).fraction * 1e6


def _sizes(rng: random.Random, models: int, gpus: int) -> list[float]:
    """Weights in bytes, so that all models can be on the GPUs at once."""
    sizes = [2e9 * rng.choice((0.5, 1.5, 3, 7, 8, 14, 32)) for _ in range(models)]
    while sum(sizes) > 0.35 * gpus * GPU_BYTES or max(sizes) > 0.6 * GPU_BYTES:
        sizes[sizes.index(max(sizes))] /= 2
    return sizes


def _called(rng: random.Random, names: Sequence[str], number: int, workflows: int) -> list[str]:
    """Who a workflow calls: its own part of the models, and now and then one of another's."""
    own = [name for at, name in enumerate(names) if at % workflows == number % workflows]
    others = [name for name in names if name not in own]
    if others and rng.random() < 0.5:
        own.append(rng.choice(others))
    return own


def made_profile(
    rng: random.Random, name: str, weight_bytes: float, *, slices_per_gpu: int, largest: int
) -> ModelProfile:
    """A profile in which latency and saturation follow powers of the fraction and of the degree."""
    unloaded_s = weight_bytes / 2e9 * rng.uniform(0.1, 0.6)
    saturation = rng.uniform(4, 24) / unloaded_s
    by_fraction, by_degree = rng.uniform(0.6, 1.0), rng.uniform(0.5, 0.9)
    throughput_by_fraction, throughput_by_degree = rng.uniform(0.8, 1.1), rng.uniform(0.6, 0.95)
    linear, steep = rng.uniform(0.5, 3.0), rng.uniform(0.05, 0.3)
    needed = {1 << power: int(weight_bytes * rng.uniform(1.15, 1.5) / (1 << power) + 1.5e9) for power in range(4)}
    curves = {}
    shapes = [Shape(1, slices) for slices in range(1, slices_per_gpu)]
    shapes += [Shape(degree, slices_per_gpu) for degree in (1, 2, 4, 8) if degree <= largest]
    for shape in shapes:
        fraction = shape.slices / slices_per_gpu
        if needed[shape.tensor_parallel] > fraction * GPU_BYTES:
            continue
        alone_s = unloaded_s / (fraction**by_fraction * shape.tensor_parallel**by_degree)
        most = saturation * fraction**throughput_by_fraction * shape.tensor_parallel**throughput_by_degree
        latencies = tuple(alone_s * (1 + linear * part + steep * part / (1 - part)) for part in POINTS)
        rates = tuple(most * part for part in POINTS)
        curves[shape] = Curve(rates, latencies, tuple(2.5 * each for each in latencies), most)
    return ModelProfile(name, curves, needed, "made up")


def made_aggregate(
    rng: random.Random, workflow: str, models: Sequence[str], profiles: dict[str, ModelProfile]
) -> Aggregate:
    """A workflow that calls these models: from once to some hundred times, one at a time or many."""
    uses = []
    for model in models:
        calls = round(10 ** rng.uniform(0, 2), 1)
        together = min(calls, rng.choice((1.0, 1.0, 2.5, 4.0, 8.0)))
        curves = profiles[model].curves
        call_s = min(curve.latencies_s[0] for curve in curves.values())
        busy_s = calls * call_s / together
        uses.append(ModelUse(model, calls, together, busy_s, 0.0, 0.1, 500.0, 200.0))
    total_s = sum(use.busy_s for use in uses)
    other_s = total_s * rng.choice((0.0, 0.0, 0.2))
    ranked = sorted((replace(use, share=use.busy_s / total_s) for use in uses), key=lambda use: -use.share)
    return Aggregate(workflow, 100, tuple(ranked), other_s, other_s + total_s, 0.5)
