"""A grid of conditions and sizes in one lab, saved as it grows, so that an interrupted run keeps what it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.bench.data import DATA_TYPES, Cell
from headway.bench.lab_site import LabSite, in_force
from headway.bench.measures import count_of
from headway.bench.results import Results, Row
from headway.bench.run import SEED, with_limit
from headway.bench.session import Measurement, measure, started
from headway.bench.settle import Settling, settle
from headway.collectives.plan import Collective
from headway.errors import HeadwayError
from headway.lab.files import load_scenario
from headway.lab.lab import Lab


@dataclass(frozen=True)
class Grid:
    """What to measure.

    Attributes:
        base: scenario of the lab.
        conditions: names and, for each, the scenario whose events are in force; the base itself for none.
        sizes_bytes: vector sizes of an all-reduce of float32.
        backends: all in one run.
        how: iterations of each cell.
        settle_size_bytes: headway backends run this size under each condition until their plan rests.
        settle_limit_s: for at most this long.
        timeout_s: of each operation.
    """

    base: str
    conditions: dict[str, str]
    sizes_bytes: Sequence[int]
    backends: Sequence[str]
    how: Measurement
    settle_size_bytes: int
    settle_limit_s: float = 60.0
    timeout_s: float = 120.0

    def cell(self, size_bytes: int, ranks: int) -> Cell:
        """An all-reduce of that size."""
        count = count_of(Collective.ALL_REDUCE, size_bytes, 4, ranks)
        return Cell(Collective.ALL_REDUCE, count, DATA_TYPES["float"], "sum", -1, ranks, SEED)


def run_grid(
    grid: Grid,
    results: Results,
    out: Path,
    *,
    say: Callable[[str], None],
    on_row: Callable[[Row], None] = lambda row: None,
) -> None:
    """Measure every cell that `results` lacks, saving to `out` after each.

    `say` gets a line when a condition begins, and one for each headway backend that has settled.
    """
    have = {(row.condition, row.size_bytes) for row in results.rows}
    with Lab.up(load_scenario(grid.base)) as lab:
        lab.warm_up()
        site = LabSite(lab)
        with started(site, grid.backends, timeout_s=grid.timeout_s) as ranks:
            for condition, scenario in grid.conditions.items():
                cells = [grid.cell(size, site.ranks) for size in grid.sizes_bytes]
                cells = [cell for cell in cells if (condition, cell.count * cell.kind.element_bytes) not in have]
                if not cells:
                    continue
                with in_force(lab, load_scenario(scenario).events if scenario != grid.base else ()):
                    say(f"{condition}:")
                    for backend in grid.backends:
                        if not backend.startswith("headway"):
                            continue
                        rested = settle(
                            ranks, backend, grid.cell(grid.settle_size_bytes, site.ranks), least=16, quiet=10,
                            limit_s=grid.settle_limit_s,
                        )  # fmt: skip
                        say(f"  {backend} {_in_words(rested)}")
                    for cell in cells:
                        for row in measure(ranks, grid.backends, cell, grid.how, condition=condition):
                            results.rows.append(with_limit(row, lab.cluster(with_events=True)))
                            on_row(results.rows[-1])
                        results.save(out)
    if not results.rows:
        raise HeadwayError("nothing was measured")


def _in_words(rested: Settling) -> str:
    plan = rested.plans[-1] if rested.plans else ""
    if not rested.settled:
        return f"had not settled after {len(rested.times_s)} operations; now on {plan}"
    return f"settled after {rested.operations} operations on {plan}"
