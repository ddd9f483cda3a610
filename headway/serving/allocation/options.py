"""All that one model may get, as arrays, and what each is worth to the workflows. Pure.

What a model gets decides its term of every workflow's latency and its bound on every workflow's throughput, and no
other model's (once the slowdown by neighbours is reckoned from the shape alone). A search can therefore look the terms
up: one table for each model, made once with numpy over all replica counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.errors import UsageError
from headway.serving.allocation.predict import Predictor
from headway.serving.allocation.types import Curve, Demand, Shape, Share

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Options:
    """The n shapes and replica counts that a model may get.

    Attributes:
        model: which.
        shares: the options, n.
        slices: of each, all instances together (n).
        headroom: calls that each can take over those that come (n).
        latencies_s: its term of each workflow's latency, calibrated (n x workflows); infinite where it cannot keep up.
    """

    model: str
    shares: tuple[Share, ...]
    slices: Ints
    headroom: Floats
    latencies_s: Floats

    def only(self, which: NDArray[np.bool_] | Ints) -> Options:
        """Some of them."""
        index = np.flatnonzero(which) if which.dtype == np.bool_ else which
        return Options(
            self.model,
            tuple(self.shares[int(at)] for at in index),
            self.slices[index],
            self.headroom[index],
            self.latencies_s[index],
        )


def latencies_s(curve: Curve, rates: Floats) -> Floats:
    """`Curve.latency_s` of many rates at once."""
    last_rate, last_s = curve.rates[-1], curve.latencies_s[-1]
    values: Floats = np.interp(rates, curve.rates, curve.latencies_s)
    left = curve.saturation - rates
    beyond = rates > last_rate
    with np.errstate(divide="ignore"):
        values = np.where(beyond, last_s * (curve.saturation - last_rate) / np.where(left > 0, left, np.nan), values)
    return np.where(left > 0, values, np.inf)


def usable(
    predictor: Predictor, model: str, *, slices_per_gpu: int, largest: int, gpu_bytes: int | None
) -> list[Shape]:
    """Shapes of a model that may be planned with, in order.

    Args:
        predictor: knows the profiles.
        model: which.
        slices_per_gpu: f.
        largest: GPUs of the largest fast domain.
        gpu_bytes: memory of a GPU: a shape's part of it must hold what the profile says that it needs; None: only the
            curves say what fits.

    Raises:
        UsageError: shapes that make no sense, or none is left.
    """
    profile = predictor.profiles[model]
    shapes, why = [], ""
    for shape in sorted(profile.curves):
        degree, slices = shape.tensor_parallel, shape.slices
        if degree < 1 or not 1 <= slices <= slices_per_gpu or (degree > 1 and slices < slices_per_gpu):
            raise UsageError(
                f"{degree} x {slices} slices is no shape where a GPU has {slices_per_gpu}",
                where=model,
                hint="a part of a GPU goes with tensor-parallel degree 1 only",
            )
        needed_bytes = profile.memory_bytes.get(degree, 0)
        if degree > largest:
            why = f"tensor-parallel degree {degree} is more than the {largest} joined by a fast interconnect"
        elif gpu_bytes is not None and needed_bytes * slices_per_gpu > gpu_bytes * slices:
            part_GB = gpu_bytes * slices / slices_per_gpu / 1e9
            why = (
                f"it needs {needed_bytes / 1e9:.1f} GB on each GPU, and {slices} of {slices_per_gpu} slices have "
                f"{part_GB:.1f} GB"
            )
        else:
            shapes.append(shape)
    if not shapes:
        raise UsageError(f"fits nowhere: {why or 'its profile has no curves'}", where=model)
    return shapes


def options(
    demands: Sequence[Demand],
    predictor: Predictor,
    *,
    slices_per_gpu: int,
    domains: Sequence[int],
    gpu_bytes: int | None = None,
    rate_factor: float = 1.0,
) -> list[Options]:
    """A table for each model that the demands use, in their order.

    Args:
        demands: what is to be served.
        predictor: predicts.
        slices_per_gpu: f.
        domains: sizes of the fast domains, in GPUs.
        gpu_bytes: as in `usable`.
        rate_factor: latencies are those at so many times the demanded rates; `headroom` stays that at the rates.

    Raises:
        UsageError: as `Predictor.load` and `usable`.
    """
    tables = []
    gpus = sum(domains)
    for model, calls in predictor.load(demands).items():
        factors = np.array(
            [
                sum(predictor.factor(demand.aggregate, use) for use in demand.aggregate.uses if use.model == model)
                for demand in demands
            ]
        )
        shares: list[Share] = []
        headroom: list[Floats] = []
        latency: list[Floats] = []
        for shape in usable(predictor, model, slices_per_gpu=slices_per_gpu, largest=max(domains), gpu_bytes=gpu_bytes):
            if shape.slices == slices_per_gpu:
                most = sum(size // shape.tensor_parallel for size in domains)
            else:
                most = gpus * (slices_per_gpu // shape.slices)
            shares += [Share(model, shape, count) for count in range(1, most + 1)]
            room, call = _capacity(predictor, model, shape, most, calls, rate_factor)
            headroom.append(room)
            latency.append(call)
        call_s = np.concatenate(latency)
        with np.errstate(invalid="ignore"):
            terms = np.where(factors > 0, call_s[:, None] * factors, 0.0)
        tables.append(
            Options(
                model, tuple(shares), np.array([share.slices() for share in shares]), np.concatenate(headroom), terms
            )
        )
    return tables


def _capacity(
    predictor: Predictor, model: str, shape: Shape, most: int, calls: float, rate_factor: float
) -> tuple[Floats, Floats]:
    """Headroom and latency of a call in seconds, for 1 to `most` replicas."""
    slow, profile = predictor.slowdown(shape), predictor.profiles[model]
    headroom, latency = np.full(most, np.inf), np.empty(most)
    largest = max(profile.spread_curves, default=1)
    for first, after in itertools.pairwise([*range(1, min(largest, most) + 1), most + 1]):
        curve = profile.curve(shape, first)
        replicas = np.arange(first, after, dtype=np.float64)
        if calls > 0:
            headroom[first - 1 : after - 1] = replicas * (curve.saturation / slow / calls)
        latency[first - 1 : after - 1] = slow * latencies_s(curve, slow * calls * rate_factor / replicas)
    return headroom, latency


def without_dominated(table: Options, cost: Floats, slices_per_gpu: int) -> Options:
    """Leaves out options for which there is another that costs no more and goes wherever they went.

    `a` goes where `b` went when b's pieces can be cut into a's: instances of degree t on s slices each give room for
    floor(t / t') of degree t', and each of their GPUs for floor(s / s') of s' slices.
    """
    degree = np.array([share.shape.tensor_parallel for share in table.shares])
    part = np.array([share.shape.slices for share in table.shares])
    replicas = np.array([share.replicas for share in table.shares])
    order = np.lexsort((table.slices, cost))
    kept: list[int] = []
    for at in order:
        if not np.isfinite(cost[at]):
            break
        if kept:
            other = np.array(kept)
            whole = part[other] == slices_per_gpu
            rooms = np.where(
                whole & (degree[other] > 1),
                replicas[at] * (degree[at] // degree[other]) * (part[at] == slices_per_gpu),
                replicas[at] * degree[at] * (part[at] // part[other]),
            )
            if np.any(rooms >= replicas[other]):
                continue
        kept.append(int(at))
    return table.only(np.array(sorted(kept), dtype=np.int64))
