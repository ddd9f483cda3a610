"""Parts of a CPU for processes, as MPS gives parts of a GPU: a ceiling that the kernel enforces.

A control group of the cpu controller with a quota: `cpu.max` (version 2) or `cpu.cfs_quota_us` (version 1), whichever
can be written here. The period is short, so that a part looks like a slower CPU rather than one that stops.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PERIOD_US = 10_000
WEIGHT = 20
"""Against a process of the usual priority (1)."""
_ROOTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/cpu,cpuacct"))
_LIMIT_S = 5.0


class NoSharesError(Exception):
    """This machine does not let us limit processes; the text says why."""


def root() -> Path:
    """A folder in which groups with a quota can be made. NoSharesError where there is none."""
    for folder in _ROOTS:
        quota = _quota_file(folder)
        if quota is None:
            continue
        probe = folder / f"headway-probe-{os.getpid()}"
        try:
            probe.mkdir()
        except OSError:
            continue
        try:
            if _quota_file(probe, inside=True) is not None:
                return folder
        finally:
            probe.rmdir()
    raise NoSharesError("no control group with a CPU quota can be made here (root, and a writable cpu controller)")


@contextmanager
def cpu_share(name: str, cpus: float) -> Iterator[Path]:
    """A group whose processes have so many CPUs together; put one in with `join`. It must be empty in the end."""
    folder = root() / f"headway-{name}-{os.getpid()}"
    folder.mkdir()
    try:
        quota = _quota_file(folder, inside=True)
        if quota is None:
            raise NoSharesError(f"{folder} has no quota")
        if quota.name == "cpu.max":
            quota.write_text(f"{round(cpus * PERIOD_US)} {PERIOD_US}")
            (folder / "cpu.weight").write_text(str(100 * WEIGHT))
        else:
            (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            quota.write_text(str(round(cpus * PERIOD_US)))
            (folder / "cpu.shares").write_text(str(1024 * WEIGHT))
        yield folder
    finally:
        _remove(folder)


def join(folder: Path, pid: int) -> None:
    """Put a process into a group, with all its threads."""
    (folder / "cgroup.procs").write_text(str(pid))


def _quota_file(folder: Path, *, inside: bool = False) -> Path | None:
    if (folder / "cpu.cfs_quota_us").exists():
        return folder / "cpu.cfs_quota_us"
    controllers = folder / "cgroup.subtree_control"
    if inside:
        return folder / "cpu.max" if (folder / "cpu.max").exists() else None
    return controllers if controllers.exists() and "cpu" in controllers.read_text().split() else None


def _remove(folder: Path) -> None:
    """A group can go when its last process has been waited for."""
    until_s = time.monotonic() + _LIMIT_S
    while True:
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.05)
        else:
            return
