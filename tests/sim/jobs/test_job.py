"""What ranks of a job do when: closed forms, at the job's own level."""

from __future__ import annotations

import random

import pytest

from headway.decide.journal import OperationRecord, StartRecord
from headway.errors import UsageError
from headway.lab.draws import ComputeTimes
from headway.lab.effects import WIRE_ALPHA_S
from headway.sim.execution.collective import Execution
from headway.sim.run import Simulation, simulate
from headway.sim.topologies import PAYLOAD_SHARE
from tests.sim.scenarios import durations, job, scenario_of, streams

LINK_Bps = 25e6 * PAYLOAD_SHARE
SEND = {"send": "1MB", "src": 0, "dst": 1}
SEND_S = 1e6 / LINK_Bps + WIRE_ALPHA_S


def test_computing_and_sending_take_turns() -> None:
    result = streams(scenario_of(job("a", {"compute": "100ms"}, SEND, hosts=2)))
    # The sender begins its next iteration when its last byte has left, the receiver when it has arrived.
    assert durations(result) == pytest.approx([0.1 + SEND_S, *[0.1 + SEND_S + WIRE_ALPHA_S] * 2], rel=1e-12)
    assert result.end_s == pytest.approx(3 * (0.1 + SEND_S), rel=1e-12)


def test_a_rank_goes_on_when_its_own_part_has_ended() -> None:
    """The sender computes while its last byte is on its way: only the receiver waits for the latency."""
    loop = ({**SEND, "src": 0, "dst": 1}, {**SEND, "src": 0, "dst": 2})
    result = streams(scenario_of(job("a", *loop, hosts=3, iterations=1), latency="50ms"))
    assert result.end_s == pytest.approx(2 * 1e6 / LINK_Bps + 0.1 + WIRE_ALPHA_S, rel=1e-12)


def test_ranks_without_a_part_in_a_send_do_not_wait_for_it() -> None:
    loop = ({"compute": "10ms"}, SEND)
    spans = _Spans()
    simulate(scenario_of(job("a", *loop, hosts=3, iterations=2)), execution=Execution.STREAMS, spans=spans)
    assert [begin for _, rank, kind, begin, _ in spans.all if rank == 2 and kind == "compute"] == [0.0, 0.01]


def test_a_collective_begins_on_each_rank_when_it_is_ready() -> None:
    phases = ({"compute": "100ms", "noise": "20%"}, {"all_reduce": "1MB"})
    scenario = scenario_of(job("a", *phases, iterations=1, plan="ring"))
    times = [ComputeTimes(scenario.jobs[0], rank).draw(scenario.jobs[0].loop[0]) for rank in range(4)]
    for execution in Execution:
        spans = _Spans()
        simulate(scenario, execution=execution, spans=spans)
        began = {rank: begin for _, rank, kind, begin, _ in spans.all if kind == "all_reduce"}
        assert [began[rank] for rank in range(4)] == pytest.approx(times, rel=1e-12)


def test_an_iteration_lasts_from_the_first_rank_to_the_last() -> None:
    scenario = scenario_of(job("a", {"compute": "100ms", "noise": "30%"}, iterations=1))
    times = [ComputeTimes(scenario.jobs[0], rank).draw(scenario.jobs[0].loop[0]) for rank in range(4)]
    assert durations(streams(scenario)) == [max(times)]


@pytest.mark.parametrize("execution", Execution)
def test_every_collective_runs_in_every_execution(execution: Execution) -> None:
    kinds = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce")
    result = simulate(scenario_of(job("a", *({kind: "1MB"} for kind in kinds), iterations=2)), execution=execution)
    assert [operation.kind for operation in result.jobs["a"].operations] == [*kinds, *kinds]
    assert [operation.number for operation in result.jobs["a"].operations] == list(range(10))
    for operation in result.jobs["a"].operations:
        assert operation.free_limit_s <= operation.duration_s < 3 * operation.free_limit_s


def test_a_job_without_a_number_of_iterations_ends_with_the_others() -> None:
    endless = {key: value for key, value in job("b", {"compute": "30ms"}).items() if key != "iterations"}
    result = streams(scenario_of(job("a", {"compute": "100ms"}, iterations=2), endless))
    assert result.end_s == pytest.approx(0.2)
    assert len(result.jobs["b"].iterations) == 6


def test_a_job_begins_at_its_start() -> None:
    result = streams(scenario_of(job("a", {"compute": "100ms"}, start="70ms")))
    assert result.jobs["a"].iterations[0].start_s == 0.07


