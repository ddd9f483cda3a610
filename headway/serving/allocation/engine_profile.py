"""A model's latency curves from its recorded calls and the engine model. Pure; the same arguments give the same curves.

The calls are replayed (`allocation.replay`) on one instance of each shape, as the paper does on real ones (Scepsy,
arXiv 2604.15186). On r instances each gets 1/r of every burst: the verifier of 24 beams is not asked once, 24 times,
but 24 times at once, and on four instances six times at once. Hence curves for several spreads.

`saturation` is the throughput with as many runs under way as are best for the instance (`allocation.crowd`). Above the
last measured rate (LOADS) the curve grows as 1 / (saturation - rate). The network and the gateway take no time here.

Cost: len(LOADS) * CALLS calls through the engine model for each shape, and those of `crowd`; all that for each spread
where calls come in bursts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from headway.errors import UsageError
from headway.serving.allocation.crowd import Crowds
from headway.serving.allocation.recorded import Recorded
from headway.serving.allocation.replay import Replay
from headway.serving.allocation.types import Curve, ModelProfile, Shape
from headway.serving.engine import hardware
from headway.serving.engine.types import EngineProfile
from headway.serving.workflows.blocks import block_size
from headway.serving.workflows.calls import Call

LOADS = (0.05, 0.4, 0.7, 0.88, 0.96)
"""Where a curve is measured, as parts of its saturation (1): closer where it bends."""
CALLS = 1600
"""Calls that are measured for a point on a curve (count), and half as many of each crowd: near saturation means of
several seeds have a standard deviation of 3 to 5 %."""
SPREADS = (1, 2, 4, 8, 16)
"""Over how many instances bursts are spread, where there are bursts (count)."""
LEAST_CALLS = 2
"""Calls of the longest kind that an instance's cache must hold (count)."""


@dataclass(frozen=True, slots=True)
class Task:
    """A curve to be made: of an engine that is one of `spread` that share every burst, from so many calls a point."""

    engine: EngineProfile
    spread: int
    calls: int


CurvesOf = Callable[[Sequence[Call], int, Sequence[Task]], Iterable[Curve]]
"""As `curves`."""


def all_shapes(slices_per_gpu: int, domain_gpus: int) -> list[Shape]:
    """Every fraction of a GPU, and whole GPUs by powers of two inside a fast domain."""
    degrees = [1 << power for power in range(1, domain_gpus.bit_length()) if 1 << power <= domain_gpus]
    fractions = [Shape(1, slices) for slices in range(1, slices_per_gpu + 1)]
    return fractions + [Shape(degree, slices_per_gpu) for degree in degrees]


def engine_profile(
    model_name: str,
    device: str,
    calls: Sequence[Call],
    shapes: Iterable[Shape],
    slices_per_gpu: int,
    *,
    engine_model: str = "",
    seed: int = 0,
    curves_of: CurvesOf | None = None,
) -> ModelProfile:
    """Curves of a model on those shapes that it fits into; it fits where the cache holds the longest calls.

    Args:
        model_name: the model's name in `calls`; calls of others are left out.
        device: a name in `hardware.DEVICES`.
        calls: recorded, of any number of runs and workflows.
        shapes: to try.
        slices_per_gpu: parts of a GPU that shapes count in.
        engine_model: a name in `hardware.MODELS`; empty: `model_name`.
        seed: of gaps and of the order of runs.
        curves_of: makes the curves, in processes for instance; None: `curves`, one after the other.

    Raises:
        UsageError: unknown names, no calls to the model, or no shape that it fits into.
    """
    mine = [call for call in calls if call.model == model_name]
    if not mine:
        known = ", ".join(sorted({call.model for call in calls})) or "none"
        raise UsageError(f"no call to {model_name} was recorded", hint=f"models in the calls: {known}")
    longest = max(call.input_tokens + call.output_tokens for call in mine)
    name = engine_model or model_name
    block_tokens = block_size(mine)
    engines = fitting(
        device, name, shapes, slices_per_gpu, cache_tokens=LEAST_CALLS * longest, block_tokens=block_tokens
    )
    if not engines:
        raise UsageError(
            f"{name} with {LEAST_CALLS} calls of {longest} tokens fits into no shape on {device}",
            hint="allow a higher tensor-parallel degree, or take larger GPUs",
        )
    wanted = SPREADS if Recorded(mine, seed=seed).bursty else SPREADS[:1]
    asked = [(spread, shape) for spread in wanted for shape in engines]
    tasks = [Task(engines[shape], spread, CALLS) for spread, shape in asked]
    spreads: dict[int, dict[Shape, Curve]] = {spread: {} for spread in wanted}
    for (spread, shape), curve in zip(asked, (curves_of or curves)(mine, seed, tasks), strict=True):
        spreads[spread][shape] = curve
    return ModelProfile(
        model=model_name,
        curves=spreads.pop(1),
        memory_bytes={
            degree: least_bytes(name, degree, LEAST_CALLS * longest)
            for degree in sorted({shape.tensor_parallel for shape in engines})
        },
        source=f"engine model: {name} on {device}",
        spread_curves=spreads,
        device=device,
    )


def fitting(
    device: str, model: str, shapes: Iterable[Shape], slices_per_gpu: int, *, cache_tokens: int, block_tokens: int
) -> dict[Shape, EngineProfile]:
    """The engines of those shapes that hold the weights and a cache of so many tokens. UsageError: unknown names."""
    chip, net = hardware.known(hardware.DEVICES, device, "device"), hardware.known(hardware.MODELS, model, "model")
    engines = {}
    for shape in sorted(set(shapes)):
        degree, fraction = shape.tensor_parallel, shape.slices / slices_per_gpu
        if net.heads % degree == 0 and chip.memory_bytes * fraction >= least_bytes(model, degree, cache_tokens):
            engines[shape] = hardware.profile(
                device, model, tensor_parallel=degree, fraction=fraction, block_tokens=block_tokens
            )
    return engines


def least_bytes(model: str, tensor_parallel: int, cache_tokens: int) -> int:
    """Memory of each GPU that an instance needs for weights, a cache of so many tokens and what the engine reserves."""
    net = hardware.known(hardware.MODELS, model, "model")
    held_bytes = net.parameters * hardware.BYTES_PER_VALUE + cache_tokens * net.kv_bytes
    return math.ceil((held_bytes / tensor_parallel + hardware.RESERVE_BYTES) / hardware.MEMORY_SHARE)


class Maker:
    """Makes curves of the same calls; `seed` as in `engine_profile`."""

    def __init__(self, calls: Sequence[Call], seed: int) -> None:
        self._replay, self._crowds = Replay(calls, seed=seed), Crowds(calls, seed=seed)

    def curve(self, task: Task) -> Curve:
        """One curve."""
        engine, spread = task.engine, task.spread
        saturation = self._crowds.saturation(engine, task.calls // 2, spread=spread)
        rates = tuple(load * saturation for load in LOADS)
        points = [self._replay.latencies_s(engine, task.calls, rate, spread=spread) for rate in rates]
        return Curve(
            rates,
            latencies_s=tuple(float(np.mean(point)) for point in points),
            p99_s=tuple(float(np.quantile(point, 0.99)) for point in points),
            saturation=saturation,
        )


def curves(calls: Sequence[Call], seed: int, tasks: Sequence[Task]) -> Iterator[Curve]:
    """The curves of the tasks, in their order."""
    maker = Maker(calls, seed)
    for task in tasks:
        yield maker.curve(task)
