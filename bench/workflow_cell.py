"""The cells of the workflow study: the most work that a method carries, and latencies on the way. JSON in and out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import JsonValue

from bench.workflow_known import WORKLOADS, Json, Known, number, whole_number
from bench.workflow_methods import METHODS, Chosen, words
from headway.serving.allocation.crowd import grown
from headway.serving.simulate.peak import highest_rate
from headway.serving.simulate.steady import Coming, Length, most_in_flight, steady
from headway.serving.simulate.workflow_summary import WorkflowSummary, summarise
from headway.serving.simulate.workflows import Traffic, run_workflows
from headway.serving.workflows.programs.form import All, Context, Program, Sleep, Workflow
from headway.serving.workflows.programs.named import named

SPAN = 10.0
"""Runs are counted for so many latencies of a lonely run (1)."""
FEWEST_RUNS, MOST_RUNS = 120, 3000
"""Counted runs of a workflow at one rate, whatever the span says; the latter wins (count)."""
CROWD = 2.0
"""Runs in the smallest crowd that throughput is measured with, over predicted throughput times lonely latency (1)."""
TURNS = 2
"""For how long such a crowd is under way before calls are counted, and again while they are: in runs of a lane (count).
"""
WITH_FULL = ("plan", "each alone", "equal", "by hand")
"""Methods whose throughput is measured."""
WITHIN = 0.05
"""How exactly a peak is found (1)."""
FIRST, STEP = 0.5, 1.4
"""Where the search of a peak begins, in GPUs' worth of work for each GPU, and its steps (1)."""
LOW = (0.1, 0.3)
"""Loads at which latencies are measured besides, in GPUs' worth of work for each GPU (1)."""


@dataclass(frozen=True)
class Seen:
    """A workflow at one rate.

    Attributes:
        summary: of its runs.
        alone_s: mean latency of the same runs when they meet no other, seconds.
        size: that over the mean of the recorded runs, by which chance made these runs larger (1).
    """

    summary: WorkflowSummary
    alone_s: float
    size: float


def measure(
    known: Known, method: str, gpus: int, scale: float, *, limit: float, seed: int, span: float
) -> tuple[Chosen, dict[str, Seen]]:
    """One rate: what each workflow saw.

    Args:
        known: of the workload.
        method: in METHODS.
        gpus: how many.
        scale: as in `Known.demands`.
        limit: latency limit, in those of the same runs alone: where it cannot be kept any more all is stopped (1).
        seed: of the runs.
        span: as SPAN.
    """
    demands = known.demands(scale)
    chosen = METHODS[method](known, demands, gpus)
    coming = [
        Coming(it.aggregate.workflow, named(it.aggregate.workflow), it.rate, it.aggregate.latency_s) for it in demands
    ]
    traffic = steady(coming, Length(span, FEWEST_RUNS, MOST_RUNS), limit=limit)
    alone_s = {it.workflow: _alone_s(known, it) for it in traffic}
    simulated = run_workflows(
        chosen.serve,
        [replace(it, most_mean_s=limit * alone_s[it.workflow]) for it in traffic],
        seed=seed,
        order=chosen.order,
        most_in_flight=most_in_flight(coming, limit=2 * limit),
        keep_calls=False,
    )
    recorded_s = {it.workflow: it.latency_s for it in known.aggregates}
    return chosen, {
        name: Seen(summarise(simulated, name), own_s, own_s / recorded_s[name]) for name, own_s in alone_s.items()
    }


def _alone_s(known: Known, traffic: Traffic) -> float:
    """Mean latency, alone, of the runs that are counted; of all that are known where those are more."""
    alone_s = known.alone_s[traffic.workflow]
    counted = alone_s[traffic.warm_up : traffic.warm_up + traffic.runs]
    known_s = counted if len(counted) == traffic.runs else alone_s
    return sum(known_s) / len(known_s)


class Crowd:
    """A run that is many: `lanes` side by side, in each one run of a program after the other, for so long."""

    def __init__(self, program: Workflow, lanes: int, seconds: float, seed: int) -> None:
        self._program = program
        self._lanes = lanes
        self._seconds = seconds
        self._seed = seed
        self._over = False
        self._runs = 0

    def __call__(self, context: Context) -> Program:
        """All of them."""
        yield All([self._watch(), *(self._lane(context.block_tokens) for _ in range(self._lanes))])

    def _watch(self) -> Program:
        yield Sleep(self._seconds)
        self._over = True

    def _lane(self, block_tokens: int) -> Program:
        while not self._over:
            self._runs += 1
            yield from self._program(Context(seed=self._seed, run=self._runs, block_tokens=block_tokens))


