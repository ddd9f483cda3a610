"""Replicas of a simulated fleet, and what happens to them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.errors import UsageError
from headway.serving.engine.types import EngineProfile
from headway.serving.replica import ReplicaSpec


@dataclass(frozen=True, slots=True)
class Replica:
    """An engine under a name."""

    name: str
    profile: EngineProfile

    @property
    def spec(self) -> ReplicaSpec:
        """What the router is told: the device, its speed in prompt tokens per second, whether it keeps prefixes."""
        return ReplicaSpec(
            self.name,
            device=self.profile.device,
            speed=1 / self.profile.token_s,
            cache_tokens=None if self.profile.prefix_caching else 0,
        )


def replicas(*groups: tuple[int, EngineProfile]) -> list[Replica]:
    """So many of each profile, named after their device and numbered from 0: a30-0, a30-1, ..., v100-0."""
    made: list[Replica] = []
    numbers: dict[str, int] = {}
    for count, profile in groups:
        for _ in range(count):
            number = numbers[profile.device] = numbers.get(profile.device, -1) + 1
            made.append(Replica(f"{profile.device}-{number}", profile))
    return made


@dataclass(frozen=True, slots=True)
class Slow:
    """From `from_s` to `until_s` every step of a replica takes `factor` times as long."""

    replica: str
    factor: float
    from_s: float
    until_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Kill:
    """A replica dies: what runs on it fails, and so does what is sent to it. The router isn't told."""

    replica: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Leave:
    """The router is told that a replica is gone; what runs on it goes on."""

    replica: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Join:
    """A replica comes, or one that was killed or had left comes back with an empty cache."""

    replica: Replica
    at_s: float


Event = Slow | Kill | Leave | Join


def check(fleet: Sequence[Replica], events: Sequence[Event], block_tokens: int) -> None:
    """UsageError where names are twice there or unknown, or where an engine has other blocks than the load."""
    known: set[str] = set()
    for it in fleet:
        if it.name in known:
            raise UsageError(f"two replicas are named {it.name}")
        known.add(it.name)
    joining = [event.replica for event in events if isinstance(event, Join)]
    known |= {it.name for it in joining}
    for event in events:
        if not isinstance(event, Join) and event.replica not in known:
            raise UsageError(f"no replica is named {event.replica}", where=type(event).__name__.lower())
    for it in (*fleet, *joining):
        if it.profile.prefix_caching and it.profile.block_tokens != block_tokens:
            raise UsageError(
                f"{it.name} caches blocks of {it.profile.block_tokens} tokens, the load's have {block_tokens}",
                hint="give both the same block_tokens",
            )
