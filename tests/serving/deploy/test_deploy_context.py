"""How long a request may be: as much as the cache holds, and what a user may say."""

from __future__ import annotations

import pytest

from headway.errors import UsageError
from headway.serving.allocation.topology_types import Node
from headway.serving.deploy.context import ROUND_TOKENS, longest
from headway.serving.deploy.engines import Engine, EngineOptions, engines
from headway.serving.engine.hardware import MODELS
from tests.serving.deploy.plans import NODES, part, plan, whole

SMALL = plan(part("llama-3.2-1b", 0, 1, 0))
"""Its cache is 4185705676 bytes, and 131072 tokens are 2 ** 32."""


def option(engine: Engine, name: str) -> int | None:
    return int(engine.command[engine.command.index(name) + 1]) if name in engine.command else None


def server(*arguments: str) -> Engine:
    (made,) = engines(SMALL, NODES, EngineOptions(arguments=arguments))
    return made


def test_a_small_part_is_told_the_longest_request_that_its_cache_holds() -> None:
    made = server()
    limit, cache_bytes = option(made, "--max-model-len"), option(made, "--kv-cache-memory-bytes")
    assert limit is not None
    assert cache_bytes is not None
    token_bytes = 16 * 8 * 64 * 2 * 2
    assert limit * token_bytes < cache_bytes < 131072 * token_bytes
    assert limit % ROUND_TOKENS == 0
    assert limit * token_bytes > 0.99 * cache_bytes
    assert made.longest.said_tokens == limit
    assert made.longest.context_tokens == 131072


def test_a_part_whose_cache_holds_the_context_is_told_nothing() -> None:
    (made,) = engines(plan(part("llama-3.2-1b", 0, 2, 0)), NODES, EngineOptions())
    assert option(made, "--max-model-len") is None
    assert option(made, "--kv-cache-memory-bytes") is not None


def test_whole_gpus_too_and_then_their_cache_is_said() -> None:
    nodes = [Node("node-a", "t4", ((0, 1),))]
    (one,) = engines(plan(whole("llama-3.2-3b", 0, 0)), nodes, EngineOptions())
    limit = option(one, "--max-model-len")
    assert limit is not None
    assert limit < 131072
    assert limit * MODELS["llama-3.2-3b"].kv_bytes <= (option(one, "--kv-cache-memory-bytes") or 0)
    (two,) = engines(plan(whole("llama-3.2-3b", 0, 0, 1)), nodes, EngineOptions())
    assert option(two, "--max-model-len") is None
    assert option(two, "--kv-cache-memory-bytes") is None


def test_heads_are_shared_out_as_far_as_there_are_any() -> None:
    net = MODELS["qwen2.5-1.5b"]  # two KV heads
    held = [longest("x", net, 1 << 30, degree, ()).held_tokens or 0 for degree in (1, 2, 4)]
    assert 1.9 * held[0] < held[1] == held[2]


@pytest.mark.parametrize(("tokens", "said"), [(20_000, 19_712), (60_000, 32768), (140_000, None)])
def test_a_limit_fits_the_shorter_of_a_models_checkpoints(tokens: int, said: int | None) -> None:
    net = MODELS["qwen2.5-7b"]
    assert longest("x", net, tokens * net.kv_bytes, 1, ()).said_tokens == said


@pytest.mark.parametrize(
    "arguments",
    [
        ("--max-model-len=8192",),
        ("--max-model-len", "8192"),
        ("--max_model_len=8k", "--enforce-eager"),
        ("--max-model=100K",),
        ("--max-model-len=1.5k",),
        ("--max-model-len=999999", "--max-model-len=127232"),
        ("--max-model-len=auto",),
        ("--max-model-len", "-1"),
        ("--max-model-len=131072", "--kv-cache-dtype=fp8"),
    ],
)
def test_a_users_own_is_taken_instead(arguments: tuple[str, ...]) -> None:
    made = server(*arguments)
    assert made.command[-len(arguments) :] == arguments
    assert made.longest.said_tokens is None
    assert made.longest.asked
    assert sum(each.replace("_", "-").startswith("--max-model") for each in made.command) == sum(
        each.replace("_", "-").startswith("--max-model") for each in arguments
    )


@pytest.mark.parametrize("own", ["131072", "128K", "128k", "1.5m", "127233"])
def test_a_users_own_that_the_cache_does_not_hold_is_refused(own: str) -> None:
    says = f"--max-model-len={own} is more than the cache of llama-3-2-1b-0 holds, 127232 tokens"
    with pytest.raises(UsageError, match=f"^--arg: {says}"):
        server("--max-model-len", own)


@pytest.mark.parametrize("own", ["", "0", "x", "8kk", "1.5", "-8"])
def test_what_is_no_number_of_tokens(own: str) -> None:
    with pytest.raises(UsageError, match="is no number of tokens"):
        server(f"--max-model-len={own}")


def test_what_is_not_known_is_not_said() -> None:
    (unknown,) = engines(plan(part("mine", 0, 1, 0)), NODES, EngineOptions(arguments=("--max-model-len=999999",)))
    assert unknown.longest.held_tokens is None
    assert unknown.longest.context_tokens is None
    assert server("--kv-cache-dtype=nvfp4").longest.held_tokens is None
    assert option(server("--kv-cache-dtype=nvfp4"), "--max-model-len") is None


def test_a_cache_that_holds_no_block_is_none() -> None:
    net = MODELS["llama-3.2-1b"]
    assert longest("x", net, ROUND_TOKENS * net.kv_bytes, 1, ()).held_tokens == 0
    assert longest("x", net, -1, 1, ("--max-model-len=8192",)).held_tokens == 0
