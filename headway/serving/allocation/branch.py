"""Branch and bound over what each model gets: the cheapest choice that fits on the GPUs. Pure.

One option for each model, least total cost, everything packed (`packing`). Without packing this is a knapsack with one
choice from each class, whose optimum dynamic programming gives at once for every size; that is a lower bound for what
is left to choose. The size is counted in several ways, each of which no packing can exceed: slices, and the dual
feasible weights (`packing.dual_feasible`), which see that pieces of six tenths never share a GPU. Options are tried in
the order of their bounds, so the first complete choice is mostly the best, and what remains is to prove it.

Further sums may have a limit (`Limit`: the latency of a workflow). Each has a knapsack bound of its own, and a partial
choice is dropped when one of them says that its limit cannot be kept any more.

Cost: for M models with n options each, G GPUs and f slices, M tables of G f entries for each way of counting, each
entry a minimum over the sizes that occur, for the cost and for each limit; then `nodes` times a bound for n options.
Loses where many choices are about equally good and few of them can be packed, or keep all limits together though they
could keep each alone: then the limit on nodes ends it, and the best so far is what it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from headway.serving.allocation.options import Floats, Ints, Options
from headway.serving.allocation.packing import dual_feasible, fits

NODES = 40_000
"""Partial choices that are looked at before the search ends with what it has (count). Ours: about 5 s."""
GAP = 1e-4
"""What is cheaper than the best by less than this part of it is not looked for (1)."""
ROUNDING = 1e-9
"""Part of a limit by which a sum may be above it: terms are added up in another order elsewhere (1)."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A sum over the chosen options that must not be above a limit.

    Attributes:
        terms: for each model, of each of its options (0 or more).
        most: the limit.
    """

    terms: tuple[Floats, ...]
    most: float


@dataclass(frozen=True, slots=True)
class Best:
    """What was found.

    Attributes:
        choice: the option of each model by number; None: nothing fits.
        cost: of them all; infinite where nothing fits.
        exact: whether it is known that nothing is cheaper (but for GAP); False: the limit came first.
        nodes: partial choices that were looked at (count).
    """

    choice: tuple[int, ...] | None
    cost: float
    exact: bool
    nodes: int


@dataclass(slots=True)
class _Search:
    tables: Sequence[Options]
    costs: Sequence[Floats]
    domains: tuple[int, ...]
    slices_per_gpu: int
    worst: bool
    ordered: bool
    nodes_left: int
    limits: Sequence[Limit] = ()
    accept: Callable[[tuple[int, ...]], bool] | None = None
    gpu_sizes: list[int] = field(default_factory=list)
    sizes: list[list[Ints]] = field(default_factory=list)
    bounds: list[list[Floats]] = field(default_factory=list)
    limit_bounds: list[list[list[Floats]]] = field(default_factory=list)
    in_order: list[Floats] = field(default_factory=list)
    best: tuple[int, ...] | None = None
    best_cost: float = float("inf")
    nodes: int = 0

    def prepare(self) -> None:
        """Sizes of all options in every way of counting, and the bounds for what is left after each model."""
        gpus, f = sum(self.domains), self.slices_per_gpu
        ways = [(f, [table.slices for table in self.tables])]
        for weights in dual_feasible(f):
            counted = []
            for table in self.tables:
                each = [
                    weights.of[share.shape.slices] * share.shape.tensor_parallel * share.replicas
                    for share in table.shares
                ]
                counted.append(np.array(each, dtype=np.int64))
            ways.append((weights.gpu, counted))
        self.gpu_sizes = [gpu for gpu, _ in ways]
        self.sizes = [counted for _, counted in ways]
        self.bounds = self._all_bounds(self.costs, worst=self.worst)
        self.limit_bounds = [self._all_bounds(limit.terms, worst=False) for limit in self.limits]
        if self.ordered:
            capacity = gpus * f
            following = np.zeros((capacity + 1, capacity + 1))
            self.in_order.append(following)
            for table, cost in zip(reversed(self.tables), reversed(self.costs), strict=True):
                following = self._bound_in_order(table.slices, cost, following)
                self.in_order.insert(0, following)

    def _all_bounds(self, costs: Sequence[Floats], *, worst: bool) -> list[list[Floats]]:
        """For each way of counting, the bounds for what is left before each model and after the last."""
        found = []
        for gpu, counted in zip(self.gpu_sizes, self.sizes, strict=True):
            bounds = [np.zeros(sum(self.domains) * gpu + 1)]
            for table_sizes, cost in zip(reversed(counted), reversed(costs), strict=True):
                bounds.append(_bound(table_sizes, cost, bounds[-1], worst=worst))
            found.append(bounds[::-1])
        return found

    def _bound_in_order(self, sizes: Ints, cost: Floats, after: Floats) -> Floats:
        """As `_bound` in slices, and for each size that the model before has: no more than that is to be had."""
        least: Floats = np.full_like(after, np.inf)
        for size in np.unique(sizes):
            if size < len(after):
                cheapest = cost[sizes == size].min()
                rest = after[size, : len(after) - size]
                total = np.maximum(cheapest, rest) if self.worst else cheapest + rest
                least[size, size:] = np.minimum(least[size, size:], total)
        return np.asarray(np.minimum.accumulate(least, axis=0))

    def _with_rest(
        self, costs: Floats, all_bounds: Sequence[Sequence[Floats]], left: tuple[int, ...], *, at: int, worst: bool
    ) -> Floats:
        """What each option of a model costs at least with the models after it; infinite where these have no room."""
        least = costs.copy()
        for room, sizes, bounds in zip(left, self.sizes, all_bounds, strict=True):
            rest = room - sizes[at]
            after = np.where(rest >= 0, bounds[at + 1][np.maximum(rest, 0)], np.inf)
            np.maximum(least, np.maximum(costs, after) if worst else costs + after, out=least)
        return least

    def least_gpus(self) -> int | None:
        """With fewer GPUs no choice has a finite cost and keeps all limits, whatever the domains; None: with any."""
        possible = np.ones(sum(self.domains) + 1, dtype=np.bool_)
        for at, gpu in enumerate(self.gpu_sizes):
            possible &= np.isfinite(self.bounds[at][0][::gpu])
            for limit, bounds in zip(self.limits, self.limit_bounds, strict=True):
                possible &= bounds[at][0][::gpu] <= limit.most * (1 + ROUNDING)
        return int(np.argmax(possible)) if possible.any() else None

    def dive(
        self,
        choice: tuple[int, ...],
        cost: float,
        spent: tuple[float, ...],
        left: tuple[int, ...],
        whole: list[int],
        parts: list[int],
    ) -> None:
        """All completions of a partial choice that may be better than the best so far."""
        at = len(choice)
        if at == len(self.tables):
            if self.accept is None or self.accept(choice):
                self.best, self.best_cost = choice, cost
            return
        table, costs = self.tables[at], self.costs[at]
        bound = self._with_rest(costs, self.bounds, left, at=at, worst=self.worst)
        for limit, bounds, before in zip(self.limits, self.limit_bounds, spent, strict=True):
            least = before + self._with_rest(limit.terms[at], bounds, left, at=at, worst=False)
            bound[least > limit.most * (1 + ROUNDING)] = np.inf
        if self.ordered:
            rest = left[0] - table.slices
            after = np.where(
                rest >= 0,
                self.in_order[at + 1][np.minimum(table.slices, len(self.in_order[0]) - 1), np.maximum(rest, 0)],
                np.inf,
            )
            np.maximum(bound, np.maximum(costs, after) if self.worst else costs + after, out=bound)
            if choice:
                bound[table.slices > self.tables[at - 1].slices[choice[-1]]] = np.inf
        total = np.maximum(cost, bound) if self.worst else cost + bound
        for index in np.argsort(total, kind="stable"):
            if not total[index] < self.best_cost - GAP * abs(self.best_cost if np.isfinite(self.best_cost) else 0.0):
                return
            if self.nodes >= self.nodes_left:
                return
            self.nodes += 1
            share = table.shares[index]
            more_whole, more_parts = whole, parts
            if share.shape.slices == self.slices_per_gpu:
                more_whole = [*whole, *[share.shape.tensor_parallel] * share.replicas]
            else:
                more_parts = [*parts, *[share.shape.slices] * share.replicas]
            if fits(more_whole, more_parts, domains=self.domains, slices_per_gpu=self.slices_per_gpu):
                now = float(max(cost, costs[index]) if self.worst else cost + costs[index])
                rooms = tuple(room - int(sizes[at][index]) for room, sizes in zip(left, self.sizes, strict=True))
                sums = tuple(
                    before + float(limit.terms[at][index]) for before, limit in zip(spent, self.limits, strict=True)
                )
                self.dive((*choice, int(index)), now, sums, rooms, more_whole, more_parts)


def _bound(sizes: Ints, cost: Floats, after: Floats, *, worst: bool) -> Floats:
    """Least cost from here on for each capacity, given that from the next model on."""
    least: Floats = np.full(len(after), np.inf)
    for size in np.unique(sizes):
        if size >= len(after):
            continue
        cheapest = cost[sizes == size].min()
        rest = after[: len(after) - size]
        total = np.maximum(cheapest, rest) if worst else cheapest + rest
        np.minimum(least[size:], total, out=least[size:])
    return least


def cheapest(
    tables: Sequence[Options],
    costs: Sequence[Floats],
    *,
    domains: tuple[int, ...],
    slices_per_gpu: int,
    worst: bool = False,
    ordered: bool = False,
    limits: Sequence[Limit] = (),
    accept: Callable[[tuple[int, ...]], bool] | None = None,
    most_nodes: int = NODES,
) -> Best:
    """The best choice of one option for each model.

    Args:
        tables: the options of each model.
        costs: of each of them; infinite: not to be chosen.
        domains: sizes of the fast domains, in GPUs.
        slices_per_gpu: f.
        worst: the cost of a choice is that of its most expensive part, not the sum.
        ordered: no model gets more slices than the one before it.
        limits: sums that must not be above their limits.
        accept: asked for each complete choice that would be the best; one that it refuses is passed over.
        most_nodes: as NODES.
    """
    search = _Search(tables, costs, domains, slices_per_gpu, worst, ordered, most_nodes, limits, accept)
    search.prepare()
    rooms = tuple(len(each[-1]) - 1 for each in search.bounds)
    search.dive((), float("-inf") if worst else 0.0, (0.0,) * len(limits), rooms, [], [])
    return Best(search.best, search.best_cost, search.nodes < most_nodes, search.nodes)


def least_gpus(
    tables: Sequence[Options],
    costs: Sequence[Floats],
    *,
    domains: tuple[int, ...],
    slices_per_gpu: int,
    limits: Sequence[Limit] = (),
) -> int | None:
    """So many GPUs are needed at least for a finite cost within all limits (a bound); None: all are not enough.

    Arguments as for `cheapest`; `tables` are for all GPUs.
    """
    search = _Search(tables, costs, domains, slices_per_gpu, False, False, 0, limits)
    search.prepare()
    return search.least_gpus()
