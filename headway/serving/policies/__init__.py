"""The routing policies by name. Pure.

`build` makes one from a name and its options, as a gateway's configuration or a study writes them. Names that people
know from AIBrix, production-stack and other routers are understood too (`ALIASES`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headway.errors import UsageError
from headway.serving.learned.policy import LearnedPolicy
from headway.serving.learned.policy import build as build_learned
from headway.serving.policies.chance import PowerOfTwo, Random
from headway.serving.policies.least_queue_time import LeastQueueTime
from headway.serving.policies.least_requests import LeastRequests
from headway.serving.policies.least_work import LeastWork
from headway.serving.policies.lmetric import LMetric
from headway.serving.policies.options import Bounds, read
from headway.serving.policies.preble import Preble
from headway.serving.policies.prefix import Prefix, PrefixAndLoad
from headway.serving.policies.round_robin import RoundRobin
from headway.serving.policies.session import Session
from headway.serving.policy import Policy


@dataclass(frozen=True, slots=True)
class _Rule:
    make: Callable[[int, Mapping[str, float]], Policy]
    options: Mapping[str, Bounds] = field(default_factory=dict)


_RULES: dict[str, _Rule] = {
    "round-robin": _Rule(lambda seed, given: RoundRobin()),
    "random": _Rule(lambda seed, given: Random(seed)),
    "least-requests": _Rule(lambda seed, given: LeastRequests(seed)),
    "power-of-two": _Rule(lambda seed, given: PowerOfTwo(seed)),
    "prefix": _Rule(lambda seed, given: Prefix(seed, **given), {"threshold": (0.5, 0, 1)}),
    "prefix-and-load": _Rule(
        lambda seed, given: PrefixAndLoad(seed, **given), {"imbalance": (8, 0, 1e9), "deviations": (1, 0, 1e3)}
    ),
    "lmetric": _Rule(lambda seed, given: LMetric(seed)),
    "session": _Rule(lambda seed, given: Session(seed, **given), {"bound": (0, 0, 1e3)}),
    "least-work": _Rule(lambda seed, given: LeastWork(seed, **given), {"price": (2, 0, 1e3)}),
    "least-queue-time": _Rule(lambda seed, given: LeastQueueTime(seed)),
    "preble": _Rule(
        lambda seed, given: Preble(seed, **given), {"window_s": (180, 1, 86_400), "rebalance": (1.5, 1, 1e9)}
    ),
}

NAMES: tuple[str, ...] = (*_RULES, LearnedPolicy.name)
"""Every policy's name."""

ALIASES: dict[str, str] = {
    "roundrobin": "round-robin",
    "least-request": "least-requests",
    "least-busy": "least-requests",
    "prefix-cache": "prefix-and-load",
    "prefix-cache-and-load": "prefix-and-load",
    "prefixaware": "prefix",
    "kvaware": "prefix",
    "sessionbased": "session",
    "consistent-hash": "session",
    "mooncake": "least-queue-time",
    "prefix-cache-preble": "preble",
}
"""Names of the same rules elsewhere; `_` is as good as `-`. AIBrix: least-request, prefix-cache (which looks at the
load too), prefix-cache-and-load, prefix-cache-preble; production-stack: roundrobin, session, prefixaware, kvaware;
LiteLLM: least-busy; vLLM's and SGLang's routers: round_robin, power_of_two, consistent_hash; Lodestar's code:
mooncake."""


def known_as(name: str) -> str:
    """The name in `NAMES` of a policy. Raises UsageError where there is none."""
    name = name.strip().lower().replace("_", "-")
    own = ALIASES.get(name, name)
    if own not in NAMES:
        raise UsageError(f"unknown policy {name!r}", hint=f"known: {', '.join(NAMES)}")
    return own


def build(name: str, *, seed: int = 0, options: Mapping[str, object] | None = None) -> Policy:
    """A policy.

    Args:
        name: one of `NAMES` or `ALIASES`.
        seed: of everything that it leaves to chance.
        options: its settings, as in its class's `Args`; None: the defaults.

    Raises UsageError for an unknown name or option, or a value out of range.

    The learned policy trains on the caller's time here, as on a simulated clock; for a gateway see
    `gateway.training_process`.
    """
    own = known_as(name)
    if own == LearnedPolicy.name:
        return build_learned(seed=seed, options=options or {}, policy=lambda base: build(base, seed=seed))
    rule = _RULES[own]
    return rule.make(seed, read(own, options or {}, rule.options))
