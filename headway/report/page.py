"""The report: one HTML page that needs nothing else, made from runs and from a bench's results. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from string import Template

from headway import __version__
from headway.collectives.plan import Plan, PlanError
from headway.collectives.plan_codec import decode
from headway.decide.journal import DecisionRecord
from headway.report.chart import Chart, Mark, Series, Shade, asset, draw_chart
from headway.report.explain import LIMIT_NOTE, decision_words, last_trials, reroute_words, tell
from headway.report.figures import algbw_Bps, limit_of, link_key, reactions, share_limits, summarise
from headway.report.graph import draw_plan
from headway.report.heatmap import draw_heatmap
from headway.report.runs import Run, Span, aligned
from headway.report.serving_page import SERVING_FOOT, serving_section
from headway.report.serving_run import ServingRun
from headway.report.serving_story import tell_serving
from headway.report.tables import ResultRow, decision_table, failure_table, result_tables, story_list, tiles

_FOOT = """\
algbw is the vector's size over the operation's time (nccl-tests' definition); 1 MB = 1e6 bytes, 1 Mbit = 1e6 bits.
The limit is a lower bound on the time that no plan can beat. Rates of flows count only the time that the network held
them up."""
SAME_S = 1.0  # events of two runs that begin and end this close are drawn as one


def render_page(
    runs: Sequence[Run],
    *,
    serving: Sequence[ServingRun] = (),
    results: Sequence[ResultRow] = (),
    title: str = "Headway report",
) -> str:
    """The page as text. The first run that decided something leads; the others are compared with it in the chart.

    Runs of gateways have a part of their own each.
    """
    runs = share_limits(runs)
    lead = leading(runs)
    parts: list[str] = []
    if lead is not None:
        parts.append(tiles(summarise(lead), reactions(lead)))
        parts.append("<h2>algbw over time</h2>")
        parts.append(f'<div class="card wide">{draw_chart(chart_of(runs, lead))}</div>')
        beside = " Runs are laid side by side so that their first events begin together." if len(runs) > 1 else ""
        parts.append(
            f'<p class="note">Each dot is one operation. Shaded: what was done to the network.{beside} '
            f"Marks below the plot are decisions; point at one to read it. {escape(LIMIT_NOTE)}</p>"
        )
    if results:
        parts.append("<h2>Bench</h2>" + result_tables(results))
    parts.extend(_run_section(run, alone=len(runs) == 1) for run in _lead_first(runs, lead))
    parts.extend(serving_section(run, alone=len(serving) == 1 and lead is None) for run in serving)
    style = "\n".join(asset(name) for name in ("colors.css", "page.css", "picture.css"))
    setting = "Results of a bench."
    if lead is not None:
        setting = " ".join(tell(lead).setting)
    elif serving:
        setting = " ".join(tell_serving(serving[0], worst=0).setting)
    sources = [run.label for run in runs] + [run.label for run in serving] + (["bench results"] if results else [])
    notes = ([_FOOT] if runs or results else []) + ([SERVING_FOOT] if serving else [])
    return Template(asset("page.html")).substitute(
        title=escape(title),
        lead=escape(setting),
        style=style,
        body="\n".join(parts),
        script=asset("page.js"),
        foot=f"{' '.join(notes)} Made by Headway {escape(__version__)} from {escape(', '.join(sources))}.",
    )


def leading(runs: Sequence[Run]) -> Run | None:
    """The run that the page is about: the first that decided something, else the first."""
    return next((run for run in runs if run.decisions), runs[0] if runs else None)


def series_of(run: Run) -> Series:
    """A run's line: algbw of each main operation at the middle of its time."""
    points = ((run.ended_s(op) - op.duration_s / 2, algbw_Bps(op)) for op in run.main_operations())
    return Series(run.label, tuple(points))


def shades_of(runs: Sequence[Run]) -> list[Shade]:
    """The events of all runs; those that all share are shaded once, others say whose they are."""
    shared: list[tuple[Span, list[str]]] = []
    for run in runs:
        for span in run.congested():
            seen = next((labels for other, labels in shared if _same(span, other)), None)
            if seen is None:
                shared.append((span, [run.label]))
            else:
                seen.append(run.label)
    shades = [
        Shade(s.begin_s, s.end_s, s.what if len(labels) == len(runs) else f"{', '.join(labels)}: {s.what}")
        for s, labels in shared
    ]
    return sorted(shades, key=lambda shade: shade.begin_s)


def _same(a: Span, b: Span) -> bool:
    return a.what == b.what and abs(a.begin_s - b.begin_s) < SAME_S and abs(a.end_s - b.end_s) < SAME_S


def marks_of(run: Run) -> list[Mark]:
    """Its decisions other than holds, where they took effect, and its reroutes, with their sentences."""
    marks: list[Mark] = []
    for decision, trial in last_trials(run):
        if decision.action != "hold":
            marks.append(Mark(run.in_force_s(decision), decision.action, decision_words(decision, trial)))
        if decision.reroutes:
            marks.append(Mark(decision.t_s - run.zero_s, "reroute", reroute_words(decision)))
    return marks


def chart_of(runs: Sequence[Run], lead: Run) -> Chart:
    """All runs' lines, aligned at their first events; the lead's decisions and limit."""
    lead_at = next(index for index, run in enumerate(runs) if run is lead)
    runs = share_limits(aligned(runs))
    lead = runs[lead_at]
    limit = _limit_line(lead)
    return Chart(series=[series_of(run) for run in runs], shades=shades_of(runs), marks=marks_of(lead), limit=limit)


def _limit_line(run: Run) -> list[tuple[float, float]]:
    limits = limit_of(run)
    mains = [op for op in run.main_operations() if op.operation in limits]
    return [(run.ended_s(op) - op.duration_s / 2, op.size_bytes / limits[op.operation]) for op in mains]


def _lead_first(runs: Sequence[Run], lead: Run | None) -> list[Run]:
    return [run for run in runs if run is lead] + [run for run in runs if run is not lead]


def _run_section(run: Run, *, alone: bool) -> str:
    heading = "What happened" if alone else f"What happened in {run.label}"
    parts = [f"<h2>{escape(heading)}</h2>", story_list(tell(run))]
    parts.append(failure_table(run))
    if run.decisions:
        parts += ["<h2>Decisions</h2>", decision_table(run)]
    parts.append(_plans(run))
    parts.append(_heatmaps(run))
    return "\n".join(part for part in parts if part)


def _heatmaps(run: Run) -> str:
    shades = shades_of([run])
    load = draw_heatmap(run, shades, measure="load")
    if not load:
        return ""
    speed = draw_heatmap(run, shades, measure="rate")
    return (
        "<h2>Load of each link</h2>"
        f'<p class="note">Bytes that the job put on each host\'s uplink and downlink. Bars on top: events.</p>'
        f'<div class="card wide">{load}</div>'
        "<h2>Speed of each link</h2>"
        '<p class="note">The fastest flow on each link, counting only the time that the network held it up. '
        "Red: well below the median of all links at that time.</p>"
        f'<div class="card wide">{speed}</div>'
    )


def _plans(run: Run) -> str:
    trees = run.plan_trees()
    chosen = _chosen(run)
    names = [run.first_plan, chosen.plan_after] if chosen is not None else [run.first_plan]
    slow = slow_ranks(run, _reason_for(run, chosen))
    cards: list[str] = []
    for name, heading in zip(names, ("Before", "After"), strict=False):
        plan = _decoded(trees.get(name, ""))
        if plan is None:
            continue
        picture = draw_plan(
            plan,
            hosts=[run.host(rank) for rank in range(plan.size)],
            racks=run.start.racks if run.start is not None else (),
            slow=slow,
        )
        words = heading if len(names) > 1 else "In force"
        if picture:
            cards.append(f'<div class="card"><h3>{words}: {escape(name)}</h3>{picture}</div>')
        else:
            cards.append(
                f'<div class="card"><h3>{words}: {escape(name)}</h3><p>{plan.size} ranks: too many to draw.</p></div>'
            )
    if not cards:
        return ""
    note = (
        '<p class="note">A line is as wide as the share of the vector that two ranks exchange. The number beside a '
        "rank is what it sends and receives, in vectors; blue rings are roots of trees. Red: the ranks behind the link "
        "that is blamed.</p>"
    )
    return f'<h2>Plan</h2>{note}<div class="pair">{"".join(cards)}</div>'


def _chosen(run: Run) -> DecisionRecord | None:
    """The last plan kept, else the last one tried."""
    for action in ("keep", "try"):
        mine = [d for d in run.decisions if d.action == action and d.plan_after != run.first_plan]
        if mine:
            return mine[-1]
    return None


def _reason_for(run: Run, chosen: DecisionRecord | None) -> DecisionRecord | None:
    """The decision whose findings led to the chosen plan: its trial, where a better network may hide them by now."""
    if chosen is None:
        return None
    trials = [d for d in run.decisions if d.action == "try" and d.plan_after == chosen.plan_after]
    earlier = [d for d in trials if d.epoch <= chosen.epoch and d.findings]
    return earlier[-1] if earlier else chosen


def slow_ranks(run: Run, decision: DecisionRecord | None) -> set[int]:
    """Ranks whose host or rack is named by a decision's findings; a path names both of its ends."""
    if decision is None:
        return set()
    places = {place for f in decision.findings for place in link_key(f.link)[1:] if place}
    racks = run.start.racks if run.start is not None else []
    slow: set[int] = set()
    for rank in range(run.world_size):
        names = [run.host(rank)] + ([racks[rank]] if rank < len(racks) else [])
        if any(link_key(f"uplink of {name}")[1] in places for name in names):
            slow.add(rank)
    return slow


def _decoded(text: str) -> Plan | None:
    """The plan, or None where the journal has none, or has it in a form unknown here: the rest can still be shown."""
    if not text:
        return None
    try:
        return decode(text)
    except PlanError:
        return None
