"""One cell of the routing study: a fleet, a load, a rate, a policy. Runs in any process, JSON in and out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from pydantic import JsonValue

from headway.errors import UsageError
from headway.serving.engine.hardware import profile
from headway.serving.engine.types import EngineProfile
from headway.serving.policies import build
from headway.serving.simulate.load import Load
from headway.serving.simulate.load import load as planned
from headway.serving.simulate.replicas import Event, Kill, Replica, Slow, replicas
from headway.serving.simulate.result import Row, spread, summary
from headway.serving.simulate.run import simulate
from headway.serving.simulate.saturation import saturation
from headway.serving.workload import mooncake
from headway.serving.workload.named import load as named

MODEL = "llama-3-8b"
MOST_INPUT_TOKENS = 30_000
"""Longer prompts are cut: the paper's engines take 30,000 tokens."""
SATURATION_REQUESTS = 3000
WINDOW = 500
"""Requests in a sliding mean: fewer, and chance alone moves it by a tenth."""
GOOD = 1.1
"""Good again: the sliding mean is at most so many times what it settles at."""

Json = Mapping[str, JsonValue]


def fleet(name: str, block_tokens: int) -> list[Replica]:
    """The paper's fleets: 8 equal replicas, or 7 + 8 unequal ones, with a prefix cache where the paper's have one."""

    def of(device: str) -> EngineProfile:
        return profile(device, MODEL, block_tokens=block_tokens)

    if name == "8xA30":
        return replicas((8, of("a30")))
    if name == "7xA30+8xV100":
        return replicas((7, of("a30")), (8, of("v100")))
    if name == "8xA100":
        return replicas((8, of("a100")))
    raise UsageError(f"unknown fleet {name!r}")


def block_tokens(load: str) -> int:
    """Tokens in a block of this load: Mooncake's are 512, ours of known sharing vLLM's 16."""
    return 512 if load.endswith(".jsonl") or load in ("conversation", "toolagent", "synthetic") else 16


@lru_cache(maxsize=1)
def _unscaled(load: str, requests: int, seed: int) -> Load:
    if load.endswith(".jsonl"):
        with Path(load).open() as lines:
            arrivals = list(itertools.islice(mooncake.read(lines, where=load), requests))
    else:
        arrivals = named(load, requests=requests, rate=1.0, seed=seed)
    whole = planned(arrivals)
    fit = [it for it in whole.requests if it.request.input_tokens + it.job.output_tokens <= MOST_INPUT_TOKENS]
    return Load(tuple(fit), whole.block_tokens)


def at_rate(load: str, *, requests: int, rate: float, seed: int) -> Load:
    """The load at a mean rate; a generated one has Poisson arrivals, a trace keeps its own rhythm."""
    return _unscaled(load, requests, seed).scaled(rate)


def find_saturation(work: Json) -> Json:
    """`{"fleet", "load", "seed"}` -> `{"rate"}`: requests/s that the fleet just serves under LMetric."""
    name, load = str(work["fleet"]), str(work["load"])
    whole = _unscaled(load, SATURATION_REQUESTS, _int(work["seed"]))
    return {"rate": saturation(fleet(name, block_tokens(load)), whole, seed=_int(work["seed"]))}


def run_cell(work: Json) -> Json:
    """One policy on one fleet under one load: what requests after the warm-up saw."""
    result = _simulated(work, ())
    warm_up = _int(work["warm_up"])
    counted = summary(result, warm_up_requests=warm_up)
    by_rule: dict[str, int] = {}
    errors: list[float] = []
    for row in result[warm_up:]:
        by_rule[row.by] = by_rule.get(row.by, 0) + 1
        if row.predicted_ttft_s and row.ttft_s and row.sent_s is not None:
            errors.append(abs(row.predicted_ttft_s - (row.ttft_s - row.sent_s)) / (row.ttft_s - row.sent_s))
    return {
        "requests": counted.requests,
        "done": counted.done,
        "mean_ttft_s": _finite(counted.ttft.mean_s),
        "p50_ttft_s": _finite(counted.ttft.p50_s),
        "p99_ttft_s": _finite(counted.ttft.p99_s),
        "mean_tpot_s": _finite(counted.tpot.mean_s),
        "mean_e2e_s": _finite(counted.e2e.mean_s),
        "cached_share": counted.cached_share,
        "by": dict(by_rule),
        "median_error": _finite(spread(errors).p50_s) if errors else None,
    }


