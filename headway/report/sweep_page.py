"""A sweep as one page: lines over one axis, one per policy, small multiples for the others, and the table. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from string import Template

from pydantic import JsonValue

from headway import __version__
from headway.report.chart import asset
from headway.report.sweep_chart import Line, Panel, Point, draw_legend, draw_panel, highest
from headway.report.words import counted
from headway.sim.studies.cells import Row
from headway.sim.studies.sweep import label

COMPARED = ("policy", "plan", "execution")
"""An axis over a field of this name is what the lines of a panel compare."""
MOST_LINES = 8
MOST_PANELS = 24
MOST_TABLE_ROWS = 2000
SEED = "seed"
LIMIT = "limit under the events, no plan is faster"

_FOOT = (
    "algbw is the bytes of all vectors over the time of all collectives; 1 MB = 1e6 bytes. The limit counts what other "
    "rates and UDP left during a whole operation. mean, p50 and p99 are the pace of iterations. Times are simulated, "
    "wall is the time that the simulation took."
)


@dataclass(frozen=True)
class Roles:
    """What each axis is in the pictures; None where there is none for it."""

    along: str | None
    compared: str | None
    repeated: str | None
    panels: tuple[str, ...]


def render_sweep(rows: Sequence[Row], *, title: str) -> str:
    """The page as text. Rows that failed are listed, and in no picture."""
    good = [row for row in rows if not row.error]
    parts: list[str] = []
    if good:
        roles = roles_of(good)
        parts += _pictures(good, roles)
    parts.append("<h2>Rows</h2>" + _table(rows))
    axes = ", ".join(f"{name} ({len(_places(rows, name))})" for name in _axes(rows))
    failed = len(rows) - len(good)
    lead = f"{counted(len(rows), 'cell')} over {axes}." + (f" {failed} failed." if failed else "")
    return fill_page("\n".join(parts), title=title, lead=lead, foot=f"{_FOOT} Made by Headway {__version__}.")


def fill_page(body: str, *, title: str, lead: str, foot: str) -> str:
    """A whole page around a body: everything that it needs is inside it."""
    style = "\n".join(asset(name) for name in ("colors.css", "page.css", "picture.css", "sim.css"))
    return Template(asset("page.html")).substitute(
        title=escape(title), lead=escape(lead), style=style, body=body, script=asset("page.js"), foot=escape(foot)
    )


def roles_of(rows: Sequence[Row]) -> Roles:
    """Which axis goes where.

    Repeated: `seed`. Compared: the first over a policy, a plan or an execution; without one, the shortest of those
    that are left, unless it is the only one. Along the bottom: the longest of the rest. Panels: all others.
    """
    names = _axes(rows)
    repeated = SEED if SEED in names else None
    rest = [name for name in names if name != repeated and len(_places(rows, name)) > 1]
    compared = next((name for name in rest if name.split(".")[-1] in COMPARED), None)
    if compared is None and len(rest) > 1:
        compared = min(rest, key=lambda name: len(_places(rows, name)))
    if compared is not None and len(_places(rows, compared)) > MOST_LINES:
        compared = None
    rest = [name for name in rest if name != compared]
    along = max(rest, key=lambda name: len(_places(rows, name)), default=None)
    if along is None:
        along, compared = compared or repeated, None
        repeated = None if along == SEED else repeated
    return Roles(along, compared, repeated, tuple(name for name in rest if name != along))


def panels_of(rows: Sequence[Row], roles: Roles) -> list[Panel]:
    """One panel for each job and each choice of the panels' axes, in the order of the rows."""
    places = _places(rows, roles.along) if roles.along is not None else ("",)
    lines = _places(rows, roles.compared) if roles.compared is not None else ("",)
    grouped: dict[tuple[str, ...], dict[str, dict[str, list[dict[str, JsonValue]]]]] = {}
    several_jobs = len({name for row in rows for name in _jobs(row)}) > 1
    measure, _, _ = measure_of(rows)
    for row in rows:
        chosen = tuple(f"{name} {_shown(row, name)}" for name in roles.panels)
        for job, figures in _jobs(row).items():
            if not isinstance(figures.get(measure), (int, float)):
                continue
            key = (*((f"job {job}",) if several_jobs else ()), *chosen)
            line = _shown(row, roles.compared) if roles.compared is not None else ""
            place = _shown(row, roles.along) if roles.along is not None else ""
            grouped.setdefault(key, {}).setdefault(line, {}).setdefault(place, []).append(figures)
    return [_panel(key, by_line, places, lines, rows, roles) for key, by_line in grouped.items()]


