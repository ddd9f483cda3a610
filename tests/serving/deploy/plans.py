"""Small placed plans for the tests of what is made of them."""

from __future__ import annotations

from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import Forecast, Instance, Plan, Shape, Share

NODES = [Node("node-a", "a100", ((0, 1, 2, 3),)), Node("node-b", "a100", ((0, 1), (2, 3)))]


def plan(*instances: Instance, slices: int = 10) -> Plan:
    """The plan that these instances make."""
    shares: dict[str, Share] = {}
    for it in instances:
        have = shares.get(it.model)
        shares[it.model] = Share(it.model, it.shape, 1 + (have.replicas if have else 0))
    forecast = Forecast("w", 1.0, 2.0, 3.0, dict.fromkeys(shares, 1.0), next(iter(shares), ""))
    return Plan(slices, tuple(shares.values()), instances, (forecast,))


def part(model: str, number: int, slices: int, gpu: int, node: str = "node-a") -> Instance:
    """A part of a GPU."""
    return Instance(model, number, Shape(1, slices), node, (gpu,))


def whole(model: str, number: int, *gpus: int, node: str = "node-a", slices: int = 10) -> Instance:
    """Whole GPUs."""
    return Instance(model, number, Shape(len(gpus), slices), node, gpus)


MIXED = plan(
    whole("llama-3-8b", 0, 0, 1),
    part("llama-3.2-3b", 0, 6, 2),
    part("llama-3.2-3b", 1, 6, 3),
    part("llama-3.2-1b", 0, 4, 2),
    part("qwen2.5-1.5b", 0, 3, 3),
)
"""Two GPUs that are shared, and an instance that has two to itself."""

EQUAL = plan(
    part("llama-3.2-3b", 0, 5, 0),
    part("llama-3.2-3b", 1, 5, 1),
    part("llama-3.2-1b", 0, 5, 0),
    part("llama-3.2-1b", 1, 5, 1),
)
"""Halves, as the device plugin can give them."""
