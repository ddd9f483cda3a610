"""A gateway's part of the report: figures per rule and replica, TTFT over time, predicted against actual. Pure."""

from __future__ import annotations

from html import escape

from headway.report.serving_chart import prediction_chart, ttft_chart
from headway.report.serving_run import ServingRun
from headway.report.serving_story import Grid, tell_serving

SERVING_FOOT = """\
TTFT counts from a request's arrival at the gateway to its first token; predicted and actual count from its sending to
the replica. Percentiles are the nearest rank."""

FIGURE = 12  # characters: longer cells are words, which may be wrapped


def serving_section(run: ServingRun, *, alone: bool) -> str:
    """The part of one run; its sentences too, where the page is not about it alone and has them at its top."""
    story = tell_serving(run)
    parts = []
    if not alone:
        parts.append(f"<h2>{escape(run.label)}</h2>")
        parts += [f"<p>{escape(line)}</p>" for line in story.setting]
    parts += [_table(grid) for grid in story.grids]
    chart = ttft_chart(run)
    if chart:
        parts.append(f'<h2>Time to first token</h2><div class="card wide">{chart}</div>')
        parts.append(
            '<p class="note">Each dot is one request, at its arrival; its colour is the rule that chose its replica. '
            "Vertical lines: replicas that came or went, new models, moves of the guard-rail. Point at one to read "
            "it.</p>"
        )
    scatter = prediction_chart(run)
    if scatter:
        parts.append(f'<h2>Predicted and actual</h2><div class="card wide">{scatter}</div>')
        parts.append(f'<p class="note">Dashed: as predicted. {escape(story.prediction)}</p>')
    if story.timeline:
        rows = tuple((f"{c.time_s:.1f} s", c.kind, c.text) for c in story.timeline)
        parts.append(_table(Grid("What changed", ("when", "event", "what"), rows)))
    parts += [_table(grid) for grid in story.worst]
    return "\n".join(parts)


def _table(grid: Grid) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in grid.columns)
    body = "".join("<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>" for row in grid.rows)
    return (
        f'<h2>{escape(grid.title)}</h2><div class="card wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(text: str) -> str:
    """A figure and its unit stay on one line."""
    figure = len(text) <= FIGURE and text[:1] in "+-0123456789"
    return escape(text.replace(" ", "\u00a0") if figure else text)
