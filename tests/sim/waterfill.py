"""Networks for tests of the rates, and two judges of them that share nothing with the solver."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import coo_array

from headway.sim.engine.fabric import Fabric, FabricLink
from headway.sim.engine.loop import Loop
from headway.sim.engine.network import Flow, Network
from headway.sim.engine.realism import IDEAL, Realism

Floats = npt.NDArray[np.float64]


class NoRouter:
    """For fabrics whose flows name their links."""

    def route(self, src: int, dst: int, key: int) -> Sequence[int]:
        """None of it."""
        return ()


def links_of(*capacities_Bps: float, latency_s: float = 0.0) -> Fabric:
    """Links without hosts' names."""
    links = tuple(FabricLink(f"link {i}", capacity, latency_s) for i, capacity in enumerate(capacities_Bps))
    return Fabric("links", ("a", "b"), links, NoRouter())


def network_of(*capacities_Bps: float, latency_s: float = 0.0, realism: Realism = IDEAL) -> tuple[Loop, Network]:
    """The same, with a clock."""
    loop = Loop()
    return loop, Network(loop, links_of(*capacities_Bps, latency_s=latency_s), realism)


@dataclass
class Demand:
    """One flow that wants as much as it gets."""

    route: tuple[int, ...]
    weight: float = 1.0
    cap_Bps: float = float("inf")
    priority: int = 0


@dataclass
class Case:
    """Links and flows."""

    capacities_Bps: list[float]
    demands: list[Demand] = field(default_factory=list)

    def solve(self) -> list[float]:
        """The network's rates, of flows that all begin at once."""
        _, network = network_of(*self.capacities_Bps)
        flows = [begin(network, demand) for demand in self.demands]
        network.settle()
        return [network.rate_Bps(flow) for flow in flows]


def begin(network: Network, demand: Demand) -> Flow:
    """A flow without end."""
    return network.start(
        0,
        1,
        float("inf"),
        route=demand.route,
        weight=demand.weight,
        cap_Bps=demand.cap_Bps,
        priority=demand.priority,
    )


def random_demand(rng: random.Random, links: int, *, classes: int = 3) -> Demand:
    """Over one to four links; of round figures often, so that levels coincide."""
    hops = rng.randint(1, min(4, links))
    return Demand(
        tuple(rng.sample(range(links), hops)),
        weight=rng.choice([1.0, 1.0, 1.0, 2.0, 0.5, rng.uniform(0.1, 10)]),
        cap_Bps=rng.choice([float("inf")] * 3 + [float(rng.randint(1, 5)), rng.uniform(0.1, 10)]),
        priority=rng.choice([0] * 4 + list(range(classes))),
    )


def random_capacity(rng: random.Random) -> float:
    """Sometimes nothing."""
    return rng.choice([0.0] + [float(rng.randint(1, 20))] * 6 + [rng.uniform(0.5, 20)] * 5)


def random_case(rng: random.Random, *, most_links: int = 8, most_flows: int = 12) -> Case:
    """Links and flows."""
    links = rng.randint(1, most_links)
    demands = [random_demand(rng, links) for _ in range(rng.randint(1, most_flows))]
    return Case([random_capacity(rng) for _ in range(links)], demands)


