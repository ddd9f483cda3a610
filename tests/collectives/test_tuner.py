"""The tuner on a made-up network: when it moves, when it holds still, and how it comes back."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.cluster.model import LinkKind, star
from headway.collectives import families
from headway.collectives.candidates import idle_plan
from headway.collectives.plan import Collective, Plan
from headway.collectives.planner import CandidatePlanner
from headway.collectives.tuner import Tuner
from headway.collectives.tuner_measures import epoch_weight, lead_operations
from headway.collectives.verdict import EpochMeasures, OperationTime, Option, Planner, Verdict
from headway.collectives.verify import check
from headway.decide.journal import parse_lines, to_line
from headway.observe.findings import Finding, Pattern
from tests.fakes.network import FakeNetwork, Load
from tests.fakes.tuned_job import TunedJob

HOSTS = 8
CLUSTER = star(HOSTS, 25e6)
DOWN3 = HOSTS + 3


@functools.cache
def idle(collective: Collective, size_bytes: int) -> Plan:
    return idle_plan(CLUSTER, collective, size_bytes)


PLANNER = CandidatePlanner(lambda: CLUSTER, "packing", False, idle)


def job(load: Load, *, seed: int = 0, name: str = "group", planner: Planner = PLANNER, **options: object) -> TunedJob:
    made = TunedJob(FakeNetwork(CLUSTER, load, seed=seed), Tuner(CLUSTER, planner, name=name), planner)
    return replace(made, **options)  # type: ignore[arg-type]


def free(now_s: float) -> dict[int, float]:
    return {}


def between(begin_s: float, end_s: float, left: dict[int, float]) -> Load:
    return lambda now_s: left if begin_s < now_s < end_s else {}


def mean_s(run: TunedJob, begin_s: float, end_s: float) -> float:
    times = [duration_s for ended_s, duration_s, _ in run.times if begin_s < ended_s < end_s]
    return sum(times) / len(times)


def untuned_s(load: Load, size_bytes: int, until_s: float) -> float:
    """Mean time of an operation when the idle plan runs all the time."""
    network = FakeNetwork(CLUSTER, load, seed=99, sample_s=0.1)
    now_s = 0.0
    times: list[float] = []
    while now_s < until_s:
        plan = idle(Collective.ALL_REDUCE, size_bytes)
        span, _ = network.run(plan, Collective.ALL_REDUCE, size_bytes, number=len(times), start_s=now_s)
        now_s = span.end_s
        times.append(span.end_s - span.start_s)
    return sum(times) / len(times)


@pytest.mark.parametrize("seed", range(3))
def test_without_congestion_nothing_ever_changes(seed: int) -> None:
    run = job(free, seed=seed)
    run.network.noise, run.network.pause_share = 0.08, 0.05
    for _ in range(400):
        assert run.run_epoch().plans == {}
    assert set(run.actions()) == {"hold"}


@pytest.mark.parametrize("link", [3, DOWN3, 0, HOSTS + 7])
@pytest.mark.parametrize("left", [0.25, 0.5])
def test_it_moves_within_three_operations_and_comes_back(link: int, left: float) -> None:
    run = job(between(5, 30, {link: left}), seed=link)
    run.run_until(50)
    slow = [ended_s for ended_s, duration_s, plan in run.times if 5 < ended_s < run.at(["try"])[0] + 0.01]
    assert len(slow) <= 3
    kept_s, restored_s = run.at(["keep"])[0], run.at(["restore"])[-1]
    assert mean_s(run, kept_s, 30) < 0.7 * 0.6 / left
    assert 30 < restored_s < 45
    assert run.plan().name == idle(Collective.ALL_REDUCE, run.size_bytes).name
    assert run.actions()["keep"] <= 2


def test_a_move_is_told_in_words_and_numbers() -> None:
    run = job(between(5, 60, {DOWN3: 0.5}))
    run.run_until(12)
    tried = next(verdict for _, verdict in run.verdicts if verdict.action == "try")
    kept = next(verdict for _, verdict in run.verdicts if verdict.action == "keep")
    assert "downlink of host 3 at 0.5" in tried.reason
    assert tried.plan_before is not None
    assert tried.plan_after is not None
    before = next(option for option in tried.options if option.plan == tried.plan_before)
    assert tried.options[0].predicted_s <= 0.95 * before.predicted_s
    assert tried.limit_s is not None
    assert tried.predicted_s is not None
    assert tried.limit_s <= tried.predicted_s
    assert kept.measured_s is not None
    assert kept.reference_s is not None
    assert kept.measured_s < 0.95 * kept.reference_s
    record = tried.record(CLUSTER, t_s=1.0, group="g", epoch=9, from_operation=20)
    assert list(parse_lines([to_line(record)], where="journal")) == [record]
    assert record.findings[0].link == "downlink of host 3"


def test_every_plan_in_a_verdict_passes_the_verifier() -> None:
    for load in (between(2, 40, {DOWN3: 0.4}), between(2, 40, {2: 0.5, HOSTS + 6: 0.3})):
        run = job(load)
        run.run_until(30)
        plans = [plan for _, verdict in run.verdicts for plan in verdict.plans.values() if plan is not None]
        assert plans
        for plan in plans:
            check(plan, Collective.ALL_REDUCE)


@pytest.mark.parametrize("collective", [Collective.REDUCE_SCATTER, Collective.ALL_GATHER])
def test_halves_of_an_all_reduce_are_tuned_too(collective: Collective) -> None:
    run = job(between(5, 40, {3: 0.3, DOWN3: 0.3}), collective=collective, size_bytes=16_000_000)
    run.run_until(20)
    for _, verdict in run.verdicts:
        assert set(verdict.plans) <= {collective}
        for plan in verdict.plans.values():
            if plan is not None:
                check(plan, collective)


@pytest.mark.parametrize(("on_s", "off_s"), [(2, 2), (6, 6), (20, 20), (6, 30)])
def test_load_that_comes_and_goes_leads_to_few_changes(on_s: float, off_s: float) -> None:
    def load(now_s: float) -> dict[int, float]:
        return {3: 0.5} if now_s % (on_s + off_s) < on_s else {}

    run = job(load, size_bytes=16_000_000)
    run.network.sample_s = 0.1
    run.run_until(600)
    changes = [when_s for when_s, verdict in run.verdicts if verdict.plans]
    assert len(changes) <= 40
    assert len([when_s for when_s in changes if when_s > 400]) <= 8
    assert mean_s(run, 0, 600) < 1.03 * untuned_s(load, run.size_bytes, 600)


def test_congestion_that_moves_is_followed() -> None:
    run = job(lambda now_s: {HOSTS + int(now_s / 30) % HOSTS: 0.4})
    run.network.sample_s = 0.1
    run.run_until(180)
    assert run.actions()["keep"] >= 5
    assert mean_s(run, 0, 180) < 0.65 * 0.6 / 0.4


class Misled:
    """Believes that plans which use the congested link more are better."""

    def idle(self, collective: Collective, size_bytes: int) -> Plan:
        return idle(collective, size_bytes)

    def options(
        self, collective: Collective, size_bytes: int, findings: Sequence[Finding], current: Plan
    ) -> Sequence[Option]:
        stars = [families.star(HOSTS, rank) for rank in range(HOSTS)]
        return [self.predict(collective, size_bytes, findings, plan) for plan in stars]

    def predict(self, collective: Collective, size_bytes: int, findings: Sequence[Finding], plan: Plan) -> Option:
        return Option(plan, 0.1 if "star" in plan.name else 1.0, "no link")

    def limit_s(self, collective: Collective, size_bytes: int, findings: Sequence[Finding]) -> float | None:
        return None


def test_wrong_predictions_end_in_the_idle_plan_and_cost_little() -> None:
    load = between(2, 1e9, {DOWN3: 0.5})
    run = job(load, planner=Misled())
    run.network.sample_s = 0.1
    run.run_until(600)
    assert run.actions()["keep"] == 0
    assert run.actions()["revert"] == run.actions()["try"]
    longest = streak = 0
    for _, _, plan in run.times:
        streak = streak + 1 if "star" in plan.name else 0
        longest = max(longest, streak)
    assert longest <= 4
    assert mean_s(run, 300, 600) < 1.06 * untuned_s(load, run.size_bytes, 600)


def test_small_operations_decide_nothing() -> None:
    tuner = Tuner(CLUSTER, PLANNER, name="g")
    operations = [OperationTime(number, Collective.ALL_REDUCE, 4096, 0.001) for number in range(64)]
    operations.append(OperationTime(64, Collective.ALL_REDUCE, 2**20, 0.002))
    verdict = tuner.decide(EpochMeasures(0, 1.0, operations, []))
    assert (verdict.action, dict(verdict.plans)) == ("hold", {})
    assert "small" in verdict.reason


def test_what_the_caller_roots_is_not_tuned() -> None:
    run = job(between(0, 1e9, {DOWN3: 0.3}), collective=Collective.BROADCAST)
    run.run_until(10)
    assert set(run.actions()) == {"hold"}


@pytest.mark.parametrize(
    ("operation_s", "weight", "lead"), [(1e-5, 512, 16), (0.01, 75, 1), (0.1, 8, 0), (0.6, 1, 0), (5.0, 1, 0)]
)
def test_epochs_are_as_long_as_it_pays(operation_s: float, weight: float, lead: int) -> None:
    assert epoch_weight(operation_s, 0.75) == weight
    assert lead_operations(operation_s, 0.005) == lead


def test_the_same_reports_give_the_same_verdicts() -> None:
    def run() -> list[Verdict]:
        made = job(lambda now_s: {3: 0.5} if now_s % 20 > 8 else {}, seed=2)
        made.run_until(40)
        return [verdict for _, verdict in made.verdicts]

    assert run() == run()


def test_two_jobs_that_tune_on_the_same_links_settle() -> None:
    """Each job takes of a link what the other leaves, half of it at least; a third party loads one downlink."""
    jobs: list[TunedJob] = []

    def left_by(other: int) -> Load:
        def left(now_s: float) -> dict[int, float]:
            part = dict.fromkeys(range(2 * HOSTS), 1.0)
            if 20 < now_s < 200:
                part[DOWN3] = 0.6
            if len(jobs) == 2:
                for link, used in jobs[other].network.used.items():
                    part[link] = max(part[link] / 2, part[link] - used)
            return part

        return left

    for index, name in enumerate(("one", "two")):
        jobs.append(job(left_by(1 - index), seed=index, name=name, size_bytes=16_000_000))
        jobs[index].network.sample_s = 0.1
    while jobs[0].now_s < 400:
        min(jobs, key=lambda each: each.now_s).run_epoch()
    for each in jobs:
        changes = [when_s for when_s, verdict in each.verdicts if verdict.plans]
        assert len(changes) <= 30
        assert len([when_s for when_s in changes if when_s > 300]) <= 6


FINDINGS = st.lists(
    st.builds(
        Finding,
        kind=st.sampled_from([LinkKind.UPLINK, LinkKind.DOWNLINK]),
        host=st.integers(0, HOSTS - 1),
        peer=st.none(),
        capacity_Bps=st.floats(2e6, 18e6),
        baseline_Bps=st.just(24e6),
        pattern=st.sampled_from(list(Pattern)),
        since_s=st.just(0.0),
        samples=st.just(10),
        certain=st.booleans(),
    ),
    max_size=3,
)


@settings(max_examples=25, deadline=None)
@given(schedule=st.lists(st.tuples(FINDINGS, st.floats(0.3, 2.0)), min_size=1, max_size=25))
def test_no_schedule_of_findings_breaks_the_rules(schedule: list[tuple[list[Finding], float]]) -> None:
    """Whatever is found and measured: plans are valid, trials end, and what is in force is what the verdicts say."""

    def verdicts() -> list[Verdict]:
        tuner = Tuner(CLUSTER, PLANNER, name="g")
        found: list[list[Finding]] = []
        tuner._detector.update = lambda now_s, summaries, idle_plan: found[-1]  # type: ignore[method-assign, assignment, misc]
        in_force: Plan | None = None
        trying = 0
        said: list[Verdict] = []
        for epoch, (findings, duration_s) in enumerate(schedule):
            found.append(findings)
            operation = OperationTime(epoch, Collective.ALL_REDUCE, 8_000_000, duration_s)
            verdict = tuner.decide(EpochMeasures(epoch, 2.0 * epoch, [operation], []))
            said.append(verdict)
            for plan in verdict.plans.values():
                in_force = plan
                if plan is not None:
                    check(plan, Collective.ALL_REDUCE)
            assert tuner.plan(Collective.ALL_REDUCE) == in_force
            trying = trying + 1 if verdict.action == "try" or (trying and verdict.action == "hold") else 0
            assert trying <= 8
        return said

    assert verdicts() == verdicts()


def test_a_slow_path_is_left_by_new_connections_before_any_plan_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tuner = Tuner(CLUSTER, PLANNER, name="group")
    finding = Finding(LinkKind.PATH, 4, 3, 6e6, 24e6, Pattern.STEADY, 0.0, 50)
    seen = iter([[finding]] * 5 + [[replace(finding, current=False)], []])
    monkeypatch.setattr(tuner._detector, "update", lambda *_, **__: next(seen))

    def epoch(number: int) -> Verdict:
        operation = OperationTime(number, Collective.ALL_REDUCE, 8_000_000, 1.0)
        return tuner.decide(EpochMeasures(number, float(number), [operation], []))

    verdicts = [epoch(number) for number in range(4)]
    assert [verdict.reroutes for verdict in verdicts] == [((4, 3),)] * 4
    assert all(verdict.action == "hold" and "new connections" in verdict.reason for verdict in verdicts)
    after_its_share = epoch(4)
    assert after_its_share.reroutes == ()
    assert after_its_share.action == "try"
    assert epoch(5).reroutes == ()
