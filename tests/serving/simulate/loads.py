"""Small loads and replicas for the simulation's tests."""

from __future__ import annotations

import random
from collections.abc import Sequence

from headway.serving.policies.rule import Rule
from headway.serving.policy import Candidate, Choice
from headway.serving.request import Request
from headway.serving.simulate.gateway import GatewayRules
from headway.serving.simulate.load import Load, load
from headway.serving.simulate.replicas import Replica
from headway.serving.workload.arrival import Arrival
from tests.serving.engine.driving import PROFILE

STILL = GatewayRules(network_s=0.001, jitter_s=0.0)
"""A network whose delay is always the same."""


def arrival(at_s: float, *, tokens: int = 512, out: int = 1, first_block: int = 0, shared: int = 0) -> Arrival:
    """A prompt whose first `shared` blocks are 0, 1, ..., and whose others count up from `first_block`."""
    count = -(-tokens // 16)
    ids = tuple(index if index < shared else first_block + index for index in range(count))
    return Arrival(at_s, tokens, out, ids, 16)


def poisson(requests: int, rate: float, *, seed: int = 1, tokens: int = 512, out: int = 1, shared: int = 0) -> Load:
    """Requests of one length, of which nothing but the first `shared` blocks is shared."""
    chance = random.Random(seed)
    at_s = 0.0
    made = []
    for index in range(requests):
        at_s += chance.expovariate(rate)
        made.append(arrival(at_s, tokens=tokens, out=out, first_block=1_000_000 * (index + 1), shared=shared))
    return load(made)


def fleet(count: int) -> list[Replica]:
    """So many equal replicas: r0, r1, ..."""
    return [Replica(f"r{index}", PROFILE) for index in range(count)]


class Always(Rule):
    """Takes the first of its favourites that is there, and keeps what it saw."""

    name = "always"

    def __init__(self, *favourites: str) -> None:
        self.favourites = favourites
        self.seen: list[tuple[float, list[Candidate]]] = []

    def choose(self, request: Request, candidates: Sequence[Candidate], now_s: float) -> Choice:
        """The first favourite, else the first candidate."""
        self.seen.append((now_s, list(candidates)))
        names = [it.name for it in candidates]
        chosen = next((name for name in self.favourites if name in names), names[0])
        return Choice(chosen, "a favourite", self.name)
