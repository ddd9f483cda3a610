"""Recorded calls from the files that a command line names."""

from __future__ import annotations

from collections.abc import Sequence
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


def read_text(path: Path) -> str:
    """A file's text. UsageError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read it: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError:
        raise UsageError("is not text", where=str(path)) from None
