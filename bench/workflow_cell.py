"""The cells of the workflow study: what is traced and profiled, what a method makes of the GPUs. JSON in and out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from pydantic import JsonValue, TypeAdapter

from headway.errors import UsageError
from headway.serving.allocation.baselines.autoscaled import autoscaled
from headway.serving.allocation.baselines.in_order import OldestRunFirst
from headway.serving.allocation.baselines.pooling import HOST_LINK_Bps, pool, pooled
from headway.serving.allocation.baselines.static import by_parameters, equal_split, whole_gpus
from headway.serving.allocation.engine_profile import all_shapes, engine_profile
from headway.serving.allocation.interference import Interference
from headway.serving.allocation.place import place
from headway.serving.allocation.predict import Predictor
from headway.serving.allocation.scepsy import explore_scepsy
from headway.serving.allocation.search import Found, Room, explore, room
from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import Curve, Demand, Forecast, ModelProfile, Plan, Shape
from headway.serving.simulate.instances import instances, placed
from headway.serving.simulate.peak import highest_rate
from headway.serving.simulate.workflow_summary import WorkflowSummary, summarise
from headway.serving.simulate.workflows import Order, Serve, Simulated, Traffic, run_workflows
from headway.serving.workflows.aggregate import aggregate
from headway.serving.workflows.aggregate_types import Aggregate
from headway.serving.workflows.programs.named import named
from headway.serving.workflows.record import runs_of

DEVICE = "a100"
DOMAIN_GPUS = 8
"""GPUs that are joined by NVLink: those of a node."""
POLICY = "prefix-and-load"
"""Of the routers: without affinity a turn of an agent finds its earlier turns on its own instance by luck only."""
WORKLOADS: Mapping[str, tuple[str, ...]] = {
    "beam-search": ("beam-search",),
    "rag": ("rag",),
    "debate": ("debate",),
    "react": ("react",),
    "beam-search + rag": ("beam-search", "rag"),
}
LONELY_RATE = 0.01
"""Runs per second at which hardly any meets another: some take a minute (1/s)."""
WARM_UP, SPAN, COOL_DOWN = 4.0, 7.0, 2.0
"""Runs come for so many latencies of a lonely run before those that are counted, while, and after (1); with several
workflows that of the longest."""
FEWEST_RUNS, MOST_RUNS = 120, 3000
"""Counted runs of a workflow at one rate, whatever the span says; the latter wins (count)."""
HOPELESS = 1.5
"""Runs in flight, over what Little's law says of the rate and the latency limit, from which on a run is stopped (1)."""
WITHIN = 0.05
"""How exactly a peak is found (1)."""
SPARE = 0.95
"""See `_searched` (1)."""
FIRST, STEP = 0.5, 1.4
"""Where the search of a peak begins, in GPUs' worth of work for each GPU, and its steps (1)."""
LOW = (0.1, 0.3)
"""Loads at which latencies are measured besides, in GPUs' worth of work for each GPU (1)."""

Json = Mapping[str, JsonValue]
_CURVE = TypeAdapter(Curve)
_AGGREGATE = TypeAdapter(Aggregate)


def trace(workload: str, runs: int, seed: int) -> Simulated:
    """Runs of a workload that hardly meet each other, each model with a GPU of its own."""
    models = models_of(workload)
    running = placed(whole_gpus(dict.fromkeys(models, 1), 1).instances, devices={"node0": DEVICE}, slices_per_gpu=1)
    traffic = [Traffic(name, named(name), LONELY_RATE, 2, runs) for name in WORKLOADS[workload]]
    return run_workflows(instances(running, policy=POLICY), traffic, seed=seed + 1000)


@lru_cache(maxsize=8)
def models_of(workload: str) -> tuple[str, ...]:
    """Models that a workload's first runs call, in the order of the first calls."""
    models: dict[str, None] = {}
    for name in WORKLOADS[workload]:
        program = named(name)
        models |= dict.fromkeys(
            str(value)
            for field in getattr(program, "__slots__", ())
            for value in _as_tuple(getattr(program, field))
            if isinstance(value, str)
        )
    return tuple(models)


