"""`headway explain`: a journal told in sentences."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headway.cli.explain_serving import print_serving, request_stories
from headway.cli.journals import read_journals
from headway.errors import UsageError
from headway.report.explain import Story, tell
from headway.report.figures import reactions
from headway.report.serving_story import tell_serving

COLOURS = {
    "event": "yellow",
    "finding": "yellow",
    "try": "cyan",
    "keep": "green",
    "revert": "red",
    "restore": "magenta",
    "reroute": "blue",
    "failure": "bold red",
    "dropped": "red",
    "hold": "dim",
}
PLAIN_WIDTH = 110  # columns where the output is no terminal


def explain(
    journals: Annotated[
        list[Path], typer.Argument(help="A job's or a gateway's journal; the lab's events may be a second file.")
    ],
    first: Annotated[int | None, typer.Option("--from", metavar="OP", help="Leave out what came before it.")] = None,
    last: Annotated[int | None, typer.Option("--to", metavar="OP", help="Leave out what came after it.")] = None,
    request: Annotated[
        str | None, typer.Option(metavar="ID", help="Of a gateway's journal: tell this request's story.")
    ] = None,
    worst: Annotated[
        int, typer.Option(min=0, help="Of a gateway's journal: how many of the slowest and most mispredicted to show.")
    ] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON, for programs.")] = False,
) -> None:
    """Say in sentences what a job saw and did, or where a gateway sent each request, why, and what came of it."""
    if first is not None and last is not None and first > last:
        raise UsageError(f"--from {first} comes after --to {last}")
    found = read_journals(journals)
    if request is not None:
        stories = request_stories(found, request, journals)
        if as_json:
            print(json.dumps({"requests": stories, "cut_off": found.cut_off}, indent=1))
        else:
            print("\n\n".join("\n".join(each["told"]) for each in stories))
        return
    runs = [tell(run, first=first, last=last) for run in found.runs]
    serving = [tell_serving(run, worst=worst) for run in found.serving]
    if as_json:
        document: dict[str, object] = {
            "runs": [
                {**asdict(story), "reactions": [asdict(r) for r in reactions(run)]}
                for run, story in zip(found.runs, runs, strict=True)
            ],
            "serving": [asdict(story) for story in serving],
            "cut_off": found.cut_off,
        }
        print(json.dumps(document, indent=1))
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    for number, story in enumerate(runs):
        if number:
            console.print()
        _print_story(console, story)
    for number, told in enumerate(serving, start=len(runs)):
        if number:
            console.print()
        print_serving(console, told)
    for path in found.cut_off:
        console.print(
            Text(f"{path}: the last line is unfinished and was left out (the job was killed, or still runs).")
        )


def _print_story(console: Console, story: Story) -> None:
    console.print(Text(story.title, style="bold"))
    for line in story.setting:
        console.print(Text(line))
    console.print()
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for moment in story.timeline:
        operation = f"op {moment.operation}" if moment.operation is not None else ""
        kind = Text(moment.kind, style=COLOURS.get(moment.kind, ""))
        table.add_row(f"{moment.time_s:.1f} s", operation, kind, Text(moment.text))
    console.print(table if story.timeline else Text("Nothing happened in this range."))
    if story.verdict:
        console.print()
        for line in story.verdict:
            console.print(Text(line))
    console.print()
    for line in story.closing:
        console.print(Text(line, style="bold" if line is story.closing[0] else ""))
