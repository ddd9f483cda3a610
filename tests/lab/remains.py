"""What is left of a lab on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from headway.lab import kernel


def remains(prefix: str) -> list[str]:
    """What is left of a lab on this machine: namespaces, mounts, files and processes."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    left = [mount for mount in mounts if f"/{prefix}" in mount]
    left += kernel.namespaces(prefix)
    left += [str(path) for path in kernel.runtime_directory().glob(f"lab-{prefix[2:-1]}")]
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = process.read_text(errors="replace")
        except OSError:
            continue
        if prefix in command and process.parent.name != str(os.getpid()):
            left.append(command)
    return left
