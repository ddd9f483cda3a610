"""A lab of `headway lab` as the place where a bench's ranks run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from headway.lab.lab import Lab
from headway.lab.scenario import Event


@dataclass(frozen=True)
class LabSite:
    """One rank on each host of a lab."""

    lab: Lab
    interface: str = "eth0"

    @property
    def ranks(self) -> int:
        """Number of hosts."""
        return len(self.lab.hosts)

    def command_prefix(self, rank: int) -> Sequence[str]:
        """Enters the host's network namespace, under its host name."""
        return self.lab.command_prefix(rank)

    def address(self, rank: int) -> str:
        """The host's IPv4 address."""
        return self.lab.host(rank).address


@contextmanager
def in_force(lab: Lab, events: Sequence[Event]) -> Iterator[None]:
    """Hold `events` in force together, their own times and patterns left aside, and take them back at the end."""
    held: list[Event] = []
    try:
        for event in events:
            lab.apply(event)
            held.append(event)
        yield
    finally:
        for event in reversed(held):
            lab.undo(event)


def in_words(lab: Lab, events: Sequence[Event]) -> str:
    """What is in force, for a table's header; "idle" for nothing."""
    return "; ".join(event.what(name) for event in events for name in lab.scenario.targets_of(event)) or "idle"
