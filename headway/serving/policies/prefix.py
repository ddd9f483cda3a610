"""Where the prompt's prefix is cached already. Pure."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

from headway.serving.policies.rule import Rule, counts, least_requests, one_of
from headway.serving.policy import Candidate, Choice
from headway.serving.request import Request


class Prefix(Rule):
    """The replica with the longest cached prefix, if that is more than a share of the prompt; else the least loaded.

    Objective: the fewest prompt tokens computed twice, whatever the queues are.
    Reads: expected hits, and our own counts of requests where there is no match. Cost: O(n).
    Loses: badly, where many prompts share one long prefix: all of them queue at its holder while others idle. The best
    threshold depends on the load: 20 % for the tool-agent trace, 60 % for conversations (Lodestar).

    Args:
        seed: of the choice among equals.
        threshold: share of the prompt that must be cached, 0 to 1; the rule wants more than this (AIBrix's and
            Lodestar's code: 0.5).
    """

    name = "prefix"

    def __init__(self, seed: int = 0, *, threshold: float = 0.5) -> None:
        self._chance = random.Random(seed)
        self._threshold = threshold

    def choose(self, request: Request, candidates: Sequence[Candidate], now_s: float) -> Choice:
        """The best match, of several the least loaded."""
        best_tokens = max(candidate.hit_tokens for candidate in candidates)
        share = best_tokens / max(1, request.input_tokens)
        scores = {candidate.name: float(candidate.hit_tokens) for candidate in candidates}
        if share > self._threshold:
            holders = [candidate for candidate in candidates if candidate.hit_tokens == best_tokens]
            chosen = least_requests(holders, self._chance)
            return Choice(chosen.name, f"holds {share:.0%} of the prompt", self.name, scores)
        chosen = least_requests(candidates, self._chance)
        reason = f"fewest requests: {chosen.state.requests}; nobody holds more than {self._threshold:.0%} of the prompt"
        return Choice(chosen.name, reason, self.name, scores)


class PrefixAndLoad(Rule):
    """AIBrix's rule: the longest cached prefix among replicas that aren't loaded far above the mean.

    With c_i the requests in flight on replica i:

        if max c - min c > imbalance:  the least loaded
        else, of those with a match, by match descending, then by c ascending:
              the first with c_i <= mean(c) + deviations * std(c)
        else the least loaded

    std is the sample's (n - 1). Ties are broken at random, as in AIBrix, whose `prefix-cache` strategy it is.

    Objective: prefix affinity, given up where it would unbalance the counts.
    Reads: expected hits; our own counts of requests, as AIBrix's gateway counts them itself. Cost: O(n log n).
    Loses: where a count says little of the work: long prompts beside short ones (5x worse than without, at 10 req/s of
    1K tokens; Lodestar), unequal replicas; and at high load, where an imbalance of 8 is mere noise and undoes affinity.

    Args:
        seed: of the choice among equals.
        imbalance: difference of counts above which only the load counts (count; AIBrix: 8).
        deviations: standard deviations above the mean up to which a replica may be chosen (1; AIBrix: 1).
    """

    name = "prefix-and-load"

    def __init__(self, seed: int = 0, *, imbalance: float = 8, deviations: float = 1) -> None:
        self._chance = random.Random(seed)
        self._imbalance = imbalance
        self._deviations = deviations

    def choose(self, request: Request, candidates: Sequence[Candidate], now_s: float) -> Choice:
        """The best match that isn't loaded."""
        loads = [candidate.state.requests for candidate in candidates]
        spread = max(loads) - min(loads)
        if spread > self._imbalance:
            chosen = least_requests(candidates, self._chance)
            reason = f"fewest requests: counts differ by {spread} > {self._imbalance:g}"
            return Choice(chosen.name, reason, self.name, counts(candidates))
        limit = statistics.fmean(loads)
        if len(loads) > 1:
            limit += self._deviations * statistics.stdev(loads)
        fitting = [c for c in candidates if c.hit_tokens > 0 and c.state.requests <= limit]
        if fitting:
            order = max((c.hit_tokens, -c.state.requests) for c in fitting)
            chosen = one_of([c for c in fitting if (c.hit_tokens, -c.state.requests) == order], self._chance)
            share = chosen.hit_tokens / max(1, request.input_tokens)
            reason = f"holds {share:.0%} of the prompt, {chosen.state.requests} requests <= {limit:.1f}"
            return Choice(chosen.name, reason, self.name, counts(candidates))
        chosen = least_requests(candidates, self._chance)
        matched = any(candidate.hit_tokens > 0 for candidate in candidates)
        why = f"those with a match have more than {limit:.1f}" if matched else "nobody holds any of the prompt"
        return Choice(chosen.name, f"fewest requests: {chosen.state.requests}; {why}", self.name, counts(candidates))
