"""A gateway's journal on the terminal, for `headway explain`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

from rich.console import Console
from rich.text import Text

from headway.cli.journals import Journals
from headway.cli.tables import plain_table, print_table
from headway.errors import UsageError
from headway.report.serving_request import tell_request
from headway.report.serving_story import Grid, ServingStory

GRID_WIDTH = 150  # columns at most where the output is no terminal; a reason is wrapped


class RequestStory(TypedDict):
    """A request's story as a program reads it: the sentences, and the journal's record."""

    told: list[str]
    record: dict[str, Any]


def request_stories(found: Journals, request: str, paths: Sequence[Path]) -> list[RequestStory]:
    """The stories of the requests with this id, or of the one whose id begins so. UsageError: there is none."""
    where = ", ".join(str(path) for path in paths)
    if not found.serving:
        raise UsageError("--request needs a gateway's journal; this one holds no requests", where=where)
    known = [(run, record) for run in found.serving for record in run.requests]
    exact = [(run, record) for run, record in known if record.request == request]
    like = [(run, record) for run, record in known if record.request.startswith(request)]
    if not exact and len({record.request for _, record in like}) > 1:
        named = ", ".join(list(dict.fromkeys(record.request for _, record in like))[:3])
        raise UsageError(f"several requests begin with {request!r}: {named}, ...", where=where)
    chosen = exact or like
    if not chosen:
        raise UsageError(
            f"holds no request {request!r}", where=where, hint="headway explain without --request names the slowest"
        )
    return [
        {"told": tell_request(run, record), "record": record.model_dump(mode="json", exclude_none=True)}
        for run, record in chosen
    ]


def print_serving(console: Console, story: ServingStory) -> None:
    """A run as sentences and tables."""
    console.print(Text(story.title, style="bold"))
    for line in story.setting:
        console.print(Text(line))
    for grid in story.grids:
        _print_grid(console, grid)
    if story.prediction:
        console.print()
        console.print(Text(story.prediction))
    if story.timeline:
        console.print()
        console.print(Text("What changed", style="bold"))
        for change in story.timeline:
            console.print(Text(f"{change.time_s:>9.1f} s  {change.kind:<9} {change.text}"))
        if story.left_out:
            console.print(Text(f"({story.left_out} more in between; --json has the figures, the journal has all)"))
    for grid in story.worst:
        _print_grid(console, grid)


def _print_grid(console: Console, grid: Grid) -> None:
    console.print()
    console.print(Text(grid.title, style="bold"))
    table = plain_table()
    for number, column in enumerate(grid.columns):
        wordy = column == "reason"
        table.add_column(column, justify="left" if number == 0 or wordy else "right", no_wrap=not wordy)
    for row in grid.rows:
        table.add_row(*map(Text, row))
    print_table(table, plain_width=GRID_WIDTH)
