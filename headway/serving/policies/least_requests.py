"""The fewest requests in flight. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence

from headway.serving.policies.rule import Rule, counts, least_requests
from headway.serving.policy import Candidate, Choice
from headway.serving.request import Request


class LeastRequests(Rule):
    """The replica with the fewest requests in flight; of several, one at random.

    Objective: equal queues, which follow the replicas' speeds by themselves: who is slow keeps its requests longer.
    Reads: our own count of requests, as AIBrix's `least-request`. It is always fresh, so that a burst between two polls
    of the metrics doesn't all go to one replica; but it misses what other gateways send.
    Cost: O(n).
    Loses: where prompts share prefixes (it scatters them), and where a few long prompts hide behind a small count.

    Args:
        seed: of the choice among equals.
    """

    name = "least-requests"

    def __init__(self, seed: int = 0) -> None:
        self._chance = random.Random(seed)

    def choose(self, request: Request, candidates: Sequence[Candidate], now_s: float) -> Choice:
        """The least loaded."""
        chosen = least_requests(candidates, self._chance)
        return Choice(chosen.name, f"fewest requests: {chosen.state.requests}", self.name, counts(candidates))
