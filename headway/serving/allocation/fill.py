"""Curves between those that were measured: live engines of every fraction would take too long. Pure.

Of shapes of one GPU or a part of it, between the next smaller and the next larger measured one: saturation is linear
in the slices; latency at the same load (rate over saturation) is linear in 1 / slices, as time is where an engine is
slowed in proportion. Both are ours: how Scepsy profiles fractions is not stated. Nothing is continued beyond the
measured sizes, where memory ends or the step's fixed cost takes over.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from headway.serving.allocation.types import Curve, ModelProfile, Shape


def filled(profile: ModelProfile) -> ModelProfile:
    """The profile with a curve for every number of slices between its smallest and its largest."""
    return replace(
        profile,
        curves=_filled(profile.curves),
        spread_curves={spread: _filled(curves) for spread, curves in profile.spread_curves.items()},
        source=f"{profile.source}; sizes between by interpolation",
    )


def _filled(curves: Mapping[Shape, Curve]) -> dict[Shape, Curve]:
    known = sorted(shape.slices for shape in curves if shape.tensor_parallel == 1)
    made = dict(curves)
    for low, high in itertools.pairwise(known):
        for slices in range(low + 1, high):
            made[Shape(1, slices)] = between(curves[Shape(1, low)], low, curves[Shape(1, high)], high, slices)
    return dict(sorted(made.items()))


def between(small: Curve, low: int, large: Curve, high: int, slices: int) -> Curve:
    """The curve of `slices`, of which there are more than `low` and fewer than `high`."""
    saturation = small.saturation + (large.saturation - small.saturation) * (slices - low) / (high - low)
    part = (1 / low - 1 / slices) / (1 / low - 1 / high)
    rates, means, p99s = [], [], []
    for rate, mean_s, p99_s in zip(small.rates, small.latencies_s, small.p99_s, strict=True):
        there = rate / small.saturation * large.saturation
        rates.append(rate / small.saturation * saturation)
        means.append(mean_s + (large.latency_s(there) - mean_s) * part)
        p99s.append(p99_s + (float(np.interp(there, large.rates, large.p99_s)) - p99_s) * part)
    return Curve(tuple(rates), tuple(means), tuple(p99s), saturation)