def by_linear_programs(cases: Sequence[Case]) -> list[list[float]]:
    """Max-min fair rates of many networks, as a sequence of linear programs.

    In each step, every network's common level t of its open flows is maximised, subject to x_f >= t w_f and the caps
    and links; the networks share nothing, so maximising the sum of their levels does it for all at once. Flows whose
    x_f >= t w_f has a dual value cannot rise (complementary slackness) and are fixed. A class opens when the one before
    it in its network is fixed.
    """
    flows = [(n, demand) for n, case in enumerate(cases) for demand in case.demands]
    first_link = np.cumsum([0, *(len(case.capacities_Bps) for case in cases)])
    capacity = np.concatenate([case.capacities_Bps for case in cases])
    weight = np.array([demand.weight for _, demand in flows])
    cap = np.array([demand.cap_Bps for _, demand in flows])
    pairs = [(first_link[n] + link, f) for f, (n, demand) in enumerate(flows) for link in demand.route]
    on_link = coo_array((np.ones(len(pairs)), tuple(np.array(pairs).T)), shape=(len(capacity), len(flows))).tocsr()
    rate = np.zeros(len(flows))
    is_open = np.ones(len(flows), dtype=bool)
    while is_open.any():
        lowest: dict[int, int] = {}
        for f in np.flatnonzero(is_open):
            n, demand = flows[f]
            lowest[n] = min(lowest.get(n, demand.priority), demand.priority)
        now = [f for f in np.flatnonzero(is_open) if flows[f][1].priority == lowest[flows[f][0]]]
        networks = sorted(lowest)
        level_of = {n: i for i, n in enumerate(networks)}
        count = len(now)
        left = np.maximum(capacity - on_link @ rate, 0)
        rows = np.arange(count)
        above = coo_array(
            (
                np.concatenate([-np.ones(count), weight[now]]),
                (
                    np.concatenate([rows, rows]),
                    np.concatenate([rows, [count + level_of[flows[f][0]] for f in now]]),
                ),
            ),
            shape=(count, count + len(networks)),
        )
        links = on_link[:, now].tocoo()
        within = coo_array((links.data, (links.row, links.col)), shape=(len(capacity), count + len(networks)))
        constraints = coo_array(
            (
                np.concatenate([above.data, within.data]),
                (
                    np.concatenate([above.row, within.row + count]),
                    np.concatenate([above.col, within.col]),
                ),
            ),
            shape=(count + len(capacity), count + len(networks)),
        ).tocsr()
        found = linprog(
            np.concatenate([np.zeros(count), -np.ones(len(networks))]),
            A_ub=cast("Floats", constraints),  # the stubs know no sparse matrices
            b_ub=np.concatenate([np.zeros(count), left]),
            bounds=[(0, min(cap[f], 1e6)) for f in now] + [(0, None)] * len(networks),
            method="highs-ds",
        )
        assert found.success, found.message
        marginals = found.ineqlin.marginals
        assert marginals is not None
        assert found.x is not None
        for i, f in enumerate(now):
            if -marginals[i] * weight[f] > 1e-6:
                is_open[f] = False
                rate[f] = found.x[count + level_of[flows[f][0]]] * weight[f]
    answers: list[list[float]] = [[] for _ in cases]
    for (n, _), x in zip(flows, rate, strict=True):
        answers[n].append(float(x))
    return answers


def fault(case: Case, rates: Sequence[float], *, tolerance: float = 1e-9) -> str | None:
    """Why the rates are not max-min fair: the definition, flow by flow. None if they are."""
    x = np.array(rates)
    users: list[list[int]] = [[] for _ in case.capacities_Bps]
    for f, demand in enumerate(case.demands):
        for link in demand.route:
            users[link].append(f)
    for link, capacity in enumerate(case.capacities_Bps):
        if x[users[link]].sum() > capacity * (1 + tolerance):
            return f"link {link} of {capacity} carries {x[users[link]].sum()}"
    for f, demand in enumerate(case.demands):
        if x[f] > demand.cap_Bps * (1 + tolerance):
            return f"flow {f} takes {x[f]}, more than its cap {demand.cap_Bps}"
        if x[f] >= demand.cap_Bps * (1 - tolerance):
            continue
        for link in demand.route:
            before = [g for g in users[link] if case.demands[g].priority <= demand.priority]
            mine = [g for g in before if case.demands[g].priority == demand.priority]
            full = x[before].sum() >= case.capacities_Bps[link] * (1 - tolerance)
            top = max(x[g] / case.demands[g].weight for g in mine)
            if full and x[f] / demand.weight >= top * (1 - tolerance):
                break
        else:
            return f"flow {f}, {demand}, has {x[f]} and no bottleneck"
    return None
