"""Measuring: every backend in turn in every iteration, so that noise and load hit all of them alike."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from headway.bench.control import Switchboard
from headway.bench.data import Cell
from headway.bench.families import Family, Site, check_installed, family_of
from headway.bench.measures import size_of
from headway.bench.results import Row
from headway.bench.worker import PreparePart, Reply, RunPart
from headway.errors import HeadwayError, UsageError

BATCH_BYTES = 1 << 20
"""Iterations below this many bytes in all run back to back: a barrier in between would cost more than they do."""

POLICIES = ("packing", "react", "off")
START_LIMIT_S = 90.0

_Part = TypeVar("_Part", PreparePart, RunPart)


def parse_backends(text: str) -> tuple[str, ...]:
    """`headway,gloo,headway:react` -> names as rows show them; `headway` alone is `headway:packing`. UsageError."""
    names: list[str] = []
    for part in text.split(","):
        name, colon, policy = part.strip().partition(":")
        if name not in ("headway", "gloo", "openmpi", "mpich"):
            raise UsageError(f"unknown backend {name!r}", where="--backends", hint="headway, gloo, openmpi, mpich")
        if colon and name != "headway":
            raise UsageError(f"{name} has no policies", where="--backends", hint="headway:react")
        if name == "headway":
            policy = policy or "packing"
            if policy not in POLICIES:
                raise UsageError(
                    f"{policy!r} is no policy", where="--backends", hint=f"headway: then one of {', '.join(POLICIES)}"
                )
            name = f"headway:{policy}"
        if name in names:
            raise UsageError(f"{name} twice", where="--backends")
        names.append(name)
    return tuple(names)


@dataclass(frozen=True)
class Measurement:
    """How to measure a cell.

    Attributes:
        iterations: timed ones (`-n`).
        warmup: iterations before, which are run and recorded but do not count (`-w`).
        checks: how many of the last timed iterations have every element checked (`-c`); 0 for none.
        budget_s: a backend whose timed iterations have taken this long together stops; then every one is checked,
            since any may be the last. None: no limit.
    """

    iterations: int
    warmup: int
    checks: int
    budget_s: float | None = None


class Ranks(Protocol):
    """All ranks of all backends, wherever they run."""

    def prepare(self, part: PreparePart) -> Sequence[Reply]:
        """Have every rank of the part's backend prepare; replies in the order of ranks."""
        ...

    def run(self, part: RunPart) -> Sequence[Reply]:
        """Have every rank of the part's backend run."""
        ...


class StartedRanks:
    """Ranks that this process started: see `started`. A family that failed once is not asked again."""

    def __init__(self, board: Switchboard, families: dict[str, Family], *, ranks: int, timeout_s: float) -> None:
        self._board, self._families, self._ranks, self._timeout_s = board, families, ranks, timeout_s
        self._broken: dict[str, str] = {}

    def prepare(self, part: PreparePart) -> Sequence[Reply]:
        """See `Ranks`."""
        return self._ask(part)

    def run(self, part: RunPart) -> Sequence[Reply]:
        """See `Ranks`."""
        return self._ask(part)

    def _ask(self, part: PreparePart | RunPart) -> Sequence[Reply]:
        family = family_of(part.backend)
        if family in self._broken:
            raise HeadwayError(f"its processes failed earlier: {self._broken[family]}")
        # The ranks' own limits are the same; the coordinator waits a little longer, so that theirs name the culprit.
        iterations = part.iterations if isinstance(part, RunPart) else 1
        limit_s = self._timeout_s * max(1, iterations) + 10
        try:
            return self._board.ask(family, self._ranks, part, timeout_s=limit_s)
        except HeadwayError as error:
            trouble = self._families[family].trouble()
            self._broken[family] = f"{error}; {trouble}" if trouble else str(error)
            raise HeadwayError(self._broken[family]) from None


