"""Curves side by side, as one SVG file. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from headway.report.chart import asset
from headway.report.svg import Scale, Svg, text_width, ticks
from headway.report.sweep_chart import colour_class, draw_marker

WIDTH, HEIGHT = 1000.0, 350.0
TOP, BOTTOM = 82.0, 302.0
LEFT, GAP, RIGHT = 52.0, 62.0, 16.0
FONT = 12


@dataclass(frozen=True)
class Curve:
    """Points of (x, value), all above 0."""

    label: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Plot:
    """One picture.

    Attributes:
        axis: what is along the bottom. unit: of the values.
        linear: values from 0 up, where they differ little; else logarithmic.
        even: the axis along the bottom from 0 up; else logarithmic, with a tick at each point.
    """

    title: str
    axis: str
    unit: str
    curves: tuple[Curve, ...]
    linear: bool = False
    even: bool = False


def draw_plots(plots: Sequence[Plot], *, label: str) -> str:
    """The text of an SVG file that carries its own colours; the curves' labels are those of the first plot."""
    svg = Svg(WIDTH, HEIGHT, label=label, style=asset("colors.css") + asset("picture.css") + asset("sim.css"))
    svg.add("rect", class_="backdrop", x=0, y=0, width=WIDTH, height=HEIGHT)
    width = (WIDTH - LEFT - RIGHT - GAP * (len(plots) - 1)) / len(plots)
    for index, plot in enumerate(plots):
        left = LEFT + index * (width + GAP)
        _plot(svg, plot, left, left + width)
    _legend(svg, [curve.label for curve in plots[0].curves])
    return svg.render() + "\n"


def _plot(svg: Svg, plot: Plot, left: float, right: float) -> None:
    xs = sorted({x for curve in plot.curves for x, _ in curve.points})
    values = [value for curve in plot.curves for _, value in curve.points]
    up, grid = _linear(max(values)) if plot.linear else _logarithmic(min(values), max(values))
    across, marks = _even(xs[-1], left, right) if plot.even else _by_points(xs, left + 16, right - 16)
    svg.text(left, 20, plot.title, class_="head")
    svg.text(left - 44, TOP - 12, plot.unit, class_="small")
    for value in grid:
        y = up(value)
        svg.line(left, y, right, y, class_="grid")
        svg.text(left - 7, y + 4, f"{value:,g}", class_="small", text_anchor="end")
    svg.line(left, BOTTOM, right, BOTTOM, class_="axis")
    for x in marks:
        at = across(x)
        svg.line(at, BOTTOM, at, BOTTOM + 4, class_="axis")
        svg.text(at, BOTTOM + 18, f"{x:,g}", class_="small", text_anchor="middle")
    svg.text(right, BOTTOM + 38, plot.axis, class_="small", text_anchor="end")
    for colour, curve in reversed(list(enumerate(plot.curves))):
        places = [(across(x), up(value)) for x, value in curve.points]
        for (x1, y1), (x2, y2) in pairwise(places):
            svg.line(x1, y1, x2, y2, class_=f"series {colour_class(colour)}")
        for (x, value), (at, y) in zip(curve.points, places, strict=True):
            with svg.inside("g"):
                svg.add("title", f"{curve.label}, {x:,.4g} {plot.axis}: {value:.3g} {plot.unit}")
                draw_marker(svg, colour, at, y)


def _legend(svg: Svg, labels: Sequence[str]) -> None:
    x, y = LEFT, 42.0
    for colour, label in enumerate(labels):
        svg.line(x, y, x + 22, y, class_=f"series {colour_class(colour)}")
        draw_marker(svg, colour, x + 11, y)
        svg.text(x + 28, y + 4, label, class_="small")
        x += 50 + text_width(label, FONT)


def _even(most: float, left: float, right: float) -> tuple[Callable[[float], float], list[float]]:
    """Where points go along the bottom, and where its ticks are."""
    scale = Scale(0.0, most * 1.04, left, right)
    return scale, ticks(0.0, scale.high, about=6)


def _by_points(xs: Sequence[float], left: float, right: float) -> tuple[Callable[[float], float], list[float]]:
    """As `_even`, on a logarithmic scale."""
    scale = Scale(math.log(xs[0]), math.log(xs[-1]), left, right)
    return lambda x: scale(math.log(x)), list(xs)


def _linear(most: float) -> tuple[Callable[[float], float], list[float]]:
    """Where values go, and where grid lines are."""
    scale = Scale(0.0, most * 1.06, BOTTOM, TOP)
    return scale, ticks(0.0, scale.high, about=5)


def _logarithmic(least: float, most: float) -> tuple[Callable[[float], float], list[float]]:
    """As `_linear`; lines are at 1, 2 and 5 times powers of ten, the outermost around all values."""
    steps = [k * 10.0**power for power in range(-9, 12) for k in (1, 2, 5)]
    low, high = max(step for step in steps if step <= least), min(step for step in steps if step >= most)
    scale = Scale(math.log(low), math.log(high), BOTTOM, TOP)
    return lambda value: scale(math.log(value)), [step for step in steps if low <= step <= high]
