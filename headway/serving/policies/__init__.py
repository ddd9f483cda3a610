"""The routing policies by name. Pure.

`build` makes one from a name and its options, as a gateway's configuration or a study writes them. Names that people
know from AIBrix, production-stack and llm-d are understood too (`ALIASES`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headway.errors import UsageError
from headway.serving.policies.least_requests import LeastRequests
from headway.serving.policies.options import read
from headway.serving.policies.round_robin import RoundRobin
from headway.serving.policy import Policy

_Builder = Callable[[int, Mapping[str, object]], Policy]


def _round_robin(seed: int, options: Mapping[str, object]) -> Policy:
    read("round-robin", options, {})
    return RoundRobin()


def _least_requests(seed: int, options: Mapping[str, object]) -> Policy:
    read("least-requests", options, {})
    return LeastRequests(seed)


_BUILDERS: dict[str, _Builder] = {
    "round-robin": _round_robin,
    "least-requests": _least_requests,
}

NAMES: tuple[str, ...] = tuple(_BUILDERS)
"""Every policy's name."""

ALIASES: dict[str, str] = {
    "roundrobin": "round-robin",
    "least-request": "least-requests",
}
"""Names of the same rules elsewhere."""


def build(name: str, *, seed: int = 0, options: Mapping[str, object] | None = None) -> Policy:
    """A policy.

    Args:
        name: one of `NAMES` or `ALIASES`.
        seed: of everything that it leaves to chance.
        options: its settings, as in its class's `Args`; None: the defaults.

    Raises UsageError for an unknown name or option, or a value out of range.
    """
    known = ALIASES.get(name, name)
    builder = _BUILDERS.get(known)
    if builder is None:
        raise UsageError(f"unknown policy {name!r}", hint=f"known: {', '.join(NAMES)}")
    return builder(seed, {} if options is None else options)
