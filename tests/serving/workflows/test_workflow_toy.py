"""Why p is calls in flight and not fan-out: the sheet's toy workflow, against figures that are known in closed form."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random

import pytest

from headway.serving.workflows.aggregate import aggregate
from headway.serving.workflows.aggregate_types import Aggregate
from headway.serving.workflows.calls import Call
from headway.serving.workflows.record import runs_of
from tests.serving.workflows.slots import toy_calls

LONGEST_OF_4_S = 1 + 1 / 2 + 1 / 3 + 1 / 4
"""Mean of the largest of four exponential times of mean 1 s."""
LATENCY_S = 1 + 2 * LONGEST_OF_4_S
CONCURRENCY = 4 / LONGEST_OF_4_S  # 1.92
FAN_OUT = 4
BLINK_S = 1e-9
RUNS = 4000


def exponential(random: Random) -> float:
    return random.expovariate(1.0)


def lognormal(random: Random) -> float:
    return random.lognormvariate(-0.125, 0.5)  # of mean 1 s


@cache
def at(rate: float, call_s: Callable[[Random], float] = exponential) -> tuple[Aggregate, dict[str, float]]:
    """(what the workflow is on average, each model's mean latency per call) at a rate of runs per second."""
    calls = toy_calls(rate=rate, runs=RUNS, seed=7, call_s=call_s)
    return aggregate(runs_of(calls)), {model: _mean_call_s(calls, model) for model in "AB"}


def _mean_call_s(calls: list[Call], model: str) -> float:
    mine = [call.end_s - call.start_s for call in calls if call.model == model]
    return sum(mine) / len(mine)


def pipeline_s(found: Aggregate, call_s: dict[str, float], *, fan_out: bool = False) -> float:
    """The Aggregate LLM Pipeline's latency of a run."""
    wide = {"A": 1.0, "B": float(FAN_OUT)}
    return sum(call_s[use.model] * use.calls / (wide[use.model] if fan_out else use.concurrency) for use in found.uses)


def test_without_queues_calls_in_flight_predict_the_latency_and_the_fan_out_does_not() -> None:
    found, call_s = at(0.05)
    uses = {use.model: use for use in found.uses}
    assert (uses["A"].calls, uses["B"].calls) == (1.0, 8.0)
    assert uses["A"].concurrency == pytest.approx(1.0)
    assert uses["B"].concurrency == pytest.approx(CONCURRENCY, rel=0.03)
    assert uses["B"].share > uses["A"].share
    assert found.latency_s == pytest.approx(LATENCY_S, rel=0.03)
    assert pipeline_s(found, call_s) == pytest.approx(found.latency_s)
    assert pipeline_s(found, call_s, fan_out=True) == pytest.approx(1 + 2, rel=0.03)  # 42 % too little
    assert found.other_s < BLINK_S  # A and B take turns, and nothing else takes time
    assert found.overlap_s < BLINK_S


def test_calls_of_less_spread_are_more_in_flight_and_the_fan_out_is_wrong_by_less() -> None:
    found, call_s = at(0.05, lognormal)
    (b,) = (use for use in found.uses if use.model == "B")
    assert CONCURRENCY < b.concurrency < FAN_OUT
    assert pipeline_s(found, call_s) == pytest.approx(found.latency_s)
    error = 1 - pipeline_s(found, call_s, fan_out=True) / found.latency_s
    assert 0.2 < error < 1 - 3 / LATENCY_S  # the sheet has 28 %


@pytest.mark.parametrize("rate", [1.0, 1.8])
def test_under_load_p_of_that_load_is_exact_and_p_of_no_load_predicts_too_much(rate: float) -> None:
    quiet, _ = at(0.05)
    loaded, call_s = at(rate)
    assert pipeline_s(loaded, call_s) == pytest.approx(loaded.latency_s)
    # Calls of one round wait together: more of them are in flight, so p rises with the load.
    assert loaded.uses[0].concurrency > quiet.uses[0].concurrency
    assert pipeline_s(quiet, call_s) > loaded.latency_s


def test_calls_that_all_take_the_same_time_are_in_flight_as_wide_as_the_fan_out() -> None:
    found, call_s = at(0.05, lambda random: 1.0)
    (b,) = (use for use in found.uses if use.model == "B")
    assert b.concurrency == pytest.approx(FAN_OUT, rel=0.01)
    assert pipeline_s(found, call_s, fan_out=True) == pytest.approx(found.latency_s, rel=0.01)
