"""What has drifted, and what only looks so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.serving.allocation.drift import compare, rate_of
from headway.serving.allocation.types import Forecast
from headway.serving.workflows.aggregate_types import Aggregate, ModelUse

USES = (
    ModelUse("large", 4.0, 2.0, 6.0, 0.75, 0.1, 500.0, 100.0),
    ModelUse("small", 10.0, 5.0, 2.0, 0.25, 0.2, 200.0, 20.0),
)
EXPECTED = Aggregate("w", 400, USES, 0.0, 8.0, 0.3)
FORECAST = Forecast("w", 2.0, 8.0, 3.0, {"large": 6.0, "small": 2.0}, "large")


def drifted(measured: Aggregate, rate: float = 2.0, forecast: Forecast = FORECAST) -> list[tuple[str, str]]:
    return [(each.model, each.what) for each in compare(EXPECTED, forecast, measured, rate=rate) if each.drifted]


def test_as_expected_nothing_has_drifted() -> None:
    assert drifted(EXPECTED) == []
    assert {each.what for each in compare(EXPECTED, FORECAST, EXPECTED, rate=2.0)} == {
        *("rate", "latency", "calls", "concurrency", "share", "input tokens", "output tokens"),
    }


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"calls": 6.0}, "calls"),
        ({"concurrency": 1.2}, "concurrency"),
        ({"share": 0.6}, "share"),
        ({"input_tokens": 900.0}, "input tokens"),
        ({"output_tokens": 50.0}, "output tokens"),
    ],
)
def test_a_models_figure_that_is_far_off_has_drifted_and_no_other(change: dict[str, float], what: str) -> None:
    measured = replace(EXPECTED, uses=(replace(USES[0], **change), USES[1]))  # type: ignore[arg-type]
    assert drifted(measured) == [("large", what)]


def test_rates_and_latencies_drift_both_ways() -> None:
    assert drifted(EXPECTED, rate=3.0) == drifted(EXPECTED, rate=1.0) == [("", "rate")]
    assert drifted(replace(EXPECTED, latency_s=12.0)) == drifted(replace(EXPECTED, latency_s=5.0)) == [("", "latency")]


def test_a_promise_that_was_never_kept_is_a_drift() -> None:
    assert drifted(EXPECTED, forecast=replace(FORECAST, latency_s=float("inf"))) == [("", "latency")]


def test_few_and_uneven_runs_are_given_more_room() -> None:
    more = (replace(USES[0], calls=5.2), USES[1])
    assert drifted(replace(EXPECTED, uses=more)) == [("large", "calls")]
    assert drifted(replace(EXPECTED, uses=more, runs=25, latency_cv=1.0)) == []


def test_a_model_that_came_or_went_has_drifted() -> None:
    assert drifted(replace(EXPECTED, uses=USES[:1])) == [("small", "calls")]
    assert drifted(replace(EXPECTED, uses=(*USES, replace(USES[0], model="new")))) == [("new", "calls")]


def test_a_rate_is_that_from_the_first_start_to_the_last() -> None:
    assert rate_of([5.0, 6.0, 7.0, 9.0]) == 0.75
    assert rate_of([5.0]) == rate_of([]) == rate_of([5.0, 5.0]) == 0.0
