"""What a free link is held against."""

from __future__ import annotations

import pytest

from headway.observe.baseline import OWN_AFTER, TRUSTED, Baseline


def test_nothing_is_known_at_first_unless_rates_are_true() -> None:
    assert Baseline(trust_nominal=False).factor("a", None) is None
    assert Baseline(trust_nominal=True).factor("a", None) == TRUSTED


def test_peers_stand_in_and_true_rates_bound_them() -> None:
    assert Baseline(trust_nominal=False).factor("a", 0.4) == 0.4
    assert Baseline(trust_nominal=True).factor("a", 0.4) == TRUSTED
    assert Baseline(trust_nominal=True).factor("a", 0.93) == 0.93


def test_a_link_is_held_against_itself_after_some_clean_epochs() -> None:
    baseline = Baseline(trust_nominal=False)
    for _ in range(OWN_AFTER):
        assert baseline.factor("slow", 0.9) == 0.9
        baseline.learn({"slow": 0.3, "b": 0.9, "c": 0.9})
    assert baseline.factor("slow", 0.9) == pytest.approx(0.3)
    assert baseline.factor("new", 0.1) == pytest.approx(0.9)


def test_it_climbs_faster_than_it_sinks() -> None:
    up, down = Baseline(trust_nominal=False), Baseline(trust_nominal=False)
    for _ in range(OWN_AFTER):
        up.learn({"a": 0.5})
        down.learn({"a": 0.9})
    up.learn({"a": 0.9})
    down.learn({"a": 0.5})
    risen, sunk = up.factor("a", None), down.factor("a", None)
    assert risen is not None
    assert sunk is not None
    assert risen - 0.5 > 0.9 - sunk
