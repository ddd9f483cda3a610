"""What every routing policy is. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headway.decide.journal import ServingRecord
from headway.serving.replica import ReplicaState
from headway.serving.request import Outcome, Request


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica that may answer a request.

    Attributes:
        state: the replica.
        hit_tokens: tokens of the request's prompt that we expect to be in its prefix cache.
    """

    state: ReplicaState
    hit_tokens: int = 0

    @property
    def name(self) -> str:
        """The replica's name."""
        return self.state.name


@dataclass(frozen=True, slots=True)
class Choice:
    """Which replica, and why.

    Attributes:
        replica: its name.
        reason: in a few words, for a header and the journal: "least loaded: counts differ by 12 > 8".
        by: the rule that chose: the policy's name, or that of the heuristic that it fell back to.
        scores: what the rule compared, by replica; empty where it compared nothing. Its unit is the rule's.
        predicted_ttft_s: of the chosen replica, where the rule predicts; else None.
    """

    replica: str
    reason: str
    by: str
    scores: Mapping[str, float] = field(default_factory=dict)
    predicted_ttft_s: float | None = None


class Policy(Protocol):
    """Chooses a replica for each request. One thread calls it, with a clock that only goes forward."""

    name: str

    def choose(self, request: Request, candidates: Sequence[Candidate], now_s: float) -> Choice:
        """Who answers. At least one candidate, no two of one name, in an order that does not change by itself."""
        ...

    def observe(self, outcome: Outcome, now_s: float) -> None:
        """A request has ended. Called once for each choice, also where it failed; CANCELLED where it never was sent."""
        ...

    def first_token(self, request_id: str, ttft_s: float, now_s: float) -> None:
        """The first token of a request has come, `ttft_s` after it was sent."""
        ...

    def records(self) -> list[ServingRecord]:
        """What the policy has to say for the journal since the last call: models swapped, guard-rail moves."""
        ...
