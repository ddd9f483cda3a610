"""A whole run of the bench: sizes times backends, where the command line says, rows as they come."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import headway
from headway.bench.data import DATA_TYPES, REDUCTIONS, Cell
from headway.bench.measures import count_of, size_of
from headway.bench.results import Results, Row
from headway.bench.session import Measurement, Ranks, measure
from headway.cluster.model import Cluster
from headway.collectives.limits import lower_bound
from headway.collectives.plan import Collective
from headway.errors import UsageError

SEED = 20260903


@dataclass(frozen=True)
class Request:
    """What to measure.

    Attributes:
        collective: which one.
        sizes_bytes: sizes of the whole vector, before rounding down to whole elements.
        type: element type, nccl-tests' name.
        redop: reduction; ignored where nothing is reduced.
        root: of broadcast and reduce; ignored elsewhere.
        backends: in the order of the rows.
        how: iterations, warm-up, checks.
    """

    collective: Collective
    sizes_bytes: Sequence[int]
    type: str
    redop: str
    root: int
    backends: Sequence[str]
    how: Measurement

    def __post_init__(self) -> None:
        if self.type not in DATA_TYPES:
            raise UsageError(f"unknown type {self.type!r}", where="-d", hint=", ".join(DATA_TYPES))
        if self.redop not in REDUCTIONS:
            raise UsageError(f"unknown reduction {self.redop!r}", where="-o", hint=", ".join(REDUCTIONS))
        if self.how.iterations < 1:
            raise UsageError("needs at least one iteration", where="-n")
        if self.how.warmup < 0 or self.how.checks < 0:
            raise UsageError("must not be negative", where="-w" if self.how.warmup < 0 else "-c")

    def cell(self, size_bytes: int, ranks: int) -> Cell:
        """The cell of one size."""
        kind = DATA_TYPES[self.type]
        rooted = self.collective in (Collective.BROADCAST, Collective.REDUCE)
        return Cell(
            collective=self.collective,
            count=count_of(self.collective, size_bytes, kind.element_bytes, ranks),
            kind=kind,
            redop=self.redop if self.collective.reduces else "none",
            root=self.root if rooted else -1,
            ranks=ranks,
            seed=SEED,
        )

    def cells(self, ranks: int) -> list[Cell]:
        """The cell of every size; sizes that round down to the same count are one.

        Raises:
            UsageError: a size is less than one element for each rank, or a cell cannot be.
        """
        element_bytes = DATA_TYPES[self.type].element_bytes
        least = size_of(self.collective, 1, element_bytes, ranks)
        short = min(self.sizes_bytes, default=least)
        if short < least:
            each = f" for each of {ranks} ranks" if least > element_bytes else ""
            raise UsageError(f"{short} B is less than one {self.type}{each}", where="-b", hint=f"at least {least}B")
        return list(dict.fromkeys(self.cell(size_bytes, ranks) for size_bytes in self.sizes_bytes))


def with_limit(row: Row, cluster: Cluster | None) -> Row:
    """The row with the limit of `cluster` as it is now, and the link that makes it."""
    if cluster is None or row.error:
        return row
    bound = lower_bound(cluster, row.collective, row.size_bytes, root=max(0, row.root))
    return row.model_copy(update={"limit_s": bound.time_s, "bottleneck": bound.what})


def new_results(where: str) -> Results:
    """An empty document that says how it came to be."""
    return Results(headway=headway.__version__, where=where, command=sys.argv[1:])


def run_request(
    ranks: Ranks,
    world_size: int,
    request: Request,
    *,
    cluster: Callable[[], Cluster | None] = lambda: None,
    condition: str = "",
    on_row: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """All rows of `request`. Sizes that round down to the same count are measured once.

    Args:
        cluster: the capacities at the time of the call, for the limit.
        on_row: called with each row as soon as it is complete.
    """
    rows: list[Row] = []
    for cell in request.cells(world_size):
        for row in measure(ranks, request.backends, cell, request.how, condition=condition):
            rows.append(with_limit(row, cluster()))
            on_row(rows[-1])
    return rows
