"""Curves between measured ones."""

from __future__ import annotations

import pytest

from headway.serving.allocation.fill import filled
from headway.serving.allocation.types import Curve, ModelProfile, Shape


def engine(slices: int) -> Curve:
    """One that is faster in proportion to what it has."""
    loads = (0.1, 0.5, 0.9)
    return Curve(
        tuple(load * 2.0 * slices for load in loads),
        tuple(6.0 / slices / (1 - load) for load in loads),
        tuple(12.0 / slices / (1 - load) for load in loads),
        2.0 * slices,
    )


def test_an_engine_that_is_faster_in_proportion_is_met_exactly() -> None:
    made = filled(ModelProfile("m", {Shape(1, 2): engine(2), Shape(1, 6): engine(6)}, {}, "live"))
    assert sorted(made.curves) == [Shape(1, slices) for slices in range(2, 7)]
    for slices in range(2, 7):
        found, true = made.curves[Shape(1, slices)], engine(slices)
        assert found.saturation == pytest.approx(true.saturation)
        for name in ("rates", "latencies_s", "p99_s"):
            assert getattr(found, name) == pytest.approx(getattr(true, name))


def test_measured_curves_stay_and_nothing_is_continued() -> None:
    known = {Shape(1, 3): engine(3), Shape(1, 5): engine(5), Shape(2, 10): engine(20)}
    made = filled(ModelProfile("m", known, {1: 5}, "live", {2: {Shape(1, 3): engine(3)}}))
    assert {shape: made.curves[shape] for shape in known} == known
    assert set(made.curves) - set(known) == {Shape(1, 4)}
    assert made.spread_curves == {2: {Shape(1, 3): engine(3)}}
    assert made.memory_bytes == {1: 5}
    assert "interpolation" in made.source
