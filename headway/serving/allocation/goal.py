"""What a plan is for, as one figure: throughput first, then latency, and no workflow starved. Pure.

1. A plan carries the demands where every workflow's T_w is above its rate, that is where every model's headroom is
   above 1. Of plans that carry them, the best has the least

       cost = mean over w of L_w / B_w

   where B_w is the latency that w would have if every model had all GPUs for itself: each workflow counts as much as
   any other, whether its runs take a second or a minute, and 1 is a bound that no plan beats.
2. Where no plan does, the best has the largest common fraction: the least headroom of all models, which is the part of
   every workflow's rate that can be served at once. Of those, the best has the least cost at STILL of that fraction of
   the rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headway.serving.allocation.options import Floats, Options
from headway.serving.allocation.types import Demand

STILL = 0.9
"""Of the largest rates that can be carried, where latencies are compared if the demanded ones cannot (1). Ours."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The cost of every option, and what no option changes.

    Attributes:
        costs: for each model, of each of its options: its terms of the mean relative latency.
        constant: of the workflows' time without any call, in the same unit.
    """

    costs: tuple[Floats, ...]
    constant: float


def goal(demands: Sequence[Demand], tables: Sequence[Options]) -> Goal:
    """Costs from the tables' latencies; a workflow none of whose options keeps up makes all of them infinite."""
    other_s = np.array([demand.aggregate.other_s for demand in demands])
    best_s = other_s + np.sum([table.latencies_s.min(axis=0) for table in tables], axis=0)
    weight = np.where(best_s > 0, 1.0 / np.where(best_s > 0, best_s, 1.0), 0.0) / len(demands)
    costs = []
    for table in tables:
        with np.errstate(invalid="ignore"):
            cost = np.where(np.isfinite(table.latencies_s), table.latencies_s, 0.0) @ weight
        costs.append(np.where(np.isfinite(table.latencies_s).all(axis=1), cost, np.inf))
    return Goal(tuple(costs), float(other_s @ weight))
