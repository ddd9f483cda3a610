"""What is made of when iterations began: times, settling, offsets and the formula's, rates."""

from __future__ import annotations

import math

import pytest

from headway.bench.settling import (
    Lap,
    formula_offsets_s,
    from_iteration,
    laps,
    mean,
    offsets_s,
    p99,
    rate_Bps,
    settled,
    spread,
    steps,
)
from headway.interleave.aggressiveness import Aggressiveness, shift_s

F = Aggressiveness()


def run(*overs: float, start_s: float = 0.0) -> list[Lap]:
    """Iterations of an isolated time of 1 s."""
    found = []
    for over in overs:
        found.append(Lap(start_s, over))
        start_s += over
    return found


def test_a_time_is_from_begin_to_begin_over_the_isolated_one() -> None:
    assert laps([1.0, 3.0, 4.0], 2.0) == [Lap(1.0, 1.0), Lap(3.0, 0.5)]
    assert laps([1.0], 2.0) == []


class TestSettled:
    def test_counts_the_iterations_of_the_job_that_had_most_until_all_are_undisturbed(self) -> None:
        first, second = run(1.4, 1.4, 1.2, *[1.0] * 6), run(1.4, 1.4, 1.4, 1.02, *[1.0] * 6, start_s=0.02)
        found = settled([first, second])
        assert found is not None
        assert found.after == 3
        assert found.kept == 1.0

    def test_a_short_stretch_is_none(self) -> None:
        job = run(*[1.0] * 4, 1.3, *[1.0] * 4)
        assert settled([job]) is None
        found = settled([job], least=4)
        assert found is not None
        assert found.after == 0
        assert found.kept == pytest.approx(8 / 9)

    def test_what_is_near_can_be_told(self) -> None:
        job = run(*[1.08] * 3, *[1.03] * 6)
        found, wide, narrow = settled([job]), settled([job], near=0.1), settled([job], near=0.02)
        assert found is not None
        assert wide is not None
        assert (found.after, wide.after, narrow) == (3, 0, None)

    def test_counts_from_a_change_on(self) -> None:
        job = run(*[1.0] * 6, 1.4, 1.3, *[1.0] * 6)
        assert settled([job], since_s=5.5) is not None
        found = settled([job], since_s=5.5)
        assert found is not None
        assert found.after == 2

    def test_jobs_of_different_periods_are_compared_by_time(self) -> None:
        slow = run(1.4, 1.4, *[1.0] * 8)
        quick = [Lap(0.5 * index, 1.4 if index < 6 else 1.0) for index in range(20)]
        found = settled([slow, quick])
        assert found is not None
        assert found.after == 6

    def test_one_job_that_never_rests_or_has_too_few_makes_it_never(self) -> None:
        assert settled([run(*[1.0] * 9), run(*[1.4] * 9)]) is None
        assert settled([run(*[1.0] * 9), run(1.0, 1.0)]) is None
        assert settled([]) is None


def test_means_and_tails_are_over_all_jobs_and_skip_those_without_iterations() -> None:
    jobs = [run(1.0, 1.2), run(2.0), []]
    assert mean(jobs) == pytest.approx((1.1 + 2.0) / 2)
    assert p99(jobs) == 2.0
    assert math.isnan(mean([[]]))
    assert math.isnan(p99([]))
    assert [len(job) for job in from_iteration(jobs, 1)] == [1, 0, 0]


class TestOffsets:
    def test_are_those_of_the_second_job_as_long_as_both_go_on(self) -> None:
        assert offsets_s([0.0, 1.0, 2.0], [0.5, 1.25]) == [0.5, 0.25]

    def test_by_the_formula_are_the_papers(self) -> None:
        found = formula_offsets_s(F, 0.02, 7, period_s=1.0, share=0.45)
        assert [round(offset, 3) for offset in found] == [0.02, 0.122, 0.337, 0.432, 0.448, 0.45, 0.45]

    def test_the_sign_says_who_is_earlier(self) -> None:
        ahead, behind = (formula_offsets_s(F, offset, 6, period_s=2.0, share=0.3) for offset in (0.1, -0.1))
        assert ahead == [-offset for offset in behind]

    def test_steps_are_away_from_each_other_and_end_where_the_jobs_no_longer_meet(self) -> None:
        found = steps(F, [-0.1, -0.3, -0.2, -0.5, -0.6], period_s=1.0, share=0.45)
        assert [step.apart_s for step in found] == [0.1, 0.3, 0.2]
        assert [step.measured_s for step in found] == pytest.approx([0.2, -0.1, 0.3])
        assert found[0].formula_s == shift_s(F, 0.1, period_s=1.0, share=0.45)


def test_a_rate_is_from_the_first_begin_to_the_last_end() -> None:
    assert rate_Bps(10, [1.0, 2.0, 3.5], [2.0, 3.0]) == 10.0
    assert rate_Bps(10, [1.0], []) == 0.0
    assert rate_Bps(10, [1.0, 2.0, 4.0], [2.0, 4.0, 5.0], until_s=3.0) == pytest.approx(7.5)
    assert rate_Bps(10, [1.0], [2.0], until_s=1.0) == 0.0


def test_a_spread_is_median_and_range() -> None:
    assert spread([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)
