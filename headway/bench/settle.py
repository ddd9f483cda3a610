"""Letting a backend that tunes itself come to rest before its settled speed is measured."""

from __future__ import annotations

import time
from dataclasses import dataclass

from headway.bench.data import Cell
from headway.bench.session import Ranks, prepare_part
from headway.bench.worker import RunPart
from headway.errors import HeadwayError


@dataclass(frozen=True)
class Settling:
    """How it came to rest: times of the operations (maximum over ranks), the plan of each, and whether it did rest."""

    times_s: tuple[float, ...]
    plans: tuple[str, ...]
    settled: bool

    @property
    def operations(self) -> int:
        """Operations until the last change of plan."""
        last = len(self.plans)
        while last > 1 and self.plans[last - 1] == self.plans[last - 2]:
            last -= 1
        return last - 1 if last else 0


def settle(ranks: Ranks, backend: str, cell: Cell, *, least: int, quiet: int, limit_s: float) -> Settling:
    """Run `cell` until the plan has stayed the same for `quiet` operations, and at least `least` have run.

    Gives up after `limit_s` seconds. HeadwayError when a rank fails.
    """
    for reply in ranks.prepare(prepare_part(backend, cell)):
        if reply.error:
            raise HeadwayError(f"{backend}: rank {reply.rank}: {reply.error}")
    times: list[float] = []
    plans: list[str] = []
    begin_s = time.monotonic()
    while time.monotonic() - begin_s < limit_s:
        replies = ranks.run(RunPart(backend=backend, iterations=1, check=False))
        for reply in replies:
            if reply.error:
                raise HeadwayError(f"{backend}: rank {reply.rank}: {reply.error}")
        times.append(max(reply.times_s[0] for reply in replies))
        plans.append(next((reply.plan for reply in replies if reply.plan), ""))
        if len(plans) >= max(least, quiet) and len(set(plans[-quiet:])) == 1:
            return Settling(tuple(times), tuple(plans), settled=True)
    return Settling(tuple(times), tuple(plans), settled=False)
