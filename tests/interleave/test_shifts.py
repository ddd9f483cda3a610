"""Shifts against brute force over all of them, and plans against what no schedule can beat."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import UsageError
from headway.interleave.central import limit_s, plan, whole_ratios
from headway.interleave.shifts import Arc, Circle, excess, groups, rotate

CAPACITY = {"up": 2.0, "down": 3.0}
TICKS = 12


def _job(name: str, period_s: float, *arcs: tuple[float, float, float], link: str = "down") -> Circle:
    return Circle(name, period_s, {link: tuple(Arc(*arc) for arc in arcs)})


def _equal(count: int, share: float) -> list[Circle]:
    return [_job(f"job{index}", 1.0, (0.0, share, 1.0)) for index in range(count)]


@st.composite
def arcs(draw: st.DrawFn, ticks: int) -> tuple[Arc, ...]:
    """One or two bursts that begin and end at ticks."""
    cuts = sorted(draw(st.lists(st.integers(0, ticks), min_size=2, max_size=4, unique=True)))
    pairs = zip(cuts[::2], cuts[1::2], strict=False)
    return tuple(Arc(float(a), float(b - a), float(draw(st.integers(1, 3)))) for a, b in pairs)


@st.composite
def jobs(draw: st.DrawFn, most: int) -> tuple[list[Circle], list[int]]:
    """Jobs in a chain over two links, with periods of one or two times `TICKS`."""
    circles, turns = [], []
    for index in range(draw(st.integers(2, most))):
        turn = draw(st.sampled_from((1, 1, 2)))
        links = ("up", "down") if index == 0 else (draw(st.sampled_from(("up", "down"))),)
        chosen = {link: draw(arcs(turn * TICKS)) for link in links}
        circles.append(Circle(f"job{index}", float(turn * TICKS), chosen))
        turns.append(turn)
    return circles, turns


def _by_ticks(circles: Sequence[Circle], turns: Sequence[int], shifts: Sequence[int]) -> float:
    """The same excess, counted tick by tick."""
    around = math.lcm(*turns) * TICKS
    total = 0.0
    for link, capacity in CAPACITY.items():
        load = [0.0] * around
        users = 0
        for circle, turn, shift in zip(circles, turns, shifts, strict=True):
            users += bool(circle.arcs.get(link))
            for arc in circle.arcs.get(link, ()):
                for begin in range(0, around, turn * TICKS):
                    for tick in range(int(arc.duration_s)):
                        load[(begin + int(arc.offset_s) + shift + tick) % around] += arc.demand_Bps
        if users > 1:
            total += sum(max(0.0, each - capacity) for each in load) / around / capacity
    return total


@settings(max_examples=60, deadline=None)
@given(jobs(3), st.data())
def test_excess_is_what_ticks_count(drawn: tuple[list[Circle], list[int]], data: st.DataObject) -> None:
    circles, turns = drawn
    shifts = [data.draw(st.integers(0, turn * TICKS)) for turn in turns]
    found = excess(circles, turns, float(TICKS), [float(shift) for shift in shifts], CAPACITY)
    assert sum(found.values()) == pytest.approx(_by_ticks(circles, turns, shifts), abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(jobs(3))
def test_no_shifts_by_ticks_are_better(drawn: tuple[list[Circle], list[int]]) -> None:
    """Edges lie on ticks, so the best shifts do too."""
    circles, turns = drawn
    found = rotate(circles, turns, float(TICKS), CAPACITY)
    choices = [range(turn * TICKS) for turn in turns[1:]]
    best = min(_by_ticks(circles, turns, (0, *shifts)) for shifts in itertools.product(*choices))
    assert found.exact
    assert found.total == pytest.approx(best, abs=1e-9)


@settings(max_examples=20, deadline=None)
@given(jobs(4))
def test_a_search_cut_short_says_so(drawn: tuple[list[Circle], list[int]]) -> None:
    circles, turns = drawn
    best = rotate(circles, turns, float(TICKS), CAPACITY)
    short = rotate(circles, turns, float(TICKS), CAPACITY, evaluations=3)
    assert short.total >= best.total - 1e-9
    if short.exact:
        assert short.total == pytest.approx(best.total, abs=1e-9)


@pytest.mark.parametrize(("count", "share"), [(2, 0.45), (2, 0.5), (3, 0.3), (4, 0.22), (8, 0.125)])
def test_jobs_that_fit_get_the_whole_link(count: int, share: float) -> None:
    found = plan(_equal(count, share), {"down": 1.0})
    assert found.fits
    assert found.exact
    assert list(found.periods_s.values()) == pytest.approx([1.0] * count)
    assert found.scores == {"down": pytest.approx(1.0)}
    assert found.unshifted == {"down": pytest.approx(1 - (count - 1) * share)}
    assert found.limit == pytest.approx(1.0)
    begins = sorted(found.shifts_s.values())
    assert all(later - sooner >= share - 1e-9 for sooner, later in itertools.pairwise([*begins, begins[0] + 1.0]))


@pytest.mark.parametrize(
    ("circles", "periods_s", "limit"),
    [
        (_equal(2, 0.6), [1.2, 1.2], 1.2),
        (_equal(3, 0.5), [1.5, 1.5, 1.5], 1.5),
        ([_job("a", 1.0, (0.0, 0.4, 1.0)), _job("b", 0.5, (0.0, 0.2, 1.0))], [1.2, 0.6], 1.0),
        ([_job("a", 1.0, (0.0, 0.4, 1.0)), _job("b", 0.83, (0.0, 0.332, 1.0))], [1.0, 1.0], 1.0),
    ],
)
def test_jobs_that_do_not_fit_get_longer_periods(
    circles: Sequence[Circle], periods_s: Sequence[float], limit: float
) -> None:
    found = plan(circles, {"down": 1.0})
    assert not found.fits
    assert list(found.periods_s.values()) == pytest.approx(periods_s, rel=1e-6)
    assert found.limit == pytest.approx(limit)


@settings(max_examples=25, deadline=None)
@given(jobs(3))
def test_a_plan_leaves_no_excess_and_does_not_beat_the_limit(drawn: tuple[list[Circle], list[int]]) -> None:
    circles, _ = drawn
    capacity = {"up": 4.0, "down": 4.0}
    found = plan(circles, capacity)
    periods_s = [found.periods_s[circle.name] for circle in circles]
    assert all(p >= circle.period_s * (1 - 1e-9) for p, circle in zip(periods_s, circles, strict=True))
    assert found.stretch >= found.limit - 1e-6
    for group in groups(circles):
        turns, base_s = whole_ratios([periods_s[index] for index in group])
        shifts_s = [found.shifts_s[circles[index].name] for index in group]
        left = excess([circles[index] for index in group], turns, base_s, shifts_s, capacity)
        assert sum(left.values()) <= 1e-6


def test_bursts_with_gaps_that_are_too_small_for_others() -> None:
    """Together they are busy for .35, but the other job fits into neither gap."""
    circles = [_job("a", 0.35, (0.0, 0.1, 1.0), (0.15, 0.1, 1.0)), _job("b", 0.35, (0.0, 0.15, 1.0))]
    found = plan(circles, {"down": 1.0})
    assert list(found.periods_s.values()) == pytest.approx([0.4, 0.4], rel=1e-6)


def test_slack_makes_periods_longer() -> None:
    assert plan(_equal(2, 0.45), {"down": 1.0}, slack=0.02).stretch == pytest.approx(1.02)


def test_links_in_a_loop_are_searched_together() -> None:
    """Three jobs and three links, each job on two of them: CASSINI's affinity graph would have a loop."""
    capacity = {"x": 1.0, "y": 1.0, "z": 1.0}
    burst = (Arc(0.0, 0.3, 1.0),)
    circles = [
        Circle(name, 1.0, dict.fromkeys(links, burst)) for name, links in (("a", "xy"), ("b", "yz"), ("c", "zx"))
    ]
    found = plan(circles, capacity)
    assert found.fits
    assert sorted(found.shifts_s.values()) == pytest.approx([0.0, 0.3, 0.6], abs=0.11)


