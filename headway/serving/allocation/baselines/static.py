"""Splits that are made once, by hand, without a measurement. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headway.errors import UsageError
from headway.serving.allocation.types import Instance, Plan, Shape, Share
from headway.serving.engine.hardware import MODELS

NODE = "node0"
"""Baselines know of one machine: with whole GPUs and parts of one it doesn't matter where they are."""


def equal_split(models: Sequence[str], *, gpus: int, slices_per_gpu: int) -> Plan:
    """The same number of whole GPUs for each model, one instance on each; what is left, to the largest models.

    With fewer GPUs than models: the models, the largest first, each to the GPU with the fewest parameters so far, and
    every GPU in equal parts to those that it has. Kinder than a split into equal parts of every GPU, into which large
    models would not fit.

    Args:
        models: names in `engine.hardware.MODELS`.
        gpus: how many there are, all alike.
        slices_per_gpu: parts of a GPU.
    """
    order = _largest_first(models)
    if gpus < len(models):
        return shared_gpus(models, gpus=gpus, slices_per_gpu=slices_per_gpu)
    each, left = divmod(gpus, len(models))
    return whole_gpus({model: each + (order.index(model) < left) for model in models}, slices_per_gpu)


def by_parameters(models: Sequence[str], *, gpus: int, slices_per_gpu: int) -> Plan:
    """A user's rule of thumb: whole GPUs in proportion to parameters, at least one each, one instance on each.

    Rounded by largest remainder after everybody has one. With fewer GPUs than models as `equal_split`. It knows nothing
    of how often a model is called, or with what: that is the point.
    """
    if gpus < len(models):
        return shared_gpus(models, gpus=gpus, slices_per_gpu=slices_per_gpu)
    size = {model: MODELS[model].parameters for model in _largest_first(models)}
    wanted = {model: gpus * it / sum(size.values()) for model, it in size.items()}
    given = {model: max(1, int(it)) for model, it in wanted.items()}
    while sum(given.values()) < gpus:
        given[max(given, key=lambda model: wanted[model] - given[model])] += 1
    while sum(given.values()) > gpus:
        given[min((it for it in given if given[it] > 1), key=lambda model: wanted[model] - given[model])] -= 1
    return whole_gpus({model: given[model] for model in models}, slices_per_gpu)


def whole_gpus(replicas: Mapping[str, int], slices_per_gpu: int) -> Plan:
    """So many instances of each model, each on a GPU of its own."""
    shape = Shape(1, slices_per_gpu)
    instances: list[Instance] = []
    for model, count in replicas.items():
        for number in range(count):
            instances.append(Instance(model, number, shape, NODE, (len(instances),)))
    shares = tuple(Share(model, shape, count) for model, count in replicas.items())
    return Plan(slices_per_gpu, shares, tuple(instances))


def shared_gpus(models: Sequence[str], *, gpus: int, slices_per_gpu: int) -> Plan:
    """One instance of each model, on fewer GPUs than models, as in `equal_split`."""
    on_gpu: list[list[str]] = [[] for _ in range(gpus)]
    for model in _largest_first(models):
        min(on_gpu, key=lambda there: sum(MODELS[it].parameters for it in there)).append(model)
    where = {model: (gpu, slices_per_gpu // len(there)) for gpu, there in enumerate(on_gpu) for model in there}
    shapes = {model: Shape(1, where[model][1]) for model in models}
    if any(shape.slices < 1 for shape in shapes.values()):
        raise UsageError(f"{len(models)} models cannot share {gpus} GPUs in {slices_per_gpu} parts each")
    return Plan(
        slices_per_gpu,
        tuple(Share(model, shapes[model], 1) for model in models),
        tuple(Instance(model, 0, shapes[model], NODE, (where[model][0],)) for model in models),
    )


def _largest_first(models: Sequence[str]) -> list[str]:
    for model in models:
        if model not in MODELS:
            raise UsageError(f"unknown model {model!r}", hint=f"known: {', '.join(MODELS)}")
    if not models or len(set(models)) < len(models):
        raise UsageError("a split needs models, each once")
    return sorted(models, key=lambda model: (-MODELS[model].parameters, model))
