"""Profiles and workflows whose forecasts can be worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping

from headway.serving.allocation.predict import Predictor
from headway.serving.allocation.types import Curve, Demand, ModelProfile, Shape
from headway.serving.workflows.aggregate_types import Aggregate, ModelUse


def flat(latency_s: float, saturation: float) -> Curve:
    """The same latency at every rate up to near saturation, where it grows as 1 / (saturation - rate)."""
    rates = (0.0, 0.9 * saturation)
    return Curve(rates, (latency_s, latency_s), (latency_s, latency_s), saturation)


def profile(model: str, curves: Mapping[tuple[int, int], Curve], memory_bytes: int = 0) -> ModelProfile:
    """Curves by (degree, slices)."""
    degrees = {degree for degree, _ in curves}
    return ModelProfile(
        model, {Shape(*key): curve for key, curve in curves.items()}, dict.fromkeys(degrees, memory_bytes), "made"
    )


def scaling(
    model: str, *, f: int, degrees: tuple[int, ...] = (1,), least: int = 1, latency_s: float = 1.0
) -> ModelProfile:
    """Latency and saturation in proportion to the GPUs of an instance: one call per second and GPU."""
    shapes = [(1, slices) for slices in range(least, f)] + [(degree, f) for degree in degrees]
    return profile(
        model,
        {(degree, slices): flat(latency_s * f / (degree * slices), degree * slices / f) for degree, slices in shapes},
    )


def workflow(
    name: str, calls: Mapping[str, float], *, together: float = 1.0, other_s: float = 0.0, call_s: float = 1.0
) -> Aggregate:
    """Calls of each model by run, so many at a time; models never at once."""
    busy = {model: count * call_s / together for model, count in calls.items()}
    total_s = sum(busy.values())
    uses = tuple(
        ModelUse(model, count, together, busy[model], busy[model] / total_s, 0.0, 100.0, 10.0)
        for model, count in calls.items()
    )
    return Aggregate(name, 10, uses, other_s, total_s + other_s, 0.0)


def predictor(*profiles: ModelProfile) -> Predictor:
    """Without interference."""
    return Predictor({each.model: each for each in profiles})


def demand(name: str, calls: Mapping[str, float], rate: float) -> Demand:
    """A workflow of single calls at a rate."""
    return Demand(workflow(name, calls), rate)
