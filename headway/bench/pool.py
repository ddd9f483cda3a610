"""Runs the cells of a sweep on all cores or on a Ray cluster, and keeps every row as soon as there is one.

A folder holds the rows, one JSON line each, appended and flushed as cells end; a run that is killed leaves whole lines
but at most one, which the next run drops. The next run with the same cells takes the rows that are there and runs the
rest; failed cells are tried again. Rows of other cells, or of another version of the code, move to `aside.jsonl`, and
come back when they fit again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import headway
from headway.bench import ray_pool, worker_pool
from headway.bench.attempt import Attempt, Function
from headway.errors import HeadwayError, UsageError
from headway.lab.signals import Deferred
from headway.sim.studies.cells import Cell, Row, parse_row

ROWS = "rows.jsonl"
ASIDE = "aside.jsonl"
MODEL_PARTS = ("cluster", "collectives", "decide", "interleave", "lab", "observe", "serving", "sim")
"""What a simulated result depends on."""


class InterruptedSweepError(HeadwayError):
    """Somebody asked the run to end; what there was is kept."""


class Progress(Protocol):
    """Shows how far a run is. Used as a context manager around it."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def begin(self, *, total: int, kept: int, aside: int) -> None:
        """`total` cells, of which `kept` have a row already; `aside` rows fit no cell."""
        ...

    def row(self, row: Row) -> None:
        """One more cell has ended."""
        ...


class Quiet:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def begin(self, *, total: int, kept: int, aside: int) -> None:
        """Nothing to show."""

    def row(self, row: Row) -> None:
        """Nothing to show."""


@cache
def code_version() -> str:
    """Headway's version and a hash of the sources that a simulated result depends on."""
    root = Path(headway.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(file for part in MODEL_PARTS for file in (root / part).rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{headway.__version__}+{digest.hexdigest()[:12]}"


def run_cells(
    cells: Sequence[Cell],
    function: Function,
    *,
    workers: int,
    out: Path,
    progress: Progress | None = None,
    ray: str | None = None,
    limit_s: float | None = None,
) -> list[Row]:
    """Run every cell that has no row in `out` yet, and return all rows in the order of `cells`.

    Args:
        cells: what to run; no two alike.
        function: gets a cell's `work`, returns the row's `values`; both JSON. It must be importable by its name, since
            other processes run it. What it raises becomes the row's `error`.
        workers: processes; 0 runs the cells here, one after the other.
        out: folder of the rows; made if need be.
        progress: shows how far it is.
        ray: address of a Ray cluster that runs the cells instead of local processes, or `auto`.
        limit_s: a cell that takes longer is ended, and fails. None: no limit. Only with processes.

    Raises:
        InterruptedSweepError: on Ctrl-C, SIGTERM or SIGHUP; the rows so far are in `out`.
        UsageError: two cells are alike; the folder holds something else, cannot be written, or is in use; there is no
            such Ray cluster.
    """
    if limit_s is not None and (ray is not None or workers == 0):
        raise UsageError("a limit for each cell needs local worker processes")
    version = code_version()
    keys = [cell.key(f"{version} {function.__qualname__}") for cell in cells]
    if len(set(keys)) < len(keys):
        twice = next(cell for cell, key in zip(cells, keys, strict=True) if keys.count(key) > 1)
        raise UsageError(f"two cells are alike: {dict(twice.parameters)}")
    with _Store(out) as store, progress or Quiet() as shown:
        aside = store.take_in(keys)
        shown.begin(total=len(cells), kept=len(store.rows), aside=aside)
        todo = [(cell, key) for cell, key in zip(cells, keys, strict=True) if key not in store.rows]
        with Deferred() as signals, _attempts(function, todo, workers, version, ray, limit_s, signals) as attempts:
            try:
                for attempt in attempts:
                    cell, key = todo[attempt.index]
                    row = Row(key, cell.parameters, attempt.values, attempt.error, attempt.wall_s)
                    store.append(row)
                    shown.row(row)
            except (KeyboardInterrupt, SystemExit):
                have = len(store.rows)
                raise InterruptedSweepError(
                    f"interrupted: {have} of {len(cells)} cells are in {out}; the same command goes on from there"
                ) from None
        store.put_in_order(keys)
        return [store.rows[key] for key in keys]


def _attempts(
    function: Function,
    todo: Sequence[tuple[Cell, str]],
    workers: int,
    version: str,
    ray: str | None,
    limit_s: float | None,
    signals: Deferred,
) -> AbstractContextManager[Iterator[Attempt]]:
    works = [cell.work for cell, _ in todo]
    check: Callable[[], None] = signals.check
    if ray is not None:
        return ray_pool.attempts(function, works, address=ray, version=version, check=check)
    return worker_pool.attempts(function, works, workers=workers, limit_s=limit_s, check=check)


class _Store:
    """The rows in a folder. Use as a context manager: one run at a time may have it."""

    def __init__(self, out: Path) -> None:
        self._path, self._aside_path = out / ROWS, out / ASIDE
        self._lock_path = out / ".lock"
        self.rows: dict[str, Row] = {}
        try:
            out.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self._lock_path, os.O_CREAT | os.O_RDWR, 0o644)
            self._file = self._path.open("ab")
        except OSError as error:
            raise UsageError(f"cannot write there: {error.strerror}", where=str(out)) from None
        try:
            os.lockf(self._lock, os.F_TLOCK, 0)
        except OSError:
            self._close()
            raise UsageError("another run is writing there", where=str(out)) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        self._file.close()
        os.close(self._lock)

    def take_in(self, keys: Sequence[str]) -> int:
        """Keep the good rows of these keys; the others go aside. Returns how many newly did."""
        wanted = set(keys)
        mine, aside = read_rows(self._path), read_rows(self._aside_path)
        good = {row.key: row for row in (*aside, *mine) if not row.error}
        self.rows = {key: good[key] for key in keys if key in good}
        left = {key: row for key, row in good.items() if key not in wanted}
        newly = len({row.key for row in mine} & left.keys())
        if left or aside:
            _replace(self._aside_path, list(left.values()))
        self._rewrite(list(self.rows.values()))
        return newly

    def append(self, row: Row) -> None:
        """Write one row through to the system, whole."""
        self.rows[row.key] = row
        self._file.write(row.to_line().encode() + b"\n")
        self._file.flush()

    def put_in_order(self, keys: Sequence[str]) -> None:
        """The file in the order of the cells."""
        self._rewrite([self.rows[key] for key in keys])

    def _rewrite(self, rows: Sequence[Row]) -> None:
        self._file.close()
        _replace(self._path, rows)
        self._file = self._path.open("ab")


def _replace(path: Path, rows: Sequence[Row]) -> None:
    """Write a file anew; whoever reads it sees the old one or the new one."""
    new = path.with_name(path.name + ".new")
    with new.open("wb") as file:
        file.writelines(row.to_line().encode() + b"\n" for row in rows)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def read_rows(path: Path) -> list[Row]:
    """The rows in a file; none where there is no file. A last line that was cut off is left out.

    UsageError names file and line of what is no row.
    """
    try:
        text = path.read_bytes().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"cannot read the rows: {error.strerror}", where=str(path)) from None
    whole = text.split("\n")[:-1]
    return [parse_row(line, where=f"{path}:{number}") for number, line in enumerate(whole, start=1) if line.strip()]
