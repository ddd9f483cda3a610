"""Pictures of a serving run: time to first token over time by rule, and predicted against actual. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headway.cluster.units import format_time
from headway.decide.journal import RequestRecord
from headway.report.serving_run import ServingRun, actual_s
from headway.report.serving_story import changes
from headway.report.svg import Scale, Svg, text_width, ticks

WIDTH = 1000.0
MOST_DOTS = 3000  # of more requests, every so-manieth is drawn
COLOURS = 4
FONT = 12
MARKED = ("join", "leave", "down", "up", "model", "fall-back", "trust")


@dataclass(frozen=True, slots=True)
class _Dots:
    """One rule's dots: positions in data units, and what each one's tip says."""

    label: str
    points: list[tuple[float, float, str]]


def ttft_chart(run: ServingRun) -> str:
    """Each request's time to first token, on a logarithmic scale, at its arrival; changes of the fleet as lines.

    Empty where no first token came.
    """
    dots = _by_rule(run, lambda r: (r.arrived_s - run.zero_s, r.ttft_s))
    if not dots:
        return ""
    svg = Svg(WIDTH, 340, label="time to first token of each request")
    left, right, top, bottom = 66.0, WIDTH - 16, 34.0, 290.0
    x = Scale(0.0, run.end_s or 1.0, left, right)
    y = _log_scale([value for each in dots for _, value, _ in each.points], bottom, top)
    _legend(svg, dots, left)
    _log_grid(svg, y, left, right)
    svg.line(left, bottom, right, bottom, class_="axis")
    for value in ticks(0.0, x.high, about=10):
        svg.text(x(value), bottom + 18, f"{value:g}", class_="small", text_anchor="middle")
    svg.text(right, bottom + 36, "seconds since the start", class_="small", text_anchor="end")
    for change in changes(run):
        if change.kind in MARKED:
            at = x(change.time_s)
            tip = f"{change.kind}: {change.text}"
            with svg.inside("g", class_="tip", tabindex="0", data_tip=tip):
                svg.add("title", tip)
                svg.line(at, top, at, bottom, class_="rule try")
    _draw(svg, dots, x, y)
    return svg.render()


def prediction_chart(run: ServingRun) -> str:
    """Actual against predicted time from sending to first token, both logarithmic. Empty without predictions."""
    dots = _by_rule(run, lambda r: (_positive(r.predicted_ttft_s), actual_s(r)))
    if not dots:
        return ""
    svg = Svg(WIDTH, 440, label="predicted against actual time to first token")
    left, right, top, bottom = 66.0, 466.0, 34.0, 390.0
    values = [value for each in dots for a, b, _ in each.points for value in (a, b)]
    x, y = _log_scale(values, left, right), _log_scale(values, bottom, top)
    _legend(svg, dots, left)
    _log_grid(svg, y, left, right)
    svg.line(left, bottom, right, bottom, class_="axis")
    for value in _decades(x):
        svg.text(x(math.log10(value)), bottom + 18, _round(value), class_="small", text_anchor="middle")
    svg.text(right, bottom + 36, "predicted", class_="small", text_anchor="end")
    svg.text(left + 6, top + 12, "actual", class_="small")
    svg.line(left, bottom, right, top, class_="limit")
    _draw(svg, [_Dots(d.label, [(math.log10(a), b, tip) for a, b, tip in d.points]) for d in dots], x, y)
    return svg.render()


def _by_rule(run: ServingRun, place: Callable[[RequestRecord], tuple[float | None, float | None]]) -> list[_Dots]:
    """Dots of the requests that have both figures; the second is above 0, for a logarithmic scale."""
    found: dict[str, list[tuple[float, float, str]]] = {}
    for record in run.requests:
        a, b = place(record)
        if a is not None and b is not None and b > 0:
            found.setdefault(record.by or record.policy, []).append((a, b, _tip(record)))
    step = max(1, -(-sum(map(len, found.values())) // MOST_DOTS))
    return [_Dots(label, points[::step]) for label, points in sorted(found.items())]


def _positive(value: float | None) -> float | None:
    """A prediction that a logarithmic scale can show."""
    return value if value is not None and value > 0 else None


def _tip(record: RequestRecord) -> str:
    text = f"{record.request} on {record.replica}, {record.by or record.policy}"
    text += f": {format_time(record.ttft_s)}" if record.ttft_s is not None else ""
    return f"{text}; {record.reason}" if record.reason else text


def _log_scale(values: Sequence[float], start: float, end: float) -> Scale:
    low, high = math.log10(min(values)), math.log10(max(values))
    room = max(0.05, 0.05 * (high - low))
    return Scale(low - room, high + room, start, end)


def _decades(scale: Scale) -> list[float]:
    """Round values on a logarithmic scale: 1, and where there is room 2 and 5, times powers of ten."""
    steps = (1, 2, 5) if scale.high - scale.low < 2.5 else (1,)
    powers = range(math.floor(scale.low), math.ceil(scale.high) + 1)
    return [k * 10.0**p for p in powers for k in steps if scale.low <= math.log10(k * 10.0**p) <= scale.high]


def _round(time_s: float) -> str:
    return f"{time_s:g} s" if time_s >= 1 else f"{time_s * 1e3:g} ms"


def _log_grid(svg: Svg, y: Scale, left: float, right: float) -> None:
    for value in _decades(y):
        at = y(math.log10(value))
        svg.line(left, at, right, at, class_="grid")
        svg.text(left - 8, at + 4, _round(value), class_="small", text_anchor="end")


def _legend(svg: Svg, dots: Sequence[_Dots], left: float) -> None:
    x = left
    for index, each in enumerate(dots):
        svg.add("circle", class_=f"dot s{index % COLOURS}", cx=x + 5, cy=12, r=4)
        svg.text(x + 14, 16, each.label, class_="small")
        x += 14 + text_width(each.label, FONT) + 18


def _draw(svg: Svg, dots: Sequence[_Dots], x: Scale, y: Scale) -> None:
    for index, each in enumerate(dots):
        for a, b, tip in each.points:
            with svg.inside("g", class_="tip", data_tip=tip):
                svg.add("circle", class_=f"dot s{index % COLOURS}", cx=x(a), cy=y(math.log10(b)), r=2.2)
