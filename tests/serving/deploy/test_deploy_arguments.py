"""Arguments for vLLM: what is none, and what a plan has decided."""

from __future__ import annotations

import re

import pytest

from headway.errors import UsageError
from headway.serving.deploy.arguments import check_arguments
from headway.serving.deploy.engines import EngineOptions, engines
from tests.serving.deploy.plans import MIXED, NODES


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--enforce-eager",),
        ("--max-model-len=8192", "--max-num-seqs", "64"),
        ("--hf-overrides", "$x"),
        ("--model-loader-extra-config={}", "--model-impl=auto"),
        ("--lora-modules", "a=b", "c=d"),
        ("-O3",),
        ("--kv-cache-dtype=fp8",),
        ("--max-num-batched-tokens", "-1"),
    ],
)
def test_what_vllm_may_be_told(arguments: tuple[str, ...]) -> None:
    check_arguments(arguments)


@pytest.mark.parametrize("arguments", [("foo",), ("",), ("--max-num-seqs=4", "8"), ("-",), ("--",), ("8",), (" --x",)])
def test_what_is_no_option_nor_follows_one(arguments: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=f"--arg: {re.escape(repr(arguments[-1]))} is no option, nor does it follow"):
        check_arguments(arguments)


@pytest.mark.parametrize(
    "argument",
    [
        "--gpu-memory-utilization=0.9",
        "--gpu_memory_utilization",
        "--gpu-mem=0.9",
        "--kv-cache-memory-bytes=1G",
        "--kv-cache-memory",
        "--num_gpu_blocks_override=100000",
        "--tensor-parallel-size=4",
        "-tp",
        "-tp=4",
        "-pp=2",
        "--pipeline-parallel-size",
        "--data-parallel-size=2",
        "--data_parallel_backend=ray",
        "-dpr=1",
        "--port=80",
        "--host",
        "--served-model-name=x",
        "--model=x",
    ],
)
def test_what_the_plan_has_decided(argument: str) -> None:
    with pytest.raises(UsageError, match=f"^--arg: {re.escape(argument)} is not for you to say: "):
        check_arguments(("--enforce-eager", argument))


def test_all_that_we_say_ourselves_is_decided() -> None:
    own = {part for each in engines(MIXED, NODES, EngineOptions()) for part in each.command if part.startswith("--")}
    assert "--gpu-memory-utilization" in own
    for option in own:
        with pytest.raises(UsageError, match="is not for you to say"):
            engines(MIXED, NODES, EngineOptions(arguments=(option,)))
