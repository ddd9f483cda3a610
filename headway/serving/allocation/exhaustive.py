"""The best of all plans, by looking at every one: to know what a search misses. Pure.

Every combination of shapes and replica counts whose slices are not more than there are is written down, and the first
that can be packed, from the cheapest on, is the best. No bound and no rule is used, only `goal` and `packing`.

Cost: the product of the models' options, cut after each model to those with slices left: 1e5 for 3 models on 4 GPUs
in tenths, 1e8 for 5 on 16, which it refuses.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headway.errors import UsageError
from headway.serving.allocation.goal import STILL, goal
from headway.serving.allocation.options import Floats, Ints, Options
from headway.serving.allocation.packing import shares_fit
from headway.serving.allocation.predict import Predictor
from headway.serving.allocation.search import Found, Room, no_room, planned, room, tables_of
from headway.serving.allocation.types import Demand, Plan, Share

MOST = 20_000_000
"""Combinations that are written down at once (count): about 1 GB."""


def exhaustive(
    demands: Sequence[Demand],
    predictor: Predictor,
    *,
    gpus: int,
    slices_per_gpu: int,
    domain_gpus: int | Sequence[int],
    gpu_bytes: int | None = None,
) -> Plan:
    """The best plan there is. Arguments and errors as `search.search`; UsageError also where there are too many."""
    there = room(gpus, slices_per_gpu, domain_gpus, gpu_bytes)
    return planned(demands, predictor, there, explore_all(demands, predictor, there))


def explore_all(demands: Sequence[Demand], predictor: Predictor, there: Room) -> Found:
    """As `exhaustive`, not yet as a plan."""
    tables = tables_of(demands, predictor, there)
    costs = goal(demands, tables)
    shares, cost, looked = _first(tables, costs.costs, there, worst=False)
    if shares is not None:
        return Found(shares, costs.constant + cost, 1.0, True, looked)
    shares, inverse, more = _first(tables, [1.0 / table.headroom for table in tables], there, worst=True)
    if shares is None:
        raise UsageError(no_room(demands, tables, there))
    slower = tables_of(demands, predictor, there, rate_factor=STILL / inverse)
    enough = [table.only(table.headroom >= (1 - 1e-9) / inverse) for table in slower]
    costs = goal(demands, enough)
    later, cost, latest = _first(enough, costs.costs, there, worst=False)
    return Found(later or shares, costs.constant + cost, min(1.0, 1.0 / inverse), True, looked + more + latest)


def _first(
    tables: Sequence[Options], costs: Sequence[Floats], there: Room, *, worst: bool
) -> tuple[tuple[Share, ...] | None, float, int]:
    """The cheapest combination that can be packed, its cost, and how many combinations there were."""
    capacity = sum(there.domains) * there.slices_per_gpu
    slices: Ints = np.zeros(1, dtype=np.int64)
    total: Floats = np.full(1, -np.inf if worst else 0.0)
    picked = np.zeros((1, 0), dtype=np.int16)
    for table, cost in zip(tables, costs, strict=True):
        allowed = np.flatnonzero(np.isfinite(cost))
        if len(slices) * len(allowed) > MOST:
            raise UsageError(
                f"there are more than {MOST:,} combinations of shapes and replicas",
                hint="search finds the best without",
            )
        before, option = (grid.ravel() for grid in np.meshgrid(np.arange(len(slices)), allowed, indexing="ij"))
        more = slices[before] + table.slices[option]
        room_left = more <= capacity
        before, option, slices = before[room_left], option[room_left], more[room_left]
        total = np.maximum(total[before], cost[option]) if worst else total[before] + cost[option]
        picked = np.column_stack([picked[before], option.astype(np.int16)])
    for at in np.argsort(total, kind="stable"):
        shares = tuple(table.shares[int(index)] for table, index in zip(tables, picked[at], strict=True))
        if shares_fit(shares, there.domains, there.slices_per_gpu):
            return shares, float(total[at]), len(total)
    return None, float("inf"), len(total)
