"""One job's bytes into F, and the account of what it reached."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.interleave.aggressiveness import Aggressiveness
from headway.interleave.controller import Controller

TICK_S = 0.005


class Run:
    """A controller and the clock of its job."""

    def __init__(self, aggressiveness: Aggressiveness | None = None) -> None:
        self.controller = Controller(aggressiveness or Aggressiveness())
        self.now_s, self.total = 100.0, 7_000
        self.weights: list[float | None] = []

    def iterate(self, times: int, *, compute_s: float, sending_s: float, size_bytes: int = 1_000_000) -> None:
        for _ in range(times):
            for _ in range(round(compute_s / TICK_S)):
                self._tick(0)
            ticks = round(sending_s / TICK_S)
            for tick in range(ticks):
                self._tick(size_bytes * (tick + 1) // ticks - size_bytes * tick // ticks)

    def _tick(self, size_bytes: int) -> None:
        self.now_s += TICK_S
        self.total += size_bytes
        self.weights.append(self.controller.sent(self.now_s, self.total))


def test_plain_at_first_then_f_of_the_ratio() -> None:
    run = Run()
    run.iterate(2, compute_s=0.3, sending_s=0.2)
    assert set(run.weights) == {None}
    run.iterate(2, compute_s=0.3, sending_s=0.2)
    run.weights.clear()
    run.iterate(1, compute_s=0.3, sending_s=0.2)
    assert run.weights[0] == 2.0
    assert run.weights[59] == 0.25
    sending = [weight for weight in run.weights[60:] if weight is not None]
    assert sending == sorted(sending)
    assert sending[0] == pytest.approx(0.25 + 1.75 / 40)
    assert sending[-1] == 2.0


@given(slope=st.floats(0.1, 8), intercept=st.floats(0.05, 2), dial=st.floats(0.01, 1))
@settings(max_examples=30, deadline=None)
def test_the_dial_holds(slope: float, intercept: float, dial: float) -> None:
    most = intercept + dial * slope
    run = Run(Aggressiveness(slope=slope, intercept=intercept, most=most))
    run.iterate(5, compute_s=0.3, sending_s=0.1)
    weights = {weight for weight in run.weights if weight is not None}
    assert max(weights) == pytest.approx(most)
    assert min(weights) >= intercept


def test_bytes_before_the_first_call_do_not_count() -> None:
    run = Run()
    run.total = 10**12
    run.iterate(4, compute_s=0.3, sending_s=0.2)
    assert run.controller.report.iteration_bytes == 1_000_000


def test_it_settles_again_when_the_job_changes() -> None:
    run = Run()
    run.iterate(6, compute_s=0.3, sending_s=0.2)
    assert run.controller.report.settled_after == 0
    run.iterate(2, compute_s=0.3, sending_s=0.4, size_bytes=2_000_000)
    assert run.controller.weight is None
    assert run.controller.report.period_s is None
    run.iterate(5, compute_s=0.3, sending_s=0.4, size_bytes=2_000_000)
    report = run.controller.report
    assert report.iteration_bytes == 2_000_000
    assert report.isolated_s == pytest.approx(0.7, abs=0.02)
    assert report.settled_after == 0


def test_the_report_says_how_much_others_take() -> None:
    run = Run()
    run.iterate(5, compute_s=0.3, sending_s=0.2)
    run.iterate(5, compute_s=0.3, sending_s=0.4)
    report = run.controller.report
    assert report.iterations == 9
    assert report.isolated_s == pytest.approx(0.5, abs=0.02)
    assert report.period_s == pytest.approx(0.7, abs=0.01)
    assert report.overlap == pytest.approx(0.5, abs=0.05)
    assert not report.settled
    assert "settled after 0, not any more" in report.sentence
    run.iterate(4, compute_s=0.3, sending_s=0.2)
    assert run.controller.report.settled


def test_it_counts_the_iterations_until_a_job_settles() -> None:
    run = Run()
    for sending_s in (0.4, 0.35, 0.3, 0.25, 0.2, 0.2, 0.2, 0.2, 0.2):
        run.iterate(1, compute_s=0.3, sending_s=sending_s)
    assert run.controller.report.settled_after == 3


def test_without_a_pattern_the_report_says_so() -> None:
    assert Controller(Aggressiveness()).report.sentence == "0 iterations seen, not periodic: plain TCP"
