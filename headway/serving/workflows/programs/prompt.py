"""Prompts as blocks that agree where the texts agree. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from headway.errors import UsageError
from headway.serving.prefix import mix


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt made of texts, one after the other.

    Two prompts share a prefix of as many whole blocks as their texts cover alike from the begin on. A prompt never
    changes; `plus` makes a longer one, which costs O(new blocks) and a copy of the hashes.

    Attributes:
        block_tokens: tokens in a block.
        tokens: its length.
        blocks: chained hashes of its whole blocks, as `headway.serving.request.Request.blocks`.
        state: names all of its texts so far.
    """

    block_tokens: int
    tokens: int = 0
    blocks: tuple[int, ...] = ()
    state: int = 0

    def plus(self, text: int, tokens: int) -> Prompt:
        """This prompt and then a text. The same `text` is the same words, and so has the same length everywhere."""
        if tokens < 0:
            raise UsageError(f"a text of {tokens} tokens")
        state = mix(self.state ^ mix(text & 0xFFFF_FFFF_FFFF_FFFF))
        total = self.tokens + tokens
        first, end = len(self.blocks), total // self.block_tokens
        more = tuple(mix(state + index) for index in range(first, end))
        return Prompt(self.block_tokens, total, self.blocks + more, state)
