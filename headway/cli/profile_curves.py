"""The engine model's curves on all cores: on one of them those of calls in bursts take minutes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import JsonValue, TypeAdapter

from headway.bench.worker_pool import attempts
from headway.errors import HeadwayError
from headway.lab.signals import Deferred
from headway.serving.allocation.engine_profile import CurvesOf, Maker, Task
from headway.serving.allocation.types import Curve
from headway.serving.workflows.calls import Call
from headway.serving.workflows.files import read_calls, write_calls

LEAST_TASKS = 8
"""Curves from which on processes are worth their start (count)."""

_TASK = TypeAdapter(Task)
_CURVE = TypeAdapter(Curve)


def on_all_cores(told: Callable[[int, int], None]) -> CurvesOf:
    """`engine_profile.curves` on all cores that this process may use; `told` gets how many of how many are made.

    KeyboardInterrupt and SystemExit on signals, HeadwayError where a process ends before its curve is made; no process
    outlives any of them.
    """

    def curves(calls: Sequence[Call], seed: int, tasks: Sequence[Task]) -> Iterator[Curve]:
        cores = len(os.sched_getaffinity(0))
        workers = min(cores, len(tasks)) if cores > 1 and len(tasks) >= LEAST_TASKS else 0
        told(0, len(tasks))
        made: dict[int, Curve] = {}
        with TemporaryDirectory() as folder:
            file = Path(folder) / "calls.jsonl"  # a worker reads them once, and not with each of its curves
            file.write_text(write_calls(calls))
            works = [{"calls": str(file), "seed": seed, "task": _TASK.dump_python(task, mode="json")} for task in tasks]
            with (
                Deferred() as signals,
                attempts(make, works, workers=workers, limit_s=None, check=signals.check) as ended,
            ):
                for each in ended:
                    if each.error:
                        raise HeadwayError(f"a curve of {calls[0].model} could not be made: {each.error}")
                    made[each.index] = _CURVE.validate_python(each.values["curve"])
                    told(len(made), len(tasks))
        yield from (made[index] for index in range(len(tasks)))

    return curves


def make(work: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    """`{"calls": file, "seed", "task"}` -> `{"curve"}`, in whatever process."""
    maker = _maker(str(work["calls"]), int(str(work["seed"])))
    return {"curve": _CURVE.dump_python(maker.curve(_TASK.validate_python(work["task"])), mode="json")}


@lru_cache(maxsize=1)
def _maker(file: str, seed: int) -> Maker:
    return Maker(read_calls(Path(file).read_text().splitlines(), where=file), seed)
