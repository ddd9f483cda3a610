"""The fewest GPUs on which every workflow is served at its rate, and within its limit on the mean latency. Pure.

GPUs are taken from the nodes in the order of the file: node by node, domain by domain, GPU by GPU, so that all domains
are whole but for the last one in use. With k GPUs a plan holds when, once it is placed on them, `Predictor.forecast`
carries every workflow and keeps every limit. The answer is the smallest k with a plan that holds; of its plans, the one
of least cost (`goal`).

    1. A bound from below: memory, throughput and limits, each with all else left out (`search.least_gpus_within`), for
       engines without neighbours.
    2. From there upward one k after the other. First plans that hold whoever the neighbours are (`search.within`).
    3. Where there is none, all plans that would hold without neighbours are placed and looked at, one by one, since a
       GPU shared with idle neighbours may do. Here the least cost is that without neighbours.

A plan for k GPUs can be had with k + 1, so bisection would find the same but for 3, where placement may put neighbours
differently. The walk needs no such argument, and the bound is mostly 0 to 2 below the answer.

Cost: one search for each k above the bound, and one for the bound; step 3 places up to MOST_PLACED plans for each k
where 2 finds none.

May be missed: another choice of the GPUs, say a large domain before a small one, may do with fewer, and so may another
placement of the same instances. `exact` is false where a limit on nodes ended a search below k.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headway.errors import UsageError
from headway.serving.allocation.branch import NODES, ROUNDING
from headway.serving.allocation.place import place
from headway.serving.allocation.predict import Predictor
from headway.serving.allocation.search import Found, Room, explore, least_gpus_within, room, within
from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import Demand, Forecast, Plan, Share

MOST_PLACED = 10_000
"""Partial choices that step 3 looks at for one k (count). Ours: 1 to 2 s."""
STRETCH = 0.01
"""How closely the least miss is looked for where limits cannot be kept (1, of the limits)."""


@dataclass(frozen=True, slots=True)
class Missed:
    """A workflow that is not within its limit, or not carried at all.

    Attributes:
        forecast: what it gets; its latency is infinite where it is not carried.
        limit_s: of its mean latency, seconds; None: it has none.
    """

    forecast: Forecast
    limit_s: float | None


@dataclass(frozen=True, slots=True)
class Tried:
    """What there is on some GPUs.

    Attributes:
        gpus: how many.
        plan: placed on them, forecasts with the neighbours that it has; None: the models have no room.
        missed: workflows that it does not serve as asked, the worst first; empty: it holds.
        why: why there is no plan; empty where there is one.
    """

    gpus: int
    plan: Plan | None
    missed: tuple[Missed, ...]
    why: str = ""

    @property
    def holds(self) -> bool:
        """Whether all workflows are served as asked."""
        return self.plan is not None and not self.missed


@dataclass(frozen=True, slots=True)
class Fewest:
    """How many GPUs are enough.

    Attributes:
        plan: placed: on the fewest GPUs, or where all are not enough the best on all of them.
        gpus: so many, counted in the order of the nodes.
        of: how many there are.
        missed: where all are not enough: as in `Tried`.
        less: the best with one GPU less; None where one is enough, or all are not.
        exact: no fewer do, as far as the predictor and the placement know; False: a search below was cut short.
    """

    plan: Plan
    gpus: int
    of: int
    missed: tuple[Missed, ...]
    less: Tried | None
    exact: bool


def fewest(
    demands: Sequence[Demand],
    predictor: Predictor,
    nodes: Sequence[Node],
    limits_s: Mapping[str, float],
    *,
    slices_per_gpu: int,
    gpu_bytes: int | None = None,
    most_nodes: int = NODES,
    most_placed: int = MOST_PLACED,
) -> Fewest:
    """The fewest GPUs and the plan for them. Deterministic.

    Args:
        demands: the workflows and their rates.
        predictor: predicts.
        nodes: of one kind of GPU, in the order in which they are to be used.
        limits_s: of the mean latency of a run, by workflow, seconds; workflows without one need only be carried.
        slices_per_gpu: f.
        gpu_bytes: as for `search.search`.
        most_nodes: as `branch.NODES`, for each search.
        most_placed: as MOST_PLACED.

    Raises:
        UsageError: as `search.search` with all GPUs; limits of workflows that are not demanded, or that are no more
            than a run takes without any call.
    """
    _check(demands, limits_s)
    looking = _Looking(
        tuple(demands), predictor, tuple(nodes), dict(limits_s), slices_per_gpu, gpu_bytes, most_nodes, most_placed
    )
    of = sum(node.gpus for node in nodes)
    least = least_gpus_within(demands, looking.alone, looking.room(of), limits_s)
    unsure: list[int] = []
    for gpus in range(max(1, least), of + 1) if least is not None else ():
        plan, sure = looking.holding(gpus)
        if plan is not None:
            return looking.one_less(plan, gpus, of, unsure)
        if not sure:
            unsure.append(gpus)
    last = looking.nearest(of)
    if last.plan is None:
        raise UsageError(last.why, hint="take fewer or smaller models, or more GPUs")
    if last.holds:
        return looking.one_less(last.plan, of, of, unsure)
    return Fewest(last.plan, of, of, last.missed, None, not unsure)


def first_gpus(nodes: Sequence[Node], gpus: int) -> tuple[Node, ...]:
    """The nodes with the first so many of their GPUs; nodes without any are left out."""
    found = []
    left = gpus
    for node in nodes:
        domains = []
        for domain in node.domains:
            if left > 0:
                domains.append(domain[:left])
                left -= len(domains[-1])
        if domains:
            found.append(replace(node, domains=tuple(domains)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Looking:
    demands: tuple[Demand, ...]
    predictor: Predictor
    nodes: tuple[Node, ...]
    limits_s: Mapping[str, float]
    slices_per_gpu: int
    gpu_bytes: int | None
    most_nodes: int
    most_placed: int

    @property
    def alone(self) -> Predictor:
        """The predictor for engines without neighbours: no placement is better."""
        without = copy.copy(self.predictor)
        without.interference = None
        return without

    def room(self, gpus: int) -> Room:
        """The first so many GPUs as a search takes them."""
        sizes = [len(domain) for node in first_gpus(self.nodes, gpus) for domain in node.domains]
        return room(gpus, self.slices_per_gpu, sizes, self.gpu_bytes)

    def holding(self, gpus: int) -> tuple[Plan | None, bool]:
        """A plan that holds on so many GPUs, and whether it is sure that there is none."""
        there = self.room(gpus)
        try:
            found = within(self.demands, self.predictor, there, self.limits_s, most_nodes=self.most_nodes)
        except UsageError:
            return None, True  # all GPUs were fine: a model whose shapes need larger domains than these
        if found.shares is not None:
            plan = self.placed(found.shares, gpus)
            if not self.missed(plan):
                return plan, True
        elif self.predictor.interference is None:
            return None, found.exact
        last = within(
            self.demands,
            self.alone,
            there,
            self.limits_s,
            accept=lambda shares: not self.missed(self.placed(shares, gpus)),
            most_nodes=self.most_placed,
        )
        return (None if last.shares is None else self.placed(last.shares, gpus)), last.exact

    def one_less(self, plan: Plan, gpus: int, of: int, unsure: Sequence[int]) -> Fewest:
        """The answer, with what one GPU less does. Where that holds, because a search was cut short, it is better.

        Args:
            plan: holds.
            gpus: on so many.
            of: how many there are.
            unsure: on how many a search was cut short.
        """
        less = self.nearest(gpus - 1) if gpus > 1 else None
        while less is not None and less.plan is not None and less.holds:
            plan, gpus = less.plan, less.gpus
            less = self.nearest(gpus - 1) if gpus > 1 else None
        return Fewest(plan, gpus, of, (), less, all(count >= gpus for count in unsure))

    def nearest(self, gpus: int) -> Tried:
        """The best that so many GPUs do."""
        try:
            plan = self.best(gpus)
        except UsageError as error:
            return Tried(gpus, None, (), error.what)
        return Tried(gpus, plan, self.missed(plan))

    def best(self, gpus: int) -> Plan:
        """The plan whose latencies need the least stretching of the limits, before it is placed.

        Where no plan carries the rates, it is the search's own: throughput first.
        """
        there = self.room(gpus)
        found = explore(self.demands, self.predictor, there, most_nodes=self.most_nodes)
        shares, low, high = found.shares, 1.0, self.stretch(found)
        while low * (1 + STRETCH) < high < float("inf"):
            factor = (low * high) ** 0.5
            stretched = {workflow: limit_s * factor for workflow, limit_s in self.limits_s.items()}
            nearer = within(self.demands, self.predictor, there, stretched, most_nodes=self.most_nodes)
            if nearer.shares is None:
                low = factor
            else:
                shares, high = nearer.shares, factor
        return self.placed(shares, gpus)

    def stretch(self, found: Found) -> float:
        """By how much the limits must be multiplied so that this plan keeps them, before it is placed."""
        forecasts = self.predictor.forecast(self.demands, found.shares)
        carried = all(each.latency_s < float("inf") for each in forecasts)
        worst = max(
            (each.latency_s / self.limits_s.get(each.workflow, float("inf")) for each in forecasts), default=0.0
        )
        return worst if carried else float("inf")

    def placed(self, shares: Sequence[Share], gpus: int) -> Plan:
        """On the first so many GPUs, with forecasts for the neighbours that there are."""
        plan = place(Plan(self.slices_per_gpu, tuple(shares)), first_gpus(self.nodes, gpus))
        return replace(plan, forecasts=self.predictor.forecast(self.demands, plan.shares, plan.instances))

    def missed(self, plan: Plan) -> tuple[Missed, ...]:
        """Workflows that a plan does not serve as asked, the worst first."""
        found = [
            Missed(each, self.limits_s.get(each.workflow))
            for each in plan.forecasts
            if each.latency_s == float("inf")
            or each.latency_s > self.limits_s.get(each.workflow, float("inf")) * (1 + ROUNDING)
        ]
        return tuple(sorted(found, key=_how_bad, reverse=True))


def _how_bad(missed: Missed) -> tuple[float, float]:
    """Latency over its limit, and for those that are not carried, rate over what is."""
    limit_s, forecast = missed.limit_s, missed.forecast
    return forecast.latency_s / limit_s if limit_s is not None else float("inf"), forecast.rate / forecast.throughput


def _check(demands: Sequence[Demand], limits_s: Mapping[str, float]) -> None:
    other_s = {demand.aggregate.workflow: demand.aggregate.other_s for demand in demands}
    for workflow, limit_s in limits_s.items():
        if workflow not in other_s:
            raise UsageError("has a limit and is not planned for", where=workflow)
        if not other_s[workflow] < limit_s < float("inf"):
            raise UsageError(
                f"a limit of {limit_s:g} s is not above the {other_s[workflow]:g} s of a run without any call",
                where=workflow,
            )
