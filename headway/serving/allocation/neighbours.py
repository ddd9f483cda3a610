"""What the plans next to a plan lack, in words and figures. Pure.

A neighbour differs in one step: a slice step moved from one model to another, each of which makes the best of what it
then has; a higher or lower tensor-parallel degree on the same GPUs; one replica more or fewer.

The neighbours of a placed plan are placed as it is, so that both have the slowdown by the instances that they meet. A
search reckons with a GPU full of busy ones, and so may have left out a neighbour that is faster where it would be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from headway.serving.allocation.branch import ROUNDING
from headway.serving.allocation.packing import shares_fit
from headway.serving.allocation.place import place
from headway.serving.allocation.predict import Predictor, slowed
from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import Demand, Forecast, Plan, Rejected, Share

SAME = 0.001
"""Difference in latency from which on one plan is called slower than another (1)."""
_Forecasts = Callable[[Sequence[Share]], tuple[Forecast, ...]]


def neighbours(
    demands: Sequence[Demand],
    predictor: Predictor,
    shares: Sequence[Share],
    domains: tuple[int, ...],
    slices_per_gpu: int,
) -> tuple[Rejected, ...]:
    """Every neighbour of a plan that is not placed, and why it lost: both as if all GPUs in parts were full and busy.

    Args:
        demands: what the plan is for.
        predictor: predicts.
        shares: the plan.
        domains: sizes of the fast domains, in GPUs.
        slices_per_gpu: f.
    """
    there = (domains, slices_per_gpu)
    return _all(demands, predictor, shares, there, lambda others: predictor.forecast(demands, others), {})


def placed_neighbours(
    plan: Plan,
    nodes: Sequence[Node],
    demands: Sequence[Demand],
    predictor: Predictor,
    *,
    limits_s: Mapping[str, float] | None = None,
) -> tuple[Rejected, ...]:
    """Every neighbour of a placed plan, and why it lost: both with the instances that they meet on their GPUs.

    Args:
        plan: placed by `place`.
        nodes: what it may use.
        demands: what it is for.
        predictor: predicts.
        limits_s: of the mean latency, by workflow, seconds, where it has any.
    """
    domains = tuple(sorted((len(domain) for node in nodes for domain in node.domains), reverse=True))

    def forecasts(shares: Sequence[Share]) -> tuple[Forecast, ...]:
        instances = place(Plan(plan.slices_per_gpu, tuple(shares)), nodes).instances
        return predictor.forecast(demands, shares, instances)

    return _all(demands, predictor, plan.shares, (domains, plan.slices_per_gpu), forecasts, limits_s or {})


def _all(
    demands: Sequence[Demand],
    predictor: Predictor,
    shares: Sequence[Share],
    there: tuple[tuple[int, ...], int],
    forecasts: _Forecasts,
    limits_s: Mapping[str, float],
) -> tuple[Rejected, ...]:
    domains, slices_per_gpu = there
    chosen = forecasts(shares)
    found: dict[tuple[Share, ...], Rejected] = {}
    for what, other in _steps(predictor, predictor.load(demands), shares, domains, slices_per_gpu):
        if other in found or other == tuple(shares):
            continue
        if not shares_fit(other, domains, slices_per_gpu):
            needed = sum(share.slices() for share in other) / slices_per_gpu
            have = sum(domains)
            why = (
                f"needs {gpus_in_words(needed)} of {have}"
                if needed > have
                else f"its instances cannot be packed onto {gpus_in_words(have)}, though they take {needed:g}"
            )
        else:
            why = _why(chosen, forecasts(other), shares, other, limits_s)
        found[other] = Rejected(what, why)
    return tuple(found.values())


def shape_in_words(share: Share, slices_per_gpu: int) -> str:
    """A share for people: "TP 2 x 3", "0.4 GPU x 2"."""
    if share.shape.slices < slices_per_gpu:
        return f"{share.shape.slices / slices_per_gpu:g} GPU x {share.replicas}"
    return f"TP {share.shape.tensor_parallel} x {share.replicas}"


def gpus_in_words(gpus: float) -> str:
    """`1 GPU`, `1.5 GPUs`."""
    return f"{gpus:g} GPU{'' if gpus == 1 else 's'}"


def _steps(
    predictor: Predictor,
    load: Mapping[str, float],
    shares: Sequence[Share],
    domains: tuple[int, ...],
    slices_per_gpu: int,
) -> Iterator[tuple[str, tuple[Share, ...]]]:
    """Each neighbour's name and shares."""
    choices = {share.model: _choices(predictor, share, max(domains), sum(domains), slices_per_gpu) for share in shares}

    def changed(*new: Share) -> tuple[Share, ...]:
        by_model = {share.model: share for share in new}
        return tuple(by_model.get(share.model, share) for share in shares)

    def said(new: Share, old: Share) -> str:
        instead = shape_in_words(old, slices_per_gpu)
        return f"{new.model} at {shape_in_words(new, slices_per_gpu)} instead of {instead}"

    for share in shares:
        for other in choices[share.model]:
            up, now = other.shape.tensor_parallel, share.shape.tensor_parallel
            whole = other.shape.slices == share.shape.slices == slices_per_gpu
            if other.shape == share.shape and abs(other.replicas - share.replicas) == 1:
                more = "one replica more" if other.replicas > share.replicas else "one replica less"
                yield f"{said(other, share)} ({more})", changed(other)
            elif whole and up in (2 * now, now // 2) and other.slices() == share.slices():
                yield f"{said(other, share)} (tensor parallel {'up' if up > now else 'down'})", changed(other)
    idle = sum(domains) * slices_per_gpu - sum(share.slices() for share in shares)
    for giver in shares:
        smaller = {each.slices() for each in choices[giver.model] if each.slices() < giver.slices()}
        if not smaller:
            continue
        less = _best(predictor, load, [each for each in choices[giver.model] if each.slices() == max(smaller)])
        freed = giver.slices() - less.slices() + idle
        for taker in shares:
            larger = [each for each in choices[taker.model] if 0 < each.slices() - taker.slices() <= freed]
            if taker is not giver and larger:
                packed = [each for each in larger if shares_fit(changed(less, each), domains, slices_per_gpu)]
                gets = _best(predictor, load, packed or larger)
                yield f"{said(less, giver)} and {said(gets, taker)}", changed(less, gets)


def _choices(predictor: Predictor, share: Share, largest: int, gpus: int, slices_per_gpu: int) -> list[Share]:
    """All that a model may have."""
    found = []
    for shape in sorted(predictor.profiles[share.model].curves):
        if shape.tensor_parallel <= largest:
            size = shape.tensor_parallel * shape.slices
            found += [Share(share.model, shape, count) for count in range(1, gpus * slices_per_gpu // size + 1)]
    return found


def _best(predictor: Predictor, load: Mapping[str, float], choices: Sequence[Share]) -> Share:
    """The one with the fastest calls; where none keeps up, the one that takes most."""

    def worth(share: Share) -> tuple[float, float]:
        curve = predictor.profiles[share.model].curve(share.shape, share.replicas)
        slow, calls = predictor.slowdown(share.shape), load[share.model]
        return slowed(curve, calls / share.replicas, slow), -share.replicas * curve.saturation / slow

    return min(choices, key=worth)


def _why(
    chosen: Sequence[Forecast],
    other: Sequence[Forecast],
    shares: Sequence[Share],
    others: Sequence[Share],
    limits_s: Mapping[str, float],
) -> str:
    """Why the other one lost."""
    carried = min(each.throughput / each.rate for each in chosen)
    short = [each for each in other if each.throughput / each.rate < min(1.0, carried) * (1 - 1e-9)]
    if short:
        worst = min(short, key=lambda each: each.throughput / each.rate)
        part = worst.throughput / worst.rate
        return f"throughput {_below_one(part)} of what {worst.workflow} needs: {worst.bottleneck} takes no more"
    stuck = next((then for then in other if carried > 1 and then.latency_s == float("inf")), None)
    if stuck is not None:
        return f"throughput just what {stuck.workflow} needs: {stuck.bottleneck} would never end a queue"
    broken = [
        f"breaks {then.workflow}'s limit ({then.latency_s:.4g} s instead of at most {limit_s:g} s)"
        for now, then in zip(chosen, other, strict=True)
        for limit_s in (limits_s.get(now.workflow, math.inf),)
        if now.latency_s <= limit_s * (1 + ROUNDING) < then.latency_s
    ]
    if broken:
        return "; ".join(broken)
    slower: list[str] = []
    faster: list[str] = []
    for now, then in zip(chosen, other, strict=True):
        if then.latency_s == now.latency_s:
            continue
        change = then.latency_s / now.latency_s - 1 if now.latency_s < float("inf") else -1.0
        how = f"{abs(change):.1%} {'slower' if change > 0 else 'faster'}"
        told = f"{then.workflow} {how} ({then.latency_s:.3g} s instead of {now.latency_s:.3g} s)"
        if abs(change) >= SAME:
            (slower if change > 0 else faster).append(told)
    sizes = sum(share.slices() for share in others) - sum(share.slices() for share in shares)
    if slower and not faster:
        return "; ".join(slower)
    if slower:
        return f"{'; '.join(slower)}, for {'; '.join(faster)}: worse on the whole"
    if faster:
        return f"{'; '.join(faster)}: the search, which reckons with GPUs full of busy neighbours, left it out"
    if all(each.latency_s == float("inf") for each in other):
        return "carries no more of the rates"
    return f"no faster, with {sizes} slices more" if sizes > 0 else "no faster"


def _below_one(part: float) -> str:
    """A part of less than 1 with as many digits as it takes not to read as 1, nor as 0; two at least."""
    return next((text for digits in range(2, 12) if 0 < float(text := f"{part:.{digits}f}") < 1), f"{part:g}")
