"""Left to chance: one replica at random, or the better of two. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence

from headway.serving.policies.rule import Rule, counts, least_requests, one_of
from headway.serving.policy import Candidate, Choice
from headway.serving.request import Request


class Random(Rule):
    """Any replica, each as likely.

    Objective: none; it is what everything else must beat, and it herds with nobody.
    Reads: nothing. Cost: O(1).
    Loses: to round robin on equal requests (its queues vary like a coin's runs), and wherever that one loses.

    Args:
        seed: of the choices.
    """

    name = "random"

    def __init__(self, seed: int = 0) -> None:
        self._chance = random.Random(seed)

    def choose(self, request: Request, candidates: Sequence[Candidate], now_s: float) -> Choice:
        """One at random."""
        return Choice(one_of(candidates, self._chance).name, "at random", self.name)


class PowerOfTwo(Rule):
    """Two replicas at random; the one with fewer requests in flight.

    Objective: queues nearly as short as the least loaded's, with two looks: the longest of n queues grows as
    log log n, where random's grows as log n / log log n (Azar et al., STOC 1994; Mitzenmacher 1996). Because each
    decision sees two others, several gateways with counts of their own don't all run to the same replica.
    Reads: our own counts of requests of two replicas. Cost: O(1).
    Loses: to least-requests, where one gateway sees everything; and where prompts share prefixes.

    Args:
        seed: of the choices.
    """

    name = "power-of-two"

    def __init__(self, seed: int = 0) -> None:
        self._chance = random.Random(seed)

    def choose(self, request: Request, candidates: Sequence[Candidate], now_s: float) -> Choice:
        """The better of two."""
        pair = self._chance.sample(candidates, min(2, len(candidates)))
        chosen = least_requests(pair, self._chance)
        return Choice(chosen.name, f"fewer requests of two: {chosen.state.requests}", self.name, counts(pair))
