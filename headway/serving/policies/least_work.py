"""Prefill work ahead and added, over speed. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence

from headway.serving.policies.rule import Rule, one_of
from headway.serving.policy import Candidate, Choice
from headway.serving.request import Request


class LeastWork(Rule):
    """The least prefill work ahead, with a price on the work that the request would add.

        score_i = (outstanding_i + (1 + price) * new_i) / speed_i

    outstanding_i are the prompt tokens sent to i without a first token yet that its cache is not expected to hold,
    new_i those of this request. With price 0 this is the request's own wait for the first token, as far as prefill
    makes it; the price counts what a miss takes from those who come after. Ours; found as the part of the learned
    policy's gain that needs no learning.

    Objective: least time to first token of all requests, not of this one alone.
    Reads: expected hits; our own count of tokens; `speed` from the configuration. Cost: O(n).
    Loses: where decoding is most of the work, behind several gateways (it sees only its own requests), and on unequal
    replicas whose speeds are not configured, or not the real ones.

    Args:
        seed: of the choice among equals.
        price: of a new token against one that is waited for (1).
    """

    name = "least-work"

    def __init__(self, seed: int = 0, *, price: float = 2.0) -> None:
        self._chance = random.Random(seed)
        self._price = price

    def choose(self, request: Request, candidates: Sequence[Candidate], now_s: float) -> Choice:
        """The least score."""
        scores = {}
        for candidate in candidates:
            new_tokens = max(0, request.input_tokens - candidate.hit_tokens)
            tokens = candidate.state.prefill_tokens + (1 + self._price) * new_tokens
            scores[candidate.name] = tokens / candidate.state.spec.speed
        least = min(scores.values())
        chosen = one_of([candidate for candidate in candidates if scores[candidate.name] == least], self._chance)
        new_tokens = max(0, request.input_tokens - chosen.hit_tokens)
        reason = f"least work: {chosen.state.prefill_tokens} tokens ahead, {new_tokens} new"
        return Choice(chosen.name, reason, self.name, scores)
