"""The pictures show what the records say: loads, shares, places; and stay legible for many points."""

from __future__ import annotations

import itertools
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.collectives.plan import Plan, Tree
from headway.decide.journal import FlowRecord, Record, StartRecord
from headway.report.chart import Chart, Mark, Series, Shade, chart_file, draw_chart
from headway.report.graph import MOST_RANKS, draw_plan, edges_of, rank_loads, root_shares
from headway.report.heatmap import COLUMNS, draw_heatmap, link_rows
from headway.report.runs import Run, runs_of
from headway.report.svg import Scale, Svg, shorten, text_width, ticks

NAMESPACE = {"s": "http://www.w3.org/2000/svg"}


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def count(svg: str, kind: str) -> int:
    return sum(kind in (e.get("class") or "").split() for e in parsed(svg).iter())


def one(records: list[Record]) -> Run:
    (run,) = runs_of([("run", records)])
    return run


def star(size: int) -> Plan:
    return Plan("star", size, (Tree((-1, *[0] * (size - 1)), 1.0),))


def direct(size: int) -> Plan:
    trees = [Tree(tuple(-1 if r == root else root for r in range(size)), 1 / size) for root in range(size)]
    return Plan("direct", size, tuple(trees))


def test_svg_escapes_what_it_is_given() -> None:
    svg = Svg(10, 10, label='a "label" <&>')
    svg.text(1, 2, "<script> & 'more'", data_tip='"><b>')
    root = parsed(svg.render())
    assert root.get("aria-label") == 'a "label" <&>'
    (text,) = root.findall("s:text", NAMESPACE)
    assert text.text == "<script> & 'more'"
    assert text.get("data-tip") == '"><b>'


@given(st.floats(0, 1e6), st.floats(0.001, 1e6), st.integers(2, 12))
def test_ticks_are_round_few_and_inside(low: float, width: float, about: int) -> None:
    high = low + width
    values = ticks(low, high, about=about)
    assert len(values) <= about + 1
    assert all(low - 1e-6 * width <= v <= high + 1e-6 * width for v in values)
    steps = [b - a for a, b in itertools.pairwise(values)]
    if steps:
        assert max(steps) - min(steps) <= 1e-6 * high


def test_ticks_of_nothing() -> None:
    assert ticks(3.0, 3.0) == [3.0]


@given(st.text(max_size=80), st.floats(0, 400))
def test_shortened_text_fits(text: str, room: float) -> None:
    assert text_width(shorten(text, 12, room), 12) <= max(room, 0)


def test_a_scale_of_one_point_does_not_divide_by_zero() -> None:
    assert Scale(1.0, 1.0, 5.0, 9.0)(1.0) == 5.0


def test_the_chart_has_each_dot_shade_and_mark() -> None:
    chart = Chart(
        series=[Series("gloo", ((0.0, 1e7), (1.0, 2e7))), Series("headway", ((0.0, 1e7), (1.0, 3e7), (2.0, 3e7)))],
        shades=[Shade(0.5, 1.5, "load")],
        marks=[Mark(1.0, "try", "Tries <chains>"), Mark(1.2, "revert", "x"), Mark(1.4, "restore", "y")],
        limit=[(0.0, 4e7), (2.0, 4e7)],
    )
    svg = draw_chart(chart)
    assert count(svg, "dot") == 5
    assert count(svg, "shade") == 1
    assert count(svg, "rule") == 3
    assert [e.get("data-tip") for e in parsed(svg).iter() if e.get("data-tip")][-3:] == ["Tries <chains>", "x", "y"]
    assert "limit (estimate)" in svg
    assert "try a plan" in svg


def test_events_that_overlap_have_bars_below_each_other() -> None:
    shades = [Shade(0.0, 5.0, "a"), Shade(2.0, 6.0, "b"), Shade(5.0, 9.0, "c")]
    svg = draw_chart(Chart(series=[Series("s", ((9.0, 1e6),))], shades=shades))
    bars = [e.get("y") for e in parsed(svg).iter() if e.get("class") == "event-bar"]
    assert bars[0] == bars[2] != bars[1]


def test_many_points_are_drawn_as_medians() -> None:
    points = tuple((k / 100, 1e7 + (k % 2) * 1e6) for k in range(50_000))
    svg = draw_chart(Chart(series=[Series("s", points)]))
    assert len(svg) < 20_000
    assert count(svg, "dot") == 0


@pytest.mark.parametrize("points", [(), ((0.0, 0.0),), ((1.0, 1e3), (2.0, 1e3)), ((1.0, 4e9), (2.0, 5e9))])
def test_a_chart_of_little_or_of_extremes_is_still_a_picture(points: tuple[tuple[float, float], ...]) -> None:
    parsed(draw_chart(Chart(series=[Series("s", points)])))


