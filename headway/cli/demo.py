"""`headway demo`: what congestion does to training, with gloo and with Headway, on an emulated cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.errors import HeadwayError, UsageError

if TYPE_CHECKING:
    from headway.bench.training import TrainingRun
    from headway.report.runs import Run

WEIGHTS_TOLERANCE = 1e-3
"""Absolute; weights are of order 0.1 to 1. Sums in another order differ by 1e-7 a step, and training spreads it."""


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the report, the picture and the journals.")] = Path("out/demo"),
    backends: Annotated[str, typer.Option(help="Which to train with, one after the other.")] = "gloo,headway",
    scenario: Annotated[str, typer.Option(help="The lab to build; its first event is the neighbour.")] = "star8-demo",
    before: Annotated[int, typer.Option(min=2, help="Steps before the neighbour comes.")] = 14,
    under: Annotated[int, typer.Option(min=2, help="Steps while it is there.")] = 22,
    after: Annotated[int, typer.Option(min=2, help="Steps after it has left.")] = 20,
) -> None:
    """Train a small model with DDP on 8 emulated hosts, congest one part-way, free it, and compare. Needs root."""
    from rich.console import Console

    from headway.bench.journal_tail import JournalTail
    from headway.bench.training import Phases, Step, default_script, train, weights_differ
    from headway.cli.demo_view import DecisionNews, DemoView, closing_words, result_table
    from headway.decide.journal_file import FileJournal
    from headway.lab.files import load_scenario
    from headway.lab.lab import Lab, require_privileges

    names = backends.split(",")
    for name in names:
        if name.partition(":")[0] not in ("gloo", "headway"):
            raise UsageError(f"cannot train with {name!r}", where="--backends", hint="gloo, headway, headway:react")
    where = load_scenario(scenario)
    if not where.events:
        raise UsageError("has no event", where=where.name, hint="the demo needs a neighbour: star8-demo has one")
    event = where.events[0]
    default_script()
    require_privileges()
    out.mkdir(parents=True, exist_ok=True)
    phases = Phases(before, under, after)
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    events_path = out / "events.jsonl"
    events_path.unlink(missing_ok=True)
    runs: list[TrainingRun] = []
    title = f"lab {where.name}: {len(where.host_names)} hosts, DDP, {phases.total} steps for each backend"
    events = FileJournal(events_path)
    try:
        with Lab.up(where) as lab, DemoView(console, title) as view:
            tails: dict[str, JournalTail] = {}
            told: dict[str, DecisionNews] = {}

            def on_step(run: TrainingRun, step: Step) -> None:
                tail = tails.setdefault(run.backend, JournalTail(run.journal))
                for line in told.setdefault(run.backend, DecisionNews()).of(tail.new_records()):
                    view.news(run.backend, line)
                view.step(run, step)

            for name in names:
                view.news(name, "starts")
                runs.append(
                    train(
                        lab, name, event, phases, out, events=events, on_step=on_step,
                        on_change=lambda run, what: view.news(run.backend, what),
                    )
                )  # fmt: skip
    finally:
        events.close()
    console.print(result_table(runs))
    finished = _journals(runs, events_path)
    for run in finished:
        for line in _reaction_lines(run):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    page, picture = write_report(finished, out)
    console.print(f"report: {page}\npicture: {picture}", highlight=False, soft_wrap=True)
    if len(runs) > 1:
        worst = weights_differ(runs)
        holds = worst <= WEIGHTS_TOLERANCE
        console.print(
            f"check: final weights of {' and '.join(names)} differ by {worst:.1e} at most "
            f"({'within' if holds else 'ABOVE'} the tolerance {WEIGHTS_TOLERANCE:g} for sums in another order)",
            highlight=False,
            soft_wrap=True,
        )
        if not holds:
            raise HeadwayError("the weights differ: the collectives did not compute the same sums")
    console.print(closing_words(runs, finished), style="bold", highlight=False, markup=False, soft_wrap=True)


def _journals(runs: list[TrainingRun], events_path: Path) -> list[Run]:
    from headway.decide.journal import parse_lines
    from headway.report.runs import runs_of

    paths = [(run.backend, run.journal) for run in runs] + [("events", events_path)]
    return runs_of(
        [(label, list(parse_lines(path.read_text().splitlines(), where=str(path)))) for label, path in paths]
    )


def _reaction_lines(run: Run) -> list[str]:
    """How a run that decides reacted, in sentences; nothing for one that does not."""
    from headway.report.explain import tell

    if not run.decisions:
        return []
    story = tell(run)
    return [f"{run.label}: {line}" for line in [*story.verdict, *story.closing[1:2]]]


def write_report(runs: list[Run], out: Path) -> tuple[Path, Path]:
    """Write the page and the picture of the chart on it; both show the runs on one time axis. Returns their paths."""
    from dataclasses import replace

    from headway.report.chart import chart_file
    from headway.report.figures import share_limits
    from headway.report.page import chart_of, leading, render_page

    page, picture = out / "report.html", out / "algbw.svg"
    page.write_text(render_page(runs, title="Training while a neighbour comes and goes"), encoding="utf-8")
    runs = share_limits(runs)
    lead = leading(runs)
    if lead is None:
        raise HeadwayError("nothing was trained: there is no report to write")
    chart = replace(chart_of(runs, lead), title="algbw while a neighbour comes and goes")
    picture.write_text(chart_file(chart), encoding="utf-8")
    return page, picture