def _panel(
    key: tuple[str, ...],
    by_line: dict[str, dict[str, list[dict[str, JsonValue]]]],
    places: Sequence[str],
    lines: Sequence[str],
    rows: Sequence[Row],
    roles: Roles,
) -> Panel:
    measure, unit, factor = measure_of(rows)
    drawn = []
    limits: dict[int, float] = {}
    for colour, line in enumerate(lines):
        points = []
        for index, place in enumerate(places):
            found = by_line.get(line, {}).get(place, [])
            values = [v * factor for job in found if isinstance(v := job[measure], (int, float))]
            if values:
                points.append(Point(index, sum(values) / len(values), min(values), max(values)))
            bounds = [v * factor for job in found if isinstance(v := job.get("limit_Bps"), (int, float))]
            if bounds and measure == "algbw_Bps":
                # Runs that take longer meet another mix of events: the highest of the limits bounds them all.
                limits[index] = max([*bounds, limits.get(index, 0.0)])
        drawn.append(Line(line, colour, tuple(points)))
    title = ", ".join(key)
    return Panel(title, roles.along or "", tuple(places), tuple(drawn), tuple(sorted(limits.items())), unit)


def measure_of(rows: Sequence[Row]) -> tuple[str, str, float]:
    """(figure, unit, factor): algbw where jobs have it, else the mean time of an iteration."""
    if any(isinstance(job.get("algbw_Bps"), (int, float)) for row in rows for job in _jobs(row).values()):
        return "algbw_Bps", "MB/s", 1e-6
    return "mean_s", "ms", 1e3


def _pictures(rows: Sequence[Row], roles: Roles) -> list[str]:
    panels = panels_of(rows, roles)
    if not panels:
        return []
    shown, top = panels[:MOST_PANELS], highest(panels[:MOST_PANELS])
    measure, unit, _ = measure_of(rows)
    what = "algbw" if measure == "algbw_Bps" else "Mean time of an iteration"
    heading = f"{what} over {roles.along}" if roles.along else what
    lines = list(_places(rows, roles.compared)) if roles.compared is not None else ["mean"]
    has_limit = any(v <= top * 1.06 for panel in shown for _, v in panel.limit)
    about = [f"Each point is the mean over {len(_places(rows, SEED))} seeds, its bar what they lay between."]
    if roles.repeated is None or len(_places(rows, SEED)) < 2:
        about = ["Each point is one cell."]
    if roles.compared:
        about.append(f"Lines: {roles.compared}.")
    if len(panels) > 1:
        about.append(f"All pictures have one scale ({unit}).")
    if len(panels) > len(shown):
        about.append(f"{len(panels) - len(shown)} more pictures are left out; the table has all rows.")
    width = 480.0 if len(shown) > 1 else 1000.0
    cards = "".join(f'<div class="card">{draw_panel(panel, top_value=top, width=width)}</div>' for panel in shown)
    legend = draw_legend(lines, limit=LIMIT if has_limit else "")
    several = "pair" if len(shown) > 1 else "wide"
    return [
        f"<h2>{escape(heading)}</h2>",
        f'<p class="note">{escape(" ".join(about))}</p>',
        f'<div class="legend">{legend}</div><div class="{several}">{cards}</div>',
    ]


def _table(rows: Sequence[Row]) -> str:
    axes = _axes(rows)
    head = "".join(f"<th>{escape(name).replace('.', '.<wbr>')}</th>" for name in (*axes, "job"))
    columns = (
        "mean ms",
        "p50 ms",
        "p99 ms",
        "algbw MB/s",
        "limit %",
        "switches",
        "plan at the end",
        "events",
        "wall s",
    )
    head += "".join(f'<th class="{"" if name.startswith("plan") else "n"}">{escape(name)}</th>' for name in columns)
    lines: list[str] = []
    for row in rows:
        varied = "".join(f"<td>{escape(_shown(row, name))}</td>" for name in axes)
        if row.error:
            lines.append(f'<tr>{varied}<td colspan="{len(columns) + 1}" class="failed">{escape(row.error)}</td></tr>')
        for job, figures in _jobs(row).items():
            cells = [
                *(_number(figures.get(name), 1e3) for name in ("mean_s", "p50_s", "p99_s")),
                _number(figures.get("algbw_Bps"), 1e-6),
                _number(figures.get("limit"), 100),
                _number(figures.get("switches"), 1),
                f"<td>{escape(str(figures.get('plan', '')))}</td>",
                _number(row.values.get("events"), 1),
                _number(row.wall_s, 1),
            ]
            lines.append(f"<tr>{varied}<td>{escape(job)}</td>{''.join(cells)}</tr>")
    left = len(lines) - MOST_TABLE_ROWS
    more = f'<p class="note">{left} more rows are in the file.</p>' if left > 0 else ""
    body = "".join(lines[:MOST_TABLE_ROWS])
    return (
        f'<div class="wide"><table class="rows"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}'
    )


def _number(value: JsonValue, factor: float) -> str:
    shown = f"{value * factor:.4g}" if isinstance(value, (int, float)) else "–"
    if isinstance(value, int) and factor == 1:
        shown = str(value)
    return f'<td class="n">{shown}</td>'


def _axes(rows: Sequence[Row]) -> list[str]:
    return list(rows[0].parameters) if rows else []


def _places(rows: Sequence[Row], axis: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_shown(row, axis) for row in rows if axis in row.parameters))


def _shown(row: Row, axis: str) -> str:
    return label(row.parameters[axis])


def _jobs(row: Row) -> dict[str, dict[str, JsonValue]]:
    jobs = row.values.get("jobs")
    return {name: job for name, job in jobs.items() if isinstance(job, dict)} if isinstance(jobs, dict) else {}
