"""A simulated run as one page: its jobs side by side over time, the busiest links, and the figures. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from statistics import median

from headway import __version__
from headway.cluster.units import format_rate, format_time
from headway.decide.journal import EventRecord
from headway.report.chart import Shade
from headway.report.gantt import Block, Lane, LinkLane, draw_gantt, draw_links
from headway.report.sim_summary import Limits, job_summaries, link_summaries
from headway.report.sim_trace import BusySpan
from headway.report.sweep_page import fill_page
from headway.sim.result import Result

SHOWN_LINKS = 10
MOST_LANES = 32
ALL_RANKS = 16
"""Up to so many ranks in all, each has a lane; beyond, the first rank of each job."""
SHOWN_ITERATIONS = 20
NAMED_EVENTS = 3

_FOOT = (
    "Times are seconds of the simulated clock; mean, p50 and p99 are the pace of iterations, from the last end of one "
    "to that of the next. A link's use counts payload, of jobs and of TCP load, against what other rates and UDP load "
    "left of the link. algbw is bytes of all vectors over the time of all collectives; 1 MB = 1e6 bytes. The limit is "
    "the least time with what other rates and UDP load left of the links during a whole operation."
)


def render_run(
    result: Result,
    limits_s: Limits,
    spans: Sequence[BusySpan],
    used: Sequence[tuple[str, Sequence[tuple[float, float, float]]]],
    *,
    title: str,
    lead: str = "",
) -> str:
    """The page as text.

    Args:
        result: of the run.
        limits_s: of its operations.
        spans: what ranks did (`TraceRecorder.spans`).
        used: the busiest links over time (`TraceRecorder.used`).
        title, lead: the page's title and the line below it.
    """
    shades = event_shades(result)
    window = window_of(result, shades)
    lanes = lanes_of(result, spans)
    parts = ["<h2>Jobs</h2>", _jobs(result, limits_s)]
    if lanes:
        whole = window == (0.0, result.end_s)
        about = "" if whole else f" Shown: {window[0]:.4g} s to {window[1]:.4g} s of {result.end_s:.4g} s."
        ranks = sum(len(job.hosts) for job in result.jobs.values())
        who = "every rank" if ranks <= ALL_RANKS else "the first rank of each job"
        parts += [
            "<h2>What each job did</h2>",
            f'<p class="note">A lane is {who}. {escape(_shaded(shades))}{about}</p>',
            f'<div class="card wide">{draw_gantt(lanes, shades, begin_s=window[0], end_s=window[1])}</div>',
        ]
    over_time = dict(used)
    busiest = [link for link in link_summaries(result)[:SHOWN_LINKS] if link.name in over_time]
    links = [LinkLane(link.name, tuple(over_time[link.name]), link.used) for link in busiest]
    if links:
        picture = draw_links(links, shades, end_s=result.end_s, window=window if lanes else None)
        framed = "" if window == (0.0, result.end_s) else " The frame is the time of the picture above."
        parts += [
            "<h2>The busiest links</h2>",
            f'<p class="note">Part in use of what events left of each link; at the right the mean.{framed}</p>',
            f'<div class="card wide">{picture}</div>',
        ]
    parts.append(_links(result))
    return fill_page("\n".join(parts), title=title, lead=lead, foot=f"{_FOOT} Made by Headway {__version__}.")


def _shaded(shades: Sequence[Shade]) -> str:
    """What the shades are, for those who cannot point at them."""
    said = list(dict.fromkeys(shade.label for shade in shades))
    more = f"; and {len(said) - NAMED_EVENTS} more" if len(said) > NAMED_EVENTS else ""
    return f"Shaded: {'; '.join(said[:NAMED_EVENTS])}{more}." if said else ""


def event_shades(result: Result) -> list[Shade]:
    """The scenario's events, from begin to end."""
    open_: dict[tuple[str, str], EventRecord] = {}
    shades: list[Shade] = []
    for record in result.records:
        if isinstance(record, EventRecord):
            key = (record.event, record.what)
            if record.phase == "begin":
                open_[key] = record
            elif key in open_:
                shades.append(Shade(open_.pop(key).t_s, record.t_s, record.what))
    shades += [Shade(record.t_s, result.end_s, record.what) for record in open_.values()]
    return sorted(shades, key=lambda shade: shade.begin_s)


