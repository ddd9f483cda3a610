"""Loads by name, so that the simulation, the studies and the load generator run the same ones. Pure."""

from __future__ import annotations

import re

from headway.errors import UsageError
from headway.serving.workload import arrivals as processes
from headway.serving.workload import generated, sharing
from headway.serving.workload.arrival import Arrival

NAMES = (
    *generated.NAMES,
    *(f"sharing-{level * 100:.0f}" for level in sharing.LEVELS),
    "mixed",
    "shift",
)
"""The names that studies use; any `sharing-P` from 0 to 99 and any `shift-P-Q` can be had, too."""

HINT = f"loads: {', '.join(NAMES)}, or a Mooncake trace FILE.jsonl"

POISSON = processes.Process("poisson")

_SHARING = re.compile(r"sharing-(\d\d?)")
_SHIFT = re.compile(r"shift-(\d\d?)-(\d\d?)")


def load(name: str, *, requests: int, rate: float, seed: int, arrivals: processes.Process = POISSON) -> list[Arrival]:
    """A load by its name, in order of time. The same arguments give the same load, to the last token.

    Args:
        name: see `NAMES`. conversation, toolagent and synthetic have blocks of 512 tokens, the others of 16.
        requests: how many, at least 1.
        rate: requests per second in the mean.
        seed: of prompts and times. Two rates of one seed have the same prompts in the same order.
        arrivals: how the gaps are drawn; Poisson if nothing is said. A generated load has no times of its own, so
            `trace` is an error.
    """
    if requests < 1:
        raise UsageError(f"a load of {requests} requests")
    if not is_name(name):
        raise UsageError(f"unknown load {name!r}", hint=HINT)
    if arrivals.kind == "trace":
        raise UsageError(f"the load {name} has no times of its own", hint="arrivals: poisson, constant, bursty:4")
    times_s = processes.times(arrivals, requests, rate=rate, seed=seed)
    if name == "conversation":
        return generated.conversation(times_s, seed=seed)
    if name == "toolagent":
        return generated.toolagent(times_s, seed=seed)
    if name == "synthetic":
        return generated.synthetic(times_s, seed=seed)
    if name == "mixed":
        return sharing.shared(times_s, proportions=sharing.LEVELS, seed=seed)
    if name == "shift":
        return sharing.shift(times_s, seed=seed)
    if match := _SHIFT.fullmatch(name):
        before, after = (int(percent) / 100 for percent in match.groups())
        return sharing.shift(times_s, seed=seed, proportions=(before, after))
    return sharing.shared(times_s, proportions=(int(name.removeprefix("sharing-")) / 100,), seed=seed)


def is_name(name: str) -> bool:
    """Whether `load` knows it."""
    return name in NAMES or bool(_SHARING.fullmatch(name) or _SHIFT.fullmatch(name))
