"""The same conversation to the same replica. Pure."""

from __future__ import annotations

import hashlib
import math
import random
from bisect import bisect_left
from collections.abc import Sequence

from headway.serving.policies.rule import Rule, counts, least_requests
from headway.serving.policy import Candidate, Choice
from headway.serving.request import Request

POINTS = 128
"""Points of each replica on the ring (count): shares of the keys then differ by some 1 / sqrt(128) = 9 %."""


class Ring:
    """A consistent-hash ring (Karger et al., STOC 1997): each key belongs to the next point, and so to its replica.

    A replica that comes or goes moves its own share of the keys, about 1 / n, and no others.
    """

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()
        self._points: list[tuple[int, str]] = []

    def keep(self, names: frozenset[str]) -> None:
        """These replicas are on the ring, and no others. O(1) where they are already."""
        if names == self._names:
            return
        kept = [point for point in self._points if point[1] in names]
        new = [(_position(f"{name}#{k}"), name) for name in names - self._names for k in range(POINTS)]
        self._points = sorted(kept + new)
        self._names = names

    def walk(self, key: str) -> list[str]:
        """All replicas in the order in which the key prefers them."""
        start = bisect_left(self._points, (_position(key), ""))
        order: dict[str, None] = {}
        for k in range(len(self._points)):
            order.setdefault(self._points[(start + k) % len(self._points)][1])
            if len(order) == len(self._names):
                break
        return list(order)

    def first(self, key: str) -> str:
        """The replica that the key belongs to. At least one must be on the ring."""
        start = bisect_left(self._points, (_position(key), ""))
        return self._points[start % len(self._points)][1]


class Session(Rule):
    """The replica that the request's session hashes to; without a session, the least loaded.

    Objective: a conversation finds its own earlier turns in the cache, with no memory of who went where: every gateway
    with the same replicas decides the same.
    Reads: the session's name; our own counts of requests where there is none, or with a bound. Cost: O(n), to see
    whether the replicas are still the same; O(n log n) when one comes or goes.
    Loses: where few sessions make most of the load, on unequal replicas, and where the shared prefix isn't the
    session's (one system prompt for all).

    Args:
        seed: of the choice among equals.
        bound: most requests that a replica may have, over the mean (1); whoever has more is passed over for the next on
            the ring (consistent hashing with bounded loads, Mirrokni et al., SODA 2018; 1.25 is usual). 0: no bound.
    """

    name = "session"

    def __init__(self, seed: int = 0, *, bound: float = 0) -> None:
        self._chance = random.Random(seed)
        self._bound = bound
        self._ring = Ring()

    def choose(self, request: Request, candidates: Sequence[Candidate], now_s: float) -> Choice:
        """The session's replica."""
        if not request.session:
            chosen = least_requests(candidates, self._chance)
            reason = f"no session; fewest requests: {chosen.state.requests}"
            return Choice(chosen.name, reason, self.name, counts(candidates))
        self._ring.keep(frozenset(candidate.name for candidate in candidates))
        home = self._ring.first(request.session)
        if self._bound:
            loads = {candidate.name: candidate.state.requests for candidate in candidates}
            most = math.ceil(self._bound * (sum(loads.values()) + 1) / len(loads))
            if loads[home] >= most:
                name = next(name for name in self._ring.walk(request.session) if loads[name] < most)
                reason = f"its session's replica {home} has {loads[home]} requests, {most} at most"
                return Choice(name, reason, self.name, counts(candidates))
        return Choice(home, "its session's replica", self.name)


def _position(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