def window_of(result: Result, shades: Sequence[Shade]) -> tuple[float, float]:
    """What the lanes show: all, or so long that single iterations can be told apart, around the first event's begin."""
    typical = [median(job.paces_s) for job in result.jobs.values() if job.iterations]
    if not typical:
        return 0.0, result.end_s
    wide_s = SHOWN_ITERATIONS * median(typical)
    if wide_s >= 0.8 * result.end_s:
        return 0.0, result.end_s
    begin_s = max(0.0, (shades[0].begin_s if shades else 0.0) - wide_s / 4)
    begin_s = min(begin_s, result.end_s - wide_s)
    return begin_s, begin_s + wide_s


def lanes_of(result: Result, spans: Sequence[BusySpan]) -> list[Lane]:
    """A lane for each rank, or for the first of each job; `MOST_LANES` at most."""
    several = sum(len(job.hosts) for job in result.jobs.values()) <= ALL_RANKS
    chosen: dict[tuple[str, int], tuple[str, int]] = {}
    for colour, (name, job) in enumerate(result.jobs.items()):
        for rank, host in enumerate(job.hosts if several else job.hosts[:1]):
            chosen[name, rank] = (f"{name} on {host}" if several else name, colour)
    blocks: dict[tuple[str, int], list[Block]] = {key: [] for key in list(chosen)[:MOST_LANES]}
    for span in spans:
        mine = blocks.get((span.job, span.rank))
        if mine is not None and span.begin_s < span.end_s and span.begin_s < result.end_s:
            mine.append(Block(span.kind, span.begin_s, min(span.end_s, result.end_s)))
    return [Lane(*chosen[key], tuple(found)) for key, found in blocks.items()]


def _jobs(result: Result, limits_s: Limits) -> str:
    lines = []
    for job in job_summaries(result, limits_s):
        times = (format_time(t) if t is not None else "–" for t in (job.mean_s, job.p50_s, job.p99_s))
        cells = [
            str(job.ranks),
            str(job.iterations),
            *times,
            f"{job.algbw_Bps / 1e6:.2f}" if job.algbw_Bps is not None else "–",
            f"{100 * job.limit:.1f}" if job.limit is not None else "–",
        ]
        figures = "".join(f'<td class="n">{cell}</td>' for cell in cells)
        lines.append(f"<tr><td>{escape(job.name)}</td>{figures}<td>{escape(', '.join(job.plans[:3]))}</td></tr>")
    names = ("ranks", "iterations", "mean", "p50", "p99", "algbw MB/s", "limit %")
    return _table(("job", *names, "plans"), set(names), lines)


def _links(result: Result) -> str:
    lines = [
        f"<tr><td>{escape(link.name)}</td>"
        f'<td class="n">{format_rate(link.capacity_Bps)}</td>'
        f'<td class="n">{f"{100 * link.taken:.1f}" if link.taken else "–"}</td>'
        f'<td class="n">{link.carried_bytes / 1e6:.1f}</td>'
        f'<td class="n">{100 * link.used:.1f}</td></tr>'
        for link in link_summaries(result)[:SHOWN_LINKS]
    ]
    names = ("capacity", "events took %", "carried MB", "in use %")
    return _table(("link", *names), set(names), lines) if lines else ""


def _table(names: Sequence[str], right: set[str], lines: Sequence[str]) -> str:
    head = "".join(f'<th class="{"n" if name in right else ""}">{name}</th>' for name in names)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
