"""Rates against the definition, and against linear programs."""

from __future__ import annotations

import random

import pytest

from headway.sim.engine.network import Flow, Network
from tests.sim.waterfill import (
    Case,
    Demand,
    begin,
    by_linear_programs,
    fault,
    network_of,
    random_capacity,
    random_case,
    random_demand,
)


def test_thousand_random_networks_against_linear_programs() -> None:
    rng = random.Random(1)
    cases = [random_case(rng) for _ in range(1000)]
    for case, expected in zip(cases, by_linear_programs(cases), strict=True):
        rates = case.solve()
        assert rates == pytest.approx(expected, rel=1e-7, abs=1e-7)
        assert fault(case, rates) is None


def change_at_random(rng: random.Random, case: Case, network: Network, flows: list[Flow]) -> None:
    """One change of the network, and of what the judges are told."""
    what = rng.random()
    if what < 0.4 or not flows:
        case.demands.append(random_demand(rng, len(case.capacities_Bps)))
        flows.append(begin(network, case.demands[-1]))
    elif what < 0.7:
        f = rng.randrange(len(flows))
        network.stop(flows.pop(f))
        del case.demands[f]
    elif what < 0.8:
        link = rng.randrange(len(case.capacities_Bps))
        case.capacities_Bps[link] = random_capacity(rng)
        network.set_capacity(link, case.capacities_Bps[link])
    else:
        f = rng.randrange(len(flows))
        other = random_demand(rng, 1)
        if what < 0.9:
            case.demands[f].weight = other.weight
            network.set_weight(flows[f], other.weight)
        else:
            case.demands[f].cap_Bps = other.cap_Bps
            network.set_cap(flows[f], other.cap_Bps)


@pytest.mark.parametrize(
    ("links", "flows", "steps", "seeds"),
    [(3, 6, 400, 5), (10, 15, 400, 5), (40, 60, 200, 3), (300, 150, 200, 2), (30, 400, 40, 1)],
)
def test_rates_after_changes_are_those_of_a_solve_from_scratch(links: int, flows: int, steps: int, seeds: int) -> None:
    for seed in range(seeds):
        rng = random.Random(seed)
        case = Case([random_capacity(rng) for _ in range(links)])
        loop, network = network_of(*case.capacities_Bps)
        running: list[Flow] = []
        for step in range(steps):
            loop.now_s += 1.0
            for _ in range(rng.choice([1, 1, 1, 3, flows // 2])):
                change_at_random(rng, case, network, running)
            while len(running) > flows:
                network.stop(running.pop())
                case.demands.pop()
            network.settle()
            rates = [network.rate_Bps(flow) for flow in running]
            assert fault(case, rates) is None, (seed, step)
            if step % 10 == 0:
                assert rates == pytest.approx(case.solve(), rel=1e-9, abs=1e-9)


def test_judge_finds_what_is_wrong() -> None:
    case = Case([10.0, 4.0], [Demand((0, 1)), Demand((0,)), Demand((0,), cap_Bps=1.0), Demand((0,), priority=1)])
    assert case.solve() == [4.0, 5.0, 1.0, 0.0]
    assert fault(case, [4.0, 5.0, 1.0, 0.0]) is None
    assert fault(case, [4.0, 5.0, 1.0, 0.1]) == "link 0 of 10.0 carries 10.1"
    assert fault(case, [4.0, 4.5, 1.5, 0.0]) == "flow 2 takes 1.5, more than its cap 1.0"
    for unfair in ([3.0, 6.0, 1.0, 0.0], [4.0, 5.5, 0.5, 0.0], [4.0, 4.0, 1.0, 1.0]):
        assert "no bottleneck" in (fault(case, unfair) or "")
