"""Figures of a serving run: times to first token per rule, replica and model; predictions against what came. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean, median

from headway.decide.journal import RequestRecord
from headway.report.serving_run import ServingRun, actual_s


@dataclass(frozen=True, slots=True)
class Times:
    """Some times, seconds; percentiles are the nearest rank."""

    count: int
    mean_s: float
    p50_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Predicted against actual times from sending to the first token.

    Attributes:
        count: requests with both.
        error_s: median of how far off a prediction was, without its sign, seconds.
        error_share: the same as a share of the actual time.
        bias_s: mean of actual minus predicted, seconds: above 0, it took longer than predicted.
    """

    count: int
    error_s: float
    error_share: float
    bias_s: float


@dataclass(frozen=True, slots=True)
class Line:
    """Some of the requests: those that a rule routed, or that a replica answered, or for one model.

    Attributes:
        name: of the rule, replica or model.
        requests: how many (count).
        share: of all requests in the table, 0 to 1.
        ttft: arrival to first token; None where none came.
        accuracy: None where nothing was predicted.
        hit_share: prompt tokens that the engines said were in their caches over those of all prompts of which they said
            so; None where they said nothing.
    """

    name: str
    requests: int
    share: float
    ttft: Times | None
    accuracy: Accuracy | None
    hit_share: float | None


@dataclass(frozen=True, slots=True)
class ServingSummary:
    """A run in figures.

    Attributes:
        requests: in all (count).
        ends: how they ended: done, cancelled, failed, refused (counts).
        retried: that needed more than one attempt (count).
        span_s: from the first arrival to the last, seconds.
        ttft: arrival to first token.
        e2e: arrival to end, of those that were done.
        goals: requests that named a goal for the first token (count).
        goals_met: of these, those that met it (count).
        accuracy: of all predictions.
        rules, replicas, models: most requests first.
        policies: those in force.
    """

    requests: int
    ends: dict[str, int]
    retried: int
    span_s: float
    ttft: Times | None
    e2e: Times | None
    goals: int
    goals_met: int
    accuracy: Accuracy | None
    rules: tuple[Line, ...]
    replicas: tuple[Line, ...]
    models: tuple[Line, ...]
    policies: tuple[str, ...]


def summarise_serving(run: ServingRun) -> ServingSummary:
    """All figures of a run."""
    requests = run.requests
    goals = [r for r in requests if r.slo_ttft_s is not None]
    return ServingSummary(
        requests=len(requests),
        ends=dict(Counter(r.end for r in requests).most_common()),
        retried=sum(r.attempts > 1 for r in requests),
        span_s=requests[-1].arrived_s - requests[0].arrived_s if requests else 0.0,
        ttft=times(r.ttft_s for r in requests),
        e2e=times(r.e2e_s for r in requests if r.end == "done"),
        goals=len(goals),
        goals_met=sum(r.ttft_s is not None and r.slo_ttft_s is not None and r.ttft_s <= r.slo_ttft_s for r in goals),
        accuracy=accuracy(requests),
        rules=_lines(requests, lambda r: r.by),
        replicas=_lines(requests, lambda r: r.replica),
        models=_lines(requests, lambda r: r.group),
        policies=tuple(dict.fromkeys(r.policy for r in requests)),
    )


def times(values_s: Iterable[float | None]) -> Times | None:
    """Figures of those that are there; None where there are none."""
    known = sorted(value for value in values_s if value is not None)
    if not known:
        return None
    return Times(len(known), fmean(known), _rank(known, 0.5), _rank(known, 0.99))


def accuracy(requests: Iterable[RequestRecord]) -> Accuracy | None:
    """How good predictions were; None where none can be held against an actual time."""
    pairs = [
        (r.predicted_ttft_s, actual)
        for r in requests
        if r.predicted_ttft_s is not None and (actual := actual_s(r)) is not None
    ]
    if not pairs:
        return None
    shares = [abs(actual - predicted) / actual for predicted, actual in pairs if actual > 0]
    return Accuracy(
        count=len(pairs),
        error_s=median(abs(actual - predicted) for predicted, actual in pairs),
        error_share=median(shares) if shares else 0.0,
        bias_s=fmean(actual - predicted for predicted, actual in pairs),
    )


def slowest(run: ServingRun, count: int) -> list[RequestRecord]:
    """Requests whose first token took longest, the longest first."""
    known = [r for r in run.requests if r.ttft_s is not None]
    return sorted(known, key=lambda r: r.ttft_s or 0.0, reverse=True)[:count]


def mispredicted(run: ServingRun, count: int) -> list[RequestRecord]:
    """Requests whose prediction was off by most seconds, the worst first."""
    known = [
        (abs(actual - r.predicted_ttft_s), r)
        for r in run.requests
        if r.predicted_ttft_s is not None and (actual := actual_s(r)) is not None
    ]
    return [r for _, r in sorted(known, key=lambda pair: -pair[0])[:count]]


def _lines(requests: Sequence[RequestRecord], name: Callable[[RequestRecord], str]) -> tuple[Line, ...]:
    groups: dict[str, list[RequestRecord]] = {}
    for request in requests:
        if name(request):
            groups.setdefault(name(request), []).append(request)
    total = sum(map(len, groups.values()))
    lines = [
        Line(
            name=each,
            requests=len(mine),
            share=len(mine) / total,
            ttft=times(r.ttft_s for r in mine),
            accuracy=accuracy(mine),
            hit_share=_hit_share(mine),
        )
        for each, mine in groups.items()
    ]
    return tuple(sorted(lines, key=lambda line: (-line.requests, line.name)))


def _hit_share(requests: Sequence[RequestRecord]) -> float | None:
    told = [(r.cached_tokens, r.input_tokens) for r in requests if r.cached_tokens is not None and r.input_tokens > 0]
    return sum(cached for cached, _ in told) / sum(prompt for _, prompt in told) if told else None


def _rank(ordered: Sequence[float], share: float) -> float:
    return ordered[max(0, ceil(share * len(ordered)) - 1)]
