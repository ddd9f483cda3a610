"""Processes that tests have started."""

from __future__ import annotations

import time
from pathlib import Path


def members(session: int) -> list[int]:
    """Processes of a session that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def left(session: int, *, within_s: float = 10.0) -> list[int]:
    """Processes of a session that run after so long; ends as soon as there are none."""
    end_s = time.monotonic() + within_s
    while (found := members(session)) and time.monotonic() < end_s:
        time.sleep(0.05)
    return found
