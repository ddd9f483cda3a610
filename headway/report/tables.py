"""Small pieces of HTML: tiles, tables, and the story. Everything that comes from a journal is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from headway.cluster.units import format_bytes, format_time
from headway.decide.journal import DecisionRecord
from headway.report.explain import LIMIT_NOTE, Moment, Story, last_trials, rate_MB, replaced, reroute_words
from headway.report.figures import Reaction, Summary
from headway.report.runs import Run


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One line of a bench's results. Times in seconds, rates in bytes per second, None where unknown."""

    condition: str
    backend: str
    collective: str
    size_bytes: int
    time_s: float | None
    algbw_Bps: float | None
    p99_s: float | None
    variation_percent: float | None
    limit_percent: float | None
    wrong: int | None
    plan: str
    bottleneck: str
    error: str


def tiles(figures: Summary, seen: Sequence[Reaction]) -> str:
    """The figures at the top of the page."""
    parts = [_tile("algbw before congestion" if seen else "algbw", _rate(figures.before_Bps))]
    if seen:
        parts.append(_tile("under it, idle plan", _rate(figures.old_plan_Bps), _against(figures)))
        gain = f"{figures.gain * 100:+.0f} %" if figures.gain is not None else ""
        good = figures.gain is not None and figures.gain > 0
        parts.append(_tile("under it, chosen plan", _rate(figures.new_plan_Bps), gain, good=good))
        parts.append(_tile("after it", _rate(figures.after_Bps)))
    limit = f"{figures.limit_share * 100:.0f} %" if figures.limit_share is not None else "–"
    parts.append(_tile("of the limit (estimate)", limit, "under congestion" if seen else ""))
    if seen:
        first = next((r for r in seen if r.reaction_s is not None), None)
        if first is not None and first.reaction_s is not None:
            more = f"{first.better_after_operations} operations"
            more += f", seen after {first.detection_s:.1f} s" if first.detection_s and first.span.known else ""
            parts.append(_tile("to the better plan", f"{first.reaction_s:.1f} s", more))
        else:
            parts.append(_tile("to the better plan", "–", "no other plan was kept"))
    parts.append(_tile("changes of plan", str(figures.switches), f"in {figures.total_s:.0f} s"))
    return f'<div class="tiles">{"".join(parts)}</div>'


def _against(figures: Summary) -> str:
    if not figures.before_Bps or not figures.old_plan_Bps:
        return ""
    return f"{(figures.old_plan_Bps / figures.before_Bps - 1) * 100:+.0f} % against before"


def _tile(name: str, value: str, more: str = "", *, good: bool = False) -> str:
    number, _, unit = value.partition(" ")
    return (
        f'<div class="tile{" good" if good else ""}"><div class="name">{escape(name)}</div>'
        f'<div class="value">{escape(number)} <small>{escape(unit)}</small></div>'
        f'<div class="more">{escape(more)}</div></div>'
    )


def _rate(rate_Bps: float | None) -> str:
    return rate_MB(rate_Bps) if rate_Bps is not None else "–"


def _time(time_s: float | None) -> str:
    return format_time(time_s) if time_s is not None else "–"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Iterable[int] = ()) -> str:
    """A table from cells of ready HTML; `numbers` are the columns that align right."""
    right = set(numbers)

    def cell(tag: str, index: int, content: str) -> str:
        return f"<{tag}{' class=n' if index in right else ''}>{content}</{tag}>"

    head = "".join(cell("th", k, escape(h)) for k, h in enumerate(heads))
    body = "".join("<tr>" + "".join(cell("td", k, c) for k, c in enumerate(row)) + "</tr>" for row in rows)
    return f'<div class="card wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def decision_table(run: Run) -> str:
    """Every decision that changed or judged a plan; holds are only counted."""
    shown = [(d, trial) for d, trial in last_trials(run) if d.action != "hold" or d.reroutes]
    holds = len(run.decisions) - len(shown)
    note = f'<p class="note">{holds} more epochs ended with holding the plan.</p>' if holds else ""
    if not shown:
        return note or '<p class="note">No decision was recorded.</p>'
    heads = ["at", "from op", "what", "plan and reason", "predicted", "measured", "before", "limit (estimate)", "of it"]
    cells = (_decision_cells(run, d, trial) for d, trial in shown)
    return table(heads, cells, numbers=(0, 1, 4, 5, 6, 7, 8)) + note + f'<p class="note">{escape(LIMIT_NOTE)}</p>'


