"""When a challenger is accepted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.decide.trial import Outcome, Trial, TrialRules


def judged(reference: list[float], measured: list[float], rules: TrialRules | None = None) -> Outcome:
    trial = Trial({"op": reference}, rules)
    for value in measured:
        if trial.outcome is Outcome.UNDECIDED:
            trial.add([("op", value)])
    return trial.outcome


@pytest.mark.parametrize(
    ("measured", "outcome"),
    [
        ([], Outcome.UNDECIDED),
        ([0.6], Outcome.UNDECIDED),
        ([0.6, 0.6], Outcome.UNDECIDED),
        ([0.6, 0.6, 0.6], Outcome.ACCEPTED),
        ([1.5, 0.6, 0.6], Outcome.ACCEPTED),
        ([1.0, 1.1, 1.1], Outcome.REJECTED),
        ([2.0], Outcome.REJECTED),
        ([1.0, 0.97, 0.97], Outcome.UNDECIDED),
        ([1.0, 0.97, 0.97, 0.97, 0.97], Outcome.REJECTED),
        ([1.0, 0.94, 0.94, 0.94, 0.94], Outcome.ACCEPTED),
        ([1.0, 0.94, 3.0, 0.94, 0.94], Outcome.ACCEPTED),
    ],
)
def test_a_challenger_is_kept_when_it_is_five_percent_better(measured: list[float], outcome: Outcome) -> None:
    assert judged([1.0, 1.0, 9.0], measured) is outcome


def test_only_like_is_compared_with_like() -> None:
    trial = Trial({"small": [1.0], "large": [10.0]})
    trial.add([("small", 0.5), ("large", 6.0), ("small", 0.5), ("other", 99.0), ("large", 6.0)])
    assert trial.ratio == pytest.approx((0.5 + 12.0) / (1.0 + 20.0))
    assert trial.outcome is Outcome.ACCEPTED


def test_a_challenger_that_cannot_be_compared_is_dropped_in_the_end() -> None:
    trial = Trial({"op": [1.0]}, TrialRules(patience=5))
    outcomes = []
    for _ in range(5):
        trial.add([("other", 1.0)])
        outcomes.append(trial.outcome)
    assert outcomes == [Outcome.UNDECIDED] * 4 + [Outcome.REJECTED]


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=8), st.lists(st.floats(0.01, 10), min_size=5, max_size=12))
def test_every_trial_ends_within_its_measurements(reference: list[float], measured: list[float]) -> None:
    assert judged(reference, measured) is not Outcome.UNDECIDED


@given(st.lists(st.floats(0.5, 2), min_size=1, max_size=8), st.floats(0.96, 5))
def test_what_is_not_better_is_never_kept(reference: list[float], factor: float) -> None:
    middle = sorted(reference)[len(reference) // 2]
    assert judged([middle], [factor * middle] * 6) is Outcome.REJECTED
