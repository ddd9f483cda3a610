"""Queue length over speed. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence

from headway.serving.policies.rule import Rule, one_of, queue
from headway.serving.policy import Candidate, Choice
from headway.serving.request import Request


class LeastQueueTime(Rule):
    """The least queue length over configured speed (Mooncake; LMDeploy's proxy calls it minimum expected latency).

        score_i = queue_i / speed_i

    Of several with the least score the fastest, then one at random.

    Objective: equal waiting times on unequal replicas whose speeds are known.
    Reads: `speed` from the configuration; of requests the greater of our own count and the engine's running and
    waiting. Cost: O(n).
    Loses: where prompts share prefixes or differ in length, and where the configured speed isn't the real one: it never
    learns that a replica became slow, but for its queue.

    Args:
        seed: of the choice among equals.
    """

    name = "least-queue-time"

    def __init__(self, seed: int = 0) -> None:
        self._chance = random.Random(seed)

    def choose(self, request: Request, candidates: Sequence[Candidate], now_s: float) -> Choice:
        """The least score."""
        scores = {candidate.name: queue(candidate) / candidate.state.spec.speed for candidate in candidates}
        order = min((scores[candidate.name], -candidate.state.spec.speed) for candidate in candidates)
        equals = [c for c in candidates if (scores[c.name], -c.state.spec.speed) == order]
        chosen = one_of(equals, self._chance)
        reason = f"shortest queue for its speed: {queue(chosen)} at {chosen.state.spec.speed:g}"
        return Choice(chosen.name, reason, self.name, scores)
