"""The chart of algbw over time: runs as lines, events shaded, decisions marked, the limit dashed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from statistics import median

from headway.report.svg import Scale, Svg, shorten, text_width, ticks

SERIES_COLOURS = 4
BINS = 400  # more points than this per line are drawn as medians of equal stretches
DOTS = 120  # up to so many points each operation has a dot of its own
LIMIT_IN_SIGHT = 3.0  # a limit this many times above what was reached is left out: it would flatten the lines
FONT = 12
LIMIT_WORDS = "limit (estimate)"
LANE = 20


@dataclass(frozen=True, slots=True)
class Series:
    """One run's line: points of (seconds since its start, algbw in bytes per second)."""

    label: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Shade:
    """An event: it is shaded from begin to end, seconds."""

    begin_s: float
    end_s: float
    label: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A decision: kind is try, keep, revert, restore or reroute; `detail` shows on hover."""

    time_s: float
    kind: str
    detail: str


@dataclass(frozen=True)
class Chart:
    """What the chart shows. `limit` is a line of (seconds, bytes per second)."""

    series: Sequence[Series]
    shades: Sequence[Shade] = ()
    marks: Sequence[Mark] = ()
    limit: Sequence[tuple[float, float]] = ()
    title: str = ""


MARK_WORDS = {"try": "try a plan", "keep": "keep it", "revert": "roll back", "restore": "back to the idle plan",
              "reroute": "new connections"}  # fmt: skip


def asset(name: str) -> str:
    """Text of a file in headway/report/assets."""
    return (files("headway.report") / "assets" / name).read_text(encoding="utf-8")


def draw_chart(chart: Chart, *, width: float = 1000, plot_height: float = 260, style: str = "") -> str:
    """The chart as SVG text; `style` is the CSS to carry, where no page gives it."""
    lanes = _lanes(chart.shades)
    lane_count = max(lanes, default=-1) + 1
    left, right = 58.0, width - 16
    top = (30 if chart.title else 6) + 26 + lane_count * LANE
    bottom = top + plot_height
    marks_y = bottom + 14
    axis_y = bottom + (28 if chart.marks else 0)
    height = axis_y + 40
    svg = Svg(width, height, label=chart.title or "algbw over time", style=style)
    if style:
        svg.add("rect", class_="backdrop", x=0, y=0, width=width, height=height)
    if chart.title:
        svg.text(left, 20, chart.title, class_="head")
    x, y = _scales(chart, left, right, top, bottom)
    _legend(svg, chart, left, (30 if chart.title else 6) + 10, right)
    _axes(svg, x, y, axis_y)
    for shade, lane in zip(chart.shades, lanes, strict=True):
        _shade(svg, shade, x, y=top - (lane_count - lane) * LANE, top=top, bottom=bottom)
    limit = [(x(t), y(v)) for t, v in _thinned(chart.limit) if v <= y.high]
    if limit:
        svg.add("path", class_="limit", d=_path(limit))
    for mark in chart.marks:
        svg.line(x(mark.time_s), top, x(mark.time_s), bottom + 6, class_=f"rule {mark.kind}")
    for index, series in reversed(list(enumerate(chart.series))):
        _series(svg, series, index, x, y)
    for mark in chart.marks:
        with svg.inside("g", class_="tip", tabindex="0", data_tip=mark.detail):
            svg.add("title", mark.detail)
            _glyph(svg, mark.kind, x(mark.time_s), marks_y)
    return svg.render()


def chart_file(chart: Chart) -> str:
    """The chart as the text of an SVG file that carries its own colours, for light and for dark pages."""
    return draw_chart(chart, style=asset("colors.css") + asset("picture.css")) + "\n"


def _scales(chart: Chart, left: float, right: float, top: float, bottom: float) -> tuple[Scale, Scale]:
    times = (
        [t for s in chart.series for t, _ in s.points]
        + [s.end_s for s in chart.shades]
        + [m.time_s for m in chart.marks]
    )
    reached = max((v for s in chart.series for _, v in s.points), default=0.0)
    limit = max((v for _, v in chart.limit if v <= LIMIT_IN_SIGHT * reached), default=0.0)
    highest = max(reached, limit) or 1.0
    return Scale(0.0, max(times, default=1.0) or 1.0, left, right), Scale(0.0, highest * 1.06, bottom, top)


def _axes(svg: Svg, x: Scale, y: Scale, axis_y: float) -> None:
    unit, divisor = ("GB/s", 1e9) if y.high >= 2e9 else ("MB/s", 1e6) if y.high >= 2e6 else ("kB/s", 1e3)
    for value in ticks(0, y.high / divisor, about=5):
        svg.line(x.start, y(value * divisor), x.end, y(value * divisor), class_="grid")
        svg.text(x.start - 8, y(value * divisor) + 4, f"{value:g}", class_="small", text_anchor="end")
    svg.text(8, y.end - 8, unit, class_="small")
    svg.line(x.start, axis_y, x.end, axis_y, class_="axis")
    for value in ticks(x.low, x.high, about=10):
        svg.line(x(value), axis_y, x(value), axis_y + 4, class_="axis")
        svg.text(x(value), axis_y + 18, f"{value:g}", class_="small", text_anchor="middle")
    svg.text(x.end, axis_y + 34, "seconds since the start", class_="small", text_anchor="end")


def _legend(svg: Svg, chart: Chart, left: float, y: float, right: float) -> None:
    x = left
    for index, series in enumerate(chart.series):
        svg.line(x, y, x + 18, y, class_=f"series s{index % SERIES_COLOURS}")
        svg.text(x + 24, y + 4, series.label, class_="small")
        x += 24 + text_width(series.label, FONT) + 18
    if chart.limit:
        svg.line(x, y, x + 18, y, class_="limit")
        svg.text(x + 24, y + 4, LIMIT_WORDS, class_="small")
        x += 24 + text_width(LIMIT_WORDS, FONT) + 18
    used = {mark.kind for mark in chart.marks}
    for kind, words in MARK_WORDS.items():
        if kind in used and x + 20 + text_width(words, FONT) < right:
            _glyph(svg, kind, x + 6, y)
            svg.text(x + 18, y + 4, words, class_="small")
            x += 18 + text_width(words, FONT) + 16


def _glyph(svg: Svg, kind: str, x: float, y: float) -> None:
    """Kinds differ in shape as well as in colour."""
    if kind == "revert":
        svg.add(
            "path",
            class_="mark revert",
            d=f"M{x - 4.5} {y - 4.5}L{x + 4.5} {y + 4.5}M{x - 4.5} {y + 4.5}L{x + 4.5} {y - 4.5}",
        )
    elif kind == "restore":
        svg.add("path", class_="mark restore", d=f"M{x} {y - 6}L{x + 6} {y}L{x} {y + 6}L{x - 6} {y}Z")
    elif kind == "reroute":
        svg.add("path", class_="mark reroute", d=f"M{x - 5} {y + 4}L{x} {y - 5}L{x + 5} {y + 4}Z")
    else:
        svg.add("circle", class_=f"mark {kind}", cx=x, cy=y, r=5)


def _lanes(shades: Sequence[Shade]) -> list[int]:
    """A lane for each event's bar, so that bars of events that overlap in time don't."""
    ends: list[float] = []
    lanes: list[int] = []
    for shade in shades:
        lane = next((k for k, end_s in enumerate(ends) if end_s <= shade.begin_s), len(ends))
        if lane == len(ends):
            ends.append(0.0)
        ends[lane] = shade.end_s
        lanes.append(lane)
    return lanes


def _shade(svg: Svg, shade: Shade, x: Scale, *, y: float, top: float, bottom: float) -> None:
    begin, end = x(shade.begin_s), x(shade.end_s)
    svg.add("rect", class_="shade", x=begin, y=top, width=end - begin, height=bottom - top)
    tip = f"{shade.label}, {shade.begin_s:.1f} s to {shade.end_s:.1f} s"
    with svg.inside("g", class_="tip", tabindex="0", data_tip=tip):
        svg.add("title", tip)
        svg.add("rect", class_="event-bar", x=begin, y=y, width=max(2.0, end - begin), height=LANE - 3, rx=2)
        svg.text(begin + 6, y + 13, shorten(shade.label, FONT, end - begin - 10), class_="event-text")


def _series(svg: Svg, series: Series, index: int, x: Scale, y: Scale) -> None:
    colour = f"s{index % SERIES_COLOURS}"
    points = [(x(t), y(v)) for t, v in _thinned(series.points)]
    if points:
        svg.add("path", class_=f"series {colour}", d=_path(points))
    if len(series.points) <= DOTS:
        for t, v in series.points:
            tip = f"{series.label}: {v / 1e6:.2f} MB/s at {t:.1f} s"
            with svg.inside("g", class_="tip", data_tip=tip):
                svg.add("circle", class_=f"dot {colour}", cx=x(t), cy=y(v), r=2.6)


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    if len(points) <= BINS:
        return list(points)
    size = -(-len(points) // BINS)
    groups = [points[k : k + size] for k in range(0, len(points), size)]
    return [(median(t for t, _ in group), median(v for _, v in group)) for group in groups]


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{px:.1f} {py:.1f}" for px, py in points)
