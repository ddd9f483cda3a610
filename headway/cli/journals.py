"""Reading the journals that a command line names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from headway.decide.journal_file import JournalFile, read_journal
from headway.errors import UsageError
from headway.report.runs import Run, runs_of


def read_runs(paths: Sequence[Path]) -> tuple[list[Run], list[JournalFile]]:
    """The runs in these files; events of each go to the runs of all.

    Raises:
        UsageError: a file is not a journal, or together they hold no run.
    """
    journals = [read_journal(path) for path in paths]
    labels = _labels(paths)
    runs = runs_of([(label, journal.records) for label, journal in zip(labels, journals, strict=True)])
    if not runs:
        named = ", ".join(str(path) for path in paths)
        raise UsageError("holds only the lab's events, no run", where=named, hint="name the job's journal too")
    return runs, journals


def write_text(path: Path, content: str) -> None:
    """Write a file that the user asked for. UsageError where that is impossible."""
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write it: {error.strerror}", where=str(path)) from None


def write_all(contents: Iterable[tuple[Path | None, Callable[[], str]]]) -> None:
    """Write the files that have a path, each whether or not another can be written. UsageError names what cannot."""
    failed: list[UsageError] = []
    for path, content in contents:
        try:
            if path is not None:
                write_text(path, content())
        except UsageError as error:
            failed.append(error)
    if failed:
        raise failed[0] if len(failed) == 1 else UsageError("; ".join(map(str, failed)))


def check_writable(*paths: Path | None) -> None:
    """UsageError now, rather than after minutes; the files are there afterwards."""
    for path in paths:
        try:
            if path is not None:
                path.open("a").close()
        except OSError as error:
            raise UsageError(f"cannot write it: {error.strerror}", where=str(path)) from None


def _labels(paths: Sequence[Path]) -> list[str]:
    """File names without their ending; whole paths where two are alike."""
    stems = [path.stem for path in paths]
    return stems if len(set(stems)) == len(stems) else [str(path) for path in paths]
