"""How GPUs are best shared out among the models of workflows: the search behind `headway plan make`. Pure.

What is best is defined in `goal`: throughput first, then latency, no workflow starved. The choices are one shape and
one replica count for each model, with which all instances can be packed onto the GPUs. Because a model's choice adds
one term to every workflow's latency and nothing else, this is a knapsack with one choice from each class, and
`branch.cheapest` solves it: seconds where Scepsy enumerates vectors of shares, and without Scepsy's rule that a larger
part of the latency gets at least as much (`scepsy` has the paper's own way, to compare with).

    1. Every model's options, without those that another one beats everywhere.
    2. The least cost at the demanded rates. Done if there is a finite one.
    3. Otherwise the largest common fraction of the rates: the same search for the worst headroom.
    4. Then the least cost at 0.9 of that fraction, of plans that carry the whole of it.

Where workflows have limits on their latency, `within` looks for the least cost among the plans that keep them (for
`fewest`): the same search with more knapsack bounds.

Loses where the predictor is wrong: it is exact about forecasts, not about engines. With interference it reckons with
the worst neighbours, so it takes whole GPUs a little more often than it would have to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headway.errors import UsageError
from headway.serving.allocation.branch import NODES, Best, Limit, cheapest, least_gpus
from headway.serving.allocation.goal import STILL, goal, limits
from headway.serving.allocation.neighbours import gpus_in_words, neighbours
from headway.serving.allocation.options import Floats, Options, options, without_dominated
from headway.serving.allocation.packing import domain_sizes
from headway.serving.allocation.predict import Predictor
from headway.serving.allocation.types import Demand, Plan, Share


@dataclass(frozen=True, slots=True)
class Room:
    """The GPUs that there are.

    Attributes:
        domains: sizes of the fast domains, in GPUs.
        slices_per_gpu: f.
        gpu_bytes: memory of a GPU; None: the profiles' curves alone say what fits.
    """

    domains: tuple[int, ...]
    slices_per_gpu: int
    gpu_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found.

    Attributes:
        shares: what each model gets, in the order in which the demands name them.
        cost: `goal`'s, of the phase that decided.
        fraction: of the demanded rates that the plan carries; 1 where it carries them.
        exact: nothing better exists, as far as the predictor knows.
        nodes: partial choices looked at (count).
    """

    shares: tuple[Share, ...]
    cost: float
    fraction: float
    exact: bool
    nodes: int


def room(gpus: int, slices_per_gpu: int, domain_gpus: int | Sequence[int], gpu_bytes: int | None = None) -> Room:
    """The GPUs as a search takes them. UsageError where the numbers make no sense."""
    sizes = domain_sizes(gpus, domain_gpus) if isinstance(domain_gpus, int) and domain_gpus > 0 else domain_gpus
    if isinstance(sizes, int) or gpus < 1 or sum(sizes) != gpus or any(size < 1 for size in sizes):
        raise UsageError(f"domains of {domain_gpus} GPUs do not make {gpus_in_words(gpus)}")
    if slices_per_gpu < 1:
        raise UsageError(f"a GPU in {slices_per_gpu} parts is none", where="slices_per_gpu")
    return Room(tuple(sorted(sizes, reverse=True)), slices_per_gpu, gpu_bytes)


def search(
    demands: Sequence[Demand],
    predictor: Predictor,
    *,
    gpus: int,
    slices_per_gpu: int,
    domain_gpus: int | Sequence[int],
    gpu_bytes: int | None = None,
    most_nodes: int = NODES,
) -> Plan:
    """The best plan, not yet placed, with forecasts and what its neighbours lack. Deterministic.

    Args:
        demands: the workflows and their rates.
        predictor: predicts.
        gpus: how many there are.
        slices_per_gpu: f.
        domain_gpus: GPUs in each fast domain, or the sizes of all domains.
        gpu_bytes: memory of a GPU: shapes whose part of it is less than the profile's least memory are left out; None:
            the curves alone say what fits.
        most_nodes: as `branch.NODES`.

    Raises:
        UsageError: numbers that make no sense, models without a profile, or that cannot all be on the GPUs at once.
    """
    there = room(gpus, slices_per_gpu, domain_gpus, gpu_bytes)
    return planned(demands, predictor, there, explore(demands, predictor, there, most_nodes=most_nodes))


def planned(demands: Sequence[Demand], predictor: Predictor, there: Room, found: Found) -> Plan:
    """What was found as a plan with forecasts and neighbours."""
    return Plan(
        slices_per_gpu=there.slices_per_gpu,
        shares=found.shares,
        forecasts=predictor.forecast(demands, found.shares),
        rejected=neighbours(demands, predictor, found.shares, there.domains, there.slices_per_gpu),
    )


