"""Who holds a stuck operation up. Pure: messages in, messages out, time passed in.

A rank that waits in a chain waits for its neighbour, which may itself only be waiting. So a rank whose operation is
stuck asks rank 0, rank 0 asks everybody, and whoever doesn't answer, or hasn't called the operation, is named to
all. The diagnosis is ready before the operation's own limit, which then reports it.

| message | from, to | meaning |
| --- | --- | --- |
| stuck   | any rank -> 0   | operation `number` has not moved for a while, find out why |
| ping    | 0 -> all        | are you there, and how far are you? |
| pong    | all -> 0        | the last operation that I was asked to run is `called` |
| verdict | 0 -> all        | `silent` did not answer; `behind` answered but have not called the operation |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict

ANSWER_SHARE = 0.15
"""Part of an operation's limit that rank 0 waits for answers; asking starts at `ASK_SHARE` of it."""

ASK_SHARE = 0.5
"""Half the limit: late enough not to bother healthy slow operations, early enough for a diagnosis."""


class LivenessMessage(BaseModel):
    """One message of the table above; unused fields stay at their defaults."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["stuck", "ping", "pong", "verdict"]
    operation: int = -1
    called: int = -1
    limit_s: float = 0.0
    silent: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """What is known of a stuck operation.

    Attributes:
        operation: its number.
        silent: ranks that did not answer: ended, stopped or cut off.
        behind: ranks that are alive but have not called the operation.
    """

    operation: int
    silent: tuple[int, ...]
    behind: tuple[int, ...]

    @property
    def culprit(self) -> int | None:
        """The rank to blame: a silent one before one that is behind."""
        named = (*self.silent, *self.behind)
        return named[0] if named else None

    def sentence(self) -> str:
        """In words, with every rank named."""
        parts = []
        if self.silent:
            verb = "does" if len(self.silent) == 1 else "do"
            parts.append(f"{_ranks(self.silent)} {verb} not answer: ended, stopped or cut off")
        if self.behind:
            verb = "is alive but has" if len(self.behind) == 1 else "are alive but have"
            parts.append(f"{_ranks(self.behind)} {verb} not called it")
        return "; ".join(parts) or "every rank answers and has called it: the network is too slow for this limit"


def _ranks(ranks: tuple[int, ...]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


@dataclass
class Inquiry:
    """Rank 0's open question about one operation."""

    operation: int
    size: int
    called: dict[int, int] = field(default_factory=dict)

    def answer(self, rank: int, called: int) -> bool:
        """Take a pong; True when everyone has answered."""
        self.called[rank] = called
        return len(self.called) == self.size

    def diagnose(self) -> Diagnosis:
        """What the answers so far say."""
        silent = tuple(rank for rank in range(self.size) if rank not in self.called)
        behind = tuple(rank for rank in sorted(self.called) if self.called[rank] < self.operation)
        return Diagnosis(self.operation, silent, behind)


def coordinator_silent(operation: int) -> Diagnosis:
    """What a rank concludes that asked rank 0 and got no verdict in time."""
    return Diagnosis(operation, silent=(0,), behind=())


def verdict_message(diagnosis: Diagnosis) -> LivenessMessage:
    """A diagnosis as it is sent to all."""
    return LivenessMessage(
        kind="verdict", operation=diagnosis.operation, silent=diagnosis.silent, behind=diagnosis.behind
    )
