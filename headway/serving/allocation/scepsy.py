"""Shares of GPUs as Scepsy searches for them (arXiv 2604.15186), as far as notes on the paper tell. Pure.

    a. models in order of their part of the latency; vectors of shares in 1/f GPU in which a larger part never gets
       less, from each model's least (weights and KV cache) upwards;
    b. a vector is packed onto whole GPUs logically: what cannot be packed is dropped;
    c. for each model the tensor-parallel degrees and replica counts that use its share up, the degree at most the fast
       domain;
    d. throughput first, then latency, as `goal` has it;
    e. several workflows: an outer level splits whole GPUs between those that share no model, and rejects splits that
       starve one.

The vectors are not enumerated one by one: `branch.cheapest` finds the same best one by bounds. What differs from
`search`: the order rule, and whole GPUs for each group of workflows.

Loses where a small model that is called seldom needs memory, or a steep curve makes a little more GPU worth much to a
model of small latency share: the rule forbids both. `bench/allocation_search.py` measures by how much.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from headway.errors import UsageError
from headway.serving.allocation.branch import NODES, cheapest
from headway.serving.allocation.goal import STILL, goal
from headway.serving.allocation.options import Floats, Options, without_dominated
from headway.serving.allocation.packing import domain_sizes, shares_fit
from headway.serving.allocation.predict import Predictor
from headway.serving.allocation.search import Found, Room, no_room, planned, room, tables_of
from headway.serving.allocation.types import Demand, Plan, Share


def scepsy(
    demands: Sequence[Demand],
    predictor: Predictor,
    *,
    gpus: int,
    slices_per_gpu: int,
    domain_gpus: int | Sequence[int],
    gpu_bytes: int | None = None,
) -> Plan:
    """The plan of the paper's heuristic. Arguments and errors as `search.search`."""
    there = room(gpus, slices_per_gpu, domain_gpus, gpu_bytes)
    return planned(demands, predictor, there, explore_scepsy(demands, predictor, there))


def explore_scepsy(demands: Sequence[Demand], predictor: Predictor, there: Room) -> Found:
    """As `scepsy`, not yet as a plan."""
    groups = _groups(demands)
    if len(groups) == 1:
        return _group(demands, predictor, there)
    tables = tables_of(demands, predictor, there)
    costs = goal(demands, tables)
    cost_of = {
        share: float(cost)
        for table, each in zip(tables, costs.costs, strict=True)
        for share, cost in zip(table.shares, each, strict=True)
    }
    gpus = sum(there.domains)
    found = [_by_gpus(group, predictor, there, gpus - len(groups) + 1) for group in groups]
    best: tuple[tuple[float, float], list[Found]] | None = None
    for split in itertools.product(*found):
        if sum(split) > gpus:
            continue
        parts = [each[count] for each, count in zip(found, split, strict=True)]
        shares = [share for part in parts for share in part.shares]
        key = (-min(part.fraction for part in parts), sum(cost_of[share] for share in shares))
        if (best is None or key < best[0]) and shares_fit(shares, there.domains, there.slices_per_gpu):
            best = (key, parts)
    if best is None:
        raise UsageError(no_room(demands, tables, there))
    (less, cost), chosen = best
    by_model = {share.model: share for part in chosen for share in part.shares}
    shares = [by_model[model] for model in predictor.load(demands)]
    return Found(tuple(shares), costs.constant + cost, -less, False, sum(part.nodes for part in chosen))


def _groups(demands: Sequence[Demand]) -> list[list[Demand]]:
    """Workflows that share models, directly or through others, together."""
    groups: list[tuple[set[str], list[Demand]]] = []
    for demand in demands:
        models, together = {use.model for use in demand.aggregate.uses}, [demand]
        apart = []
        for others, group in groups:
            if models & others:
                models, together = models | others, [*group, *together]
            else:
                apart.append((others, group))
        groups = [*apart, (models, together)]
    return [group for _, group in groups]


def _by_gpus(group: Sequence[Demand], predictor: Predictor, there: Room, most: int) -> dict[int, Found]:
    """The best for a group on each number of whole GPUs on which its models fit."""
    found: dict[int, Found] = {}
    for count in range(1, most + 1):
        try:
            part = Room(domain_sizes(count, max(there.domains)), there.slices_per_gpu, there.gpu_bytes)
            found[count] = _group(group, predictor, part)
        except UsageError:
            continue  # too few GPUs for these models; if all are too few, the caller says so
    return found


def _group(demands: Sequence[Demand], predictor: Predictor, there: Room) -> Found:
    """Steps a to d for workflows that plan together."""
    weight: dict[str, float] = {}
    for demand in demands:
        for use in demand.aggregate.uses:
            weight[use.model] = weight.get(use.model, 0.0) + demand.rate * use.share
    tables = sorted(tables_of(demands, predictor, there), key=lambda table: -weight[table.model])
    costs = goal(demands, tables)
    found = _ordered(tables, costs.costs, there, worst=False)
    if found is not None:
        shares, cost, nodes = found
        return Found(_in_order(shares, demands, predictor), costs.constant + cost, 1.0, False, nodes)
    most = _ordered(tables, [1.0 / table.headroom for table in tables], there, worst=True)
    if most is None:
        raise UsageError(no_room(demands, tables, there))
    shares, inverse, nodes = most
    fraction = min(1.0, 1.0 / inverse)
    slower = sorted(
        tables_of(demands, predictor, there, rate_factor=STILL / inverse), key=lambda table: -weight[table.model]
    )
    enough = [table.only(table.headroom >= (1 - 1e-9) / inverse) for table in slower]
    costs = goal(demands, enough)
    later = _ordered(enough, costs.costs, there, worst=False)
    if later is not None:
        shares, cost, more = later
        return Found(_in_order(shares, demands, predictor), costs.constant + cost, fraction, False, nodes + more)
    return Found(_in_order(shares, demands, predictor), float("inf"), fraction, False, nodes)


def _ordered(
    tables: Sequence[Options], costs: Sequence[Floats], there: Room, *, worst: bool
) -> tuple[tuple[Share, ...], float, int] | None:
    """The best vector of shares that keeps the order: shares, cost, partial vectors looked at."""
    kept, kept_costs = [], []
    for table, cost in zip(tables, costs, strict=True):
        left = _best_uses(table, cost, there.slices_per_gpu)
        index = {share: at for at, share in enumerate(table.shares)}
        kept.append(left)
        kept_costs.append(cost[np.array([index[share] for share in left.shares], dtype=np.int64)])
    best = cheapest(
        kept,
        kept_costs,
        domains=there.domains,
        slices_per_gpu=there.slices_per_gpu,
        worst=worst,
        ordered=True,
        most_nodes=NODES,
    )
    if best.choice is None:
        return None
    return tuple(table.shares[at] for table, at in zip(kept, best.choice, strict=True)), best.cost, best.nodes


def _best_uses(table: Options, cost: Floats, slices_per_gpu: int) -> Options:
    """The ways to use each share up, but those that another way for the same share makes needless."""
    kept = [
        same.shares
        for size in np.unique(table.slices)
        for of in (table.slices == size,)
        for same in (without_dominated(table.only(of), cost[of], slices_per_gpu),)
    ]
    wanted = {share for shares in kept for share in shares}
    return table.only(np.array([share in wanted for share in table.shares]))


def _in_order(shares: Sequence[Share], demands: Sequence[Demand], predictor: Predictor) -> tuple[Share, ...]:
    by_model = {share.model: share for share in shares}
    return tuple(by_model[model] for model in predictor.load(demands))