def explore(demands: Sequence[Demand], predictor: Predictor, there: Room, *, most_nodes: int = NODES) -> Found:
    """As `search`, and how sure it is."""
    tables = tables_of(demands, predictor, there)
    costs = goal(demands, tables)
    best, shares = _cheapest(tables, costs.costs, there, most_nodes=most_nodes)
    if shares is not None:
        return Found(shares, costs.constant + best.cost, 1.0, best.exact, best.nodes)
    most, shares = _cheapest(
        tables, [1.0 / table.headroom for table in tables], there, worst=True, most_nodes=most_nodes
    )
    if shares is None:
        raise UsageError(no_room(demands, tables, there), hint="take fewer or smaller models, or more GPUs")
    fraction = 1.0 / most.cost
    # The rates that can be served, and of the options those that do not lower them.
    slower = tables_of(demands, predictor, there, rate_factor=STILL * fraction)
    enough = [table.only(table.headroom >= fraction * (1 - 1e-9)) for table in slower]
    costs = goal(demands, enough)
    best, latest = _cheapest(enough, costs.costs, there, most_nodes=most_nodes)
    exact, nodes = most.exact and best.exact, most.nodes + best.nodes
    return Found(latest or shares, costs.constant + best.cost, min(1.0, fraction), exact, nodes)


@dataclass(frozen=True, slots=True)
class Within:
    """What a search within limits found.

    Attributes:
        shares: what each model gets; None: nothing was found.
        exact: nothing better exists, or nothing at all, as far as the predictor knows; False: the limit on nodes came
            first.
    """

    shares: tuple[Share, ...] | None
    exact: bool


def within(
    demands: Sequence[Demand],
    predictor: Predictor,
    there: Room,
    limits_s: Mapping[str, float],
    *,
    accept: Callable[[tuple[Share, ...]], bool] | None = None,
    most_nodes: int = NODES,
) -> Within:
    """The plan of least cost that carries all demands and keeps all limits.

    Args:
        demands: the workflows and their rates.
        predictor: predicts.
        there: the GPUs.
        limits_s: mean latency by workflow, seconds; those that are not in it need only be carried.
        accept: asked for complete plans in the order in which they are found; None: all will do. It may know more than
            the predictor, so no option is left out for another one that is better by the predictor.
        most_nodes: as `branch.NODES`.

    Raises:
        UsageError: as `search`, but that models cannot all be on the GPUs at once is no error: nothing is found.
    """
    tables = tables_of(demands, predictor, there)
    bounds = limits(demands, tables, limits_s)
    best, shares = _cheapest(
        tables, goal(demands, tables).costs, there, limits=bounds, accept=accept, most_nodes=most_nodes
    )
    return Within(shares, best.exact)


def least_gpus_within(
    demands: Sequence[Demand], predictor: Predictor, there: Room, limits_s: Mapping[str, float]
) -> int | None:
    """With fewer of these GPUs `within` finds nothing (a bound from below); None: nor with all. Errors as `within`."""
    tables = tables_of(demands, predictor, there)
    return least_gpus(
        tables,
        goal(demands, tables).costs,
        domains=there.domains,
        slices_per_gpu=there.slices_per_gpu,
        limits=limits(demands, tables, limits_s),
    )


def tables_of(
    demands: Sequence[Demand], predictor: Predictor, there: Room, *, rate_factor: float = 1.0
) -> list[Options]:
    """All options of all models. UsageError where there is nothing to plan."""
    if not demands:
        raise UsageError("there is no workflow to plan for")
    tables = options(
        demands,
        predictor,
        slices_per_gpu=there.slices_per_gpu,
        domains=there.domains,
        gpu_bytes=there.gpu_bytes,
        rate_factor=rate_factor,
    )
    if not tables:
        raise UsageError("none of the workflows calls a model")
    return tables


def _cheapest(
    tables: Sequence[Options],
    costs: Sequence[Floats],
    there: Room,
    *,
    worst: bool = False,
    limits: Sequence[Limit] = (),
    accept: Callable[[tuple[Share, ...]], bool] | None = None,
    most_nodes: int,
) -> tuple[Best, tuple[Share, ...] | None]:
    """Without what is dominated, and what was found as shares.

    What is dominated stays so with limits: a model's terms of all workflows grow with the time of its calls, as its
    part of the cost does. With `accept` nothing is known of that, and only what cannot be chosen is left out.
    """
    kept, kept_costs, where = [], [], []
    for table, cost in zip(tables, costs, strict=True):
        left = without_dominated(table, cost, there.slices_per_gpu) if accept is None else table.only(np.isfinite(cost))
        index = {share: at for at, share in enumerate(table.shares)}
        kept.append(left)
        where.append(np.array([index[share] for share in left.shares], dtype=np.int64))
        kept_costs.append(cost[where[-1]])

    def shares_of(choice: tuple[int, ...]) -> tuple[Share, ...]:
        return tuple(table.shares[at] for table, at in zip(kept, choice, strict=True))

    best = cheapest(
        kept,
        kept_costs,
        domains=there.domains,
        slices_per_gpu=there.slices_per_gpu,
        worst=worst,
        limits=[
            Limit(tuple(terms[at] for terms, at in zip(limit.terms, where, strict=True)), limit.most)
            for limit in limits
        ],
        accept=None if accept is None else lambda choice: accept(shares_of(choice)),
        most_nodes=most_nodes,
    )
    return best, None if best.choice is None else shares_of(best.choice)


def no_room(demands: Sequence[Demand], tables: Sequence[Options], there: Room) -> str:
    """Why nothing fits."""
    least = {table.model: int(table.slices.min()) for table in tables}
    f = there.slices_per_gpu
    each = ", ".join(f"{model} {slices / f:g}" for model, slices in least.items())
    return (
        f"the {len(least)} models of {' and '.join(demand.aggregate.workflow for demand in demands)} cannot all be on "
        f"{gpus_in_words(sum(there.domains))} at once; the least of each in GPUs: {each}"
    )