def test_a_period_holds_iterations_back() -> None:
    result = streams(scenario_of(job("a", {"compute": "100ms"}, start="50ms", period="120ms")))
    assert [each.start_s for each in result.jobs["a"].iterations] == pytest.approx([0.05, 0.17, 0.29])
    late = streams(scenario_of(job("a", {"compute": "100ms"}, start="50ms", period="80ms")))
    assert [each.start_s for each in late.jobs["a"].iterations] == pytest.approx([0.05, 0.15, 0.25])


@pytest.mark.parametrize("execution", Execution)
def test_a_vector_is_rounded_up_to_whole_blocks(execution: Execution) -> None:
    result = simulate(scenario_of(job("a", {"reduce_scatter": "1MB"}, hosts=3)), execution=execution)
    assert {operation.size_bytes for operation in result.jobs["a"].operations} == {1_000_008}


def test_a_run_can_end_early_and_go_on() -> None:
    scenario = scenario_of(job("a", {"compute": "100ms"}, SEND, hosts=2, iterations=4))
    simulation = Simulation(scenario, execution=Execution.STREAMS)
    simulation.run(until_s=0.25)
    assert simulation.network.loop.now_s == 0.25
    assert simulation.jobs["a"].iterations_done == 1
    simulation.run()
    assert durations(simulation.result()) == durations(streams(scenario))


def test_what_has_not_ended_is_left_out() -> None:
    scenario = scenario_of(job("a", SEND, {"compute": "100ms"}, hosts=2))
    result = simulate(scenario, execution=Execution.STREAMS, until_s=SEND_S + 0.05)
    assert len(result.jobs["a"].operations) == 1
    assert not result.jobs["a"].iterations


def test_ranks_of_one_host_share_its_link() -> None:
    loop = ({"send": "1MB", "src": 0, "dst": 2},)
    apart = streams(
        scenario_of(
            job("a", *loop, hosts=2, ranks_per_host=2), job("b", *loop, hosts=["host4", "host5"], ranks_per_host=2)
        )
    )
    beside = streams(scenario_of(*(job(name, *loop, hosts=["host0", "host1"], ranks_per_host=2) for name in "ab")))
    assert durations(beside)[0] == pytest.approx(2e6 / LINK_Bps + WIRE_ALPHA_S)
    assert durations(apart)[0] == pytest.approx(SEND_S)
    assert apart.jobs["a"].hosts == ["host0", "host0", "host1", "host1"]


def test_the_journal_has_a_start_and_rank_0s_operations() -> None:
    result = streams(scenario_of(job("a", {"all_reduce": "1MB"}, start="10ms", plan="direct")))
    start, *operations = result.records
    assert isinstance(start, StartRecord)
    assert (start.group, start.t_s, start.world_size, start.plan) == ("a", 0.01, 4, "direct")
    assert [record.operation for record in operations if isinstance(record, OperationRecord)] == [0, 1, 2]
    for record, operation in zip(operations, result.jobs["a"].operations, strict=True):
        assert isinstance(record, OperationRecord)
        assert record.t_s == operation.end_s
        assert record.duration_s == pytest.approx(operation.duration_s, rel=1e-9)


def test_a_plan_that_is_none() -> None:
    with pytest.raises(UsageError, match=r"jobs.0.plan: 'rong' is no plan"):
        streams(scenario_of(job("a", {"all_reduce": "1MB"}, plan="rong")))


def test_noise_is_normal_and_drawn_for_each_rank_and_iteration() -> None:
    result = streams(scenario_of(job("a", {"compute": "100ms", "noise": "5%"}, hosts=1, iterations=400)))
    times = durations(result)
    assert len(set(times)) == 400
    assert sum(times) / 400 == pytest.approx(0.1, abs=4 * 0.005 / 20)
    assert (sum((time - 0.1) ** 2 for time in times) / 400) ** 0.5 == pytest.approx(0.005, rel=0.15)


def test_noise_of_a_job_does_not_depend_on_other_jobs() -> None:
    noisy = job("a", {"compute": "100ms", "noise": "5%"})
    alone = streams(scenario_of(noisy))
    names = [f"b{number}" for number in range(random.Random(1).randrange(2, 5))]
    beside = streams(
        scenario_of(*(job(name, {"compute": "10ms", "noise": "5%"}, iterations=1) for name in names), noisy)
    )
    assert durations(alone) == durations(beside)


class _Spans:
    def __init__(self) -> None:
        self.all: list[tuple[str, int, str, float, float]] = []

    def span(self, job: str, rank: int, kind: str, begin_s: float, end_s: float) -> None:
        self.all.append((job, rank, kind, begin_s, end_s))
