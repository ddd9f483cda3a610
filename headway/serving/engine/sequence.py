"""A request in the engine model: where it stands and what it holds. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from headway.serving.engine.types import Job


class Phase(Enum):
    """Where a request stands."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    GONE = "gone"


@dataclass(slots=True, eq=False)
class Sequence:
    """A request in the engine. `key` orders requests: lower goes first, the highest is preempted first."""

    job: Job
    key: tuple[int, int]
    whole_blocks: int
    """Blocks of the prompt that are whole, and so may be found again (count)."""
    phase: Phase = Phase.WAITING
    moves: int = 0
    """Grows with every change of phase: what was planned for an earlier one is void."""
    target: int = 0
    """Tokens to compute before the next one is produced: the prompt, and after a preemption what was answered."""
    computed: int = 0
    """Tokens in the KV cache; while decoding: when that began."""
    produced: int = 0
    """Tokens produced; while decoding: when that began."""
    joined: int = 0
    """While decoding: the number of the step after which that began."""
    cached_tokens: int = -1
    named: list[int] = field(default_factory=list)
    unnamed: int = 0
    seen_blocks: int = 0
    """Whole blocks of the prompt that are in the KV cache under a hash, this one's or another's copy (count)."""

    @property
    def blocks(self) -> int:
        """Blocks of the KV cache that it uses (count)."""
        return len(self.named) + self.unnamed
