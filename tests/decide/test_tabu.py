"""Waiting times that grow, and are forgotten."""

from __future__ import annotations

from headway.decide.patience import Patience
from headway.decide.tabu import BackOff, Tabu, stretch


def test_the_wait_doubles_up_to_its_limit() -> None:
    back_off = BackOff("group", base_s=1.0, most_s=50.0, calm_s=1000.0)
    waits = []
    for step in range(10):
        waits.append(back_off.wait_s(0.0) / stretch("group", step))
        back_off.fail(0.0)
    assert waits == [1, 2, 4, 8, 16, 32, 50, 50, 50, 50]


def test_calm_forgives_one_failure_at_a_time() -> None:
    back_off = BackOff("group", base_s=1.0, most_s=50.0, calm_s=100.0)
    for _ in range(3):
        back_off.fail(0.0)
    steps = stretch("group", 3)
    assert [back_off.wait_s(now_s) / steps for now_s in (99.0, 100.0, 250.0, 300.0, 9000.0)] == [8, 4, 2, 1, 1]


def test_two_names_wait_differently_and_one_name_always_alike() -> None:
    first = [stretch("first", step) for step in range(5)]
    assert first == [stretch("first", step) for step in range(5)]
    assert first != [stretch("second", step) for step in range(5)]
    assert all(0.75 <= value <= 1.5 for value in first)


def test_an_option_is_barred_for_longer_each_time() -> None:
    tabu = Tabu("group", base_s=10.0, most_s=100.0, calm_s=1000.0)
    assert not tabu.barred("ring", 0.0)
    first_s = tabu.bar("ring", 0.0)
    assert tabu.barred("ring", first_s - 0.1)
    assert not tabu.barred("star", 1.0)
    assert not tabu.barred("ring", first_s)
    second_s = tabu.bar("ring", first_s) - first_s
    assert second_s > 10.0 * stretch("group", 1)
    tabu.prune(first_s + second_s + 1200.0)
    assert tabu.bar("ring", 5000.0) - 5000.0 == first_s


def test_patience_ends_after_failures_in_a_row_and_a_new_cause_restores_it() -> None:
    patience = Patience(2, BackOff("group", base_s=10.0, most_s=100.0, calm_s=1000.0))
    cause = frozenset({"host 3"})
    assert patience.allows(cause, 0.0)
    patience.failed(0.0)
    assert patience.allows(cause, 1.0)
    patience.failed(1.0)
    assert not patience.allows(cause, 2.0)
    assert patience.allows(frozenset({"host 3", "host 4"}), 2.0)
    patience.failed(2.0)
    patience.failed(3.0)
    assert not patience.allows(cause, 4.0)
    assert not patience.allows(frozenset({"host 4"}), 4.0)
    assert patience.allows(cause, 40.0)
