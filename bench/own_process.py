"""What the scripts that measure each case in a process of its own share."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

C = TypeVar("C")
R = TypeVar("R")


def measured(measure: Callable[[C], R], cases: Sequence[C]) -> list[R]:
    """`measure` of each case, one after the other, each in a new process."""
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        return pool.map(measure, cases, chunksize=1)


def write(out: Path, found: Mapping[str, Sequence[DataclassInstance]]) -> None:
    """The figures as JSON, with the machine that they are of."""
    out.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}",
        **{name: [asdict(each) for each in figures] for name, figures in found.items()},
    }
    out.write_text(json.dumps(document, indent=1) + "\n")
