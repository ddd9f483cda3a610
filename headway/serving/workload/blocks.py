"""Prompts as blocks of another size. Pure."""

from __future__ import annotations

from dataclasses import replace

from headway.errors import UsageError
from headway.serving.workload.arrival import Arrival


def blocks_of(tokens: int, block_tokens: int) -> int:
    """Blocks that hold so many tokens; the last one may be a part."""
    return -(-tokens // block_tokens)


def smaller(arrival: Arrival, block_tokens: int) -> Arrival:
    """The same prompt in smaller blocks, as an engine's cache has them: Mooncake's 512 tokens -> vLLM's 16.

    Block k of a block with id b becomes id `b * (old / new) + k`, so that ids agree where the texts agree. What is
    shared stays what it was: a trace cannot say that half of a block agrees. Linear in the number of small blocks.
    """
    if block_tokens == arrival.block_tokens:
        return arrival
    if block_tokens <= 0 or arrival.block_tokens % block_tokens:
        raise UsageError(f"blocks of {arrival.block_tokens} tokens cannot be cut into blocks of {block_tokens}")
    pieces = arrival.block_tokens // block_tokens
    ids = tuple(block * pieces + piece for block in arrival.block_ids for piece in range(pieces))
    return replace(arrival, block_ids=ids[: blocks_of(arrival.input_tokens, block_tokens)], block_tokens=block_tokens)


def shortened(arrival: Arrival, *, input_tokens: int | None = None, output_tokens: int | None = None) -> Arrival:
    """The same request with at most so many tokens in and out; a longer prompt loses its end, not its shared start."""
    kept = arrival.input_tokens if input_tokens is None else max(1, min(arrival.input_tokens, input_tokens))
    out = arrival.output_tokens if output_tokens is None else max(1, min(arrival.output_tokens, output_tokens))
    ids = arrival.block_ids[: blocks_of(kept, arrival.block_tokens)]
    return replace(arrival, input_tokens=kept, output_tokens=out, block_ids=ids)
