"""Iterations found in what a job sends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.interleave.iterations import IterationTracker

TICK_S = 0.005


def job(
    *, compute_s: float, sending_s: float, size_bytes: int, iterations: int, start_s: float = 0.0
) -> Iterator[tuple[float, int]]:
    """What a watcher that looks every `TICK_S` sees: time, and bytes in all."""
    period_s = compute_s + sending_s
    for tick in range(int((start_s + iterations * period_s) / TICK_S)):
        now_s = tick * TICK_S
        whole, within_s = divmod(max(0.0, now_s - start_s), period_s)
        yield now_s, int(size_bytes * (whole + min(1.0, max(0.0, within_s - compute_s) / sending_s)))


@given(
    compute_s=st.floats(0.1, 2.0), sending_s=st.floats(0.05, 1.0), size_bytes=st.integers(10**5, 10**9)
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_a_regular_job_is_found_after_three_iterations(compute_s: float, sending_s: float, size_bytes: int) -> None:
    tracker = IterationTracker()
    ratios: list[float] = []
    for now_s, sent in job(compute_s=compute_s, sending_s=sending_s, size_bytes=size_bytes, iterations=6):
        tracker.sent(now_s, sent)
        if tracker.iterations >= 3:
            assert tracker.ratio is not None
            ratios.append(tracker.ratio)
    assert tracker.iteration_bytes == pytest.approx(size_bytes, rel=0.12)
    assert tracker.period_s == pytest.approx(compute_s + sending_s, abs=3 * TICK_S)
    assert max(ratios) > 0.85
    assert min(ratios) < 0.15


def fed(*bursts: tuple[float, int]) -> IterationTracker:
    """A tracker that saw bursts of so many bytes, each after a pause of so many seconds, one tick long each."""
    tracker, now_s, total = IterationTracker(), 0.0, 0
    for pause_s, size_bytes in bursts:
        for _ in range(round(pause_s / TICK_S)):
            now_s += TICK_S
            tracker.sent(now_s, total)
        total += size_bytes
        tracker.sent(now_s, total)
    return tracker


def test_short_pauses_between_buckets_end_no_iteration() -> None:
    one = ((0.5, 400), (0.1, 300), (0.1, 300))
    tracker = fed(*one * 5)
    assert tracker.iteration_bytes == 1000
    assert [each.sent_bytes for each in tracker.ended][-3:] == [1000] * 3


def test_a_new_size_is_plain_until_it_has_been_seen_often_enough() -> None:
    old, new = (0.5, 1000), (0.5, 2000)
    assert fed(*[old] * 5).ratio == 1.0
    assert fed(*[old] * 5, new).ratio is None
    assert fed(*[old] * 5, *[new] * 2).ratio is None
    assert fed(*[old] * 5, *[new] * 5).iteration_bytes == 2000


def test_traffic_without_a_pattern_is_plain() -> None:
    assert fed(*[(0.5, size) for size in (100, 900, 300, 5000, 20, 700)]).ratio is None
    assert fed(*[(TICK_S, 1000)] * 200).ratio is None


def test_the_next_iteration_begins_at_0_already_in_the_pause_before_it() -> None:
    tracker = fed(*[(0.5, 1000)] * 4)
    assert tracker.ratio == 1.0
    end_s = 4 * 0.5
    tracker.sent(end_s + 0.1, 4000)
    assert tracker.ratio == 1.0
    tracker.sent(end_s + 0.3, 4000)
    assert tracker.ratio == 0.0
    tracker.sent(end_s + 0.5, 4100)
    assert tracker.ratio == pytest.approx(0.1)


def test_a_pause_in_which_data_waited_is_not_the_job_s() -> None:
    tracker = fed(*[(0.5, 1000)] * 4)
    tracker.sent(2.5, 4500)
    tracker.sent(2.9, 4600, idle=False)
    assert tracker.iterations == 4
    assert tracker.ratio == pytest.approx(0.6)
    tracker.sent(3.3, 4700)
    assert tracker.iterations == 5
