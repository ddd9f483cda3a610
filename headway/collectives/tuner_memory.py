"""What the tuner remembers of the latest epochs: operations to compare with, and where something was found. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence

from headway.collectives.plan import Collective
from headway.collectives.tuner_measures import TUNED, link_key
from headway.collectives.verdict import OperationTime
from headway.observe.findings import Finding, Pattern

_OPERATIONS = 6  # kept of each collective


class TunerMemory:
    """That of one tuner.

    Args:
        epochs: how far back findings are remembered (count).
        recur_share: an intermittent finding acts when it was there in this part of them (1).
    """

    def __init__(self, *, epochs: int, recur_share: float) -> None:
        self._recent: dict[Collective, deque[OperationTime]] = {each: deque(maxlen=_OPERATIONS) for each in TUNED}
        self._seen: deque[frozenset[Hashable]] = deque(maxlen=epochs)
        self._needed = recur_share * epochs

    def recent(self, collective: Collective) -> Sequence[OperationTime]:
        """The latest operations of a collective under the plan in force."""
        return self._recent[collective]

    def add(self, operations: Iterable[OperationTime]) -> None:
        """Operations under the plan in force, each of a collective that gets tuned."""
        for op in operations:
            self._recent[op.collective].append(op)

    def forget(self, collective: Collective) -> None:
        """Its plan has changed: what was measured no longer compares."""
        self._recent[collective].clear()

    def acting(self, findings: Sequence[Finding], *, on_trial: bool) -> list[Finding]:
        """The findings of an epoch that call for action: those that are steady, or kept coming back.

        What was measured before the first of a kind no longer compares, and is forgotten; not in the midst of a trial.
        """
        links = frozenset(link_key(finding) for finding in findings)
        if links - (self._seen[-1] if self._seen else frozenset()) and not on_trial:
            for recent in self._recent.values():
                recent.clear()
        self._seen.append(links)
        return [
            finding
            for finding in findings
            if finding.pattern is Pattern.STEADY
            or sum(link_key(finding) in seen for seen in self._seen) >= self._needed
        ]
