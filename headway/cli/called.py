"""The files that a command line names: recorded calls, and what must not be written over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from headway.errors import UsageError
from headway.serving.workflows.calls import Call
from headway.serving.workflows.importing import Source, import_calls


def read_all_calls(paths: Sequence[Path]) -> list[Call]:
    """The calls of files of any kind that `headway trace import` takes. UsageError where there are none."""
    found = import_calls([Source(str(path), read_text(path)) for path in paths]).calls
    if not found:
        raise UsageError(
            "hold no call of a workflow",
            where=", ".join(map(str, paths)),
            hint="docs/workflows.md says how calls name their workflow",
        )
    return list(found)


def read_calls_there_are(paths: Sequence[Path], *, wait: bool) -> list[Call]:
    """The calls of files that may hold none yet: a new gateway's journal. With `wait` they may be missing or empty.

    Raises:
        UsageError: a file is of no known kind; without `wait`, or cannot be read.
    """
    there = [path for path in paths if not wait or (path.exists() and path.stat().st_size > 0)]
    return list(import_calls([Source(str(path), read_text(path)) for path in there]).calls)


def read_text(path: Path) -> str:
    """A file's text. UsageError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read it: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError:
        raise UsageError("is not text", where=str(path)) from None


def spare_inputs(outputs: Iterable[Path | None], inputs: Iterable[Path | None]) -> None:
    """UsageError where an output is a file that is read, by whatever name, or that is another output, too."""
    read = [path for path in inputs if path is not None]
    written: list[Path] = []
    for path in outputs:
        if path is None:
            continue
        if any(_same(path, other) for other in read):
            raise UsageError("is read here and would be written over", where=str(path), hint="write to another file")
        if any(_same(path, other) for other in written):
            raise UsageError("would be written twice", where=str(path), hint="give each output its own file")
        written.append(path)


def _same(one: Path, other: Path) -> bool:
    """Whether both are one file; what is no file (a terminal, /dev/null) may be both."""
    if one.exists() and other.exists():
        return one.is_file() and one.samefile(other)
    return one.resolve() == other.resolve()
