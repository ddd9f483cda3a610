"""What others do with the GPUs, on small cases by hand."""

from __future__ import annotations

import pytest

from headway.errors import UsageError
from headway.serving.allocation.baselines.autoscaled import autoscaled
from headway.serving.allocation.baselines.in_order import OldestRunFirst
from headway.serving.allocation.baselines.pooling import Pool, Pooled, pool, pooled
from headway.serving.allocation.baselines.static import by_parameters, equal_split
from headway.serving.allocation.types import Demand, Plan
from headway.serving.engine.types import Job
from headway.serving.simulate.instances import instances, placed
from headway.serving.simulate.workflow_summary import summarise
from headway.serving.simulate.workflows import run_workflows
from headway.serving.workflows.aggregate_types import Aggregate, ModelUse
from headway.serving.workflows.programs.form import All, Context, Program
from headway.sim.engine.loop import Loop
from tests.serving.engine.driving import variant
from tests.serving.programs.small import STEADY, ask, fleet, mixed, traffic

RAG = ("llama-3.2-1b", "qwen2.5-1.5b", "qwen2.5-7b")


def replicas(plan: Plan) -> dict[str, int]:
    return {share.model: share.replicas for share in plan.shares}


def used(plan: Plan) -> dict[int, int]:
    """Slices by GPU."""
    slices: dict[int, int] = {}
    for it in plan.instances:
        for gpu in it.gpus:
            slices[gpu] = slices.get(gpu, 0) + it.shape.slices
    return slices


def test_an_equal_split_gives_each_model_as_much() -> None:
    assert replicas(equal_split(RAG, gpus=6, slices_per_gpu=10)) == dict.fromkeys(RAG, 2)
    plan = equal_split(RAG, gpus=8, slices_per_gpu=10)
    assert replicas(plan) == {"llama-3.2-1b": 2, "qwen2.5-1.5b": 3, "qwen2.5-7b": 3}
    assert used(plan) == dict.fromkeys(range(8), 10)


def test_a_user_gives_gpus_by_parameters() -> None:
    assert replicas(by_parameters(RAG, gpus=8, slices_per_gpu=10)) == {
        "llama-3.2-1b": 1,
        "qwen2.5-1.5b": 1,
        "qwen2.5-7b": 6,
    }
    two = by_parameters(("llama-3.2-3b", "llama-3-8b"), gpus=4, slices_per_gpu=10)
    assert replicas(two) == {"llama-3.2-3b": 1, "llama-3-8b": 3}


def test_with_fewer_gpus_than_models_the_smallest_share() -> None:
    for split in (equal_split, by_parameters):
        plan = split(RAG, gpus=2, slices_per_gpu=10)
        at = {it.model: (it.gpus, it.shape.slices) for it in plan.instances}
        assert at["llama-3.2-1b"][0] == at["qwen2.5-1.5b"][0] != at["qwen2.5-7b"][0]
        assert [at[model][1] for model in RAG] == [5, 5, 10]
    with pytest.raises(UsageError, match="in 2 parts each"):
        equal_split(RAG, gpus=1, slices_per_gpu=2)
    with pytest.raises(UsageError, match="unknown model 'x'"):
        equal_split(("x",), gpus=1, slices_per_gpu=2)


def demand(rate: float, **calls: float) -> Demand:
    """A workflow that calls each model so often."""
    uses = tuple(ModelUse(model, count, 1.0, 1.0, 0.5, 0.0, 100.0, 10.0) for model, count in calls.items())
    return Demand(Aggregate("w", 10, uses, 0.0, 2.0, 0.0), rate)


def scaled(rate: float, gpus: int) -> dict[str, int]:
    """Model a is called 4 times a run, b once; an instance takes 4 and 2 a second: 1 s and 0.5 s of each per run."""
    plan = autoscaled([demand(rate, a=4, b=1)], {"a": 4.0, "b": 2.0}, gpus=gpus, slices_per_gpu=10, target=0.75)
    assert used(plan) == dict.fromkeys(range(sum(replicas(plan).values())), 10)
    return replicas(plan)


def test_controllers_scale_each_model_to_its_own_target() -> None:
    assert scaled(0.3, 16) == {"a": 1, "b": 1}
    assert scaled(3.0, 16) == {"a": 4, "b": 2}
    assert scaled(6.0, 16) == {"a": 8, "b": 4}


def test_controllers_stop_where_the_gpus_are_out() -> None:
    assert sum(scaled(6.0, 8).values()) == 8
    assert scaled(100.0, 2) == {"a": 1, "b": 1}


def test_a_starved_model_hides_the_demand_for_others() -> None:
    """a is first in line and would want 22 instances for 4 runs/s; but b, too small, lets hardly any run through."""
    plan = autoscaled([demand(4.0, a=4, b=1)], {"a": 4.0, "b": 0.1}, gpus=3, slices_per_gpu=10)
    assert replicas(plan) == {"a": 1, "b": 2}


def fan(context: Context) -> Program:
    """A call, then three side by side, then one."""
    yield ask("a", 1)
    yield All([ask("a", 1) for _ in range(3)])
    yield ask("a", 1)


