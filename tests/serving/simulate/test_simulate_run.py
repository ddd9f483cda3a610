"""A fleet's run: times against closed forms, and what happens when replicas come, go and slow down."""

from __future__ import annotations

import pytest

from headway.errors import UsageError
from headway.serving.breaker import BreakerRules
from headway.serving.engine.hardware import profile
from headway.serving.fleet import FleetRules
from headway.serving.policies import build
from headway.serving.simulate.gateway import GatewayRules
from headway.serving.simulate.load import load
from headway.serving.simulate.replicas import Event, Join, Kill, Leave, Replica, Slow, replicas
from headway.serving.simulate.result import summary
from headway.serving.simulate.run import simulate
from headway.serving.simulate.saturation import PATIENCE, saturation
from tests.serving.engine.driving import PROFILE, variant
from tests.serving.simulate.loads import STILL, Always, arrival, fleet, poisson

STEP_S = PROFILE.step_s + 512 * PROFILE.token_s + 512 * 256 * PROFILE.attention_s
"""A prompt of 512 tokens is just one step of PROFILE."""


def test_one_request_takes_its_steps_and_two_messages() -> None:
    row = simulate(fleet(1), load([arrival(1.0, out=2)]), build("round-robin"), rules=STILL).rows[0]
    decode_s = PROFILE.step_s + PROFILE.weights_s + 512 * PROFILE.context_s
    assert row.ttft_s == pytest.approx(STEP_S + 0.002)
    assert row.e2e_s == pytest.approx(STEP_S + decode_s + 0.002)
    assert row.tpot_s == pytest.approx(decode_s)
    assert (row.at_s, row.replica, row.by, row.attempts, row.status) == (1.0, "r0", "round-robin", 1, 200)
    assert (row.hit_tokens, row.cached_tokens, row.output_tokens) == (0, 0, 2)


def test_a_single_replica_is_the_queue_that_theory_knows() -> None:
    """Poisson arrivals, one server, constant service: M/D/1, mean wait rho / (2 (1 - rho)) services."""
    rules = GatewayRules(network_s=0.0, jitter_s=0.0)
    rho = 0.6
    rows = simulate(fleet(1), poisson(4000, rho / STEP_S), build("round-robin"), rules=rules).rows
    assert summary(rows).ttft.mean_s == pytest.approx(STEP_S * (1 + rho / (2 * (1 - rho))), rel=0.1)


def test_saturation_is_where_theory_says() -> None:
    """M/D/1's mean wait passes PATIENCE - 1 services at rho = 2 (PATIENCE - 1) / (1 + 2 (PATIENCE - 1))."""
    rho = 2 * (PATIENCE - 1) / (1 + 2 * (PATIENCE - 1))
    found = saturation(fleet(1), poisson(1000, 1.0), policy=lambda: build("round-robin"), within=0.05)
    assert found * STEP_S == pytest.approx(rho, rel=0.15)
    with pytest.raises(UsageError, match="too short"):
        saturation(fleet(1), poisson(50, 1.0))


def test_round_robin_over_equal_replicas_is_even() -> None:
    result = simulate(fleet(4), poisson(400, 20.0, out=5), build("round-robin"))
    assert summary(result.rows).per_replica == {f"r{index}": 100 for index in range(4)}
    assert [row.id for row in result.rows] == [str(index) for index in range(400)]
    assert result.unfinished == 0


def test_what_the_cache_held_is_reported() -> None:
    rows = simulate(fleet(1), load([arrival(0.0), arrival(5.0), arrival(9.0, shared=8)]), Always()).rows
    assert [row.cached_tokens for row in rows] == [0, 496, 496]
    assert [row.hit_tokens for row in rows] == [0, 496, 496]
    assert summary(rows).cached_share == pytest.approx(2 * 496 / 1536)


