"""When requests come: seconds from the load's begin. Pure; the same seed gives the same times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headway.errors import UsageError

KINDS = ("poisson", "bursty", "on-off", "constant", "trace")
HINT = "poisson, constant, trace, bursty:CV such as bursty:4, on-off:SHARE such as on-off:0.25"


@dataclass(frozen=True, slots=True)
class Process:
    """How gaps between requests are drawn, at a mean rate that is given elsewhere.

    Attributes:
        kind: poisson: exponential gaps. bursty: gamma gaps with a coefficient of variation, as `vllm bench serve
            --burstiness` (which is 1 / CV^2). on-off: Poisson in the on part of each period and nothing in the rest.
            constant: equal gaps. trace: the load's own times, scaled.
        shape: bursty: the coefficient of variation of the gaps, above 0 (1 is Poisson). on-off: the share of each
            period in which requests come, above 0 and at most 1.
        period_s: on-off: from one on part to the next.
    """

    kind: str
    shape: float = 1.0
    period_s: float = 10.0


def parse(text: str, *, where: str = "") -> Process:
    """`poisson`, `constant`, `trace`, `bursty:4`, `on-off:0.25`. UsageError for anything else."""
    kind, _, shape = text.partition(":")
    if kind not in KINDS:
        raise UsageError(f"unknown arrivals {text!r}", where=where, hint=HINT)
    if kind not in ("bursty", "on-off"):
        if shape:
            raise UsageError(f"{kind} arrivals take no number, but {text!r} has one", where=where, hint=HINT)
        return Process(kind)
    try:
        value = float(shape)
    except ValueError:
        raise UsageError(f"{text!r} needs a number after the colon", where=where, hint=HINT) from None
    most = 1.0 if kind == "on-off" else 100.0
    if not 0 < value <= most:
        raise UsageError(f"{value:g} in {text!r} is not above 0 and at most {most:g}", where=where, hint=HINT)
    return Process(kind, value)


def times(process: Process, requests: int, *, rate: float, seed: int) -> list[float]:
    """Times of `requests` arrivals in order, the first one after the first gap.

    Args:
        process: any kind but trace, whose times come from `scaled`.
        requests: how many.
        rate: requests per second in the mean, above 0.
        seed: of the gaps.
    """
    if not 0 < rate < math.inf:
        raise UsageError(f"a rate of {rate:g} requests/s is no number above 0")
    random = np.random.default_rng(seed)
    if process.kind == "poisson":
        gaps = random.exponential(1 / rate, requests)
    elif process.kind == "constant":
        gaps = np.full(requests, 1 / rate)
    elif process.kind == "bursty":
        shape = 1 / process.shape**2
        gaps = random.gamma(shape, 1 / (rate * shape), requests)
    elif process.kind == "on-off":
        on_s = process.shape * process.period_s
        busy_s = np.cumsum(random.exponential(process.shape / rate, requests))  # time as it would be without pauses
        return [float(at_s) for at_s in busy_s + np.floor(busy_s / on_s) * (process.period_s - on_s)]
    else:
        raise ValueError(f"arrivals of kind {process.kind} are not drawn")
    return [float(at_s) for at_s in np.cumsum(gaps)]


def scaled(times_s: Sequence[float], *, factor: float = 1.0, rate: float | None = None) -> list[float]:
    """A trace's own times from 0: each gap `factor` times as long, or so that the mean rate is `rate` per second.

    Mooncake's traces give many requests at one instant (every 3 s); these stay together.
    """
    if not times_s:
        return []
    first_s, span_s = times_s[0], times_s[-1] - times_s[0]
    if rate is not None:
        if not 0 < rate < math.inf:
            raise UsageError(f"a rate of {rate:g} requests/s is no number above 0")
        if span_s <= 0:
            raise UsageError("all requests of this load come at one time: it has no rate to scale")
        factor = len(times_s) / rate / span_s
    if not 0 < factor < math.inf:
        raise UsageError(f"a time scale of {factor:g} is no number above 0")
    return [(at_s - first_s) * factor for at_s in times_s]


def stepped(times_s: Sequence[float], *, at_s: float, factor: float) -> list[float]:
    """The same arrivals, but from `at_s` on the rate is `factor` times as high (2: half the gaps)."""
    if not 0 < factor < math.inf:
        raise UsageError(f"a rate step of x{factor:g} is no number above 0")
    return [time_s if time_s <= at_s else at_s + (time_s - at_s) / factor for time_s in times_s]
