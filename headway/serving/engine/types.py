"""What goes into the engine model and what comes out. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """A request as an engine gets it.

    Attributes:
        id: unique in the engine.
        input_tokens: tokens of the prompt, at least 1.
        output_tokens: tokens that it will produce, at least 1.
        blocks: chained hashes of the prompt's blocks, as `headway.serving.request.Request.blocks`; only whole blocks
            can be found in the prefix cache.
        priority: lower goes first among those that wait; the same: first come, first served.
    """

    id: str
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Token:
    """A request has produced a token.

    Attributes:
        id: of the request.
        number: which token, from 1.
        last: no more will come.
        cached_tokens: tokens of the prompt that came from the prefix cache.
    """

    id: str
    number: int
    last: bool
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """How fast an engine is and how much it holds: a model on an accelerator, as the engine is configured.

    One step processes n new tokens of prompts that already have c tokens in the cache, and one token each of b requests
    with k tokens of context in all. It takes

        step_s + max(compute, memory)
        compute = (n + b) * token_s + (sum of n_i * (c_i + n_i / 2) + k) * attention_s
        memory = weights_s + k * context_s

    after the roofline: a step is bound by arithmetic or by reading weights and cache. Sources are in `hardware`.

    Attributes:
        device: kind of accelerator, e.g. "a30".
        step_s: fixed cost of a step (scheduler, launches), seconds.
        token_s: arithmetic per token, seconds.
        attention_s: arithmetic per token and token of context before it, seconds.
        weights_s: reading the weights once, seconds.
        context_s: reading one token of the KV cache, seconds.
        step_tokens: most tokens in one step (vLLM's max_num_batched_tokens): longer prompts are cut into chunks.
        most_running: most requests in the batch (vLLM's max_num_seqs).
        cache_tokens: tokens that the KV cache holds.
        block_tokens: tokens in a block of the cache; that of the prompts' hashes.
        prefix_caching: whether blocks of ended requests are kept and found again.
        chunked_prefill: whether prompts are cut into chunks; if not, each is computed whole in one step, which may then
            have more than `step_tokens`, and longer steps for all.
    """

    device: str
    step_s: float
    token_s: float
    attention_s: float
    weights_s: float
    context_s: float
    step_tokens: int
    most_running: int
    cache_tokens: int
    block_tokens: int
    prefix_caching: bool = True
    chunked_prefill: bool = True