def test_the_same_seed_gives_the_same_rows() -> None:
    many = poisson(300, 30.0, out=20, shared=16)
    runs = [simulate(fleet(3), many, build("power-of-two", seed=7), seed=seed).rows for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_more_replicas_or_faster_ones_serve_sooner() -> None:
    many = poisson(400, 25.0, out=10)
    means_s = [
        summary(simulate(them, many, build("least-requests")).rows).ttft.mean_s
        for them in (fleet(2), fleet(4), [Replica(f"r{index}", variant(token_s=0.00005)) for index in range(4)])
    ]
    assert means_s == sorted(means_s, reverse=True)


def test_a_slow_replica_is_slow_until_it_is_not() -> None:
    several = load([arrival(float(at), first_block=10_000 * (at + 1)) for at in range(6)])
    rows = simulate(fleet(1), several, Always(), rules=STILL, events=[Slow("r0", 3.0, 1.5, 3.5)]).rows
    factors = [((row.ttft_s or 0) - 0.002) / STEP_S for row in rows]
    assert factors == pytest.approx([1, 1, 3, 3, 1, 1])


def test_a_killed_replica_fails_what_has_a_first_byte_and_the_rest_goes_elsewhere() -> None:
    several = load([arrival(0.0, out=1000), *(arrival(0.2, first_block=10_000 * (at + 1)) for at in range(4))])
    result = simulate(fleet(2), several, Always("r0"), rules=STILL, events=[Kill("r0", 0.35)])
    answered, *others = result.rows
    assert (answered.status, answered.replica, answered.attempts, answered.done) == (502, "r0", 1, False)
    assert answered.ttft_s == pytest.approx(STEP_S + 0.002)
    assert answered.e2e_s == pytest.approx(0.351)
    # The first of the others had its first token before 0.35 s and was done with it.
    assert [(row.status, row.replica, row.attempts) for row in others] == [
        (200, "r0", 1),
        *[(200, "r1", 2)] * 3,
    ]
    assert others[1].sent_s == pytest.approx(0.151)
    told = summary(result.rows)
    assert (told.done, told.failed, told.refused) == (4, 1, 0)


def test_what_is_sent_to_a_dead_replica_goes_elsewhere_and_soon_nothing_is() -> None:
    several = load([arrival(float(at), first_block=10_000 * (at + 1)) for at in range(20)])
    rules = FleetRules(breaker=BreakerRules(failures=3, backoff_s=100.0))
    result = simulate(fleet(2), several, Always("r0"), fleet_rules=rules, events=[Kill("r0", 0.5)])
    assert [row.attempts for row in result.rows] == [1, 2, 2, 2, *[1] * 16]
    assert all(row.done for row in result.rows)
    assert [record.event for record in result.records if record.replica == "r0"] == ["join", "silent", "down"]


def test_where_all_are_dead_the_client_is_told() -> None:
    several = load([arrival(float(at)) for at in range(8)])
    events = [Kill("r0", 0.5), Kill("r1", 0.5)]
    rules = FleetRules(breaker=BreakerRules(backoff_s=100.0))
    rows = simulate(fleet(2), several, Always(), fleet_rules=rules, events=events).rows
    assert {row.status for row in rows} == {200, 502, 503}
    assert [row.status for row in rows][-1] == 503
    told = summary(rows)
    assert told.done == 1
    assert told.done + told.failed + told.refused == 8


def test_a_replica_that_joins_gets_requests_and_one_that_left_does_not() -> None:
    several = load([arrival(float(at)) for at in range(10)])
    events: list[Event] = [Join(Replica("r1", PROFILE), 2.5), Leave("r0", 5.5)]
    rows = simulate(fleet(1), several, build("round-robin"), events=events).rows
    assert [row.replica for row in rows[:3]] == ["r0"] * 3
    assert {row.replica for row in rows[3:6]} == {"r0", "r1"}
    assert [row.replica for row in rows[6:]] == ["r1"] * 4


def test_a_killed_replica_that_comes_back_has_lost_its_cache() -> None:
    several = load([arrival(float(at)) for at in range(4)])
    events: list[Event] = [Kill("r0", 1.5), Join(Replica("r0", PROFILE), 1.6)]
    assert [row.cached_tokens for row in simulate(fleet(1), several, Always(), events=events).rows] == [0, 496, 0, 496]


def test_what_no_engine_can_hold_is_refused_by_it() -> None:
    rows = simulate(fleet(1), load([arrival(0.0, tokens=70_000), arrival(1.0)]), Always()).rows
    assert [(row.status, row.output_tokens, row.done) for row in rows] == [(400, 0, False), (200, 1, True)]
    assert summary(rows).refused == 1


def test_the_router_sees_reports_that_are_polled_and_late() -> None:
    policy = Always()
    rules = GatewayRules(poll_s=0.1, poll_delay_s=0.03)
    simulate(fleet(1), poisson(200, 30.0, out=20), policy, rules=rules)
    late = [candidates[0].state.report_age_s for now_s, candidates in policy.seen if now_s > 0.2]
    assert min(late) >= 0
    assert 0.08 < max(late) <= 0.1001
    running = [it[0].state.report.running for _, it in policy.seen if it[0].state.report is not None]
    assert max(running) > 1


def test_a_run_can_be_stopped_when_too_much_waits() -> None:
    result = simulate(fleet(1), poisson(500, 10 / STEP_S), build("round-robin"), most_waiting=20)
    assert result.unfinished == 21
    assert len(result.rows) < 10


def test_every_request_ends_also_where_memory_is_short() -> None:
    small = [Replica(f"r{index}", variant(cache_tokens=2048)) for index in range(2)]
    result = simulate(small, poisson(60, 25.0, tokens=700, out=200, shared=10), build("least-requests"))
    assert result.preemptions > 0
    assert all(row.done and row.output_tokens == 200 for row in result.rows)


def test_wrong_fleets_are_refused() -> None:
    one = load([arrival(0.0)])
    with pytest.raises(UsageError, match="a fleet needs a replica"):
        simulate([], one, Always())
    with pytest.raises(UsageError, match="two replicas are named r0"):
        simulate([*fleet(1), *fleet(1)], one, Always())
    with pytest.raises(UsageError, match="kill: no replica is named r9"):
        simulate(fleet(1), one, Always(), events=[Kill("r9", 1.0)])
    with pytest.raises(UsageError, match="r0 caches blocks of 32 tokens, the load's have 16"):
        simulate([Replica("r0", variant(block_tokens=32))], one, Always())
    with pytest.raises(UsageError, match="poll_s"):
        simulate(fleet(1), one, Always(), rules=GatewayRules(poll_s=0.0))


def test_replicas_are_named_after_their_device() -> None:
    a30, v100 = profile("a30", "llama-3-8b"), profile("v100", "llama-3-8b")
    them = replicas((2, a30), (1, v100), (1, a30))
    assert [it.name for it in them] == ["a30-0", "a30-1", "v100-0", "a30-2"]
    assert them[0].spec.cache_tokens is None
    assert them[2].spec.cache_tokens == 0
    assert them[0].spec.speed > them[2].spec.speed
