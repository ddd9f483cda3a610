"""What a run of the bench found, as a JSON document (`-J`) with every iteration's time.

`bench/README.md` describes the fields; `Results.model_json_schema()` is the same as a JSON schema.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from headway.bench.measures import bus_factor, percentile, variation_percent
from headway.collectives.plan import Collective


class Row(BaseModel):
    """One backend at one size.

    Attributes:
        backend: as asked for: `gloo`, `headway:packing`, `openmpi`, `mpich`.
        collective, size_bytes, count, type, redop, root: as nccl-tests names them.
        ranks: world size.
        iterations_s: time of each timed iteration, the maximum over ranks.
        warmup_s: the same of the warm-up iterations, which count for nothing else.
        wrong: elements that were wrong, over all ranks and checked iterations; None when nothing was checked.
        plan: the plan in use at the end, in the backend's own words; empty when it does not say.
        limit_s: time that no plan can beat on the cluster as it was, None when the cluster is unknown.
        bottleneck: the link that makes the limit.
        condition: what loaded the network meanwhile, in words; empty for nothing.
        error: why there is no figure; empty when there is one.
    """

    model_config = ConfigDict(extra="forbid")

    backend: str
    collective: Collective
    size_bytes: int
    count: int
    type: str
    redop: str
    root: int
    ranks: int
    iterations_s: list[float]
    warmup_s: list[float] = Field(default_factory=list)
    wrong: int | None = None
    plan: str = ""
    limit_s: float | None = None
    bottleneck: str = ""
    condition: str = ""
    error: str = ""

    @property
    def time_s(self) -> float:
        """Mean time of an iteration, as nccl-tests reports it; not a number when nothing was timed."""
        return statistics.fmean(self.iterations_s) if self.iterations_s else float("nan")

    @property
    def median_s(self) -> float:
        """Median time of an iteration."""
        return statistics.median(self.iterations_s) if self.iterations_s else float("nan")

    @property
    def p99_s(self) -> float:
        """99th percentile over iterations."""
        return percentile(self.iterations_s, 99) if self.iterations_s else float("nan")

    @property
    def cv_percent(self) -> float:
        """Variation over iterations, in percent of the mean."""
        return variation_percent(self.iterations_s)

    @property
    def algbw_Bps(self) -> float:
        """size / mean time, bytes per second."""
        return self.size_bytes / self.time_s if self.iterations_s and self.time_s > 0 else float("nan")

    @property
    def busbw_Bps(self) -> float:
        """algbw times nccl-tests' factor."""
        return self.algbw_Bps * bus_factor(self.collective, self.ranks)

    @property
    def limit_percent(self) -> float | None:
        """How much of the bandwidth that is possible this is: limit / mean time, in percent."""
        if self.limit_s is None or not self.iterations_s or self.time_s <= 0:
            return None
        return 100 * self.limit_s / self.time_s


class Results(BaseModel):
    """One run of the bench. Times in seconds, sizes in bytes."""

    model_config = ConfigDict(extra="forbid")

    v: Literal[1] = 1
    headway: str
    where: str
    command: list[str]
    rows: list[Row] = Field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether anything was wrong or had no figure."""
        return any(row.wrong or row.error for row in self.rows)

    def save(self, path: Path) -> None:
        """Write the document so that a reader never sees half of it."""
        partial = path.with_name(path.name + ".part")
        partial.write_text(self.model_dump_json(indent=1) + "\n")
        partial.replace(path)


def load(path: Path) -> Results:
    """Read what `save` wrote."""
    return Results.model_validate_json(path.read_text())