def _as_tuple(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


def prepare(work: Json) -> Json:
    """`{"workload", "runs", "seed"}` -> what its workflows are on average, from lonely runs."""
    workload = str(work["workload"])
    calls = trace(workload, _int(work["runs"]), _int(work["seed"])).counted_calls()
    runs = runs_of(calls)
    found: list[JsonValue] = []
    for name in WORKLOADS[workload]:
        mine = [run for run in runs if run.workflow == name]
        found.append(_AGGREGATE.dump_python(aggregate(mine), mode="json"))
    return {"aggregates": found}


def profile_model(work: Json) -> Json:
    """`{"workload", "model", "slices", "runs", "seed"}` -> the model's latency curves for that workload's calls."""
    calls = trace(str(work["workload"]), _int(work["runs"]), _int(work["seed"])).counted_calls()
    slices = _int(work["slices"])
    made = engine_profile(str(work["model"]), DEVICE, calls, all_shapes(slices, DOMAIN_GPUS), slices)
    by_spread = {1: made.curves, **made.spread_curves}
    rows: list[JsonValue] = [_curve_row(spread, *it) for spread, curves in by_spread.items() for it in curves.items()]
    memory_bytes: dict[str, JsonValue] = {str(degree): bytes_ for degree, bytes_ in made.memory_bytes.items()}
    return {"memory_bytes": memory_bytes, "curves": rows}


def _curve_row(spread: int, shape: Shape, curve: Curve) -> dict[str, JsonValue]:
    return {
        "spread": spread,
        "tensor_parallel": shape.tensor_parallel,
        "slices": shape.slices,
        "curve": _CURVE.dump_python(curve, mode="json"),
    }


def read_profile(model: str, values: Json) -> ModelProfile:
    """A profile from `profile_model`'s answer."""
    curves: dict[int, dict[Shape, Curve]] = {}
    rows, memory = values["curves"], values["memory_bytes"]
    assert isinstance(rows, list)
    assert isinstance(memory, dict)
    for row in rows:
        assert isinstance(row, dict)
        shape = Shape(_int(row["tensor_parallel"]), _int(row["slices"]))
        curves.setdefault(_int(row["spread"]), {})[shape] = _CURVE.validate_python(row["curve"])
    least_bytes = {int(degree): _int(bytes_) for degree, bytes_ in memory.items()}
    return ModelProfile(model, curves.pop(1), least_bytes, f"engine model {DEVICE}", curves)


@dataclass(frozen=True)
class Known:
    """What is known of a workload before anything is planned: `prepare` and `profile_model`, put together."""

    workload: str
    slices: int
    aggregates: tuple[Aggregate, ...]
    profiles: Mapping[str, ModelProfile]

    @classmethod
    def of(cls, work: Json) -> Known:
        """From `{"workload", "slices", "aggregates", "profiles"}`."""
        aggregates, profiles = work["aggregates"], work["profiles"]
        assert isinstance(aggregates, list)
        assert isinstance(profiles, dict)
        read = {}
        for model, values in profiles.items():
            assert isinstance(values, dict)
            read[model] = read_profile(model, values)
        return cls(
            str(work["workload"]),
            _int(work["slices"]),
            tuple(_AGGREGATE.validate_python(it) for it in aggregates),
            read,
        )

    def demands(self, scale: float) -> list[Demand]:
        """The workflows at `scale` GPUs' worth of work, as if GPUs could be shared out without a loss.

        A run of a workflow costs sum over m of n_m / T_m GPU seconds, on whole GPUs. Several workflows have equal parts
        of the work.
        """
        part = scale / len(self.aggregates)
        return [Demand(it, part / self.gpu_s(it)) for it in self.aggregates]

    def gpu_s(self, of: Aggregate) -> float:
        """GPU seconds of a run."""
        whole = Shape(1, self.slices)
        return sum(use.calls / self.profiles[use.model].curves[whole].saturation for use in of.uses)


@dataclass(frozen=True)
class Chosen:
    """What a method does with the GPUs at some rates."""

    serve: Serve
    order: Order | None = None
    plan: Plan | None = None
    forecasts: tuple[Forecast, ...] = ()


Method = Callable[[Known, Sequence[Demand], int], Chosen]
Explored = Callable[[Sequence[Demand], Predictor, Room], Found]


def nodes(gpus: int) -> list[Node]:
    """Nodes of up to DOMAIN_GPUS GPUs."""
    sizes = [min(DOMAIN_GPUS, gpus - first) for first in range(0, gpus, DOMAIN_GPUS)]
    return [Node(f"node{number}", DEVICE, (tuple(range(size)),)) for number, size in enumerate(sizes)]


def _predictor(known: Known) -> Predictor:
    return Predictor(known.profiles, interference=Interference())


def _run_plan(known: Known, demands: Sequence[Demand], plan: Plan, order: Order | None = None) -> Chosen:
    devices = {it.node: DEVICE for it in plan.instances}
    running = placed(plan.instances, devices=devices, slices_per_gpu=known.slices)
    return Chosen(
        instances(running, policy=POLICY, interference=Interference()),
        order,
        plan,
        _predictor(known).forecast(demands, plan.shares, plan.instances),
    )


def _whole(known: Known) -> dict[str, float]:
    return {model: it.curves[Shape(1, known.slices)].saturation for model, it in known.profiles.items()}


def _searched(explored: Explored) -> Method:
    """A plan by a search. Where the rate is more than can be carried, it is made for SPARE times the most that can be:
    the last per cent of throughput may cost any latency."""

    def method(known: Known, demands: Sequence[Demand], gpus: int) -> Chosen:
        predictor = _predictor(known)
        there = room(gpus, known.slices, min(DOMAIN_GPUS, gpus))
        found = explored(demands, predictor, there)
        if found.fraction < 1:
            less = [replace(it, rate=it.rate * found.fraction * SPARE) for it in demands]
            found = explored(less, predictor, there)
        return _run_plan(known, demands, place(Plan(known.slices, found.shares), nodes(gpus)))

    return method


def _equal(known: Known, demands: Sequence[Demand], gpus: int) -> Chosen:
    plan = equal_split(models_of(known.workload), gpus=gpus, slices_per_gpu=known.slices)
    return _run_plan(known, demands, plan)


def _by_hand(known: Known, demands: Sequence[Demand], gpus: int) -> Chosen:
    plan = by_parameters(models_of(known.workload), gpus=gpus, slices_per_gpu=known.slices)
    return _run_plan(known, demands, plan)


def _ordered(known: Known, demands: Sequence[Demand], gpus: int) -> Chosen:
    return replace(_by_hand(known, demands, gpus), order=OldestRunFirst())


def _alone(known: Known, demands: Sequence[Demand], gpus: int) -> Chosen:
    saturation = _whole(known)
    in_order = {model: saturation[model] for model in models_of(known.workload)}
    return _run_plan(known, demands, autoscaled(demands, in_order, gpus=gpus, slices_per_gpu=known.slices))


def _pooling(host_link_Bps: float) -> Method:
    def method(known: Known, demands: Sequence[Demand], gpus: int) -> Chosen:
        models = {model: pooled(DEVICE, model, host_link_Bps=host_link_Bps) for model in known.profiles}
        return Chosen(pool(models, gpus=gpus))

    return method


METHODS: Mapping[str, Method] = {
    "plan": _searched(explore),
    "paper's search": _searched(explore_scepsy),
    "each alone": _alone,
    "equal": _equal,
    "by hand": _by_hand,
    "oldest first": _ordered,
    "pool": _pooling(HOST_LINK_Bps),
    "pool, free switch": _pooling(math.inf),
}


def measure(
    known: Known, method: str, gpus: int, scale: float, *, limit: float, seed: int, span: float
) -> tuple[Chosen, dict[str, WorkflowSummary]]:
    """One rate: what each workflow saw.

    Args:
        known: of the workload.
        method: in METHODS.
        gpus: how many.
        scale: as in `Known.demands`.
        limit: latency limit, in latencies of lonely runs: a run that cannot keep it any more is stopped.
        seed: of the runs.
        span: as SPAN.
    """
    demands = known.demands(scale)
    chosen = METHODS[method](known, demands, gpus)
    lonely_s = max(it.latency_s for it in known.aggregates)
    rates = [demand.rate for demand in demands]
    counted_s = min(max(span * lonely_s, FEWEST_RUNS / min(rates)), MOST_RUNS / max(rates))
    traffic = [
        Traffic(
            demand.aggregate.workflow,
            named(demand.aggregate.workflow),
            demand.rate,
            warm_up=math.ceil(WARM_UP * lonely_s * demand.rate),
            runs=math.ceil(counted_s * demand.rate),
            cool_down=math.ceil(COOL_DOWN * lonely_s * demand.rate),
            most_mean_s=limit * demand.aggregate.latency_s,
        )
        for demand in demands
    ]
    most = 100 + HOPELESS * limit * sum(it.rate * it.aggregate.latency_s for it in demands)
    simulated = run_workflows(
        chosen.serve, traffic, seed=seed, order=chosen.order, most_in_flight=math.ceil(most), keep_calls=False
    )
    return chosen, {it.workflow: summarise(simulated, it.workflow) for it in known.aggregates}


def find_peak(work: Json) -> Json:
    """`Known.of`'s, `{"gpus", "method", "limits", "span", "seed"}` -> for each limit, the most work within it.

    Within it: every workflow keeps up, with a mean latency of at most limit times a lonely run's. Work is in GPUs'
    worth (`Known.demands`). All rates that were tried are points of the answer, and some low ones.
    """
    known, method, gpus = Known.of(work), str(work["method"]), _int(work["gpus"])
    limits = work["limits"]
    assert isinstance(limits, list)
    points: dict[float, dict[str, JsonValue]] = {}
    longest = max(_float(limit) for limit in limits)

    def point(scale: float) -> dict[str, JsonValue]:
        if scale not in points:
            seed, span = _int(work["seed"]), _float(work["span"])
            found = measure(known, method, gpus, scale, limit=longest, seed=seed, span=span)
            points[scale] = {"scale": scale, **_shown(*found)}
        return points[scale]

    peaks: list[JsonValue] = []
    start = FIRST * gpus
    for limit in limits:
        within = _float(limit)

        def holds(scale: float, within: float = within) -> bool:
            return _within(point(scale), known, within)

        peak = highest_rate(holds, start=start, within=WITHIN, step=STEP)
        start = peak or start
        peaks.append({"limit": within, "scale": peak, "rates": _rates(known, peak)})
    for low in LOW:
        point(low * gpus)
    return {"peaks": peaks, "points": [points[scale] for scale in sorted(points)]}


def _within(point: Mapping[str, JsonValue], known: Known, limit: float) -> bool:
    for it in known.aggregates:
        seen = point[it.workflow]
        assert isinstance(seen, dict)
        mean_s = seen["mean_s"]
        if not seen["stable"] or mean_s is None or _float(mean_s) > limit * it.latency_s:
            return False
    return True


def _rates(known: Known, scale: float) -> dict[str, JsonValue]:
    return {it.aggregate.workflow: it.rate for it in known.demands(scale)} if scale > 0 else {}


def _shown(chosen: Chosen, seen: Mapping[str, WorkflowSummary]) -> dict[str, JsonValue]:
    shown: dict[str, JsonValue] = {}
    forecasts = {it.workflow: it for it in chosen.forecasts}
    for workflow, it in seen.items():
        said = forecasts.get(workflow)
        shown[workflow] = {
            "arrival_rate": _finite(it.arrival_rate),
            "completed_rate": _finite(it.completed_rate),
            "mean_s": _finite(it.mean_s),
            "p99_s": _finite(it.p99_s),
            "runs": it.runs,
            "stable": it.stable,
            "said_s": None if said is None else _finite(said.latency_s),
            "said_rate": None if said is None else _finite(said.throughput),
            "rate": None if said is None else said.rate,
        }
    if chosen.plan is not None:
        parts = chosen.plan.slices_per_gpu
        shown["plan"] = ", ".join(
            f"{it.model} {it.replicas} x "
            + (f"{it.shape.slices}/{parts}" if it.shape.slices < parts else f"{it.shape.tensor_parallel}")
            for it in chosen.plan.shares
        )
    return shown


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _int(value: JsonValue) -> int:
    return int(_float(value))


def _float(value: JsonValue) -> float:
    if not isinstance(value, int | float):
        raise UsageError(f"{value!r} is no number")
    return float(value)
