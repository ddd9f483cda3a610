"""Workflows on simulated engines, against what can be worked out by hand."""

from __future__ import annotations

from collections import Counter

import pytest

from headway.errors import UsageError
from headway.serving.allocation.interference import Interference
from headway.serving.allocation.types import Instance, Shape, Share
from headway.serving.simulate.instances import Running, engine, instances, placed, unplaced
from headway.serving.simulate.peak import highest_rate
from headway.serving.simulate.workflow_summary import WorkflowSummary, summarise
from headway.serving.simulate.workflows import Simulated, Traffic, run_workflows
from headway.serving.workflows.programs.form import All, Context, Program
from headway.serving.workflows.programs.named import NAMED
from tests.serving.engine.driving import variant
from tests.serving.programs.small import STEADY, ask, fleet, mixed, traffic

ONE_AT_A_TIME = variant(
    attention_s=0.0, context_s=0.0, token_s=1e-9, step_s=0.0, weights_s=0.1, block_tokens=64, most_running=1
)
"""As STEADY, but calls queue."""


def fan_out(context: Context) -> Program:
    """Four calls of 0.2 s side by side, then one of 0.1 s."""
    yield All([ask("a", 2) for _ in range(4)])
    yield ask("a", 1)


def simulated(*coming: Traffic, running: list[Running], seed: int = 1, policy: str = "least-requests") -> Simulated:
    return run_workflows(instances(running, policy=policy), coming, seed=seed)


def test_a_run_alone_takes_its_critical_path() -> None:
    result = simulated(traffic(mixed, 0.01, 1), running=fleet("a", "b", "c"))
    assert result.rows[0].latency_s == pytest.approx(2.1)
    times = {call.model: (call.start_s - result.rows[0].arrived_s, call.end_s - call.start_s) for call in result.calls}
    assert times["a"] == pytest.approx((0.0, 0.5))
    assert times["b"] == pytest.approx((0.5, 0.3))
    assert times["c"] == pytest.approx((0.7, 0.4))


def test_a_barrier_waits_for_calls_that_queue() -> None:
    """Four calls of 0.2 s, one at a time on one engine, two on two, all at once on four; then 0.1 s."""
    for engines, expected_s in ((1, 0.9), (2, 0.5), (4, 0.3)):
        running = fleet("a", each=engines, profile=ONE_AT_A_TIME)
        result = simulated(traffic(fan_out, 0.001, 1), running=running)
        assert result.rows[0].latency_s == pytest.approx(expected_s)


def test_every_call_is_in_exactly_one_run_and_within_it() -> None:
    coming = [
        Traffic("rag", NAMED["rag"], 1.0, 5, 30),
        Traffic("debate", NAMED["debate"], 0.5, 3, 10),
    ]
    models = ["llama-3.2-1b", "qwen2.5-1.5b", "qwen2.5-7b", "llama-3-8b", "deepseek-7b", "qwen2.5-14b"]
    shares = [Share(model, Shape(1, 10), 1) for model in models]
    running = unplaced(shares, device="a100", slices_per_gpu=10)
    result = simulated(*coming, running=running)
    ids = [(call.run, call.id) for call in result.calls]
    assert len(set(ids)) == len(ids)
    per_run = Counter(call.run for call in result.calls)
    rows = {row.id: row for row in result.rows}
    assert set(per_run) <= set(rows)
    for row in result.rows:
        if row.end_s is not None:
            assert per_run[row.id] == row.calls == (22 if row.workflow == "rag" else 10)
    for call in result.calls:
        row = rows[call.run]
        assert call.workflow == row.workflow
        assert row.arrived_s <= call.start_s < call.end_s
        assert row.end_s is None or call.end_s <= row.end_s
    counted = [row for row in result.rows if row.counted]
    assert Counter(row.workflow for row in counted) == {"rag": 30, "debate": 10}
    assert all(row.end_s is not None for row in counted)


def test_the_same_seed_gives_the_same_bits() -> None:
    running = fleet("a", "b", "c", each=2)
    one, same, other = (simulated(traffic(mixed, 3.0, 40), running=running, seed=seed) for seed in (1, 1, 2))
    assert one.rows == same.rows
    assert one.calls == same.calls
    assert one.rows != other.rows


def test_runs_are_the_same_at_every_rate() -> None:
    """Common random numbers: arrivals are stretched, and runs make the same calls."""
    slow, fast = (simulated(traffic(NAMED["rag"], rate, 10), running=_rag()) for rate in (0.5, 1.0))
    assert [row.arrived_s for row in slow.rows[:10]] == pytest.approx([2 * row.arrived_s for row in fast.rows[:10]])
    lengths = [
        sorted((call.run, call.id, call.input_tokens, call.output_tokens) for call in it.calls if call.run < "rag-9")
        for it in (slow, fast)
    ]
    assert lengths[0] == lengths[1]


def _rag(replicas: int = 1) -> list[Running]:
    shares = [Share(model, Shape(1, 10), replicas) for model in ("llama-3.2-1b", "qwen2.5-1.5b", "qwen2.5-7b")]
    return unplaced(shares, device="a100", slices_per_gpu=10)


@pytest.mark.parametrize("policy", ["least-requests", "prefix-and-load"])
def test_more_gpus_are_never_slower_on_average(policy: str) -> None:
    means_s = [
        summarise(simulated(traffic(NAMED["rag"], 6.0, 60), running=_rag(n), policy=policy), "w").mean_s
        for n in (1, 2, 4)
    ]
    assert means_s[0] > means_s[1] > means_s[2]


