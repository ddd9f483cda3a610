"""The live tuner on the simulated clock: it moves, says so, comes back; noise, policy and seed matter."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from headway.cluster.model import star
from headway.collectives.agreement import FIRST_EPOCH_WEIGHT, LARGE_BYTES
from headway.collectives.families import ring
from headway.collectives.plan import Collective
from headway.collectives.plan_book import PlanBook
from headway.collectives.plan_codec import decode
from headway.collectives.verify import check
from headway.decide.journal import DecisionRecord, FlowRecord, MemoryJournal, OperationRecord, Record, StartRecord
from headway.lab.files import load_scenario
from headway.lab.scenario import Scenario
from headway.observe.samples import FlowSample
from headway.sim.engine.network import Flow
from headway.sim.execution.collective import Execution
from headway.sim.jobs.job import OperationDone
from headway.sim.jobs.tuned import TunedPlans
from headway.sim.result import Result
from headway.sim.run import Simulation, with_default_job

SIZE_BYTES = 8_000_000


def scenario(name: str, *, start_s: float = 6.0, duration_s: float | None = 14.0, policy: str = "packing") -> Scenario:
    """A shipped scenario whose events begin later, and a job that does all-reduces all the time."""
    shipped = load_scenario(name)
    events = [event.model_copy(update={"start": start_s, "duration": duration_s}) for event in shipped.events]
    later = shipped.model_copy(update={"events": tuple(events)})
    return with_default_job(later, size_bytes=SIZE_BYTES, iterations=100_000, policy=policy)


def simulated(case: Scenario, until_s: float, *, seed: int = 0, execution: Execution = Execution.STREAMS) -> Result:
    simulation = Simulation(case, execution=execution, seed=seed)
    simulation.run(until_s)
    return simulation.result()


def decisions(records: Sequence[Record]) -> list[DecisionRecord]:
    return [record for record in records if isinstance(record, DecisionRecord)]


def mean_s(result: Result, begin_s: float, end_s: float) -> float:
    times = [each.duration_s for each in result.jobs["all"].operations if begin_s < each.start_s < end_s]
    return sum(times) / len(times)


@pytest.mark.parametrize("policy", ["packing", "react"])
def test_it_moves_around_load_and_comes_back(policy: str) -> None:
    result = simulated(scenario("star8-udp50-down", policy=policy), 32.0)
    told = decisions(result.records)
    first = next(each for each in told if each.action == "try")
    assert 6 < first.t_s < 10
    assert re.search(r"downlink of host3 at 0\.(49|5)", first.reason)
    assert next(each for each in told if each.action == "keep").plan_after == first.plan_after
    assert next(each for each in told if each.action == "restore").t_s > 20
    untuned = simulated(scenario("star8-udp50-down", policy="off"), 20.0)
    assert mean_s(result, 12, 20) < 0.75 * mean_s(untuned, 12, 20)


def test_pieces_show_the_tuner_the_same_load() -> None:
    result = simulated(scenario("star8-udp75-up", start_s=2.0, duration_s=None), 8.0, execution=Execution.PIECES)
    tried = next(each for each in decisions(result.records) if each.action == "try")
    assert "uplink of host3" in tried.reason


def test_without_load_nothing_is_found() -> None:
    result = simulated(scenario("star8"), 90.0)
    assert {each.action for each in decisions(result.records)} == {"hold"}
    assert not any(each.findings for each in decisions(result.records))


def test_the_journal_is_what_a_live_group_writes() -> None:
    result = simulated(scenario("star8-udp50-down"), 15.0)
    records = [record for record in result.records if record.group == "all"]
    kinds = [type(record) for record in records]
    assert kinds[0] is StartRecord
    assert kinds.count(StartRecord) == 1
    operations = [record for record in records if isinstance(record, OperationRecord)]
    assert [each.operation for each in operations] == list(range(len(operations)))
    ended = result.jobs["all"].operations
    assert len(operations) == len(ended)
    assert all(abs(one.t_s - other.end_s) < 0.1 for one, other in zip(operations, ended, strict=True))
    flows = [record for record in records if isinstance(record, FlowRecord)]
    assert {(flow.src, flow.dst) for flow in flows if flow.epoch == 0} == {
        pair for rank in range(8) for pair in ((rank, (rank + 1) % 8), (rank, (rank - 1) % 8))
    }
    assert all(flow.span_s is not None and flow.network_limited_s <= 1.2 * flow.span_s for flow in flows)


def test_the_same_seed_gives_the_same_journal_and_another_one_does_not() -> None:
    case = scenario("star8-udp50-down")
    one, same, other = (simulated(case, 14.0, seed=seed).records for seed in (1, 1, 2))
    assert one == same
    assert one != other


class _Silent:
    """A sampler without samples."""

    def flow_started(self, number: int, src: int, dst: int, flow: Flow) -> None:
        """Nothing to tell."""

    def take(self, number: int) -> Sequence[FlowSample]:
        return ()


class _Fixed(_Silent):
    """One flow in each operation that sends the same."""

    def take(self, number: int) -> Sequence[FlowSample]:
        return [FlowSample(0, 1, number + 0.0, number + 0.5, 1_000_000, 0.5, 0.0, 0.0, operation=number)]


def plans(*, sampler: _Silent | None = None, noise: float = 0.0) -> tuple[TunedPlans, MemoryJournal]:
    journal = MemoryJournal()
    book = PlanBook(star(4, 25e6), "packing", bitwise=False)
    source = TunedPlans(
        book, group="g", clock=lambda: 1.0, sampler=sampler or _Silent(), journal=journal, noise=noise, seed=3
    )
    return source, journal


def done(number: int, size_bytes: int = SIZE_BYTES) -> OperationDone:
    begin_s, end_s = [float(number)] * 4, [number + 0.5] * 4
    return OperationDone(number, Collective.ALL_REDUCE, size_bytes, ring(range(4)), begin_s, end_s)


def test_ranks_wait_where_a_live_group_waits_for_its_ruling() -> None:
    source, _ = plans()

    def next_plan(number: int) -> bool:
        return source.plan_for(number, Collective.ALL_REDUCE, SIZE_BYTES, 0) is not None

    first_epoch = int(FIRST_EPOCH_WEIGHT)
    for number in range(first_epoch):
        assert next_plan(number)
    for number in range(first_epoch - 1):
        source.operation_done(done(number))
    assert next_plan(first_epoch)  # the lead
    assert not next_plan(first_epoch + 1)  # the epoch's last operation is not done
    source.operation_done(done(first_epoch - 1))
    assert next_plan(first_epoch + 1)


def test_small_operations_are_neither_measured_nor_written() -> None:
    source, journal = plans()
    assert source.plan_for(0, Collective.ALL_REDUCE, LARGE_BYTES - 1, 0) is not None
    source.operation_done(done(0, LARGE_BYTES - 1))
    source.finish()
    assert [record.kind for record in journal.records] == ["start"]


def test_operations_after_the_last_epoch_are_written_at_the_end() -> None:
    source, journal = plans()
    source.plan_for(0, Collective.ALL_REDUCE, SIZE_BYTES, 0)
    source.operation_done(done(0))
    assert not any(isinstance(record, OperationRecord) for record in journal.records)
    source.finish()
    assert [record.operation for record in journal.records if isinstance(record, OperationRecord)] == [0]


def test_noise_spoils_times_and_bytes_and_without_it_they_are_exact() -> None:
    def measured(noise: float) -> tuple[list[float], list[int]]:
        source, journal = plans(sampler=_Fixed(), noise=noise)
        for number in range(20):
            assert source.plan_for(number, Collective.ALL_REDUCE, SIZE_BYTES, 0) is not None
            source.operation_done(done(number))
        source.finish()
        times = [record.duration_s for record in journal.records if isinstance(record, OperationRecord)]
        return times, [record.acked_bytes for record in journal.records if isinstance(record, FlowRecord)]

    times_s, acked = measured(0.0)
    assert set(times_s) == {0.5}
    assert all(count % 1_000_000 == 0 for count in acked)
    noisy_s, noisy = measured(0.03)
    assert len(set(noisy_s)) == len(noisy_s)
    assert all(0.4 < time_s < 0.6 for time_s in noisy_s)
    assert not all(count % 1_000_000 == 0 for count in noisy)


def test_every_plan_that_comes_into_force_passes_the_verifier() -> None:
    result = simulated(scenario("star8-moving", start_s=4.0, duration_s=None), 60.0)
    texts = {each.plan_trees for each in decisions(result.records) if each.plan_trees}
    assert len(texts) >= 2
    for text in texts:
        check(decode(text), Collective.ALL_REDUCE)
