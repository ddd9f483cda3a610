"""Exploit a long match, else explore by cost. Pure."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from headway.serving.policies.rule import Rule, one_of
from headway.serving.policy import Candidate, Choice
from headway.serving.request import End, Outcome, Request

ATTENTION_TOKENS = 27_000
"""Context at which attention costs a token as much as all matrices do, tokens: Llama 3 8B, 2 * 6.98e9 FLOP over
4 * 32 heads * 128 * 32 layers FLOP per token of context."""

DECODE_TOKENS = 10.0
"""Tokens of a prompt that cost as much time as one token of an answer (1): 25 ms a step for 16 requests against 0.14 ms
a token, Llama 3 8B on an A30 by roofline."""

MEMORY = 0.02
"""Weight of a new answer's length in the running mean (1). Ours."""


@dataclass(slots=True)
class _Window:
    """What was sent to one replica lately."""

    cost: float = 0.0
    sent: deque[tuple[float, float]] = field(default_factory=deque)

    def add(self, now_s: float, cost: float) -> None:
        self.sent.append((now_s, cost))
        self.cost += cost

    def expire(self, before_s: float) -> None:
        while self.sent and self.sent[0][0] < before_s:
            self.cost -= self.sent.popleft()[1]
        if not self.sent:
            self.cost = 0.0


class Preble(Rule):
    """Preble's E2 rule (arXiv 2407.00023), without what needs a radix tree of its own.

    If more of the prompt is cached somewhere than is not: exploit, the replica with the longest match, of several the
    one with the least load. Else explore: the least load + prefill cost of this request. The load is what was sent in
    the last `window_s` seconds, in units of one prompt token without context:

        prefill(n new tokens after c cached) = n * (1 + (c + n / 2) / ATTENTION_TOKENS)
        decode = DECODE_TOKENS * mean length of answers so far

    A replica whose load is above `rebalance` times the least is not exploited: its match goes to the least loaded.
    Left out of the paper's rule: the cost of what a request evicts, and copying a hot prefix ahead of need.

    Objective: the least computation in all where sharing is strong, the least added cost where it isn't.
    Reads: expected hits, and its own history of what it sent. Cost: O(n); memory O(requests in the window).
    Loses: after any change that a window of minutes hides, such as a replica that became slow, or one that joins: it
    looks idle and gets everything new; on unequal replicas, since costs are in tokens.

    Args:
        seed: of the choice among equals.
        window_s: history that makes the load, seconds (paper: 3 minutes).
        rebalance: load over the least load from which a match is not followed (1; Preble's code: 1.5).
    """

    name = "preble"

    def __init__(self, seed: int = 0, *, window_s: float = 180.0, rebalance: float = 1.5) -> None:
        self._chance = random.Random(seed)
        self._window_s = window_s
        self._rebalance = rebalance
        self._windows: dict[str, _Window] = {}
        self._answer_tokens: float | None = None

    def choose(self, request: Request, candidates: Sequence[Candidate], now_s: float) -> Choice:
        """The longest match, or the least cost."""
        loads = {candidate.name: self._load(candidate.name, now_s) for candidate in candidates}
        added = {candidate.name: prefill_cost(request, candidate) for candidate in candidates}
        least_load = min(loads.values())
        best_tokens = max(candidate.hit_tokens for candidate in candidates)
        if 2 * best_tokens > request.input_tokens:
            holders = [candidate for candidate in candidates if candidate.hit_tokens == best_tokens]
            scores, share = loads, best_tokens / request.input_tokens
            least = min(loads[candidate.name] for candidate in holders)
            reason = f"exploits: holds {share:.0%} of the prompt"
            if least > self._rebalance * least_load:
                holders, least = list(candidates), least_load
                reason = (
                    f"rebalances: the load of those that hold {share:.0%} is above {self._rebalance:g} of the least"
                )
        else:
            holders = list(candidates)
            scores = {name: load + added[name] for name, load in loads.items()}
            least = min(scores.values())
            reason = f"explores: least cost {least:.0f}"
        chosen = one_of([candidate for candidate in holders if scores[candidate.name] == least], self._chance)
        cost = added[chosen.name] + DECODE_TOKENS * (self._answer_tokens or 0.0)
        self._windows.setdefault(chosen.name, _Window()).add(now_s, cost)
        if len(self._windows) > 2 * len(candidates) + 64:
            self._windows = {n: w for n, w in self._windows.items() if n in loads or self._load(n, now_s)}
        return Choice(chosen.name, reason, self.name, scores)

    def observe(self, outcome: Outcome, now_s: float) -> None:
        """Learn how long answers are."""
        if outcome.end is End.DONE:
            tokens = outcome.output_tokens
            before = self._answer_tokens
            self._answer_tokens = tokens if before is None else before + MEMORY * (tokens - before)

    def _load(self, name: str, now_s: float) -> float:
        window = self._windows.get(name)
        if window is None:
            return 0.0
        window.expire(now_s - self._window_s)
        return window.cost


def prefill_cost(request: Request, candidate: Candidate) -> float:
    """What computing the rest of the prompt costs, in tokens without context."""
    new_tokens = max(0, request.input_tokens - candidate.hit_tokens)
    return new_tokens * (1 + (candidate.hit_tokens + new_tokens / 2) / ATTENTION_TOKENS)
