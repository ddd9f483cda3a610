"""The files that run a plan: written into a folder, over our own of before and over nobody else's; and a plan's own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from headway.cli.called import spare_inputs
from headway.cli.journals import write_text
from headway.errors import UsageError

ENGINES_FILE = "engines.yaml"
GATEWAY_OBJECTS_FILE = "gateway.yaml"
"""Kubernetes' objects of a gateway in the cluster."""
PLUGIN_FILE = "device-plugin.yaml"
GATEWAY_FILE = "config/gateway.yaml"
"""The gateway's own file, which is no object: kubectl does not look into folders below the one that it is given."""
MANIFESTS = (ENGINES_FILE, GATEWAY_OBJECTS_FILE, PLUGIN_FILE, GATEWAY_FILE)
"""All that `plan manifests` may write, below its folder."""
_KIND = re.compile(r"""^[{ ]*["']?kind["']?:\s*["']?(headway-[a-z]+)\b""", re.MULTILINE)
"""Of a headway file, YAML or JSON, which is not parsed for it: that may take seconds."""


def write_files(folder: Path, verb: str, texts: Mapping[str, str], *, inputs: Sequence[Path]) -> None:
    """Write all, and say so; nothing where one of them may not be written.

    Each begins with a line that names the verb, by which the next run knows that it may write over it.

    Args:
        folder: made where it is missing.
        verb: "plan manifests".
        texts: by name below the folder.
        inputs: files that were read.

    Raises:
        UsageError: a file is an input, or is there and is not by this verb, or cannot be written.
    """
    paths = {folder / name: text for name, text in texts.items()}
    spare_inputs(paths, inputs)
    for path in paths:
        if path.is_file() and not is_by(path, verb):
            raise UsageError(
                f"is there, and was not written by headway {verb}",
                where=str(path),
                hint="move it, or write somewhere else with -o",
            )
    for path, text in paths.items():
        _folder(path.parent)
        write_text(path, f"{_mark(verb)}\n{text}")
        print(f"wrote {path}")


def check_output(path: Path, kind: str) -> None:
    """UsageError where something is there that is no file of this kind; an empty file, or what is no file, may be.

    Args:
        path: of a file that is to be written.
        kind: "headway-plan".
    """
    if path.is_dir():
        raise UsageError("is a folder", where=str(path), hint="name a file in it")
    if not path.is_file():  # a terminal, /dev/null
        return
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"cannot read it: {error.strerror}", where=str(path)) from None
    found = _KIND.search(text)
    is_kind = found[1] if found is not None else "no file of ours"
    if text.strip() and is_kind != kind:
        raise UsageError(
            f"is {is_kind}, and {kind} would be written over it",
            where=str(path),
            hint="move it, or write somewhere else with -o",
        )


def remove_stale(folder: Path, verb: str, names: Sequence[str]) -> None:
    """Remove those of the files that this verb wrote once, and say so. UsageError where that is impossible."""
    for name in names:
        path = folder / name
        if not path.is_file() or not is_by(path, verb):
            continue
        try:
            path.unlink()
        except OSError as error:
            raise UsageError(f"cannot remove it: {error.strerror}", where=str(path)) from None
        print(f"removed {path}, which this plan does not have")


def is_by(path: Path, verb: str) -> bool:
    """Whether a verb wrote the file. UsageError where it cannot be read."""
    mark = _mark(verb).encode()
    try:
        with path.open("rb") as file:
            return file.readline(len(mark) + 1).rstrip(b"\n") == mark
    except OSError as error:
        raise UsageError(f"cannot read it: {error.strerror}", where=str(path)) from None


def _mark(verb: str) -> str:
    return f"# Written by headway {verb}, which writes it anew each time: changes made here are lost."


def _folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make it: {error.strerror}", where=str(path)) from None
