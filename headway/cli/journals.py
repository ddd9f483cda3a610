"""Reading the journals that a command line names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.decide.journal_file import JournalFile, read_journal
from headway.errors import UsageError
from headway.report.runs import Run, runs_of
from headway.report.serving_run import ServingRun, serving_run, split


@dataclass(frozen=True)
class Journals:
    """What some files hold.

    Attributes:
        runs: of training: one group's collectives; events of each file go to the runs of all.
        serving: of gateways, one for each file that says something of requests or of a fleet.
        files: the files themselves.
    """

    runs: list[Run]
    serving: list[ServingRun]
    files: list[JournalFile]

    @property
    def cut_off(self) -> list[str]:
        """The files whose last line is unfinished."""
        return [str(file.path) for file in self.files if file.cut_off]


def read_journals(paths: Sequence[Path]) -> Journals:
    """Read the files.

    Raises:
        UsageError: a file is not a journal, or together they hold no run.
    """
    files = [read_journal(path) for path in paths]
    labels = _labels(paths)
    runs = runs_of([(label, split(file.records)[1]) for label, file in zip(labels, files, strict=True)])
    found = [serving_run(label, file.records) for label, file in zip(labels, files, strict=True)]
    serving = [run for run in found if run is not None]
    if not runs and not serving:
        named = ", ".join(str(path) for path in paths)
        raise UsageError("holds only the lab's events, no run", where=named, hint="name the job's journal too")
    return Journals(runs, serving, files)


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
