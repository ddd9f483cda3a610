"""What a plan is for, as one figure: throughput first, then latency, and no workflow starved. Pure.

1. A plan carries the demands where every workflow's T_w is above its rate, that is where every model's headroom is
   above 1. Of plans that carry them, the best has the least

       cost = mean over w of L_w / B_w

   where B_w is the latency that w would have if every model had all GPUs for itself: each workflow counts as much as
   any other, whether its runs take a second or a minute, and 1 is a bound that no plan beats.
2. Where no plan does, the best has the largest common fraction: the least headroom of all models, which is the part of
   every workflow's rate that can be served at once. Of those, the best has the least cost at STILL of that fraction of
   the rates.

Where workflows have limits on their latency (`fewest`), only plans count that carry the demands and keep all limits; of
these the best has the least cost of 1. Limits are not part of the cost: a plan just within all of them is as good as
any other that costs as much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headway.serving.allocation.branch import Limit
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


def limits(demands: Sequence[Demand], tables: Sequence[Options], limits_s: Mapping[str, float]) -> tuple[Limit, ...]:
    """What the models' terms may add up to, for each workflow that has a limit.

    With several there is one more, which adds nothing but lets a search see that it cannot keep all of them together:
    the sum of the workflows' latencies, each over its limit, is at most their number.

    Args:
        demands: the workflows.
        tables: what each model may get.
        limits_s: mean latency by workflow, seconds; those that are not in it have none.
    """
    found = []
    for at, demand in enumerate(demands):
        limit_s = limits_s.get(demand.aggregate.workflow)
        if limit_s is not None:
            terms = tuple(table.latencies_s[:, at] for table in tables)
            found.append(Limit(terms, limit_s - demand.aggregate.other_s))
    if len(found) > 1 and all(limit.most > 0 for limit in found):
        together = tuple(
            np.asarray(sum(limit.terms[at] / limit.most for limit in found), dtype=np.float64)
            for at in range(len(tables))
        )
        found.append(Limit(together, float(len(found))))
    return tuple(found)
