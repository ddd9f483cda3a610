"""Each host's uplink and downlink over time, from the flows' records: what they carried, and how fast they ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from headway.cluster.units import format_rate
from headway.decide.journal import FlowRecord
from headway.report.chart import Shade
from headway.report.runs import Run
from headway.report.svg import Scale, Svg, shorten, text_width, ticks

COLUMNS = 160  # more epochs than this are drawn as sums of equal runs of epochs
GAP = 1.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One link in one stretch of time.

    Attributes:
        begin_s: begin of the stretch, seconds since the run's start.
        end_s: its end.
        moved_bytes: bytes that all flows of the link had acknowledged.
        best_Bps: rate of the link's fastest flow per network-limited second: near the link's capacity when a flow
            has it to itself. None where no flow was held up by the network.
    """

    begin_s: float
    end_s: float
    moved_bytes: int
    best_Bps: float | None

    @property
    def load_Bps(self) -> float:
        """Bytes carried per second of the stretch."""
        return self.moved_bytes / (self.end_s - self.begin_s) if self.end_s > self.begin_s else 0.0


@dataclass(frozen=True)
class LinkRow:
    """One direction of one host over time."""

    host: str
    direction: str
    cells: tuple[Cell, ...]


def link_rows(run: Run) -> list[LinkRow]:
    """Rows "host, up" and "host, down" of every host that a flow touches; flows inside one host use no link."""
    epochs: dict[int, list[FlowRecord]] = {}
    for flow in run.flows:
        epochs.setdefault(flow.epoch, []).append(flow)
    stretches: list[tuple[float, float, list[FlowRecord]]] = []
    previous_s = 0.0
    for _, flows in sorted(epochs.items()):
        end_s = max(f.t_s for f in flows) - run.zero_s
        spans = [f.span_s for f in flows if f.span_s is not None]
        begin_s = max(previous_s, end_s - max(spans)) if spans else previous_s
        if end_s > begin_s:
            stretches.append((begin_s, end_s, flows))
            previous_s = end_s
    per_column = -(-len(stretches) // COLUMNS) or 1
    grouped = [stretches[k : k + per_column] for k in range(0, len(stretches), per_column)]
    columns = [(g[0][0], g[-1][1], [f for _, _, flows in g for f in flows]) for g in grouped]
    hosts = dict.fromkeys(run.host(rank) for rank in range(run.world_size))
    return [
        LinkRow(host, direction, tuple(_cell(run, host, direction, *column) for column in columns))
        for host in hosts
        for direction in ("up", "down")
        if columns
    ]


def _cell(run: Run, host: str, direction: str, begin_s: float, end_s: float, flows: Sequence[FlowRecord]) -> Cell:
    mine = [
        f
        for f in flows
        if run.host(f.src if direction == "up" else f.dst) == host and run.host(f.src) != run.host(f.dst)
    ]
    rates = [f.rate_Bps for f in mine if f.rate_Bps is not None]
    return Cell(begin_s, end_s, sum(f.acked_bytes for f in mine), max(rates, default=None))


def draw_heatmap(run: Run, shades: Sequence[Shade], *, measure: str, width: float = 1000) -> str:
    """One heat-map as SVG text; empty where the journal has no flows.

    Args:
        run: the run.
        shades: events to mark above the map.
        measure: "load" (bytes carried per second) or "rate" (fastest flow, against the median of all links in the same
            stretch: what is well below is congested).
    """
    rows = link_rows(run)
    if not rows:
        return ""
    labels = [f"{row.host} {row.direction}" for row in rows]
    left = min(180.0, max(text_width(label, 12) for label in labels) + 14)
    row_height = 15.0 if len(rows) <= 40 else 9.0
    top, right = 34.0, width - 16
    pair_gap = 5.0
    bottom = top + len(rows) * row_height + (len(rows) // 2) * pair_gap
    words = "Load of each link" if measure == "load" else "Speed of each link's fastest flow"
    svg = Svg(width, bottom + 42, label=words)
    x = Scale(0.0, run.end_s or 1.0, left, right)
    full_Bps = _full_load(rows)
    _key(svg, measure, full_Bps, left)
    usual_Bps = _usual(rows)
    for index, row in enumerate(rows):
        y = top + index * row_height + (index // 2) * pair_gap
        if row_height > 10 or row.direction == "up":
            svg.text(
                left - 8, y + row_height - 4, shorten(labels[index], 12, left - 10), class_="small", text_anchor="end"
            )
        for cell in row.cells:
            reference_Bps = full_Bps if measure == "load" else usual_Bps[cell.begin_s]
            _draw_cell(svg, labels[index], cell, x, y, row_height, measure, reference_Bps)
    for shade in shades:
        svg.add(
            "rect", class_="event-bar", x=x(shade.begin_s), y=top - 8, width=x(shade.end_s) - x(shade.begin_s), height=5
        )
    svg.line(left, bottom + 4, right, bottom + 4, class_="axis")
    for value in ticks(0, x.high, about=10):
        svg.line(x(value), bottom + 4, x(value), bottom + 8, class_="axis")
        svg.text(x(value), bottom + 22, f"{value:g}", class_="small", text_anchor="middle")
    svg.text(right, bottom + 38, "seconds since the start", class_="small", text_anchor="end")
    return svg.render()


def _full_load(rows: Sequence[LinkRow]) -> float:
    """A load that is exceeded in one percent of the time only: bytes of a very short epoch belong to its neighbours."""
    cells = sorted((c for row in rows for c in row.cells), key=lambda c: c.load_Bps)
    left_s = 0.99 * sum(c.end_s - c.begin_s for c in cells)
    for cell in cells:
        left_s -= cell.end_s - cell.begin_s
        if left_s <= 0:
            return cell.load_Bps or 1.0
    return 1.0


def _usual(rows: Sequence[LinkRow]) -> dict[float, float]:
    """By the begin of each stretch: the median of all links' fastest flows in it."""
    rates: dict[float, list[float]] = {}
    for row in rows:
        for cell in row.cells:
            rates.setdefault(cell.begin_s, []).extend([cell.best_Bps] if cell.best_Bps else [])
    return {begin_s: median(values) if values else 1.0 for begin_s, values in rates.items()}


def _key(svg: Svg, measure: str, full_Bps: float, left: float) -> None:
    steps = 24
    low, high = ("0", format_rate(full_Bps)) if measure == "load" else ("half or less", "as fast as the median link")
    svg.text(left, 14, low, class_="small")
    start = left + text_width(low, 12) + 10
    for k in range(steps):
        share = k / (steps - 1)
        svg.add("rect", class_="cell cell-base", x=start + k * 5, y=4, width=5, height=12)
        kind, opacity = _ink(measure, share if measure == "load" else 0.5 + share / 2)
        svg.add("rect", class_=f"cell {kind}", x=start + k * 5, y=4, width=5, height=12, opacity=opacity)
    svg.text(start + steps * 5 + 10, 14, high, class_="small")


def _ink(measure: str, share: float) -> tuple[str, float]:
    """Class and opacity of a cell's ink: more load is darker; a slower link is redder."""
    if measure == "load":
        return "cell-load", min(1.0, max(0.0, share))
    lost = min(1.0, max(0.0, (1.0 - share) / 0.5))
    return "cell-slow", lost


def _draw_cell(
    svg: Svg, label: str, cell: Cell, x: Scale, y: float, height: float, measure: str, reference_Bps: float
) -> None:
    begin, end = x(cell.begin_s), x(cell.end_s)
    shape = {"x": begin, "y": y, "width": max(0.5, end - begin - GAP), "height": height - GAP}
    best = f"fastest flow {format_rate(cell.best_Bps)}" if cell.best_Bps is not None else "no flow held up by it"
    tip = (
        f"{label}, {cell.begin_s:.1f} s to {cell.end_s:.1f} s: {cell.moved_bytes / 1e6:.1f} MB, "
        f"{format_rate(cell.load_Bps)} on average, {best}"
    )
    value = cell.load_Bps if measure == "load" else cell.best_Bps
    with svg.inside("g", class_="tip", data_tip=tip):
        svg.add("rect", class_="cell cell-base", **shape)
        if value is not None:
            kind, opacity = _ink(measure, value / reference_Bps)
            svg.add("rect", class_=f"cell {kind}", opacity=opacity, **shape)
