"""Weights that follow iterations: the paper's shift, what comes of it, and when flows stay plain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import pytest

from headway.interleave.aggressiveness import Aggressiveness, shift_s
from headway.lab.files import load_scenario
from headway.lab.jobs import Job
from headway.lab.scenario import Scenario
from headway.sim.execution.collective import Execution
from headway.sim.jobs.interleaved import Push, push_of
from headway.sim.result import Result
from headway.sim.run import Simulation, simulate
from headway.sim.topologies import PAYLOAD_SHARE, fabric_of
from tests.sim.scenarios import Fields, durations, job, scenario_of, streams

LINK_Bps = 25e6 * PAYLOAD_SHARE
SHARE = 0.45
LOOP = ({"send": f"{round(SHARE * LINK_Bps)}B"}, {"compute": f"{1 - SHARE:.2f}s"})
TURNS: Mapping[str, object] = {"interleave": {}}


def _pair(iterations: int, first: Fields = TURNS, second: Fields = TURNS, loop: Sequence[Fields] = LOOP) -> Scenario:
    """Two jobs into host2, the second 20 ms later."""
    return scenario_of(
        job("a", *loop, hosts=["host0", "host2"], iterations=iterations, **first),
        job("b", *loop, hosts=["host1", "host2"], iterations=iterations, **{"start": "20ms", **second}),
    )


def _offsets(result: Result) -> list[float]:
    first, second = (result.jobs[name].iterations for name in "ab")
    return [later.start_s - sooner.start_s for sooner, later in zip(first, second, strict=False)]


def _run(scenario: Scenario, push: Callable[[Job], Push | None] = push_of) -> Result:
    """Without latency."""
    simulation = Simulation(
        scenario, execution=Execution.STREAMS, fabric=fabric_of(scenario, wire_alpha_s=0.0), push_of=push
    )
    simulation.run()
    return simulation.result()


def _known(weight: Callable[[float], float], steps: int) -> Callable[[Job], Push]:
    """Bytes per iteration need not be learned."""
    return lambda job: Push(lambda ratio: weight(ratio or 0.0), {(0, 1): job.loop[0].size_bytes}, steps)


def _formula(aggressiveness: Aggressiveness, count: int) -> list[float]:
    offsets = [0.02]
    while len(offsets) < count:
        offsets.append(offsets[-1] + shift_s(aggressiveness, offsets[-1], period_s=1.0, share=SHARE))
    return offsets


@pytest.mark.parametrize(("slope", "intercept"), [(1.75, 0.25), (1.067, 0.267)])
def test_two_jobs_move_apart_by_the_papers_shift(slope: float, intercept: float) -> None:
    chosen = Aggressiveness(slope, intercept)
    result = _run(_pair(6), _known(chosen.weight, 1024))
    assert _offsets(result) == pytest.approx(_formula(chosen, 6), abs=1e-5)


def test_jobs_are_plain_until_their_iterations_are_known() -> None:
    result = _run(_pair(7))
    assert _offsets(result)[:3] == pytest.approx([0.02] * 3, abs=1e-9)
    assert _offsets(result)[2:] == pytest.approx(_formula(Aggressiveness(), 5), abs=2e-4)


def test_a_falling_f_pulls_jobs_together() -> None:
    offsets = _offsets(_run(_pair(4), _known(lambda ratio: 2 - 1.75 * ratio, 64)))
    assert all(later < sooner / 1.5 for sooner, later in pairwise(offsets))


@pytest.mark.parametrize(("name", "jobs"), [("interleave-2", 2), ("interleave-3", 3)])
def test_the_shipped_scenarios_settle_in_ten_iterations(name: str, jobs: int) -> None:
    result = simulate(load_scenario(name), execution=Execution.STREAMS)
    assert len(result.jobs) == jobs
    for each in result.jobs.values():
        assert [iteration.duration_s for iteration in each.iterations[10:]] == pytest.approx([1.0] * 20, abs=2e-3)


@pytest.mark.parametrize("execution", Execution)
def test_collectives_take_turns_in_every_execution(execution: Execution) -> None:
    jobs = (("a", "0s"), ("b", "50ms"))
    loop = ({"compute": "300ms"}, {"all_reduce": "4MB"})
    both = [
        simulate(
            scenario_of(
                *(job(name, *loop, iterations=9, plan="ring", start=start, **more) for name, start in jobs), hosts=4
            ),
            execution=execution,
        )
        for more in ({}, TURNS)
    ]
    plain, turns = ([each.iterations[-1].duration_s for each in result.jobs.values()] for result in both)
    assert max(turns) < 1.02 * 0.76
    assert min(plain) > 1.1 * max(turns)


def test_a_job_alone_is_not_changed() -> None:
    alone = [streams(scenario_of(job("a", *LOOP, hosts=2, iterations=5, **fields))) for fields in ({}, TURNS)]
    assert durations(alone[0]) == pytest.approx(durations(alone[1]), rel=1e-12)


def test_traffic_that_is_not_periodic_stays_plain() -> None:
    """Bursts of two sizes with equal pauses look like iterations that do not agree."""
    loop = [{"send": "1MB"}, {"compute": "300ms"}, {"send": "5MB"}, {"compute": "300ms"}]
    plain, asked = _pair(6, {}, {}, loop), _pair(6, TURNS, TURNS, loop)
    assert _offsets(streams(plain)) == pytest.approx(_offsets(streams(asked)), rel=1e-9)


def test_a_flow_that_weighs_more_still_does() -> None:
    light = _offsets(streams(_pair(6)))
    heavy = _offsets(streams(_pair(6, second={**TURNS, "weight": 3})))
    assert heavy[1] < light[1]
    assert heavy[-1] != pytest.approx(light[-1], rel=1e-2)


def test_one_interleaved_job_is_enough() -> None:
    result = streams(_pair(25, TURNS, {}))
    assert durations(result, "b")[-3:] == pytest.approx([1.0] * 3, abs=0.01)


def test_a_stalled_flow_lets_the_run_end() -> None:
    """Nothing looks at a flow that does not move."""
    scenario = scenario_of(
        job("a", *LOOP, hosts=["host0", "host2"], iterations=3, priority=1, **TURNS),
        job("b", {"send": "900MB"}, hosts=["host1", "host2"], iterations=1),
    )
    result = simulate(scenario, execution=Execution.STREAMS, until_s=20.0)
    assert result.end_s == 20.0
    assert result.events < 2000
