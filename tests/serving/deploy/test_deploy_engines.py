"""Servers of a plan: their memory, their names, and who starts after whom."""

from __future__ import annotations

import pytest

from headway.errors import UsageError
from headway.serving.allocation.types import Plan
from headway.serving.deploy.engines import EngineOptions, dns_label, engines
from headway.serving.engine.hardware import DEVICES
from tests.serving.deploy.plans import EQUAL, MIXED, NODES, part, plan, whole

A100_BYTES = DEVICES["a100"].memory_bytes


def argument(command: tuple[str, ...], name: str) -> str:
    return command[command.index(name) + 1]


def test_every_instance_is_a_server_with_its_part_of_memory() -> None:
    made = {it.name: it for it in engines(MIXED, NODES, EngineOptions(weights={"llama-3-8b": "meta-llama/x"}))}
    assert set(made) == {"llama-3-8b-0", "llama-3-2-3b-0", "llama-3-2-3b-1", "llama-3-2-1b-0", "qwen2-5-1-5b-0"}
    large, small = made["llama-3-8b-0"], made["llama-3-2-1b-0"]
    assert large.command[:3] == ("vllm", "serve", "meta-llama/x")
    assert argument(large.command, "--served-model-name") == "llama-3-8b"
    assert argument(large.command, "--tensor-parallel-size") == "2"
    assert argument(large.command, "--gpu-memory-utilization") == "0.9"
    assert argument(small.command, "--gpu-memory-utilization") == "0.36"
    assert small.memory_bytes == int(0.4 * A100_BYTES)


def test_what_servers_on_a_gpu_may_take_together_is_less_than_it_has() -> None:
    for gpu in (2, 3):
        own = [it for it in engines(MIXED, NODES, EngineOptions()) if gpu in it.instance.gpus]
        assert sum(float(argument(it.command, "--gpu-memory-utilization")) for it in own) <= 0.9 + 1e-9
        assert sum(it.memory_bytes or 0 for it in own) <= A100_BYTES


def test_a_known_models_cache_is_said_in_bytes_and_fits_with_its_weights() -> None:
    made = {it.name: it for it in engines(MIXED, NODES, EngineOptions())}
    cache_bytes = int(argument(made["llama-3-2-1b-0"].command, "--kv-cache-memory-bytes"))
    assert 0 < cache_bytes < 0.36 * A100_BYTES - 2.4e9
    assert "--kv-cache-memory-bytes" not in made["llama-3-8b-0"].command
    unknown = engines(plan(part("mine", 0, 4, 0)), NODES, EngineOptions())
    assert "--kv-cache-memory-bytes" not in unknown[0].command
    named = engines(plan(part("mine", 0, 4, 0)), NODES, EngineOptions(known_as={"mine": "llama-3.2-1b"}))
    assert int(argument(named[0].command, "--kv-cache-memory-bytes")) == cache_bytes


def test_a_part_that_does_not_hold_the_weights_is_refused() -> None:
    with pytest.raises(UsageError, match=r"llama-3-8b on node-a needs 17\.1 GB before it has a cache"):
        engines(plan(part("llama-3-8b", 0, 1, 0)), NODES, EngineOptions())


def test_servers_on_one_gpu_start_one_after_the_other_the_largest_first() -> None:
    made = engines(MIXED, NODES, EngineOptions())
    after = {it.name: it.after for it in made}
    assert after == {
        "llama-3-8b-0": "",
        "llama-3-2-3b-0": "",
        "llama-3-2-3b-1": "",
        "llama-3-2-1b-0": "llama-3-2-3b-0",
        "qwen2-5-1-5b-0": "llama-3-2-3b-1",
    }
    names = [it.name for it in made]
    assert all(names.index(it.after) < names.index(it.name) for it in made if it.after)


def test_where_others_choose_the_gpu_all_on_a_node_start_in_turn() -> None:
    made = engines(EQUAL, NODES, EngineOptions(), together="node")
    assert [it.after for it in made] == ["", *(it.name for it in made[:-1])]


def test_limits_under_mps_are_the_part() -> None:
    made = {it.name: it for it in engines(MIXED, NODES, EngineOptions())}
    assert made["qwen2-5-1-5b-0"].mps_environment() == {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={int(0.3 * A100_BYTES) >> 20}M",
    }


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (Plan(10, ()), "the plan is not placed"),
        (plan(whole("llama-3-8b", 0, 0, node="elsewhere")), "llama-3-8b #0 on elsewhere, and the nodes are"),
        (plan(whole("llama-3-8b", 0, 7)), "llama-3-8b #0 on GPU 7 of node-a, which has no such GPU"),
        (plan(part("llama-3.2-1b", 0, 6, 2), part("llama-3.2-3b", 0, 5, 2)), "has 1.1 GPUs' worth on GPU 2 of node-a"),
        (plan(whole("a-b", 0, 0), whole("a.b", 0, 1)), "both called a-b"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(wrong: Plan, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        engines(wrong, NODES, EngineOptions())


def test_names_fit_dns() -> None:
    assert dns_label("Qwen/Qwen2.5-7B_Instruct") == "qwen-qwen2-5-7b-instruct"
    assert dns_label("7b") == "m-7b"
    assert len(dns_label("x" * 300)) <= 50
    with pytest.raises(UsageError):
        dns_label("...")
