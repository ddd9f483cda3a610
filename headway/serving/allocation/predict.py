"""The Aggregate LLM Pipeline: what workflows' latency and throughput are with given shares (Scepsy). Pure.

With n_wm calls of model m in a run of workflow w, p_wm of them in flight at a time, lambda_w runs per second, and r_m
replicas of m, whose calls take L_m(x) where each gets x per second, and which can take at most T_m each:

    load_m     = sum over w of lambda_w n_wm                               calls per second of all workflows
    L_w        = other_w + c_w o_w * sum over m of L_m(load_m / r_m) n_wm / p_wm
    headroom_m = r_m T_m / load_m
    T_w        = lambda_w * min over m in w of headroom_m

For a model that one workflow has to itself, T_w is r_m T_m / n_wm, as in the paper. Where workflows share a model, T_w
is what w reaches when all workflows grow by the same factor. o_w is ours: the part of the models' busy times that is
left when those are counted once that overlap; 1 where models are never called at the same time. The paper takes them
one after the other. c_w is a calibration factor (`calibrate`).

On a GPU with neighbours everything takes s times as long (`interference`): L_m(x) becomes s L_m(s x), and T_m
becomes T_m / s.

What it does not know: that a replica may be busier than its peers, that arrivals may come in bursts other than those
of the runs that were profiled, that p changes as queues grow, that a model in two roles has two kinds of calls.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headway.errors import UsageError
from headway.serving.allocation.interference import Interference
from headway.serving.allocation.types import Curve, Demand, Forecast, Instance, ModelProfile, Shape, Share
from headway.serving.workflows.aggregate_types import Aggregate, ModelUse


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the predictor is corrected by for one workflow, and how wrong it then still is.

    Attributes:
        factor: of the part of the latency that is not `other_s` (1).
        error: median relative error of the latency of each run when the factor is taken from the others; None with one.
    """

    factor: float
    error: float | None


def calibrate(pairs: Sequence[tuple[float, float]], *, other_s: float = 0.0) -> Calibration:
    """A factor from runs at some loads: the median of (measured - other) / (predicted - other).

    Args:
        pairs: mean latency as an uncalibrated predictor said and as was measured, seconds, one pair for each load.
        other_s: of the workflow.

    Raises:
        UsageError: no pairs, or latencies that are not above `other_s`.
    """
    ratios = []
    for predicted_s, measured_s in pairs:
        if not (other_s < predicted_s < float("inf") and other_s < measured_s < float("inf")):
            raise UsageError(
                f"predicted {predicted_s:g} s, measured {measured_s:g} s: a calibration needs latencies that are "
                f"finite and above the {other_s:g} s without any call"
            )
        ratios.append((measured_s - other_s) / (predicted_s - other_s))
    if not ratios:
        raise UsageError("a calibration needs at least one measured latency")
    errors = []
    for at, (predicted_s, measured_s) in enumerate(pairs):
        others = ratios[:at] + ratios[at + 1 :]
        if others:
            said_s = other_s + statistics.median(others) * (predicted_s - other_s)
            errors.append(abs(said_s - measured_s) / measured_s)
    return Calibration(statistics.median(ratios), statistics.median(errors) if errors else None)


def overlap(aggregate: Aggregate) -> float:
    """o_w: time with any call in flight over the sum of the models' busy times (above 0, at most 1)."""
    busy_s = sum(use.busy_s for use in aggregate.uses)
    covered_s = aggregate.latency_s - aggregate.other_s
    return min(1.0, covered_s / busy_s) if busy_s > 0 and covered_s > 0 else 1.0


def slowed(curve: Curve, rate: float, slowdown: float) -> float:
    """Mean latency in seconds of an engine that is `slowdown` times as slow as `curve` says."""
    return slowdown * curve.latency_s(slowdown * rate)


