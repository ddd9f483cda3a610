"""What the policy knows, as bytes: so that a gateway that starts again does not begin at nothing. Pure.

The format is numpy's npz, read without pickle, so that a file can be wrong but not harmful.
"""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.serving.learned.features import DEVICE_SLOTS, NUMBERS, WIDTH
from headway.serving.learned.samples import Samples
from headway.serving.learned.scorer import HIDDEN, Scorer

FORMAT = 1


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """What is worth keeping.

    Attributes:
        fresh, replay: the two pools.
        devices: in order of their places in the features.
        scorer: the model.
    """

    fresh: Samples
    replay: Samples
    devices: tuple[str, ...]
    scorer: Scorer


class MemoryFormatError(ValueError):
    """The bytes are no memory of this version: says what is wrong."""


def to_bytes(memory: Memory) -> bytes:
    """As bytes of an npz file."""
    scorer = memory.scorer
    about = {
        "format": FORMAT,
        "features": list(NUMBERS),
        "devices": list(memory.devices),
        "target_mean": scorer.target_mean,
        "target_scale": scorer.target_scale,
        "samples": scorer.samples,
    }
    arrays: dict[str, Any] = {
        "about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8),
        "fresh_rows": memory.fresh.rows,
        "fresh_ttft_s": memory.fresh.ttft_s,
        "replay_rows": memory.replay.rows,
        "replay_ttft_s": memory.replay.ttft_s,
        "mean": scorer.mean,
        "scale": scorer.scale,
        "low": scorer.low,
        "high": scorer.high,
        "token_s": scorer.token_s,
        **{f"weight{layer}": weight for layer, weight in enumerate(scorer.weights)},
        **{f"bias{layer}": bias for layer, bias in enumerate(scorer.biases)},
    }
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()


def from_bytes(data: bytes) -> Memory:
    """What `to_bytes` made. MemoryFormatError where it is cut off, of another version, or anything else."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = dict(file.items())
            return _read(json.loads(arrays["about"].tobytes()), arrays)
    except MemoryFormatError:
        raise
    except (ValueError, KeyError, TypeError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise MemoryFormatError(f"it can't be read: {str(error) or type(error).__name__}") from None


def _read(about: dict[str, Any], arrays: dict[str, Any]) -> Memory:
    if about["format"] != FORMAT or about["features"] != list(NUMBERS):
        raise MemoryFormatError("it is of another version")

    def array(name: str, *shape: int) -> Any:
        value = arrays[name]
        if value.dtype != np.float32 or value.shape != shape:
            raise MemoryFormatError(f"{name} is {value.dtype} {value.shape}, not float32 {shape}")
        if not np.isfinite(value).all():
            raise MemoryFormatError(f"{name} has values that are no numbers")
        return value

    def pool(name: str) -> Samples:
        size = len(arrays[f"{name}_ttft_s"])
        return Samples(array(f"{name}_rows", size, WIDTH), array(f"{name}_ttft_s", size))

    sizes = (WIDTH, *HIDDEN, 1)
    layers = range(len(sizes) - 1)
    scorer = Scorer(
        weights=tuple(array(f"weight{layer}", sizes[layer], sizes[layer + 1]) for layer in layers),
        biases=tuple(array(f"bias{layer}", sizes[layer + 1]) for layer in layers),
        mean=array("mean", WIDTH),
        scale=array("scale", WIDTH),
        low=array("low", WIDTH),
        high=array("high", WIDTH),
        token_s=array("token_s", DEVICE_SLOTS),
        target_mean=float(about["target_mean"]),
        target_scale=float(about["target_scale"]),
        samples=int(about["samples"]),
    )
    return Memory(pool("fresh"), pool("replay"), tuple(str(device) for device in about["devices"]), scorer)