def test_an_overload_piles_up_and_a_light_load_does_not() -> None:
    """One engine takes one call of 0.5 s at a time: two runs a second are its limit."""

    def single(context: Context) -> Program:
        yield ask("a", 5)

    def at(rate: float, most: int | None = None) -> Simulated:
        run = instances(fleet("a", profile=ONE_AT_A_TIME))
        return run_workflows(run, [traffic(single, rate, 400, warm_up=20)], seed=1, most_in_flight=most)

    light, heavy = summarise(at(1.0), "w"), summarise(at(3.0), "w")
    assert light.stable
    assert light.completed_rate == pytest.approx(light.arrival_rate, rel=0.05)
    rho = 0.5
    assert light.mean_s == pytest.approx(0.5 * (1 + rho / (2 * (1 - rho))), rel=0.15)  # M/D/1
    assert not heavy.stable
    assert heavy.piled_up == pytest.approx(1 / 3, abs=0.1)
    assert light.noise < 0.05
    assert heavy.completed_rate == pytest.approx(2.0, rel=0.05)
    stopped = at(3.0, most=30)
    assert stopped.overrun
    assert not summarise(stopped, "w").stable


def test_what_piles_up_slowly_is_seen_where_enough_runs_are_counted() -> None:
    """As above, at a twentieth more than the limit: of 80 runs 4 more wait at the end, which chance can do alone."""

    def single(context: Context) -> Program:
        yield ask("a", 5)

    def at(rate: float, runs: int, seed: int) -> WorkflowSummary:
        run = instances(fleet("a", profile=ONE_AT_A_TIME))
        return summarise(run_workflows(run, [traffic(single, rate, runs, warm_up=20)], seed=seed), "w")

    assert not any(at(2.1, 4000, seed).stable for seed in range(1, 4))
    assert any(at(2.1, 80, seed).unclear for seed in range(1, 11))
    for seed in range(1, 11):
        assert at(1.2, 80, seed).stable
        seen = at(1.2, 4000, seed)
        assert seen.stable
        assert not seen.unclear


def test_a_run_stops_when_its_limit_cannot_be_kept_any_more_and_arrivals_when_they_are_told_to() -> None:
    def single(context: Context) -> Program:
        yield ask("a", 5)

    def at(most_mean_s: float, cool_down: int | None) -> Simulated:
        coming = Traffic("w", single, 3.0, 5, 100, cool_down=cool_down, most_mean_s=most_mean_s)
        return run_workflows(instances(fleet("a", profile=ONE_AT_A_TIME)), [coming], seed=1)

    whole = at(float("inf"), 10)
    assert len(whole.rows) == 115
    assert len(at(float("inf"), None).rows) > 115
    mean_s = summarise(whole, "w").mean_s
    assert not at(mean_s + 0.001, 10).overrun
    early = at(mean_s / 2, 10)
    assert early.overrun
    assert early.end_s < 0.75 * whole.end_s


def test_the_highest_rate_is_found_from_above_and_below() -> None:
    for start in (0.1, 3.0, 50.0):
        found = highest_rate(lambda rate: rate <= 7.0, start=start, within=0.02)
        assert 7.0 / 1.02 <= found <= 7.0
    assert highest_rate(lambda rate: False, start=1.0) == 0.0
    with pytest.raises(UsageError, match="above 0"):
        highest_rate(lambda rate: True, start=0.0)


def test_traffic_that_makes_no_sense_is_refused() -> None:
    for bad in (traffic(mixed, 0.0, 1), traffic(mixed, 1.0, 0), traffic(mixed, 1.0, 1, warm_up=-1)):
        with pytest.raises(UsageError, match="traffic w"):
            simulated(bad, running=fleet("a", "b", "c"))
    with pytest.raises(UsageError, match="need names"):
        simulated(traffic(mixed, 1.0, 1), traffic(mixed, 1.0, 1), running=fleet("a", "b", "c"))
    with pytest.raises(UsageError, match="no instance serves c"):
        simulated(traffic(mixed, 1.0, 1), running=fleet("a", "b"))
    with pytest.raises(UsageError, match="each another"):
        simulated(traffic(mixed, 1.0, 1), running=fleet("a") + fleet("a"))


def test_placed_instances_are_engines_of_their_shapes() -> None:
    made = placed(
        [
            Instance("llama-3-8b", 0, Shape(2, 10), "n1", (0, 1)),
            Instance("llama-3.2-1b", 0, Shape(1, 4), "n2", (3,)),
        ],
        devices={"n1": "h100", "n2": "a100"},
        slices_per_gpu=10,
    )
    assert made[0].gpus == (("n1", 0), ("n1", 1))
    assert made[0].profile == engine("h100", "llama-3-8b", Shape(2, 10), 10)
    assert (made[1].part, made[1].profile) == (0.4, engine("a100", "llama-3.2-1b", Shape(1, 4), 10))


def test_a_busy_neighbour_slows_and_an_idle_one_does_not() -> None:
    """A long call of a beside a short one of b, which has half the GPU: a is 10 % slower while b is busy."""

    def both(context: Context) -> Program:
        yield All([ask("a", 40), ask("b", 10)])

    def ends(gpu_of_b: int, interference: Interference | None) -> dict[str, float]:
        running = [
            Running("a-0", "a", STEADY, (("n", 0),), 0.5),
            Running("b-0", "b", STEADY, (("n", gpu_of_b),), 0.5),
        ]
        result = run_workflows(instances(running, interference=interference), [traffic(both, 0.01, 1)], seed=1)
        return {call.model: call.end_s - call.start_s for call in result.calls if call.run == "w-0"}

    apart, together = ends(1, Interference(0.2)), ends(0, Interference(0.2))
    assert apart == pytest.approx({"a": 4.0, "b": 1.0})
    assert together["b"] == pytest.approx(1.1, abs=0.011)
    assert together["a"] == pytest.approx(4.1, abs=0.02)
    assert ends(0, None) == pytest.approx(apart)