ONE_AT_A_TIME = variant(
    attention_s=0.0, context_s=0.0, token_s=1e-9, step_s=0.0, weights_s=0.1, block_tokens=64, most_running=1
)


def test_the_oldest_run_goes_first() -> None:
    """Runs then end in the order in which they came, and sooner on average."""
    by_order = {}
    for order in (None, OldestRunFirst()):
        run = instances(fleet("a", profile=ONE_AT_A_TIME))
        result = run_workflows(run, [traffic(fan, 1.9, 200)], seed=1, order=order)
        ended = [row for row in result.rows if row.end_s is not None and row.counted]
        in_order = sorted(ended, key=lambda row: row.end_s or 0.0) == ended
        by_order[order is not None] = (in_order, summarise(result, "w").mean_s)
    assert by_order[True][0]
    assert by_order[False][1] > by_order[True][1]


def test_order_is_by_run_then_depth() -> None:
    order = OldestRunFirst()
    assert order(1, 0) < order(1, 5) < order(2, 0)
    assert order(1, 10_000) < order(2, 0)


def models(switch_s: float) -> dict[str, Pooled]:
    return {name: Pooled(STEADY, switch_s) for name in ("a", "b", "c")}


def test_a_pooled_run_alone_pays_for_every_switch() -> None:
    """a 0.5 s; then b (0.3 s) and c (0.4 s from 0.2 s on) by turns; a tool for 1 s. Each model is loaded for 0.25 s."""
    result = run_workflows(pool(models(0.25), gpus=1), [traffic(mixed, 0.001, 1)], seed=1)
    assert result.rows[0].latency_s == pytest.approx(0.25 + 0.5 + (0.25 + 0.3) + (0.25 + 0.4) + 1.0)
    free = run_workflows(pool(models(0.0), gpus=3), [traffic(mixed, 0.001, 1)], seed=1)
    assert free.rows[0].latency_s == pytest.approx(2.1)


def test_turns_are_cut_where_another_model_waits() -> None:
    """Both have 3 s of work; a turn lasts 4 times 0.25 s of loading: a, b, a, b, a, b."""
    loop = Loop()
    ends: dict[str, float] = {}
    pool_ = Pool(loop, lambda id_: ends.__setitem__(id_, loop.now_s), models(0.25), gpus=1)
    pool_.submit("a", Job("a", 10, 30))
    pool_.submit("b", Job("b", 10, 30))
    loop.run()
    assert pool_.gpus[0].switches == 6
    assert ends == pytest.approx({"a": 5 * 1.25, "b": 6 * 1.25})


def test_a_turn_ends_early_where_there_is_nothing_to_do() -> None:
    loop = Loop()
    ends: dict[str, float] = {}
    pool_ = Pool(loop, lambda id_: ends.__setitem__(id_, loop.now_s), models(0.25), gpus=1)
    pool_.submit("a", Job("a", 10, 2))
    pool_.submit("b", Job("b", 10, 30))
    loop.run()
    assert ends == pytest.approx({"a": 0.45, "b": 0.45 + 0.25 + 3.0})
    assert pool_.gpus[0].switches == 2


def test_the_pool_keeps_calls_together_until_that_is_too_uneven() -> None:
    loop = Loop()
    pool_ = Pool(loop, lambda id_: None, models(1.0), gpus=2)
    for number in range(10):
        pool_.submit("a", Job(f"a{number}", 10, 5))
    assert [gpu.calls for gpu in pool_.gpus] == [9, 1]
    pool_.submit("b", Job("b", 10, 5))
    assert [gpu.calls for gpu in pool_.gpus] == [9, 2]
    loop.run()
    assert [gpu.calls for gpu in pool_.gpus] == [0, 0]


def test_loading_takes_the_weights_over_the_link() -> None:
    assert pooled("a100", "llama-3-8b").switch_s == pytest.approx(16.06e9 / 25e9, rel=0.01)
    assert pooled("a100", "llama-3-8b", host_link_Bps=float("inf")).switch_s == 0
    with pytest.raises(UsageError, match="no model x"):
        Pool(Loop(), lambda id_: None, models(0.0), gpus=1).submit("x", Job("1", 10, 5))
    with pytest.raises(UsageError, match="needs GPUs"):
        pool(models(0.0), gpus=0)(Loop(), lambda id_: None)


def test_every_baseline_serves_a_workflow() -> None:
    def chain(context: Context) -> Program:
        for model in RAG:
            yield ask(model, 5)

    for plan in (equal_split(RAG, gpus=2, slices_per_gpu=10), by_parameters(RAG, gpus=4, slices_per_gpu=10)):
        running = placed(plan.instances, devices={"node0": "a100"}, slices_per_gpu=10)
        assert summarise(run_workflows(instances(running), [traffic(chain, 1.0, 20)], seed=1), "w").done == 20
    together = {model: pooled("a100", model) for model in RAG}
    assert summarise(run_workflows(pool(together, gpus=2), [traffic(chain, 0.1, 20)], seed=1), "w").done == 20
