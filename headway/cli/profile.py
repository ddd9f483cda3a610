"""`headway profile`: how long models' calls take on parts of GPUs, against how many come."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from yarl import URL

from headway.cli.called import read_all_calls, read_text
from headway.cli.engine_model import EngineModels, check_context, check_longest, engine_models
from headway.cli.journals import check_writable
from headway.cli.profile_curves import on_all_cores
from headway.cli.shown import cell, print_line, shown
from headway.cli.tables import plain_table, print_table
from headway.cluster.units import parse_time
from headway.errors import UsageError
from headway.serving.allocation.engine_profile import all_shapes
from headway.serving.allocation.files import read_profiles, write_profiles
from headway.serving.allocation.fill import filled
from headway.serving.allocation.types import ModelProfile, Shape
from headway.serving.engine import hardware
from headway.serving.loadgen.ask import ENDPOINTS, Ask
from headway.serving.loadgen.client import Limits, base_url
from headway.serving.profiling.cache import cached_profile, default_folder
from headway.serving.profiling.table import read_table
from headway.serving.workflows.calls import Call

PLAIN_WIDTH = 120
SOURCES = ("engine-model",)
LIVE = "live: "  # what the source of a measured profile begins with
MOST_SLICES = 100
"""Of a GPU: MPS divides its arithmetic by whole percents."""
MOST_GPUS = 1024
"""In one fast domain, and instances that share a burst: more are taken for a slip of the keyboard."""
MANY_CURVES = 20
"""Of a model: from so many on it is said in the beginning where there is no bar, since it may take minutes."""
_ENGINE = re.compile(r"(\d+)x(\d+)=(.+)")
_ENGINE_MODEL_ONLY = ("engine_model", "domain_gpus", "cache", "no_cache")
_LIVE_ONLY = ("served_model_name", "endpoint", "ignore_eos", "point", "spread", "limit")


def profile(
    context: typer.Context,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file of profiles to write or add to.")] = Path(
        "profiles.yaml"
    ),
    calls: Annotated[
        list[Path] | None, typer.Option(help="Recorded calls: from `headway trace import`, or a gateway's journal.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Whose calls; repeatable. [default: all in the calls]")
    ] = None,
    slices: Annotated[int, typer.Option(help="Parts into which a GPU may be divided.")] = 10,
    source: Annotated[str, typer.Option("--from", help=f"Without engines: {', '.join(SOURCES)}.")] = "",
    device: Annotated[
        str, typer.Option(help=f"The GPU that the curves are of. The engine model knows {', '.join(hardware.DEVICES)}.")
    ] = "",
    engine_model: EngineModels = None,
    domain_gpus: Annotated[
        int, typer.Option(help="GPUs that are joined by a fast interconnect: the most for one instance.")
    ] = 8,
    cache: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where profiles are kept. [default: ~/.cache/headway/profiles]")
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Make them anew, and keep nothing.")] = False,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TPxSLICES=URL",
            help="A live engine: 1x5=http://host:8000 has half of a GPU that has 10 slices; repeatable. Takes minutes: "
            "crowds of calls that double until that brings no more, about 8 calls for each of the largest crowd; then "
            "five rates, each for the time of --point.",
        ),
    ] = None,
    served_model_name: Annotated[
        str, typer.Option(help="The model's name on the live engines, where that differs.")
    ] = "",
    endpoint: Annotated[str, typer.Option(help="chat or completions.")] = "chat",
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Ask vLLM or SGLang for all output tokens.")] = False,
    point: Annotated[
        str, typer.Option(metavar="TIME", help="How long calls of a rate are measured, after a warm-up.")
    ] = "30s",
    spread: Annotated[int, typer.Option(help="Instances that will share what comes at one instant.")] = 1,
    limit: Annotated[str, typer.Option(metavar="TIME", help="For a whole answer.")] = "10min",
    fill: Annotated[
        bool, typer.Option("--fill", help="With --engine or --import: curves of the sizes between by interpolation.")
    ] = False,
    import_: Annotated[
        Path | None, typer.Option("--import", metavar="FILE.csv", help="A table of curves instead; see docs/plan.md.")
    ] = None,
) -> None:
    """Make latency curves of models: from the engine model, from live engines, or from a table.

    Exit codes: 0 written; 1 a live engine failed a call, is not there or is not steady; 2 the command line or a file is
    wrong, or an engine answers 404.
    """
    ways = [bool(source), bool(engine), import_ is not None]
    if sum(ways) != 1:
        raise UsageError(
            "say where the curves come from: one of --from engine-model, --engine SHAPE=URL and --import FILE.csv"
        )
    _within("--slices", slices, MOST_SLICES)
    _within("--domain-gpus", domain_gpus, MOST_GPUS)
    _within("--spread", spread, MOST_GPUS)
    device = device.lower() if device.lower() in hardware.DEVICES else device
    notes: list[str] = []
    if source and fill:
        raise UsageError("makes curves of all sizes by itself", where="--from", hint="leave out --fill")
    if not source:
        _refuse(context, _ENGINE_MODEL_ONLY, "goes with --from engine-model")
    if not engine:
        _refuse(context, _LIVE_ONLY, "goes with --engine")
    kept = _kept(output, slices)
    if import_ is not None:
        made = _imported(import_, model or [], slices)
    else:
        if not calls:
            raise UsageError("are needed to replay", where="--calls", hint="headway trace import makes them")
        recorded = read_all_calls(calls)
        models = model or sorted({call.model for call in recorded})
        if engine:
            for name in models:
                _check_device(output, kept.get(name), device)
            made = [
                _live(
                    recorded,
                    models,
                    engine,
                    slices,
                    served_model_name,
                    endpoint,
                    ignore_eos,
                    point,
                    spread,
                    limit,
                    notes.append,
                )
            ]
        else:
            made = _from_engine_model(
                recorded,
                models,
                source,
                device,
                engine_model or [],
                slices,
                domain_gpus,
                None if no_cache else cache or default_folder(),
            )
    made = [replace(each, device=device) for each in made]
    if fill:
        made = [filled(each) for each in made]
    _save(output, made, slices)
    _print_table(made, slices)
    for note in notes:
        print_line(f"note: {note}")
    if not device:
        print("note: without --device nothing checks that a plan's nodes have the GPUs that these curves are of")
    print_line(f"wrote {output}: profiles of {', '.join(each.model for each in made)}")


def _imported(path: Path, models: Sequence[str], slices: int) -> list[ModelProfile]:
    found = read_table(read_text(path).splitlines(), slices_per_gpu=slices, where=str(path))
    absent = [name for name in models if name not in found]
    if absent:
        raise UsageError(f"has no curves of {', '.join(absent)}", where=str(path), hint=f"it has {', '.join(found)}")
    return [each for name, each in found.items() if not models or name in models]


def _from_engine_model(
    calls: Sequence[Call],
    models: Sequence[str],
    source: str,
    device: str,
    names: Sequence[str],
    slices: int,
    domain_gpus: int,
    cache: Path | None,
) -> list[ModelProfile]:
    if source not in SOURCES:
        raise UsageError(f"{source!r} is none of {', '.join(SOURCES)}", where="--from")
    if not device:
        raise UsageError("is needed", where="--device", hint=f"known: {', '.join(hardware.DEVICES)}")
    hardware.known(hardware.DEVICES, device, "device")
    for name in models:
        if not any(call.model == name for call in calls):
            heard = ", ".join(sorted({call.model for call in calls}))
            raise UsageError(f"no call to {name} was recorded", where="--model", hint=f"models in the calls: {heard}")
    known = engine_models(names, models)
    for name in models:
        check_context(calls, name, known.get(name, name))
    shapes = all_shapes(slices, domain_gpus)
    with _Bar() as bar:
        return [
            cached_profile(
                cache,
                name,
                device,
                calls,
                shapes,
                slices,
                engine_model=known.get(name, ""),
                curves_of=on_all_cores(partial(bar.told, name)),
            )
            for name in models
        ]


class _Bar:
    """How many of a model's curves are made: a bar on a terminal, a line elsewhere where there are many; on stderr."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}", markup=False),  # a model's name, where square brackets are no markup
            *(BarColumn(), TaskProgressColumn(), TimeRemainingColumn()),
        )
        self._progress = Progress(
            *columns, console=self._console, transient=True, disable=not self._console.is_terminal
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def told(self, model: str, done: int, total: int) -> None:
        """`done` of `total` are made."""
        if model not in self._tasks:
            self._tasks[model] = self._progress.add_task(shown(model), total=total)
            if total >= MANY_CURVES and not self._console.is_terminal:
                print(f"{shown(model)}: {total} curves are made", file=sys.stderr, flush=True)
        self._progress.update(self._tasks[model], completed=done)


def _live(
    calls: Sequence[Call],
    models: Sequence[str],
    engines: Sequence[str],
    slices: int,
    served: str,
    endpoint: str,
    ignore_eos: bool,
    point: str,
    spread: int,
    limit: str,
    noted: Callable[[str], None],
) -> ModelProfile:
    try:
        from headway.cli.live_context import context_of
        from headway.serving.loadgen.run import in_loop
        from headway.serving.profiling.live import Sweep, live_profile
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is not installed", hint="pip install 'headway[serving]'") from error
    urls = _engines(engines, slices)
    if len(models) != 1:
        raise UsageError(
            f"engines serve one model, and the calls are to {', '.join(models)}", where="--engine", hint="add --model"
        )
    if endpoint not in ENDPOINTS:
        raise UsageError(f"unknown endpoint {endpoint!r}", where="--endpoint", hint=", ".join(ENDPOINTS))
    (model,) = models
    if not any(call.model == model for call in calls):
        raise UsageError(f"no call to {model} was recorded", where="--model")
    limits = Limits(total_s=_some_time("--limit", limit))
    sweep = Sweep(point_s=_some_time("--point", point), spread=spread, limits=limits)
    ask = Ask(model=served or model, endpoint=endpoint, ignore_eos=ignore_eos)
    told = partial(print, flush=True)

    async def measured() -> ModelProfile:
        for url in urls.values():
            most_tokens = await context_of(url, ask.model)
            if most_tokens is None:
                check_context(calls, model, ask.model)
            else:
                check_longest(calls, model, most_tokens, f"{url} takes {most_tokens} at most")
        return await live_profile(model, calls, urls, sweep, ask=ask, told=told, noted=noted)

    return in_loop(measured)


def _engines(texts: Sequence[str], slices: int) -> dict[Shape, URL]:
    engines: dict[Shape, URL] = {}
    for text in texts:
        match = _ENGINE.fullmatch(text)
        if match is None:
            raise UsageError(f"{text!r} is no engine", where="--engine", hint="write for example 1x5=http://host:8000")
        shape = Shape(int(match[1]), int(match[2]))
        if not shape.fits(slices):
            raise UsageError(f"{match[1]}x{match[2]} is no shape where a GPU has {slices} slices", where="--engine")
        if shape in engines:
            raise UsageError(f"two engines are {match[1]}x{match[2]}", where="--engine")
        engines[shape] = base_url(match[3], where="--engine")
    return engines


def _kept(path: Path, slices: int) -> dict[str, ModelProfile]:
    """What the file has by now. UsageError where it cannot be written, or not added to; nothing is changed."""
    there = path.exists()
    check_writable(path)
    if not there:
        path.resolve().unlink()  # of a link that leads nowhere yet, the file and not the link
        return {}
    old_slices, kept = read_profiles(path)
    if old_slices != slices:
        raise UsageError(
            f"has {old_slices} slices for a GPU, not {slices}",
            where=str(path),
            hint="another --output, or --slices",
        )
    return kept


def _check_device(path: Path, old: ModelProfile | None, device: str) -> None:
    """UsageError where live engines' curves of the model are there, of another GPU."""
    if old is not None and old.source.startswith(LIVE) and old.device != device:
        raise UsageError(
            f"has curves of {old.model} on {old.device or 'a GPU that nobody named'}, "
            f"not on {device or 'one that nobody named'}",
            where=str(path),
            hint=f"another --output, or --device {old.device}".removesuffix(", or --device "),
        )


def _save(path: Path, made: Sequence[ModelProfile], slices: int) -> None:
    """Profiles of other models in the file stay, and curves of live engines beside those of others."""
    kept = _kept(path, slices)  # once more: somebody else may have added to it in the meantime
    for each in made:
        old = kept.get(each.model)
        if old is not None and old.source.startswith(LIVE) and each.source.startswith(LIVE):
            _check_device(path, old, each.device)
            sources = f"{old.source}, {each.source.removeprefix(LIVE)}"
            each = replace(each, curves={**old.curves, **each.curves}, source=sources)
        kept[each.model] = each
    write_profiles(path, list(kept.values()), slices_per_gpu=slices)


def _print_table(profiles: Sequence[ModelProfile], slices: int) -> None:
    table = plain_table()
    for name in ("model", "GPUs"):
        table.add_column(name, no_wrap=True)
    for name in ("calls/s at most", "latency when idle", "half loaded", "p99 there"):
        table.add_column(name, justify="right")
    for profile in profiles:
        for shape, curve in sorted(profile.curves.items()):
            half = curve.saturation / 2
            table.add_row(
                cell(profile.model),
                words(shape, slices),
                f"{curve.saturation:.3g}",
                f"{curve.latencies_s[0]:.3g} s",
                f"{curve.latency_s(half):.3g} s",
                f"{curve.p99_at_s(half):.3g} s",
            )
    print_table(table, plain_width=PLAIN_WIDTH)


def words(shape: Shape, slices: int) -> str:
    """A shape for people: "0.3", "1", "2 (TP)"."""
    if shape.tensor_parallel > 1:
        return f"{shape.tensor_parallel} (TP)"
    return f"{shape.slices / slices:g}"


def _within(option: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise UsageError(f"{value} is not from 1 to {most}", where=option)


def _some_time(option: str, text: str) -> float:
    """Seconds, more than none."""
    seconds = parse_time(text, where=option)
    if not 0 < seconds < math.inf:
        raise UsageError(f"{text} is no time", where=option, hint="write for example 30s")
    return seconds


def _refuse(context: typer.Context, names: Sequence[str], why: str) -> None:
    for name in names:
        given = context.get_parameter_source(name)
        if given is not None and given.name == "COMMANDLINE":
            raise UsageError(why, where=f"--{name.replace('_', '-')}")
