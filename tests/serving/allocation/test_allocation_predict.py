"""The Aggregate LLM Pipeline: closed forms, sharing, calibration, interference; arrays against the scalar curve."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import UsageError
from headway.serving.allocation.interference import Interference
from headway.serving.allocation.options import latencies_s, options
from headway.serving.allocation.predict import Predictor, calibrate, overlap, slowed
from headway.serving.allocation.types import Curve, Demand, Instance, Shape, Share
from tests.serving.allocation.made import demand, flat, predictor, profile, scaling, workflow

WHOLE = Shape(1, 4)


def test_one_workflow_is_the_papers_formula() -> None:
    known = predictor(profile("generator", {(1, 4): flat(2.0, 10.0)}), profile("verifier", {(1, 4): flat(0.5, 30.0)}))
    what = workflow("beam", {"generator": 6.0, "verifier": 3.0}, together=3.0, other_s=1.0)
    shares = (Share("generator", WHOLE, 2), Share("verifier", WHOLE, 1))

    (forecast,) = known.forecast([Demand(what, 2.0)], shares)

    assert forecast.latency_s == pytest.approx(1.0 + 2.0 * 6 / 3 + 0.5 * 3 / 3)
    assert forecast.latency_by_model_s == pytest.approx({"generator": 4.0, "verifier": 0.5})
    assert forecast.throughput == pytest.approx(2 * 10.0 / 6)
    assert forecast.bottleneck == "generator"
    assert forecast.error is None


def test_replicas_share_the_calls() -> None:
    rising = Curve((0.0, 1.0, 2.0), (1.0, 2.0, 4.0), (1.0, 2.0, 4.0), 3.0)
    known = predictor(profile("m", {(1, 4): rising}))

    (forecast,) = known.forecast([demand("w", {"m": 1.0}, 3.0)], [Share("m", WHOLE, 2)])

    assert forecast.latency_s == pytest.approx(3.0)  # 1.5 calls per second each


def test_workflows_that_share_a_model_add_their_calls() -> None:
    known = predictor(profile("m", {(1, 4): flat(1.0, 10.0)}))
    both = [demand("a", {"m": 2.0}, 1.0), demand("b", {"m": 1.0}, 3.0)]

    first, second = known.forecast(both, [Share("m", WHOLE, 1)])

    assert known.load(both) == {"m": 5.0}
    assert first.throughput == pytest.approx(1.0 * 2)  # both may grow twofold: 10 calls of 5
    assert second.throughput == pytest.approx(3.0 * 2)


def test_beyond_saturation_a_run_never_ends() -> None:
    known = predictor(profile("m", {(1, 4): flat(1.0, 1.0)}))
    (forecast,) = known.forecast([demand("w", {"m": 2.0}, 1.0)], [Share("m", WHOLE, 1)])
    assert forecast.latency_s == math.inf
    assert forecast.throughput == pytest.approx(0.5)


def test_models_called_at_the_same_time_are_counted_once() -> None:
    aggregate = replace(workflow("w", {"a": 1.0, "b": 1.0}), latency_s=1.0)  # each takes 1 s, both at once
    assert overlap(aggregate) == pytest.approx(0.5)
    known = predictor(profile("a", {(1, 4): flat(1.0, 9.0)}), profile("b", {(1, 4): flat(1.0, 9.0)}))
    (forecast,) = known.forecast([Demand(aggregate, 0.1)], [Share("a", WHOLE, 1), Share("b", WHOLE, 1)])
    assert forecast.latency_s == pytest.approx(1.0)
    assert overlap(workflow("w", {"a": 1.0, "b": 1.0})) == 1.0
    assert overlap(replace(aggregate, uses=())) == 1.0


def test_calibration_corrects_what_is_not_other_time() -> None:
    found = calibrate([(3.0, 5.0), (5.0, 9.0), (9.0, 17.0)], other_s=1.0)
    assert found.factor == pytest.approx(2.0)
    assert found.error == pytest.approx(0.0)
    known = Predictor({"m": profile("m", {(1, 4): flat(1.0, 9.0)})}, calibration={"w": 2.0}, errors={"w": 0.07})
    (forecast,) = known.forecast([Demand(workflow("w", {"m": 3.0}, other_s=1.0), 0.1)], [Share("m", WHOLE, 1)])
    assert forecast.latency_s == pytest.approx(1.0 + 2.0 * 3.0)
    assert forecast.error == 0.07


def test_error_of_a_calibration_is_that_of_runs_it_has_not_seen() -> None:
    assert calibrate([(1.0, 1.0)]).error is None
    assert calibrate([(1.0, 1.0), (1.0, 2.0)]).error == pytest.approx((1.0 + 0.5) / 2)


@pytest.mark.parametrize("pairs", [[], [(0.5, 2.0)], [(math.inf, 2.0)], [(2.0, 1.0)]])
def test_calibration_refuses_what_says_nothing(pairs: list[tuple[float, float]]) -> None:
    with pytest.raises(UsageError, match="calibration needs"):
        calibrate(pairs, other_s=1.0)


def test_a_slowed_engine_is_the_same_engine_on_a_slower_clock() -> None:
    curve = Curve((0.0, 1.0, 2.0), (1.0, 2.0, 4.0), (1.0, 2.0, 4.0), 3.0)
    assert slowed(curve, 1.0, 2.0) == pytest.approx(2 * 4.0)
    assert slowed(curve, 1.5, 2.0) == math.inf


def test_parts_of_a_gpu_reckon_with_busy_neighbours_until_they_are_known() -> None:
    part, whole = Shape(1, 1), Shape(1, 4)
    known = Predictor(
        {name: profile(name, {(1, 1): flat(1.0, 2.0), (1, 4): flat(1.0, 2.0)}) for name in "ab"},
        interference=Interference(per_neighbour=0.4),
    )
    both = [demand("w", {"a": 1.0, "b": 1.0}, 1.0)]
    assert known.slowdown(whole) == 1.0
    assert known.slowdown(part) == pytest.approx(1.3)

    shares = [Share("a", part, 1), Share("b", part, 1)]
    (unplaced,) = known.forecast(both, shares)
    apart = [Instance("a", 0, part, "n", (0,)), Instance("b", 0, part, "n", (1,))]
    (alone,) = known.forecast(both, shares, apart)
    together = [Instance("a", 0, part, "n", (0,)), Instance("b", 0, part, "n", (0,))]
    (beside,) = known.forecast(both, shares, together)

    assert unplaced.latency_s == pytest.approx(2 * 1.3)
    assert alone.latency_s == pytest.approx(2.0)
    slow = 1 + 0.4 * 0.25 * (1 - math.exp(-1))  # a quarter of the GPU, with one call in flight in the mean
    assert beside.latency_s == pytest.approx(2 * slow)
    assert beside.throughput == pytest.approx(2.0 / slow)


def test_a_part_is_a_part_though_nothing_was_profiled_on_a_whole_gpu() -> None:
    half = {"a": profile("a", {(1, 5): flat(1.0, 2.0)})}
    known = Predictor(half, interference=Interference(per_neighbour=0.4), slices_per_gpu=10)
    (found,) = known.forecast([demand("w", {"a": 1.0}, 1.0)], [Share("a", Shape(1, 5), 1)])
    assert found.latency_s == pytest.approx(1.2)


def test_curves_for_calls_that_come_together_are_blended_by_the_part_of_a_burst_that_each_replica_gets() -> None:
    plain = profile("m", {(1, 4): flat(4.0, 9.0)})
    known = predictor(replace(plain, spread_curves={2: {WHOLE: flat(3.0, 9.0)}, 4: {WHOLE: flat(2.0, 6.0)}}))
    asked = [demand("w", {"m": 1.0}, 1.0)]
    found = [known.forecast(asked, [Share("m", WHOLE, count)])[0] for count in (1, 2, 3, 4, 5)]
    latencies = [it.latency_s for it in found]
    assert latencies == pytest.approx([4.0, 3.0, 3.0 - 2 / 3, 2.0, 2.0])
    assert [it.throughput for it in found] == pytest.approx([9.0, 18.0, 3 * (9.0 - 2.0), 24.0, 30.0])
    (table,) = options(asked, known, slices_per_gpu=4, domains=(5,))
    assert table.latencies_s[:, 0].tolist() == latencies


@pytest.mark.parametrize(
    ("demands", "shares", "said"),
    [
        ([demand("w", {"x": 1.0}, 1.0)], [], "no profile"),
        ([demand("w", {"m": 1.0}, 0.0)], [], "not above 0"),
        ([demand("w", {"m": 1.0}, 1.0)] * 2, [], "demanded twice"),
        ([demand("w", {"m": 1.0}, 1.0)], [], "no share"),
        ([demand("w", {"m": 1.0}, 1.0)], [Share("m", Shape(2, 4), 1)], "no curve"),
        ([demand("w", {"m": 1.0}, 1.0)], [Share("m", WHOLE, 0)], "0 replicas"),
        ([demand("w", {"m": 1.0}, 1.0)], [Share("m", WHOLE, 1)] * 2, "more than one share"),
    ],
)
def test_wrong_questions(demands: list[Demand], shares: list[Share], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        predictor(scaling("m", f=4)).forecast(demands, shares)


def test_wrong_factors() -> None:
    with pytest.raises(UsageError, match="calibration factor"):
        Predictor({}, calibration={"w": 0.0})
    with pytest.raises(UsageError, match="slowdown"):
        Interference(per_neighbour=-0.1)


@given(
    steps=st.lists(st.tuples(st.floats(0.01, 2), st.floats(0, 3)), min_size=1, max_size=6),
    spare=st.floats(0.01, 2),
    rates=st.lists(st.floats(0, 20), min_size=1, max_size=10),
)
def test_arrays_say_what_the_curve_says(steps: list[tuple[float, float]], spare: float, rates: list[float]) -> None:
    points = np.cumsum(steps, axis=0)
    curve = Curve(tuple(points[:, 0]), tuple(points[:, 1] + 0.5), tuple(points[:, 1] + 0.5), points[-1, 0] + spare)
    assert latencies_s(curve, np.array(rates)) == pytest.approx([curve.latency_s(rate) for rate in rates])
