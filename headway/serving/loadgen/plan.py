"""The requests of a run: a named load or a trace's file, with its times. Reads the file; else pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from headway.errors import UsageError
from headway.serving.workload import arrivals as processes
from headway.serving.workload import mooncake, named
from headway.serving.workload.arrival import Arrival
from headway.serving.workload.blocks import shortened

DEFAULT_REQUESTS = 100
MOST_S = 1e8
"""Of a load: three years, which no timer needs to hold."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for on the command line.

    Attributes:
        load: a name that `named.load` knows, or a Mooncake trace's file.
        rate: requests per second; None: as the trace has it.
        requests: how many; None: all of the trace, or `DEFAULT_REQUESTS` of a named load.
        process: how the gaps are drawn; None: Poisson where there is a name, the trace's own times where a file.
        time_scale: gaps of a trace's own times are so many times as long; None: 1.
        seed: of prompts and times.
        step: (seconds, factor): from then on the rate is so many times as high; None: it stays.
        most_input_tokens, most_output_tokens: longer requests are cut to this; None: no limit.
    """

    load: str
    rate: float | None = None
    requests: int | None = None
    process: processes.Process | None = None
    time_scale: float | None = None
    seed: int = 0
    step: tuple[float, float] | None = None
    most_input_tokens: int | None = None
    most_output_tokens: int | None = None


def plan(wanted: Wanted) -> list[Arrival]:
    """The load, in order of time, from 0 on. UsageError for what does not go together."""
    if wanted.requests is not None and wanted.requests < 1:
        raise UsageError(f"{wanted.requests} requests are none", where="--requests")
    if named.is_name(wanted.load):
        load = _named(wanted)
    elif Path(wanted.load).is_file():
        load = _traced(wanted)
    else:
        raise UsageError(f"there is no load and no file {wanted.load!r}", where="--load", hint=named.HINT)
    if wanted.step is not None:
        at_s, factor = wanted.step
        times_s = processes.stepped([each.at_s for each in load], at_s=at_s, factor=factor)
        load = _retimed(load, times_s)
    if not load[-1].at_s < MOST_S:
        raise UsageError(f"the last request would come after {load[-1].at_s:.3g} s", hint="raise --rate")
    if wanted.most_input_tokens is None and wanted.most_output_tokens is None:
        return load
    return [
        shortened(each, input_tokens=wanted.most_input_tokens, output_tokens=wanted.most_output_tokens) for each in load
    ]


def _named(wanted: Wanted) -> list[Arrival]:
    if wanted.rate is None:
        raise UsageError(f"the load {wanted.load} needs a rate", where="--rate", hint="for example --rate 5")
    if wanted.time_scale is not None:
        raise UsageError("only a trace's own times can be scaled", where="--time-scale", hint="use --rate")
    return named.load(
        wanted.load,
        requests=wanted.requests or DEFAULT_REQUESTS,
        rate=wanted.rate,
        seed=wanted.seed,
        arrivals=wanted.process or named.POISSON,
    )


def _traced(wanted: Wanted) -> list[Arrival]:
    path = Path(wanted.load)
    with path.open(encoding="utf-8", errors="replace") as lines:
        load = list(islice(_requests(lines, path), wanted.requests))
    if not load:
        raise UsageError("the trace has no requests", where=str(path))
    if wanted.requests is not None and len(load) < wanted.requests:
        raise UsageError(f"the trace has only {len(load)} requests", where=str(path), hint="ask for fewer --requests")
    own_s = [each.at_s for each in load]
    if wanted.process is None or wanted.process.kind == "trace":
        if wanted.rate is not None and wanted.time_scale is not None:
            raise UsageError("--rate and --time-scale both say how fast the trace goes; give one of them")
        times_s = processes.scaled(own_s, factor=wanted.time_scale or 1.0, rate=wanted.rate)
    elif wanted.time_scale is not None:
        raise UsageError(f"--time-scale scales the trace's own times, but --arrivals is {wanted.process.kind}")
    elif wanted.rate is None:
        raise UsageError(f"{wanted.process.kind} arrivals need a rate", where="--rate", hint="for example --rate 5")
    else:
        times_s = processes.times(wanted.process, len(load), rate=wanted.rate, seed=wanted.seed)
    return _retimed(load, times_s)


def _requests(lines: Iterator[str], path: Path) -> Iterator[Arrival]:
    yield from mooncake.read(lines, where=str(path))


def _retimed(load: list[Arrival], times_s: list[float]) -> list[Arrival]:
    return [replace(each, at_s=at_s) for each, at_s in zip(load, times_s, strict=True)]
