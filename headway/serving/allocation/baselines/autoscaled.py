"""Each model scaled on its own, as by Kubernetes' HorizontalPodAutoscaler. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from headway.errors import HeadwayError
from headway.serving.allocation.baselines.static import shared_gpus, whole_gpus
from headway.serving.allocation.types import Demand, Plan

TARGET = 0.75
"""Utilisation that a controller aims at (1); usual settings are 70 to 80 %."""
TOLERANCE = 0.1
"""A ratio of utilisation and target this near to 1 changes nothing: Kubernetes' default."""
MOST_ROUNDS = 1000
"""Of the controllers, after which they are taken to go in circles (count)."""


def autoscaled(
    demands: Sequence[Demand],
    saturation: Mapping[str, float],
    *,
    gpus: int,
    slices_per_gpu: int,
    target: float = TARGET,
) -> Plan:
    """Where the controllers come to rest.

    Every model begins with one instance on one GPU. In each round each model's controller, in the order of
    `saturation`, sees its instances' mean utilisation u and wants

        ceil(replicas * u / target)   unless |u / target - 1| <= TOLERANCE

    instances; it gets what GPUs are free. u is the rate of calls that come to the model over what its instances can
    take. What comes is limited by the workflow's bottleneck of the moment: a starved model keeps the others' demand low
    until it has been scaled. With fewer GPUs than models these share as in `static.equal_split`, and nothing is scaled.

    Kinder than real ones: utilisation is a share of throughput, known exactly, where the usual metric (GPU duty cycle)
    says 100 % of any engine that decodes one request; rounds take no time, new instances come up at once, and nothing
    flaps. Left out: scaling by queue length or latency, and more than one model to a GPU.

    Args:
        demands: the workflows and their rates.
        saturation: calls per second of one instance on a whole GPU, by model.
        gpus: how many there are.
        slices_per_gpu: parts of a GPU, in which the plan counts.
        target: utilisation, 0 to 1.
    """
    models = list(saturation)
    if gpus < len(models):
        return shared_gpus(models, gpus=gpus, slices_per_gpu=slices_per_gpu)
    replicas = dict.fromkeys(models, 1)
    for _ in range(MOST_ROUNDS):
        before = dict(replicas)
        load = _load(demands, {model: replicas[model] * saturation[model] for model in models})
        for model in models:
            used = load[model] / (replicas[model] * saturation[model])
            if abs(used / target - 1) <= TOLERANCE:
                continue
            wanted = max(1, math.ceil(replicas[model] * used / target - 1e-9))
            free = gpus - sum(replicas.values())
            replicas[model] = min(wanted, replicas[model] + free)
        if replicas == before:
            return whole_gpus(replicas, slices_per_gpu)
    raise HeadwayError(f"the controllers went in circles: {replicas}")


def _load(demands: Sequence[Demand], capacity: Mapping[str, float]) -> dict[str, float]:
    """Calls per second that come to each model: every workflow as fast as its tightest model lets it.

    Where workflows share a model that is too small for all, each gets the same part of its rate.
    """
    wanted = dict.fromkeys(capacity, 0.0)
    for demand in demands:
        for use in demand.aggregate.uses:
            wanted[use.model] += demand.rate * use.calls
    load = dict.fromkeys(capacity, 0.0)
    for demand in demands:
        uses = [use for use in demand.aggregate.uses if use.calls > 0]
        passes = min([1.0, *(capacity[use.model] / wanted[use.model] for use in uses)])
        for use in uses:
            load[use.model] += passes * demand.rate * use.calls
    return load
