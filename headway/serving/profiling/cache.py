"""Profiles made from the engine model, kept in files that are named after all that went into them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from headway.errors import UsageError
from headway.serving import engine, prefix
from headway.serving.allocation import crowd, recorded, replay
from headway.serving.allocation import engine_profile as making
from headway.serving.allocation.files import read_profiles, write_profiles
from headway.serving.allocation.types import ModelProfile, Shape
from headway.serving.workflows import blocks
from headway.serving.workflows.calls import Call
from headway.serving.workflows.files import to_line


def default_folder() -> Path:
    """`$XDG_CACHE_HOME/headway/profiles`, by default `~/.cache/headway/profiles`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headway" / "profiles"


def cached_profile(
    folder: Path | None,
    model: str,
    device: str,
    calls: Sequence[Call],
    shapes: Sequence[Shape],
    slices_per_gpu: int,
    *,
    engine_model: str = "",
    seed: int = 0,
    curves_of: making.CurvesOf | None = None,
) -> ModelProfile:
    """As `engine_profile.engine_profile`, from a file of `folder` where it is there; None: no folder.

    A file that cannot be read as a profile is made again.
    """
    mine = [call for call in calls if call.model == model]

    def make() -> ModelProfile:
        return making.engine_profile(
            model,
            device,
            calls,
            shapes,
            slices_per_gpu,
            engine_model=engine_model,
            seed=seed,
            curves_of=curves_of,
        )

    if folder is None or not mine:
        return make()
    wanted = [model, device, sorted((it.tensor_parallel, it.slices) for it in shapes), slices_per_gpu]
    file = folder / f"{_key([*wanted, engine_model, seed, making.CALLS, making.LOADS, making.SPREADS], mine)}.json"
    if file.is_file():
        try:
            return read_profiles(file)[1][model]
        except (UsageError, KeyError):
            pass  # half written or of another version: it is replaced below
    profile = make()
    unfinished = file.with_name(f"{file.stem}.{os.getpid()}.json")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make it: {error.strerror}", where=str(folder), hint="another --cache") from None
    write_profiles(unfinished, [profile], slices_per_gpu=slices_per_gpu)
    unfinished.replace(file)
    return profile


def _key(wanted: Sequence[object], calls: Sequence[Call]) -> str:
    digest = hashlib.sha256(json.dumps(wanted).encode())
    for call in calls:
        digest.update(to_line(call).encode())
    for source in _sources():
        digest.update(source.read_bytes())
    return digest.hexdigest()[:32]


def _sources() -> list[Path]:
    """The modules that decide what a profile is: a file that older ones made is not taken for one of theirs."""
    modules = [Path(str(it.__file__)) for it in (making, replay, crowd, recorded, blocks, prefix)]
    return [*modules, *sorted(file for folder in engine.__path__ for file in Path(folder).glob("*.py"))]