def test_jobs_without_a_common_link_are_left_alone() -> None:
    circles = [_job("a", 1.0, (0.0, 0.5, 1.0)), _job("b", 0.7, (0.1, 0.4, 1.0), link="up"), Circle("c", 2.0, {})]
    found = plan(circles, {"down": 1.0, "up": 1.0})
    assert found.shifts_s == {"a": 0.0, "b": 0.0, "c": 0.0}
    assert found.periods_s == {"a": pytest.approx(1.0), "b": pytest.approx(0.7), "c": pytest.approx(2.0)}
    assert not found.scores


@pytest.mark.parametrize(
    ("periods_s", "turns"), [([1.0, 0.5], [2, 1]), ([1.0, 1.0001], [1, 1]), ([1.0, 0.83], [6, 5]), ([0.3, 0.2], [3, 2])]
)
def test_periods_in_whole_ratios(periods_s: Sequence[float], turns: Sequence[int]) -> None:
    found, base_s = whole_ratios(periods_s)
    assert found == turns
    for turn, period_s in zip(found, periods_s, strict=True):
        assert period_s * (1 - 1e-9) <= turn * base_s <= 1.01 * period_s


@pytest.mark.parametrize(
    ("share", "expected"), [({"a": 0.6, "b": 0.6}, (1.2, 1.2)), ({"a": 0.9, "b": 0.4}, (1.5, 1.0))]
)
def test_the_limit_of_two_jobs(share: Mapping[str, float], expected: tuple[float, float]) -> None:
    """Equal jobs: 2 x .6 / P = 1. Unequal: the heavy one is slowed, (.9 + .4 x) over sqrt; checked by a grid."""
    circles = [_job(name, 1.0, (0.0, part, 1.0)) for name, part in share.items()]
    found = list(limit_s(circles, {"down": 1.0}).values())
    grid = [1 + k / 1000 for k in range(5000)]
    parts = list(share.values())
    best = min(
        p + parts[1] / (1 - parts[0] / p) for p in grid if parts[0] / p < 1 and parts[1] / (1 - parts[0] / p) >= 1
    )
    assert sum(found) == pytest.approx(best, abs=2e-3)
    assert sum(expected) >= best - 1e-3


def test_what_cannot_be_planned() -> None:
    with pytest.raises(UsageError, match="jobs of different names"):
        plan([*_equal(1, 0.5), *_equal(1, 0.5)], {"down": 1.0})
    with pytest.raises(UsageError, match="slack"):
        plan(_equal(1, 0.5), {"down": 1.0}, slack=-1)
    with pytest.raises(UsageError, match="does not fit"):
        _job("a", 1.0, (0.0, 1.5, 1.0))
    with pytest.raises(UsageError, match="period"):
        _job("a", 0.0)
