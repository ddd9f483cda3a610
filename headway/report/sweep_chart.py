"""Small multiples of lines over one axis: the panels of a sweep's page. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from headway.report.chart import LIMIT_IN_SIGHT, SERIES_COLOURS
from headway.report.svg import Scale, Svg, shorten, text_width, ticks

FONT = 12
HEIGHT = 230.0


@dataclass(frozen=True, slots=True)
class Point:
    """A mean over repetitions, and what they lay between; `place` is its index on the panel's axis."""

    place: int
    mean: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a panel; `colour` counts from 0 and is the same in all panels."""

    label: str
    colour: int
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Panel:
    """One picture.

    Attributes:
        title: what is the same for all of its points.
        axis: the axis along the bottom. places: its values, in order.
        lines: what is compared.
        limit: (place, value), dashed.
        unit: of the values.
    """

    title: str
    axis: str
    places: tuple[str, ...]
    lines: tuple[Line, ...]
    limit: tuple[tuple[int, float], ...]
    unit: str


def highest(panels: Sequence[Panel]) -> float:
    """The top of a scale that all panels share. A limit far above all is left out, as it would flatten them."""
    reached = max((p.most for panel in panels for line in panel.lines for p in line.points), default=0.0)
    limits = [v for panel in panels for _, v in panel.limit if v <= LIMIT_IN_SIGHT * reached]
    return max([reached, *limits]) or 1.0


def draw_panel(panel: Panel, *, top_value: float, width: float = 480) -> str:
    """A panel as SVG text, its values from 0 to `top_value`."""
    left, right, top, bottom = 48.0, width - 14, 34.0, HEIGHT - 44
    svg = Svg(width, HEIGHT, label=f"{panel.unit} over {panel.axis}; {panel.title}")
    svg.text(left, 15, shorten(panel.title, 13, right - left), class_="title")
    y = Scale(0.0, top_value * 1.06, bottom, top)
    for value in ticks(0, y.high, about=4):
        svg.line(left, y(value), right, y(value), class_="grid")
        svg.text(left - 7, y(value) + 4, f"{value:g}", class_="small", text_anchor="end")
    svg.text(4, top - 8, panel.unit, class_="small")
    room = (right - left) / max(1, len(panel.places))
    at = [left + room * (k + 0.5) for k in range(len(panel.places))]
    _bottom(svg, panel, at, room, bottom, right)
    limit = [(at[k], y(v)) for k, v in panel.limit if v <= y.high]
    if len(limit) == 1:
        limit = [(limit[0][0] - room / 3, limit[0][1]), (limit[0][0] + room / 3, limit[0][1])]
    for (x1, y1), (x2, y2) in pairwise(limit):
        svg.line(x1, y1, x2, y2, class_="limit")
    for line in reversed(panel.lines):
        _line(svg, panel, line, at, y)
    return svg.render()


def _bottom(svg: Svg, panel: Panel, at: Sequence[float], room: float, bottom: float, right: float) -> None:
    svg.line(48.0, bottom, right, bottom, class_="axis")
    widest = max((text_width(place, FONT) for place in panel.places), default=0.0)
    every = 1 if widest < room - 4 else max(1, -(-len(panel.places) // max(1, int((right - 48) / (widest + 8)))))
    for index, (x, place) in enumerate(zip(at, panel.places, strict=True)):
        svg.line(x, bottom, x, bottom + 4, class_="axis")
        if index % every == 0:
            shown = shorten(place, FONT, max(room * every - 4, 40))
            svg.text(x, bottom + 18, shown, class_="small", text_anchor="middle")
    svg.text(right, bottom + 36, panel.axis, class_="small", text_anchor="end")


def _line(svg: Svg, panel: Panel, line: Line, at: Sequence[float], y: Scale) -> None:
    colour = colour_class(line.colour)
    points = [(at[p.place], y(p.mean)) for p in line.points]
    if len(points) > 1:
        path = "M" + "L".join(f"{px:.1f} {py:.1f}" for px, py in points)
        svg.add("path", class_=f"series {colour}", d=path)
    for point, (px, py) in zip(line.points, points, strict=True):
        if point.most > point.least:
            svg.line(px, y(point.least), px, y(point.most), class_=f"range {colour}")
        between = f", {point.least:.4g} to {point.most:.4g}" if point.most > point.least else ""
        tip = f"{line.label}, {panel.axis} {panel.places[point.place]}: {point.mean:.4g} {panel.unit}{between}"
        with svg.inside("g", class_="tip", data_tip=tip):
            svg.add("title", tip)
            draw_marker(svg, line.colour, px, py)


def draw_marker(svg: Svg, colour: int, x: float, y: float) -> None:
    """A line's mark: lines differ in shape as well as in colour."""
    class_ = f"dot {colour_class(colour)}"
    match colour % 4:
        case 0:
            svg.add("circle", class_=class_, cx=x, cy=y, r=3.6)
        case 1:
            svg.add("rect", class_=class_, x=x - 3.3, y=y - 3.3, width=6.6, height=6.6)
        case 2:
            svg.add("path", class_=class_, d=f"M{x} {y - 4.6}L{x + 4.4} {y + 3.4}L{x - 4.4} {y + 3.4}Z")
        case _:
            svg.add("path", class_=class_, d=f"M{x} {y - 4.8}L{x + 4.8} {y}L{x} {y + 4.8}L{x - 4.8} {y}Z")


def colour_class(colour: int) -> str:
    """Classes of a line: beyond the colours there are, the same again with dashes."""
    dashes = " dashed" if colour >= SERIES_COLOURS else ""
    return f"s{colour % SERIES_COLOURS}{dashes}"


def draw_legend(labels: Sequence[str], *, limit: str, width: float = 1000) -> str:
    """What the lines are; `limit` in words, empty where no limit is drawn."""
    rows: list[list[str]] = [[]]
    used = 0.0
    for label in labels:
        room = 46 + text_width(label, FONT)
        if used + room > width and rows[-1]:
            rows.append([])
            used = 0.0
        rows[-1].append(label)
        used += room
    last = 46 + text_width(limit, FONT) if limit else 0.0
    if used + last > width:
        rows.append([])
    svg = Svg(width, 20.0 * len(rows), label="legend")
    colour = 0
    for number, row in enumerate(rows):
        x, y = 2.0, 12.0 + 20 * number
        for label in row:
            svg.line(x, y, x + 22, y, class_=f"series {colour_class(colour)}")
            draw_marker(svg, colour, x + 11, y)
            svg.text(x + 28, y + 4, label, class_="small")
            x += 46 + text_width(label, FONT)
            colour += 1
        if number == len(rows) - 1 and limit:
            svg.line(x, y, x + 22, y, class_="limit")
            svg.text(x + 28, y + 4, limit, class_="small")
    return svg.render()
