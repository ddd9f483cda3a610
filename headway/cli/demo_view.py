"""What `headway demo` shows while it runs and at the end."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from headway.bench.training import Step, TrainingRun
from headway.decide.journal import DecisionRecord, Record
from headway.report.explain import LIMIT_NOTE, replaced
from headway.report.figures import Reaction, reactions
from headway.report.runs import Run

_BARS = " ▁▂▃▄▅▆▇█"
_COLOURS = {"before": "green", "under": "red", "after": "cyan", "": "bright_black"}
_NAMES = {"before": "no neighbour", "under": "neighbour on the link", "after": "neighbour gone", "": ""}
_LINES = 7
_EVERY = 5


class DemoView:
    """Live panels on a terminal; elsewhere a line for every fifth step and for everything that happens."""

    def __init__(self, console: Console, title: str) -> None:
        self._console, self._title = console, title
        self._runs: list[TrainingRun] = []
        self._news: deque[tuple[float, str, str]] = deque(maxlen=_LINES)
        self._begin_s = time.monotonic()
        self._live = Live(console=console, refresh_per_second=4, transient=False) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
            self._live.update(self._render())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def step(self, run: TrainingRun, step: Step) -> None:
        """A step has ended."""
        if run not in self._runs:
            self._runs.append(run)
        if self._live is not None:
            self._live.update(self._render())
        elif step.number % _EVERY == 0 or step.number + 1 == run.phases.total:
            self._console.print(
                f"{self._clock()}  {run.backend:<16} step {step.number:>3}  loss {step.loss:.5f}  "
                f"{1 / step.time_s:5.2f} steps/s  algbw {run.gradient_bytes / step.time_s / 1e6:5.1f} MB/s  "
                f"{_NAMES[run.phases.name(step.number)]}",
                highlight=False,
                soft_wrap=True,
            )

    def news(self, who: str, what: str) -> None:
        """Something happened: the neighbour came or left, or Headway decided."""
        self._news.append((time.monotonic() - self._begin_s, who, what))
        if self._live is not None:
            self._live.update(self._render())
        else:
            self._console.print(f"{self._clock()}  {who:<16} {what}", highlight=False, markup=False, soft_wrap=True)

    def _clock(self) -> str:
        return f"{time.monotonic() - self._begin_s:6.1f} s"

    def _render(self) -> RenderableType:
        news = Table.grid(padding=(0, 1))
        for when_s, who, what in self._news:
            news.add_row(f"{when_s:6.1f} s", Text(who, style="bold"), Text(what))
        panels: list[RenderableType] = [_run_panel(run, self._console.width) for run in self._runs]
        return Group(Text(self._title, style="bold"), *panels, Panel(news, title="what happens", height=_LINES + 2))


def _run_panel(run: TrainingRun, width: int) -> RenderableType:
    if not run.steps:
        return Panel(Text("starting"), title=run.backend)
    last = run.steps[-1]
    rates = [run.gradient_bytes / step.time_s / 1e6 for step in run.steps]
    most = max(rates)
    shown = run.steps[-max(10, width - 6) :]
    line = Text()
    for step, rate in zip(shown, rates[-len(shown) :], strict=True):
        level = math.ceil(rate / most * (len(_BARS) - 1))
        line.append(_BARS[level], style=_COLOURS[run.phases.name(step.number)])
    facts = Text.assemble(
        f"step {last.number + 1}/{run.phases.total}  loss {last.loss:.5f}  ",
        (f"{1 / last.time_s:.2f} steps/s", "bold"),
        f"  algbw {rates[-1]:.1f} MB/s  ",
        (_NAMES[run.phases.name(last.number)], _COLOURS[run.phases.name(last.number)]),
    )
    return Panel(Group(line, facts), title=run.backend, title_align="left")


class DecisionNews:
    """Turns one run's records, as they come, into lines about what changed."""

    def __init__(self) -> None:
        self._trial: DecisionRecord | None = None

    def of(self, records: Iterable[Record]) -> Iterator[str]:
        """Lines of the decisions among new records; holds are left out."""
        for record in records:
            if not isinstance(record, DecisionRecord):
                continue
            if record.reroutes:
                yield f"reroute: new connections for {', '.join(record.reroutes)}"
            if record.action == "hold":
                continue
            before = replaced(record, self._trial)
            yield f"{record.action}: {before} -> {record.plan_after} ({record.reason})"
            self._trial = record if record.action == "try" else None


def closing_words(trained: Sequence[TrainingRun], runs: Sequence[Run]) -> str:
    """The demo in one sentence: speed under congestion, and how fast the last run that decides reacted.

    Args:
        trained: every backend's run, the one to compare with first.
        runs: their journals, labelled with the backends.
    """
    first = trained[0].steps_per_s("under")
    speeds = []
    for number, run in enumerate(trained):
        speed = run.steps_per_s("under")
        words = f"{run.backend} {speed:.2f}" + ("" if number else " steps/s")
        speeds.append(words + (f" ({100 * (speed / first - 1):+.0f} %)" if number else ""))
    text = f"under congestion: {', '.join(speeds)}, {trained[-1].limit_percent('under'):.0f} % of the limit (estimate)"
    run_of = {run.label: run for run in runs}
    tuned = [run_of[run.backend] for run in trained if run.backend in run_of and run_of[run.backend].decisions]
    seen = reactions(tuned[-1]) if tuned else []
    return "; ".join([text, *_reacted(seen[0])]) if seen else text


def _reacted(reaction: Reaction) -> list[str]:
    if reaction.reaction_s is None or reaction.better_after_operations is None:
        return ["no other plan was kept"]
    count = reaction.better_after_operations
    parts = [f"better plan after {count} operation{'' if count == 1 else 's'}, {reaction.reaction_s:.1f} s"]
    if reaction.recovery_s is not None:
        parts.append(f"back on the idle plan {reaction.recovery_s:.1f} s after the neighbour left")
    elif reaction.away:
        parts.append("not back on the idle plan when the run ended")
    return parts


def result_table(runs: Sequence[TrainingRun]) -> Table:
    """Training speed in each phase, and how far from the limit it is."""
    table = Table(
        title="DDP training, medians over steps (algbw: gradient bytes / step time)",
        caption=LIMIT_NOTE,
        caption_justify="left",
    )
    table.add_column("phase", no_wrap=True)
    for run in runs:
        table.add_column(f"{run.backend}\nsteps/s", justify="right")
        table.add_column("\nalgbw MB/s", justify="right")
        table.add_column("% of limit\n(estimate)", justify="right")
    if len(runs) > 1:
        table.add_column(f"{runs[-1].backend}\nover {runs[0].backend}", justify="right")
    rows = (("before", "before", False), ("neighbour there", "under", False), ("  once settled", "under", True),
            ("neighbour gone", "after", False), ("  once settled", "after", True))  # fmt: skip
    for label, phase, settled in rows:
        cells = [label]
        for run in runs:
            cells += [
                f"{run.steps_per_s(phase, settled=settled):.2f}",
                f"{run.algbw_Bps(phase, settled=settled) / 1e6:.1f}",
                f"{run.limit_percent(phase, settled=settled):.0f}",
            ]
        if len(runs) > 1:
            gain = runs[-1].steps_per_s(phase, settled=settled) / runs[0].steps_per_s(phase, settled=settled) - 1
            cells.append(f"{100 * gain:+.0f} %")
        table.add_row(*cells)
    return table
