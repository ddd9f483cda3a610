"""What is known of the workflow study's workloads before anything is planned: traces and profiles. JSON in and out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue, TypeAdapter

from headway.errors import UsageError
from headway.serving.allocation.baselines.static import whole_gpus
from headway.serving.allocation.engine_profile import all_shapes, engine_profile
from headway.serving.allocation.types import Curve, Demand, ModelProfile, Shape
from headway.serving.simulate.instances import instances, placed
from headway.serving.simulate.workflows import Simulated, Traffic, run_workflows
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
LONELY_RUNS = 1200
"""Runs of each workflow whose latency alone is known, the first that come (count)."""

Json = Mapping[str, JsonValue]
_CURVE = TypeAdapter(Curve)
_AGGREGATE = TypeAdapter(Aggregate)
_ALONE = TypeAdapter(dict[str, list[float]])


def trace(workload: str, runs: int, seed: int) -> Simulated:
    """What is known of a workload beforehand: recorded runs, which are not those that rates are measured with."""
    return lonely(workload, WORKLOADS[workload], runs, seed + 1000)


def lonely(workload: str, workflows: Sequence[str], runs: int, seed: int) -> Simulated:
    """Runs that hardly meet each other, each model of the workload with a GPU of its own."""
    models = models_of(workload)
    running = placed(whole_gpus(dict.fromkeys(models, 1), 1).instances, devices={"node0": DEVICE}, slices_per_gpu=1)
    traffic = [Traffic(name, named(name), LONELY_RATE, 0, runs) for name in workflows]
    return run_workflows(instances(running, policy=POLICY), traffic, seed=seed)


def models_of(workload: str) -> tuple[str, ...]:
    """Models that a workload's workflows call, each once."""
    return tuple(dict.fromkeys(model for name in WORKLOADS[workload] for model in named(name).models))


def prepare(work: Json) -> Json:
    """`{"workload", "runs", "seed"}` -> what its workflows are on average, from lonely runs.

    And how long each of the first LONELY_RUNS runs takes alone that rates will be measured with: those are others, and
    which of them a measurement happens to count is chance that can be taken out.
    """
    workload = str(work["workload"])
    calls = trace(workload, whole_number(work["runs"]), whole_number(work["seed"])).counted_calls()
    runs = runs_of(calls)
    found: list[JsonValue] = []
    for name in WORKLOADS[workload]:
        mine = [run for run in runs if run.workflow == name]
        found.append(_AGGREGATE.dump_python(aggregate(mine), mode="json"))
    alone: dict[str, JsonValue] = {}
    for name in WORKLOADS[workload]:
        rows = lonely(workload, (name,), LONELY_RUNS, whole_number(work["seed"])).rows[:LONELY_RUNS]
        alone[name] = [row.latency_s for row in rows]
    return {"aggregates": found, "alone_s": alone}


def profile_model(work: Json) -> Json:
    """`{"workload", "model", "slices", "runs", "seed"}` -> the model's latency curves for that workload's calls."""
    calls = trace(str(work["workload"]), whole_number(work["runs"]), whole_number(work["seed"])).counted_calls()
    slices = whole_number(work["slices"])
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
        shape = Shape(whole_number(row["tensor_parallel"]), whole_number(row["slices"]))
        curves.setdefault(whole_number(row["spread"]), {})[shape] = _CURVE.validate_python(row["curve"])
    least_bytes = {int(degree): whole_number(bytes_) for degree, bytes_ in memory.items()}
    return ModelProfile(model, curves.pop(1), least_bytes, f"engine model {DEVICE}", curves)


@dataclass(frozen=True)
class Known:
    """What is known of a workload before anything is planned: `prepare` and `profile_model`, put together.

    `alone_s` is for judging only: latencies of the runs that rates are measured with.
    """

    workload: str
    slices: int
    aggregates: tuple[Aggregate, ...]
    profiles: Mapping[str, ModelProfile]
    alone_s: Mapping[str, Sequence[float]]

    @classmethod
    def of(cls, work: Json) -> Known:
        """From `{"workload", "slices", "aggregates", "profiles", "alone_s"}`."""
        aggregates, profiles = work["aggregates"], work["profiles"]
        assert isinstance(aggregates, list)
        assert isinstance(profiles, dict)
        read = {}
        for model, values in profiles.items():
            assert isinstance(values, dict)
            read[model] = read_profile(model, values)
        return cls(
            str(work["workload"]),
            whole_number(work["slices"]),
            tuple(_AGGREGATE.validate_python(it) for it in aggregates),
            read,
            _ALONE.validate_python(work["alone_s"]),
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


def whole_number(value: JsonValue) -> int:
    return int(number(value))


def number(value: JsonValue) -> float:
    if not isinstance(value, int | float):
        raise UsageError(f"{value!r} is no number")
    return float(value)
