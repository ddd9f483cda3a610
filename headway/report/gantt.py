"""Two pictures over simulated time: what each job did when, and how full the busiest links were. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.report.chart import SERIES_COLOURS, Shade
from headway.report.svg import Scale, Svg, shorten, text_width, ticks

BINS = 250
"""Stretches of time that a link's lane is drawn in."""
LEAST_PX = 0.35
"""A block narrower than this is left out where a lane has very many."""
MANY_BLOCKS = 1500
FONT = 12


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch in which a rank computed, or communicated (`kind` says how); seconds."""

    kind: str
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Lane:
    """One rank's blocks. `colour` is its job's, from 0."""

    label: str
    colour: int
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class LinkLane:
    """One link: (begin, end, part in use) in order of time; `used` is the part of the whole run."""

    label: str
    stretches: tuple[tuple[float, float, float], ...]
    used: float


def draw_gantt(
    lanes: Sequence[Lane], shades: Sequence[Shade], *, begin_s: float, end_s: float, width: float = 1000
) -> str:
    """What ranks did from `begin_s` to `end_s`, as SVG text: grey computing, coloured communicating."""
    height_of = 22.0 if len(lanes) <= 16 else 13.0
    left, right, top = _left([lane.label for lane in lanes]), width - 16, 34.0
    bottom = top + height_of * len(lanes)
    svg = Svg(width, bottom + 42, label="What each job did")
    x = Scale(begin_s, end_s, left, right)
    svg.add("rect", class_="compute", x=left, y=6, width=18, height=11)
    svg.text(left + 24, 16, "computes", class_="small")
    colours = min(SERIES_COLOURS, len({lane.colour for lane in lanes}))
    for index in range(colours):
        svg.add("rect", class_=f"talk s{index}", x=left + 100 + 12 * index, y=6, width=12, height=11)
    svg.text(left + 106 + 12 * colours, 16, "communicates, one colour per job", class_="small")
    _shades(svg, shades, x, top, bottom)
    for number, lane in enumerate(lanes):
        y = top + number * height_of
        svg.text(left - 8, y + height_of - 6, shorten(lane.label, FONT, left - 10), class_="small", text_anchor="end")
        seen = [b for b in lane.blocks if b.end_s > begin_s and b.begin_s < end_s]
        for block in seen:
            start, stop = x(max(block.begin_s, begin_s)), x(min(block.end_s, end_s))
            if len(seen) > MANY_BLOCKS and stop - start < LEAST_PX:
                continue
            class_ = "compute" if block.kind == "compute" else f"talk s{lane.colour % SERIES_COLOURS}"
            tip = f"{lane.label}: {block.kind}, {block.begin_s:.4g} s to {block.end_s:.4g} s"
            with svg.inside("g", class_="tip", data_tip=tip):
                svg.add("rect", class_=class_, x=start, y=y + 2, width=max(0.2, stop - start), height=height_of - 5)
    _time_axis(svg, x, bottom + 4)
    return svg.render()


def draw_links(
    lanes: Sequence[LinkLane],
    shades: Sequence[Shade],
    *,
    end_s: float,
    window: tuple[float, float] | None = None,
    width: float = 1000,
) -> str:
    """How full links were, as SVG text; `window` is framed: the stretch that another picture shows."""
    height_of, gap = 26.0, 6.0
    left, right, top = _left([lane.label for lane in lanes]), width - 56, 16.0
    bottom = top + (height_of + gap) * len(lanes)
    svg = Svg(width, bottom + 42, label="How full the busiest links were")
    x = Scale(0.0, end_s or 1.0, left, right)
    _shades(svg, shades, x, top, bottom)
    for number, lane in enumerate(lanes):
        y = top + number * (height_of + gap)
        svg.text(left - 8, y + height_of - 8, shorten(lane.label, FONT, left - 10), class_="small", text_anchor="end")
        svg.add("rect", class_="lane", x=left, y=y, width=right - left, height=height_of)
        for begin, end, part in _binned(lane.stretches, x.high):
            tall = min(1.0, part) * height_of
            tip = f"{lane.label}: {part:.0%} in use, {begin:.4g} s to {end:.4g} s"
            with svg.inside("g", class_="tip", data_tip=tip):
                wide = max(0.3, x(end) - x(begin) + 0.15)
                svg.add("rect", class_="used", x=x(begin), y=y + height_of - tall, width=wide, height=tall)
        svg.text(right + 8, y + height_of - 8, f"{lane.used:.0%}", class_="small")
    if window is not None and window != (0.0, end_s):
        frame = {"x": x(window[0]), "width": max(2.0, x(window[1]) - x(window[0]))}
        svg.add("rect", class_="window", y=top - 4, height=bottom - top + 4, **frame)
    _time_axis(svg, x, bottom + 4)
    return svg.render()


def _binned(stretches: Sequence[tuple[float, float, float]], end_s: float) -> list[tuple[float, float, float]]:
    """The same use, in equal bins where there are more stretches than bins."""
    if len(stretches) <= BINS:
        return list(stretches)
    wide = end_s / BINS
    sums = [0.0] * BINS
    for begin, end, part in stretches:
        for k in range(min(BINS - 1, int(begin / wide)), min(BINS - 1, int(end / wide)) + 1):
            sums[k] += part * max(0.0, min(end, (k + 1) * wide) - max(begin, k * wide))
    return [(k * wide, (k + 1) * wide, total / wide) for k, total in enumerate(sums)]


def _left(labels: Sequence[str]) -> float:
    return min(230.0, max((text_width(label, FONT) for label in labels), default=0.0) + 16)


def _shades(svg: Svg, shades: Sequence[Shade], x: Scale, top: float, bottom: float) -> None:
    for shade in shades:
        begin, end = max(shade.begin_s, x.low), min(shade.end_s, x.high)
        if end > begin:
            svg.add("rect", class_="shade", x=x(begin), y=top - 6, width=x(end) - x(begin), height=bottom - top + 6)
            tip = f"{shade.label}, {shade.begin_s:.4g} s to {shade.end_s:.4g} s"
            with svg.inside("g", class_="tip", data_tip=tip):
                svg.add("title", tip)
                svg.add("rect", class_="event-bar", x=x(begin), y=top - 10, width=x(end) - x(begin), height=6)


def _time_axis(svg: Svg, x: Scale, y: float) -> None:
    svg.line(x.start, y, x.end, y, class_="axis")
    for value in ticks(x.low, x.high, about=10):
        svg.line(x(value), y, x(value), y + 4, class_="axis")
        svg.text(x(value), y + 18, f"{value:g}", class_="small", text_anchor="middle")
    svg.text(x.end, y + 34, "seconds of the simulated clock", class_="small", text_anchor="end")