def test_the_chart_alone_carries_its_colours() -> None:
    series = [Series("gloo", ((0.0, 1e7),)), Series("headway", ((0.0, 2e7),))]
    text = chart_file(Chart(series=series, shades=[Shade(0.0, 1.0, "load")], title="Two runs"))
    parsed(text)
    assert "prefers-color-scheme: dark" in text
    assert "Two runs" in text
    assert "--series-0" in text


def test_links_carry_what_their_flows_carried(records: list[Record]) -> None:
    run = one(records)
    rows = {(row.host, row.direction): row for row in link_rows(run)}
    assert len(rows) == 16
    sent = sum(r.acked_bytes for r in records if isinstance(r, FlowRecord) and r.src == 3)
    assert sum(cell.moved_bytes for cell in rows["host 3", "up"].cells) == sent
    down = rows["host 3", "down"].cells
    assert all(a.end_s <= b.begin_s + 1e-9 for a, b in itertools.pairwise(down))
    slow = [cell for cell in down if cell.best_Bps is not None and cell.best_Bps < 15e6]
    assert slow
    assert all(run.events[0].begin_s - 1e-6 <= cell.begin_s <= run.events[0].end_s for cell in slow)
    others = [c.best_Bps for (host, _), row in rows.items() if host != "host 3" for c in row.cells if c.best_Bps]
    assert min(others) > 20e6


def test_flows_inside_a_host_use_no_link() -> None:
    start = StartRecord(t_s=0.0, world_size=3, hosts=["a", "a", "b"], policy="off")
    flows = [
        FlowRecord(t_s=1.0, epoch=0, src=s, dst=d, acked_bytes=size, network_limited_s=0.5)
        for s, d, size in ((0, 1, 100), (0, 2, 7), (1, 2, 5))
    ]
    rows = {(r.host, r.direction): r.cells[0].moved_bytes for r in link_rows(one([start, *flows]))}
    assert rows == {("a", "up"): 12, ("a", "down"): 0, ("b", "up"): 0, ("b", "down"): 12}


def test_many_epochs_are_drawn_as_sums() -> None:
    flows: list[Record] = [
        FlowRecord(t_s=float(e), epoch=e, src=0, dst=1, acked_bytes=10, network_limited_s=0.1, rate_Bps=100.0)
        for e in range(1, 1001)
    ]
    run = one(flows)
    (up, *_) = link_rows(run)
    assert len(up.cells) <= COLUMNS
    assert sum(cell.moved_bytes for cell in up.cells) == 9990, "the first record only begins the clock"
    for measure in ("load", "rate"):
        parsed(draw_heatmap(run, [], measure=measure))


def test_no_flows_no_map() -> None:
    start = StartRecord(t_s=0.0, world_size=2, hosts=["a", "b"], policy="off")
    assert draw_heatmap(one([start]), [], measure="load") == ""


def test_edges_are_as_wide_as_their_shares() -> None:
    edges = edges_of(direct(4))
    assert len(edges) == 6
    assert {round(e.share, 6) for e in edges} == {0.5}, "each pair is an edge of two of the four stars"
    assert rank_loads(direct(4)) == pytest.approx([1.5] * 4)
    assert root_shares(direct(4)) == pytest.approx([0.25] * 4)
    assert rank_loads(star(4)) == pytest.approx([3, 1, 1, 1])


@given(st.integers(1, 40).flatmap(lambda n: st.lists(st.integers(0, 10**6), min_size=n, max_size=n)))
def test_loads_add_up_to_two_ends_of_every_edge(choices: list[int]) -> None:
    size = len(choices)
    parents = (-1, *[choice % rank for rank, choice in enumerate(choices) if rank])
    plan = Plan("any", size, (Tree(parents, 1.0),))
    assert sum(rank_loads(plan)) == pytest.approx(2 * (size - 1))
    parsed(draw_plan(plan, hosts=[f"h{r}" for r in range(size)]))


def test_slow_ranks_are_highlighted_and_racks_are_named() -> None:
    svg = draw_plan(direct(4), hosts=["a", "b", "c", "d"], racks=["rack 0", "rack 1", "rack 0", "rack 1"], slow={2})
    assert count(svg, "halo") == 1
    assert count(svg, "rack") == 2
    slow = [e for e in parsed(svg).iter() if e.get("class") == "tree-edge slow"]
    assert len(slow) == 3
    order = [e.text for e in parsed(svg).iter() if e.get("class") == "node-text"]
    assert order == ["0", "2", "1", "3"], "ranks of a rack stand together"


def test_too_many_ranks_are_not_drawn() -> None:
    assert draw_plan(star(MOST_RANKS + 1), hosts=[]) == ""
    parsed(draw_plan(star(MOST_RANKS), hosts=[]))
    parsed(draw_plan(star(1), hosts=["a"]))