def run_shift(work: Json) -> Json:
    """Something changes at the middle request: how soon TTFT is at what it settles at from then on."""
    requests = _int(work["requests"])
    load = at_rate(str(work["load"]), requests=requests, rate=_float(work["rate"]), seed=_int(work["seed"]))
    middle_s = load.requests[len(load.requests) // 2].at_s
    kind = str(work["shift"])
    first = fleet(str(work["fleet"]), block_tokens(str(work["load"])))[0].name
    events: tuple[Event, ...] = ()
    if kind == "slow":
        events = (Slow(first, 3.0, middle_s),)
    elif kind == "kill":
        events = (Kill(first, middle_s),)
    rows = _simulated(work, events, load)
    return {"middle_s": middle_s, **recovery(rows, middle_s)}


def recovery(rows: list[Row], middle_s: float) -> dict[str, JsonValue]:
    """From rows in order of arrival: TTFT before, worst and settled after `middle_s`, and how long until good again.

    Settled is the mean of the last third of the requests. Good again: the first request after `middle_s` from which on
    the mean of `WINDOW` requests is at most `GOOD` times that.
    """
    after = [row for row in rows if row.at_s >= middle_s]
    before = [row.ttft_s for row in rows if row.at_s < middle_s and row.ttft_s is not None]
    times = [(row.at_s, row.ttft_s) for row in after if row.ttft_s is not None]
    third = len(times) // 3
    settled_s = sum(ttft_s for _, ttft_s in times[-third:]) / third
    means_s = _sliding([ttft_s for _, ttft_s in times], WINDOW)
    good_at = next(index for index, mean_s in enumerate(means_s) if mean_s <= GOOD * settled_s)
    return {
        "before_s": _finite(spread(before[len(before) // 2 :]).mean_s),
        "worst_s": max(means_s),
        "settled_s": settled_s,
        "requests_until_good": good_at,
        "seconds_until_good": times[good_at][0] - middle_s,
        "failed": sum(1 for row in rows if not row.done),
        "after_s": sum(ttft_s for _, ttft_s in times) / len(times),
    }


def _sliding(values: list[float], window: int) -> list[float]:
    """Means of `window` values, from each one on that has so many."""
    total = sum(values[:window])
    means = [total / window]
    for index in range(window, len(values)):
        total += values[index] - values[index - window]
        means.append(total / window)
    return means


def _simulated(work: Json, events: tuple[Event, ...], load: Load | None = None) -> list[Row]:
    name, seed = str(work["load"]), _int(work["seed"])
    if load is None:
        load = at_rate(name, requests=_int(work["requests"]), rate=_float(work["rate"]), seed=seed)
    if work.get("step"):
        load = _faster_after_middle(load, _float(work["step"]))
    policy = build(str(work["policy"]), seed=seed, options=dict(_options(work)))
    return simulate(fleet(str(work["fleet"]), block_tokens(name)), load, policy, events=events, seed=seed).rows


def _faster_after_middle(load: Load, factor: float) -> Load:
    middle_s = load.requests[len(load.requests) // 2].at_s
    moved = tuple(
        it if it.at_s <= middle_s else replace(it, at_s=middle_s + (it.at_s - middle_s) / factor)
        for it in load.requests
    )
    return replace(load, requests=moved)


def _options(work: Json) -> Mapping[str, object]:
    options = work.get("options") or {}
    assert isinstance(options, Mapping)
    return options


def _int(value: JsonValue) -> int:
    assert isinstance(value, int)
    return value


def _float(value: JsonValue) -> float:
    assert isinstance(value, int | float)
    return float(value)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