def _decision_cells(run: Run, d: DecisionRecord, trial: DecisionRecord | None) -> list[str]:
    share = f"{d.limit_s / d.measured_s * 100:.0f} %" if d.limit_s and d.measured_s else "–"
    told = (f for f in d.findings if f.baseline_Bps and f.link not in d.reason)
    found = "; ".join(f"{f.link} at {f.capacity_Bps / f.baseline_Bps * 100:.0f} %" for f in told)
    reason = d.reason + (f" ({found})" if found else "")
    reason += f" {reroute_words(d)}" if d.reroutes else ""
    before = replaced(d, trial)
    change = d.plan_after if before == d.plan_after else f"{before} → {d.plan_after}"
    return [
        f"{d.t_s - run.zero_s:.1f} s",
        str(d.from_operation),
        badge(d.action) + (f" {badge('reroute')}" if d.reroutes else ""),
        f'{escape(change)}<br><span class="note">{escape(reason)}</span>',
        _time(d.predicted_s),
        _time(d.measured_s),
        _time(d.reference_s),
        _time(d.limit_s),
        share,
    ]


def badge(kind: str) -> str:
    """A word in a coloured frame."""
    return f'<span class="badge {escape(kind)}">{escape(kind)}</span>'


def story_list(story: Story) -> str:
    """Timeline, verdict and closing as HTML."""
    items = "".join(_moment(m) for m in story.timeline) or "<li>Nothing happened.</li>"
    text = "".join(f"<p>{escape(line)}</p>" for line in [*story.verdict, *story.closing])
    return f'<div class="card">{text}</div><div class="card"><ol class="story">{items}</ol></div>'


def _moment(moment: Moment) -> str:
    operation = f"op {moment.operation}" if moment.operation is not None else ""
    return (
        f'<li><span class="when">{moment.time_s:.1f} s</span><span class="when">{operation}</span>'
        f'<span>{badge(moment.kind)}</span><span class="text">{escape(moment.text)}</span></li>'
    )


def failure_table(run: Run) -> str:
    """Failures; empty where there are none."""
    if not run.failures:
        return ""
    rows = [
        [
            f"{f.t_s - run.zero_s:.1f} s",
            str(f.rank),
            escape(f.operation),
            escape(f.what),
            f"rank {f.blamed_rank} ({escape(run.host(f.blamed_rank))})" if f.blamed_rank is not None else "unknown",
        ]
        for f in run.failures
    ]
    return "<h3>Failures</h3>" + table(["at", "on rank", "operation", "what", "blamed"], rows, numbers=(0, 1))


def result_tables(rows: Sequence[ResultRow]) -> str:
    """A bench's results: one table for each condition, with a bar for algbw."""
    parts: list[str] = []
    heads = ["size", "backend", "time", "algbw MB/s", "p99", "cv", "of limit (estimate)", "wrong", "plan", "bottleneck"]
    for condition in dict.fromkeys(r.condition for r in rows):
        for collective in dict.fromkeys(r.collective for r in rows if r.condition == condition):
            mine = [r for r in rows if r.condition == condition and r.collective == collective]
            mine.sort(key=lambda r: r.size_bytes)
            highest = max((r.algbw_Bps or 0.0 for r in mine), default=0.0)
            parts.append(f"<h3>{escape(collective)}, {escape(condition or 'nothing else on the network')}</h3>")
            parts.append(table(heads, (_result_cells(r, highest) for r in mine), numbers=(0, 2, 3, 4, 5, 6, 7)))
    return "".join(parts)


def _result_cells(row: ResultRow, highest_Bps: float) -> list[str]:
    bar = ""
    if row.algbw_Bps and highest_Bps > 0:
        bar = f'<span class="bar" style="width:{row.algbw_Bps / highest_Bps * 100:.0f}%"></span>'
    return [
        format_bytes(row.size_bytes),
        escape(row.backend),
        _time(row.time_s),
        (f"{row.algbw_Bps / 1e6:.4g}" if row.algbw_Bps is not None else "–") + bar,
        _time(row.p99_s),
        f"{row.variation_percent:.1f} %" if row.variation_percent is not None else "–",
        f"{row.limit_percent:.0f} %" if row.limit_percent is not None else "–",
        str(row.wrong) if row.wrong is not None else "–",
        escape(row.error or row.plan),
        escape(row.bottleneck),
    ]
