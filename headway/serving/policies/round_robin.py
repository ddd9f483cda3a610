"""One after the other. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from headway.serving.policies.rule import Rule
from headway.serving.policy import Candidate, Choice
from headway.serving.request import Request


class RoundRobin(Rule):
    """The replica that was chosen longest ago; of several never chosen, the first.

    Objective: the same number of requests to each, whatever they are.
    Reads: nothing but the names, so it needs no metrics. The turns hold also when replicas come, go or are left out.
    Cost: O(n).
    Loses: on unequal replicas (the slowest sets the pace), on requests of unequal length, and wherever prompts share
    prefixes: each prefix is computed once per replica.
    """

    name = "round-robin"

    def __init__(self) -> None:
        self._turn = 0
        self._last: dict[str, int] = {}

    def choose(self, request: Request, candidates: Sequence[Candidate], now_s: float) -> Choice:
        """The next in turn."""
        self._turn += 1
        chosen = min(candidates, key=lambda candidate: self._last.get(candidate.name, 0))
        self._last[chosen.name] = self._turn
        if len(self._last) > 2 * len(candidates) + 64:
            newest = sorted(self._last, key=self._last.__getitem__)[-len(candidates) - 32 :]
            self._last = {name: self._last[name] for name in newest}
        return Choice(chosen.name, "its turn", self.name)
