"""Instances, profiles, allocations and plans. Pure."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headway.serving.workflows.aggregate_types import Aggregate


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """The GPUs of one instance of a model.

    Attributes:
        tensor_parallel: GPUs that it spreads over.
        slices: of each of these GPUs, in units of 1/f of a GPU; below f only with `tensor_parallel` 1.
    """

    tensor_parallel: int
    slices: int

    def fits(self, slices_per_gpu: int) -> bool:
        """Whether GPUs of so many slices have it: several GPUs are whole ones."""
        least = slices_per_gpu if self.tensor_parallel > 1 else 1
        return self.tensor_parallel >= 1 and least <= self.slices <= slices_per_gpu


@dataclass(frozen=True, slots=True)
class Curve:
    """How long calls take on one instance, against how many come (Scepsy: L_m and T_m).

    Attributes:
        rates: calls per second, rising from near 0.
        latencies_s: mean latency at each of them, seconds.
        p99_s: 99th percentile at each of them, seconds.
        saturation: calls per second that it cannot exceed; above the last of `rates`.
    """

    rates: tuple[float, ...]
    latencies_s: tuple[float, ...]
    p99_s: tuple[float, ...]
    saturation: float

    def latency_s(self, rate: float) -> float:
        """Mean latency at `rate` calls per second: linear between the points, from the last point on growing as
        1 / (saturation - rate), and infinite from saturation on."""
        if rate >= self.saturation:
            return float("inf")
        last = len(self.rates) - 1
        at = bisect.bisect_right(self.rates, rate)
        if at == 0:
            return self.latencies_s[0]
        if at > last:
            return self.latencies_s[last] * (self.saturation - self.rates[last]) / (self.saturation - rate)
        low, high = self.rates[at - 1], self.rates[at]
        part = (rate - low) / (high - low)
        return self.latencies_s[at - 1] * (1 - part) + self.latencies_s[at] * part

    def p99_at_s(self, rate: float) -> float:
        """99th percentile at `rate` calls per second: between and beyond the points as `latency_s`."""
        return replace(self, latencies_s=self.p99_s).latency_s(rate)


@functools.lru_cache(maxsize=4096)
def blended(low: Curve, high: Curve, part: float) -> Curve:
    """A curve that lies `part` (0 to 1) of the way from one to another, at equal parts of their saturations."""

    def between(one: float, other: float) -> float:
        return one * (1 - part) + other * part

    loads = sorted({round(rate / curve.saturation, 9) for curve in (low, high) for rate in curve.rates} - {1.0})
    saturation = between(low.saturation, high.saturation)
    at = [(load * low.saturation, load * high.saturation) for load in loads]
    return Curve(
        tuple(load * saturation for load in loads),
        latencies_s=tuple(between(low.latency_s(one), high.latency_s(other)) for one, other in at),
        p99_s=tuple(between(low.p99_at_s(one), high.p99_at_s(other)) for one, other in at),
        saturation=saturation,
    )


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """What is known of a model on the GPUs at hand.

    Attributes:
        model: its name.
        curves: one per shape that it can run in; others don't fit (weights and KV cache) or make no sense.
        memory_bytes: least memory that one GPU of an instance needs, by tensor-parallel degree.
        source: where the curves come from, for people: "engine model a100", "live: http://...".
        spread_curves: as `curves`, but where what comes at one instant is spread over so many instances, by their
            number (2 and up); those of 1 are `curves`. Empty: calls come alone, or no more is known.
        device: kind of GPU that the curves are of, as in nodes; empty: nobody said.
    """

    model: str
    curves: Mapping[Shape, Curve]
    memory_bytes: Mapping[int, int]
    source: str
    spread_curves: Mapping[int, Mapping[Shape, Curve]] = field(default_factory=dict)
    device: str = ""

    def curve(self, shape: Shape, replicas: int) -> Curve:
        """That of one of so many instances: between the numbers that curves are known for blended by 1 / number, which
        is the part of a burst that an instance gets; above the largest number that one's."""
        by_count = {1: self.curves, **self.spread_curves}
        low = max(count for count in by_count if count <= replicas)
        high = min((count for count in by_count if count >= replicas), default=low)
        if low == high:
            return by_count[low][shape]
        return blended(by_count[low][shape], by_count[high][shape], (1 / low - 1 / replicas) / (1 / low - 1 / high))


@dataclass(frozen=True, slots=True)
class Demand:
    """A workflow to be carried.

    Attributes:
        aggregate: what it is on average.
        rate: runs per second that are to be served.
    """

    aggregate: Aggregate
    rate: float


@dataclass(frozen=True, slots=True)
class Share:
    """A model's part of the GPUs: equal instances."""

    model: str
    shape: Shape
    replicas: int

    def slices(self) -> int:
        """In units of 1/f GPU, all instances together."""
        return self.shape.tensor_parallel * self.shape.slices * self.replicas


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance on its GPUs: `gpus` are numbers within the node, `tensor_parallel` of them."""

    model: str
    number: int
    shape: Shape
    node: str
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a plan is expected to do for one workflow at its target rate.

    Attributes:
        workflow: which.
        rate: runs per second that it is made for.
        latency_s: mean latency of a run there, seconds; infinite where the plan cannot carry it.
        throughput: most runs per second.
        latency_by_model_s: each model's part of `latency_s`.
        bottleneck: the model whose throughput is the least.
        error: relative error of the latency that the predictor showed on like workflows; None: not known.
    """

    workflow: str
    rate: float
    latency_s: float
    throughput: float
    latency_by_model_s: Mapping[str, float]
    bottleneck: str
    error: float | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """A neighbour of the plan, and why it lost."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Who gets which GPUs.

    Attributes:
        slices_per_gpu: f, the parts into which a GPU may be divided.
        shares: one per model (and workflow group, where workflows do not share models).
        instances: where they are; empty before placement.
        forecasts: one per workflow.
        rejected: neighbours and why they lost.
    """

    slices_per_gpu: int
    shares: tuple[Share, ...]
    instances: tuple[Instance, ...] = ()
    forecasts: tuple[Forecast, ...] = ()
    rejected: tuple[Rejected, ...] = field(default=())