def full(known: Known, chosen: Chosen, seed: int) -> dict[str, JsonValue]:
    """Runs per second while there are always many under way, by how many these are: from too few to too many.

    An engine's throughput grows with its batch, until caches are too small for so many runs. Empty where no plan was
    made, or there are several workflows: which of them gets how much is then anybody's choice.
    """
    if len(chosen.forecasts) != 1 or chosen.plan is None:
        return {}
    (said,) = chosen.forecasts
    (of,) = known.aggregates
    use = next(use for use in of.uses if use.model == said.bottleneck)

    def throughput(lanes: int) -> float:
        turn_s = TURNS * lanes / said.throughput
        crowd = Traffic(of.workflow, Crowd(named(of.workflow), lanes, 2 * turn_s, seed), 1.0, 0, 1, cool_down=0)
        simulated = run_workflows(chosen.serve, [crowd], seed=seed, order=chosen.order)
        begin_s = simulated.rows[0].arrived_s + turn_s
        calls = sum(call.model == use.model and 0 <= call.end_s - begin_s < turn_s for call in simulated.calls)
        return calls / turn_s / use.calls

    first = math.ceil(CROWD * said.throughput * of.latency_s)
    return {str(lanes): rate for lanes, rate in grown(throughput, first=first, closer=(2**0.5,)).items()}


def find_peak(work: Json) -> Json:
    """`Known.of`'s, `{"gpus", "method", "limits", "span", "seed"}` -> for each limit, the most work within it.

    Within it: the mean latency of every workflow is at most limit times that of the same runs alone. Work is in GPUs'
    worth (`Known.demands`). All rates that were tried are points of the answer, and some low ones; and the throughput
    of the plan at the first peak, as predicted and as measured with crowds.
    """
    known, method, gpus = Known.of(work), str(work["method"]), whole_number(work["gpus"])
    limits = work["limits"]
    assert isinstance(limits, list)
    points: dict[float, dict[str, JsonValue]] = {}
    longest = max(number(limit) for limit in limits)

    def point(scale: float) -> dict[str, JsonValue]:
        if scale not in points:
            seed, span = whole_number(work["seed"]), number(work["span"])
            chosen, seen = measure(known, method, gpus, scale, limit=longest, seed=seed, span=span)
            points[scale] = {"scale": scale, **_shown(chosen, seen)}
        return points[scale]

    peaks: list[JsonValue] = []
    start = FIRST * gpus
    for limit in limits:
        within = number(limit)

        def holds(scale: float, within: float = within) -> bool:
            return _within(point(scale), known.workload, within)

        peak = highest_rate(holds, start=start, within=WITHIN, step=STEP)
        start = peak or start
        peaks.append({"limit": within, "scale": peak, "rates": _rates(known, peak)})
    for low in LOW:
        point(low * gpus)
    first = peaks[0]
    assert isinstance(first, dict)
    chosen = METHODS[method](known, known.demands(number(first["scale"]) or FIRST * gpus), gpus)
    return {
        "peaks": peaks,
        "points": [points[scale] for scale in sorted(points)],
        "said_full": _finite(chosen.forecasts[0].throughput) if len(chosen.forecasts) == 1 else None,
        "full": full(known, chosen, whole_number(work["seed"])) if method in WITH_FULL else {},
    }


def _within(point: Mapping[str, JsonValue], workload: str, limit: float) -> bool:
    for workflow in WORKLOADS[workload]:
        seen = point[workflow]
        assert isinstance(seen, dict)
        if not seen["whole"] or number(seen["mean_s"]) > limit * number(seen["alone_s"]):
            return False
    return True


def _rates(known: Known, scale: float) -> dict[str, JsonValue]:
    return {it.aggregate.workflow: it.rate for it in known.demands(scale)} if scale > 0 else {}


def _shown(chosen: Chosen, seen: Mapping[str, Seen]) -> dict[str, JsonValue]:
    shown: dict[str, JsonValue] = {}
    forecasts = {it.workflow: it for it in chosen.forecasts}
    for workflow, each in seen.items():
        said, it = forecasts.get(workflow), each.summary
        shown[workflow] = {
            "arrival_rate": _finite(it.arrival_rate),
            "completed_rate": _finite(it.completed_rate),
            "mean_s": _finite(it.mean_s),
            "p99_s": _finite(it.p99_s),
            "alone_s": each.alone_s,
            "size": each.size,
            "runs": it.runs,
            "whole": it.done == it.runs,
            "said_s": None if said is None else _finite(said.latency_s),
            "said_rate": None if said is None else _finite(said.throughput),
            "rate": None if said is None else said.rate,
        }
    if chosen.plan is not None:
        shown["plan"] = words(chosen.plan.shares, chosen.plan.slices_per_gpu)
    return shown


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