class Predictor:
    """Predicts from profiles.

    Attributes:
        profiles: by model.
        interference: how co-located instances slow each other; None: not at all.
        slices_per_gpu: f, into how many slices a GPU is divided.

    Args:
        profiles: as above.
        interference: as above.
        calibration: c_w by workflow; 1 where there is none.
        errors: relative error of the latency by workflow, to be told with forecasts.
        slices_per_gpu: as above; None: the most slices of any shape in the profiles, which is f only where one of them
            has a curve of a whole GPU.
    """

    def __init__(
        self,
        profiles: Mapping[str, ModelProfile],
        *,
        interference: Interference | None = None,
        calibration: Mapping[str, float] | None = None,
        errors: Mapping[str, float] | None = None,
        slices_per_gpu: int | None = None,
    ) -> None:
        self.profiles = dict(profiles)
        self.interference = interference
        self._calibration = dict(calibration or {})
        self._errors = dict(errors or {})
        most = max((shape.slices for each in self.profiles.values() for shape in each.curves), default=1)
        self.slices_per_gpu = slices_per_gpu or most
        for workflow, factor in self._calibration.items():
            if not 0 < factor < float("inf"):
                raise UsageError(f"a calibration factor of {factor:g} is not above 0", where=workflow)

    def load(self, demands: Sequence[Demand]) -> dict[str, float]:
        """load_m in calls per second of every model that the demands use, in order of appearance.

        Raises:
            UsageError: rates that are not above 0, a workflow twice, or a model without a profile.
        """
        load: dict[str, float] = {}
        seen: set[str] = set()
        for demand in demands:
            name = demand.aggregate.workflow
            if name in seen:
                raise UsageError("is demanded twice", where=name)
            seen.add(name)
            if not 0 < demand.rate < float("inf"):
                raise UsageError(f"a rate of {demand.rate:g} runs per second is not above 0", where=name)
            for use in demand.aggregate.uses:
                if use.model not in self.profiles:
                    known = ", ".join(sorted(self.profiles)) or "none"
                    raise UsageError(
                        f"calls model {use.model!r}, of which there is no profile",
                        where=name,
                        hint=f"profiles are there of: {known}; make one with headway profile",
                    )
                load[use.model] = load.get(use.model, 0.0) + demand.rate * use.calls
        return load

    def factor(self, aggregate: Aggregate, use: ModelUse) -> float:
        """What L_m is multiplied with to have the model's part of a run's latency: c_w o_w n_wm / p_wm."""
        corrected = self._calibration.get(aggregate.workflow, 1.0) * overlap(aggregate)
        return corrected * use.calls / use.concurrency if use.calls > 0 else 0.0

    def slowdown(self, shape: Shape) -> float:
        """Of an instance whose neighbours are not known: the rest of its GPU is taken as full and busy."""
        if self.interference is None or shape.slices >= self.slices_per_gpu:
            return 1.0
        return self.interference.crowded(shape.slices / self.slices_per_gpu)

    def forecast(
        self, demands: Sequence[Demand], shares: Sequence[Share], instances: Sequence[Instance] = ()
    ) -> tuple[Forecast, ...]:
        """What each workflow gets.

        Args:
            demands: the workflows and their rates.
            shares: one for each model that they call.
            instances: where these are, if known: then they are slowed by the neighbours that they have, as busy as
                those are, and not by a GPU full of busy ones.

        Raises:
            UsageError: as `load`; a model without a share or with two, a shape without a curve.
        """
        load = self.load(demands)
        by_model = {share.model: share for share in shares}
        if len(by_model) < len(shares):
            raise UsageError("a model has more than one share")
        for model in load:
            if model not in by_model:
                raise UsageError(f"model {model!r} has no share of the GPUs")
        slow = {model: self.slowdown(by_model[model].shape) for model in load}
        if instances and self.interference is not None:
            slow |= self._among(load, by_model, instances, self.interference)
        call_s: dict[str, float] = {}
        headroom: dict[str, float] = {}
        for model, calls in load.items():
            share = by_model[model]
            curve = self._curve(share)
            call_s[model] = slowed(curve, calls / share.replicas, slow[model])
            headroom[model] = share.replicas * curve.saturation / slow[model] / calls if calls else float("inf")
        return tuple(self._one(demand, call_s, headroom) for demand in demands)

    def _one(self, demand: Demand, call_s: Mapping[str, float], headroom: Mapping[str, float]) -> Forecast:
        aggregate = demand.aggregate
        parts = {use.model: self.factor(aggregate, use) * call_s[use.model] for use in aggregate.uses if use.calls > 0}
        bottleneck = min(parts, key=lambda model: headroom[model], default="")
        return Forecast(
            workflow=aggregate.workflow,
            rate=demand.rate,
            latency_s=aggregate.other_s + sum(parts.values()),
            throughput=demand.rate * headroom[bottleneck] if parts else float("inf"),
            latency_by_model_s=parts,
            bottleneck=bottleneck,
            error=self._errors.get(aggregate.workflow),
        )

    def _curve(self, share: Share) -> Curve:
        profile = self.profiles[share.model]
        if share.shape not in profile.curves:
            raise UsageError(
                f"there is no curve for {share.shape.tensor_parallel} x {share.shape.slices} slices", where=share.model
            )
        if share.replicas < 1:
            raise UsageError(f"{share.replicas} replicas serve nobody", where=share.model)
        return profile.curve(share.shape, share.replicas)

    def _among(
        self,
        load: Mapping[str, float],
        shares: Mapping[str, Share],
        instances: Sequence[Instance],
        interference: Interference,
    ) -> dict[str, float]:
        """Mean slowdown of each model's instances by those that share their GPU, as busy as these are alone.

        An instance that batches is busy while it has any call: with N in flight in the mean (rate times latency) and
        calls that come at random, 1 - exp(-N) of the time.
        """
        busy = {}
        for model, calls in load.items():
            rate = calls / shares[model].replicas
            busy[model] = 1.0 - math.exp(-rate * self._curve(shares[model]).latency_s(rate)) if rate else 0.0
        on_gpu: dict[tuple[str, int], list[Instance]] = {}
        for instance in instances:
            for gpu in instance.gpus:
                on_gpu.setdefault((instance.node, gpu), []).append(instance)
        slow: dict[str, list[float]] = {}
        for instance in instances:
            worst = max(
                interference.slowdown(
                    (other.shape.slices / self.slices_per_gpu, busy.get(other.model, 0.0))
                    for other in on_gpu[instance.node, gpu]
                    if other != instance
                )
                for gpu in instance.gpus
            )
            slow.setdefault(instance.model, []).append(worst)
        return {model: statistics.fmean(slow[model]) for model in load if model in slow}
