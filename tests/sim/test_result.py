"""The pace of a job: what each iteration added to its time."""

from __future__ import annotations

from headway.sim.result import IterationResult, JobResult


def paces(*iterations: tuple[float, float]) -> list[float]:
    return list(JobResult("a", ("h",), tuple(IterationResult(*each) for each in iterations), ()).paces_s)


def test_iterations_in_sequence() -> None:
    assert paces((1, 3), (3, 6)) == [2, 3]


def test_what_overlaps_counts_once() -> None:
    assert paces((1, 3), (1.5, 5), (1.75, 6)) == [2, 2, 1]


def test_waiting_for_a_period_does_not_count() -> None:
    assert paces((0, 1), (2, 3.5), (4, 5)) == [1, 1.5, 1]


def test_nothing_has_ended() -> None:
    assert paces() == []
