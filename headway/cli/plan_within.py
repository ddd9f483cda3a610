"""`--within`: limits on latencies, and how few GPUs are enough, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headway.cli.plan_figures import plain
from headway.cluster.units import parse_time
from headway.errors import UsageError
from headway.report.words import counted
from headway.serving.allocation.branch import ROUNDING
from headway.serving.allocation.fewest import Fewest, Missed, Tried


def limits_of(texts: Sequence[str], planned: Iterable[str], *, by: str) -> dict[str, float]:
    """Seconds above 0 by workflow, of `--within NAME=TIME`. UsageError: no time, or a workflow that is not planned for.

    Args:
        texts: as they are given.
        planned: workflows.
        by: what says so: "--rate".
    """
    known = list(planned)
    limits_s: dict[str, float] = {}
    for text in texts:
        name, equals, time = text.rpartition("=")
        if not equals or not name:
            raise UsageError(f"{text!r} is not NAME=TIME", where="--within", hint="rag=20s")
        if name not in known:
            raise UsageError(f"{name} is not planned for", where="--within", hint=f"by {by}: {', '.join(known)}")
        if name in limits_s:
            raise UsageError(f"{name} is there twice", where="--within")
        limits_s[name] = parse_time(time, where="--within")
        if not 0 < limits_s[name] < float("inf"):
            raise UsageError(f"{time} is no time for a run of {name}", where="--within")
    return limits_s


def over_words(workflow: str, latency_s: float, limits_s: Mapping[str, float]) -> str:
    """That a workflow takes longer than its limit; empty where it does not, or is not served at all.

    Args:
        workflow: which.
        latency_s: in the mean, predicted or measured.
        limits_s: by workflow, where it has any.
    """
    limit_s = limits_s.get(workflow, float("inf"))
    if not limit_s * (1 + ROUNDING) < latency_s < float("inf"):
        return ""
    if f"{latency_s:.3g}" == f"{limit_s:.3g}":  # as both are told
        return f"; not within {limit_s:g} s: {_over(latency_s, limit_s)}"
    return f"; not within {limit_s:g} s"


def enough_words(found: Fewest) -> str:
    """How many GPUs are enough and what one less would do; or that all are not, and what is missed by how much."""
    if found.missed:
        verb = "is" if found.of == 1 else "are"
        return f"{counted(found.of, 'GPU')} {verb} not enough: {_missed_words(found.missed)}"
    verb = "is" if found.gpus == 1 else "are"
    said = [f"{found.gpus} of {counted(found.of, 'GPU')} {verb} enough"]
    f = found.plan.slices_per_gpu
    free = found.gpus * f - sum(share.slices() for share in found.plan.shares)
    if free:
        said.append(f"{free / f:g} of {'it is' if found.gpus == 1 else 'them are'} free")
    if found.less is not None:
        said.append(_less_words(found.less))
    if not found.exact:
        said.append("whether fewer are was not looked at to the end")
    return "; ".join(said)


def _less_words(less: Tried) -> str:
    return f"with {less.gpus}: {less.why if less.plan is None else _missed_words(less.missed)}"


def _missed_words(missed: Sequence[Missed]) -> str:
    return "; ".join(_one_missed(each) for each in missed)


def _one_missed(missed: Missed) -> str:
    forecast = missed.forecast
    if forecast.latency_s == float("inf"):
        return (
            f"{forecast.workflow} at most at {plain(forecast.throughput)}/s instead of {plain(forecast.rate)}/s, "
            f"which {forecast.bottleneck} limits"
        )
    parts = forecast.latency_by_model_s
    most = max(parts, key=lambda model: parts[model])
    assert missed.limit_s is not None, "what is carried and has no limit is not missed"
    return (
        f"{forecast.workflow} takes {_over(forecast.latency_s, missed.limit_s)}, of these {parts[most]:.3g} s in {most}"
    )


def _over(latency_s: float, limit_s: float) -> str:
    """A latency and the limit that it is above, so that both are not the same figure."""
    digits = next((count for count in range(3, 12) if f"{latency_s:.{count}g}" != f"{limit_s:.{count}g}"), 12)
    return f"{latency_s:.{digits}g} s instead of {limit_s:.{digits}g} s"
