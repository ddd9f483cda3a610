"""New prefill tokens times batch size. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence

from headway.serving.policies.rule import Rule, one_of, queue
from headway.serving.policy import Candidate, Choice
from headway.serving.request import Request


class LMetric(Rule):
    """The least product of prefill work and batch size (LMetric, OSDI 2026, arXiv 2603.15202).

        score_i = (outstanding_i + new_i) * (queue_i + 1)

    outstanding_i are the prompt tokens sent to i without a first token yet that its cache is not expected to hold,
    new_i those of this request, queue_i its requests running and waiting. A product needs no weight between affinity
    and load, so there is nothing to tune.

    Objective: prefix affinity and load together: tokens bound the prefill, requests the decode steps between.
    Reads: expected hits; our own count of tokens; of requests the greater of our own count, which is always fresh, and
    the engine's (the paper's), which knows of other gateways. Cost: O(n).
    Loses: on unequal replicas, since a token counts the same everywhere; and where decoding is most of the work, since
    a replica without prompts to compute scores next to nothing for a full hit, however long its batch.

    Args:
        seed: of the choice among equals.
    """

    name = "lmetric"

    def __init__(self, seed: int = 0) -> None:
        self._chance = random.Random(seed)

    def choose(self, request: Request, candidates: Sequence[Candidate], now_s: float) -> Choice:
        """The least score."""
        scores = {}
        for candidate in candidates:
            new_tokens = max(0, request.input_tokens - candidate.hit_tokens)
            tokens = candidate.state.prefill_tokens + new_tokens
            scores[candidate.name] = float(tokens * (queue(candidate) + 1))
        least = min(scores.values())
        chosen = one_of([candidate for candidate in candidates if scores[candidate.name] == least], self._chance)
        size = queue(chosen) + 1
        reason = f"least tokens x requests: {least / size:.0f} x {size}"
        return Choice(chosen.name, reason, self.name, scores)
