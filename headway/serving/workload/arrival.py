"""One request of a load. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arrival:
    """When a request comes, and what is in it.

    Attributes:
        at_s: seconds from the load's begin.
        input_tokens, output_tokens: lengths.
        block_ids: one id per block of the prompt, not chained: the same id is the same text, as in Mooncake's
            `hash_ids`. The last one may be a part of a block.
        block_tokens: tokens in a whole block (Mooncake: 512).
        session: the conversation that it belongs to; empty: none known.
    """

    at_s: float
    input_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...]
    block_tokens: int
    session: str = ""
