"""What the hand-written policies have in common. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence

from headway.decide.journal import ServingRecord
from headway.serving.policy import Candidate
from headway.serving.request import Outcome


class Rule:
    """A policy that learns nothing: what becomes of the requests doesn't matter to it."""

    def observe(self, outcome: Outcome, now_s: float) -> None:
        """Nothing to do."""

    def first_token(self, request_id: str, ttft_s: float, now_s: float) -> None:
        """Nothing to do."""

    def records(self) -> list[ServingRecord]:
        """Nothing to say."""
        return []


def least_requests(candidates: Sequence[Candidate], chance: random.Random) -> Candidate:
    """The candidate with the fewest requests that we sent and that have not ended; of several, one at random."""
    least = min(candidate.state.requests for candidate in candidates)
    return one_of([candidate for candidate in candidates if candidate.state.requests == least], chance)


def one_of(candidates: Sequence[Candidate], chance: random.Random) -> Candidate:
    """One at random; draws nothing where there is no choice."""
    return candidates[0] if len(candidates) == 1 else candidates[chance.randrange(len(candidates))]


def counts(candidates: Sequence[Candidate]) -> dict[str, float]:
    """Requests in flight by replica, as scores."""
    return {candidate.name: float(candidate.state.requests) for candidate in candidates}


def queue(candidate: Candidate) -> int:
    """Requests running and waiting: the greater of our own count and the engine's, which may have others' too."""
    report = candidate.state.report
    ours = candidate.state.requests
    return ours if report is None else max(ours, report.running + report.waiting)
