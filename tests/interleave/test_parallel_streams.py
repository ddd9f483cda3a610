"""F as a number of connections."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.interleave.aggressiveness import Aggressiveness
from headway.interleave.streams import Streams, exact_width, open_actuator, why_not, widest


@pytest.mark.parametrize(("ratio", "width"), [(0, 1), (0.1, 1.7), (0.5, 4.5), (1, 8)])
def test_the_paper_s_f_is_one_to_eight(ratio: float, width: float) -> None:
    f = Aggressiveness()
    assert exact_width(f, f.weight(ratio)) == pytest.approx(width)
    assert widest(f) == 8


@pytest.mark.parametrize(("most", "width"), [(0.5, 1), (1, 1), (1.9, 1), (3, 3), (8, 8), (16, 8)])
def test_the_dial_is_the_largest_number(most: float, width: int) -> None:
    assert widest(Aggressiveness(most=most)) <= width
    assert exact_width(Aggressiveness(most=most), Aggressiveness(most=most).weight(1.0)) <= width
    if most >= 2:
        assert widest(Aggressiveness(most=most)) == width


@given(st.floats(0.1, 10), st.floats(0.05, 4), st.floats(0, 1))
def test_never_more_than_the_widest(slope: float, intercept: float, ratio: float) -> None:
    f = Aggressiveness(slope=slope, intercept=intercept)
    assert 1 <= exact_width(f, f.weight(ratio)) <= widest(f) <= 16
    assert exact_width(f, None) == 1


def test_a_connection_has_one_until_it_is_pushed_and_after_it_is_let_go() -> None:
    assert why_not("streams") is None
    actuator = open_actuator("streams", Aggressiveness())
    assert isinstance(actuator, Streams)
    with socket.socket() as first, socket.socket() as other:
        actuator.push(first, 2.0)
        assert actuator.width(first) == 1
        actuator.adopt(first)
        actuator.push(first, 2.0)
        actuator.adopt(first)
        assert (actuator.width(first), actuator.width(other)) == (8, 1)
        assert actuator.state(first).weight == 8.0
        actuator.push(first, None)
        assert actuator.width(first) == 1
        seen = []
        for _ in range(100):
            actuator.push(first, 0.25 * 3.3)
            seen.append(actuator.width(first))
        assert set(seen) == {3, 4}
        assert sum(seen) / len(seen) == pytest.approx(3.3, abs=0.02)
        actuator.push(first, 1.0)
        actuator.release(first)
        actuator.release(other)
        assert actuator.width(first) == 1
        actuator.close()
