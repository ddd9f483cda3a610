"""Shows how far a sweep is: a bar with the time that is left on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from headway.sim.studies.cells import Row

QUIET_S = 60.0
"""Without a terminal, a line this often: enough for a log, and short runs stay quiet."""


class Shown:
    """Implements `pool.Progress` on a console (standard error, so that tables can be piped).

    Args:
        console: where to show it.
        what: of what, in words.
    """

    def __init__(self, console: Console, *, what: str = "cells") -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(what, total=None)
        self._what = what
        self._total = self._done = self._failed = 0
        self._said_s = time.monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begin(self, *, total: int, kept: int, aside: int) -> None:
        """Says what is there already."""
        self._total, self._done = total, kept
        if kept:
            self._print(f"{kept} of {total} {self._what} have been run already")
        if aside:
            self._print(f"{aside} rows fit no cell any more (the sweep or Headway has changed); they are set aside")
        # Only cells of this run tell how long the rest takes.
        self._bar.reset(self._task, total=total - kept)

    def row(self, row: Row) -> None:
        """One more."""
        self._done += 1
        self._failed += bool(row.error)
        failed = f", {self._failed} failed" if self._failed else ""
        self._bar.update(self._task, advance=1, description=self._what + failed)
        if not self._console.is_terminal and time.monotonic() - self._said_s > QUIET_S:
            self._said_s = time.monotonic()
            self._print(f"{self._done} of {self._total} {self._what} done{failed}")

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)