@contextmanager
def started(site: Site, backends: Sequence[str], *, timeout_s: float, journals: str = "") -> Iterator[StartedRanks]:
    """Start every family that `backends` need on `site`, and end them all at the end.

    Args:
        journals: folder for the journals of headway groups, `headway-POLICY.jsonl`; empty: they only tell the plan in
            use, and are thrown away.

    Raises:
        UsageError: a peer is not installed.
        HeadwayError: a family did not come up; says what it printed.
    """
    names = tuple(dict.fromkeys(family_of(backend) for backend in backends))
    for name in names:
        check_installed(name)
    families: dict[str, Family] = {}
    with tempfile.TemporaryDirectory(prefix="headway-bench-") as text:
        folder = Path(text)
        board = Switchboard(folder / "control")
        try:
            for name in names:
                families[name] = Family(
                    name, site, socket_path=board.path, folder=folder, journals=journals or text, timeout_s=timeout_s
                )
            for name in names:
                board.gather_family(name, site.ranks, timeout_s=START_LIMIT_S, alive=families[name].trouble)
            yield StartedRanks(board, families, ranks=site.ranks, timeout_s=timeout_s)
        except BaseException:
            # Ranks that may hang in a collective or in start-up are not waited for.
            board.close()
            for family in families.values():
                family.close(grace_s=0.5)
            raise
        finally:
            board.close()
            for family in families.values():
                family.close()


class _Gathering:
    """One backend's row while it is being measured."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.warmup_s: list[float] = []
        self.iterations_s: list[float] = []
        self.wrong: int | None = None
        self.plan = ""
        self.error = ""

    def take(self, replies: Sequence[Reply], *, timed: bool) -> None:
        for reply in replies:
            if reply.error:
                self.error = f"rank {reply.rank}: {reply.error}"
                return
        slowest = [max(times) for times in zip(*(reply.times_s for reply in replies), strict=True)]
        (self.iterations_s if timed else self.warmup_s).extend(slowest)
        checked = [reply.wrong for reply in replies if reply.wrong is not None]
        if checked:
            self.wrong = (self.wrong or 0) + sum(checked)
        self.plan = next((reply.plan for reply in replies if reply.plan), self.plan)

    def call(self, ask: Callable[[_Part], Sequence[Reply]], part: _Part, *, timed: bool) -> None:
        try:
            self.take(ask(part), timed=timed)
        except HeadwayError as error:
            self.error = str(error)

    def spent(self, budget_s: float | None) -> bool:
        return budget_s is not None and len(self.iterations_s) >= 1 and sum(self.iterations_s) >= budget_s

    def done(self) -> Row:
        return self.row.model_copy(
            update={
                "iterations_s": self.iterations_s,
                "warmup_s": self.warmup_s,
                "wrong": self.wrong,
                "plan": self.plan,
                "error": self.error,
            }
        )


def measure(
    ranks: Ranks,
    backends: Sequence[str],
    cell: Cell,
    how: Measurement,
    *,
    condition: str = "",
    between: Callable[[], None] = lambda: None,
) -> list[Row]:
    """One row per backend. Wrong results and failures are in the rows, not raised.

    Args:
        between: called before each round of all backends, outside every timed region.
    """
    size_bytes = size_of(cell.collective, cell.count, cell.kind.element_bytes, cell.ranks)
    gatherings = {backend: _Gathering(_empty_row(backend, cell, size_bytes, condition)) for backend in backends}
    for backend, gathering in gatherings.items():
        part = prepare_part(backend, cell)
        gathering.call(ranks.prepare, part, timed=False)
    batch = max(1, BATCH_BYTES // max(1, size_bytes))
    for timed, total in ((False, how.warmup), (True, how.iterations)):
        left = dict.fromkeys(gatherings, total)
        while any(left.values()):
            between()
            for backend, gathering in gatherings.items():
                if gathering.error or not left[backend] or (timed and gathering.spent(how.budget_s)):
                    left[backend] = 0
                    continue
                now = min(batch, left[backend])
                left[backend] -= now
                check = timed and bool(how.checks) and (left[backend] < how.checks or how.budget_s is not None)
                gathering.call(ranks.run, RunPart(backend=backend, iterations=now, check=check), timed=timed)
    return [gathering.done() for gathering in gatherings.values()]


def prepare_part(backend: str, cell: Cell) -> PreparePart:
    """The message that gets `backend` ready for `cell`."""
    return PreparePart(
        backend=backend,
        collective=cell.collective,
        count=cell.count,
        type=cell.kind.name,
        redop=cell.redop,
        root=cell.root,
        ranks=cell.ranks,
        seed=cell.seed,
    )


def _empty_row(backend: str, cell: Cell, size_bytes: int, condition: str) -> Row:
    return Row(
        backend=backend,
        collective=cell.collective,
        size_bytes=size_bytes,
        count=cell.count,
        type=cell.kind.name,
        redop=cell.redop,
        root=cell.root,
        ranks=cell.ranks,
        iterations_s=[],
        condition=condition,
    )
