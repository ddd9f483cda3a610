"""ASTRA-sim's system file (JSON), as far as it decides times.

| field | what it does here |
| --- | --- |
| `all-reduce-implementation` and the like | the algorithm of each dimension: `ring`, `direct`, `direct` with a window (`direct4`), `halvingDoubling`, `doubleBinaryTree`; `one...` before a name: one algorithm over all dimensions |
| `preferred-dataset-splits` | chunks that a collective is cut into; one after the other goes through the dimensions |
| `active-chunks-per-dimension` | chunks at work in one dimension at once |
| `scheduling-policy` | which collective's chunks go first: `LIFO`, `FIFO`, `EXPLICIT` (by `comm_priority`) |
| `collective-optimization` | `localBWAware`: an all-reduce reduce-scatters up the dimensions and gathers down; `baseline`: all-reduces in each |
| `endpoint-delay` | ns that a message waits at its NPU before it is sent, and again after it is received |
| `local-mem-bw` | GB/s (1e9 bytes); a reduction moves its bytes three times: read, read, write |
| `peak-perf` | TFLOPS; with `roofline-enabled`, a compute node takes operations / min(peak, intensity * local-mem-bw) |
| `replay-only` | 1: nodes take their recorded durations, and nothing is sent |

Fields that decide no time are let pass (`boost-mode`, traces of memory use and of the run, the parameters of the
shared bus while that is off). Custom collectives and the shared bus are refused.
"""  # noqa: E501 - a table

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from headway.errors import UsageError


class Algorithm(Enum):
    """A collective's algorithm in one dimension."""

    RING = "ring"
    DIRECT = "direct"
    HALVING_DOUBLING = "halvingDoubling"
    DOUBLE_BINARY_TREE = "doubleBinaryTree"


@dataclass(frozen=True, slots=True)
class Implementation:
    """An algorithm; `window` messages at once in a direct one (0: all); `flat`: over all dimensions as if one."""

    algorithm: Algorithm
    window: int = 0
    flat: bool = False


class Policy(Enum):
    """Whose chunks go first."""

    LIFO = "LIFO"
    FIFO = "FIFO"
    EXPLICIT = "EXPLICIT"


COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
RING = (Implementation(Algorithm.RING),)


@dataclass(frozen=True)
class AstraSystem:
    """What a system file says, in seconds and bytes; the defaults are ASTRA-sim's.

    Attributes:
        implementations: collective's name -> one per dimension; a missing one is a ring in each.
        splits: chunks per collective.
        active_chunks: at once per dimension.
        policy: whose chunks go first.
        up_and_down: an all-reduce over several dimensions reduce-scatters up and gathers down.
        endpoint_s: before a message is sent and after it is received.
        memory_Bps: for reductions and the roofline; 0: reductions take no time.
        peak_per_s: operations per second; used if `roofline`.
        roofline: compute nodes take what the roofline says, not their recorded durations.
        replay: all nodes take their recorded durations.
    """

    implementations: Mapping[str, tuple[Implementation, ...]] = field(default_factory=dict)
    splits: int = 1
    active_chunks: int = 1
    policy: Policy = Policy.LIFO
    up_and_down: bool = False
    endpoint_s: float = 10e-9
    memory_Bps: float = 0.0
    peak_per_s: float = 0.0
    roofline: bool = False
    replay: bool = False

    def implementation(self, collective: str, dimension: int, dimensions: int) -> Implementation:
        """The algorithm of a dimension. UsageError when the file names too few."""
        named = self.implementations.get(collective, RING * dimensions)
        if named[0].flat:
            return named[0]
        if dimension >= len(named):
            raise UsageError(
                f"names {len(named)} algorithms, and the network has {dimensions} dimensions",
                where=f"{collective}-implementation",
            )
        return named[dimension]


_SILENT = {
    "boost-mode",
    "trace-enabled",
    "track-local-mem",
    "local-mem-trace-filename",
    "local-reduction-delay",
    "intra-dimension-scheduling",
    "inter-dimension-scheduling",
    "L",
    "o",
    "g",
    "G",
}
"""What the program reads, or once read, and what changes nothing with the shared bus off."""


def read_system(path: Path) -> AstraSystem:
    """The system of a file. UsageError names the file and the line or field of what is wrong."""
    try:
        text = path.read_text()
    except OSError as error:
        raise UsageError((error.strerror or "cannot be read").lower(), where=str(path)) from None
    except UnicodeDecodeError as error:
        raise UsageError(str(error), where=str(path)) from None
    return parse_system(text, where=str(path))


def parse_system(text: str, *, where: str) -> AstraSystem:
    """The system of a file's text; `where` is the file's name for errors."""
    try:
        data: object = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"is no JSON: {error.msg[0].lower()}{error.msg[1:]}", where=f"{where}:{error.lineno}"
        ) from None
    except (RecursionError, ValueError) as error:
        raise UsageError(str(error), where=where) from None
    if not isinstance(data, dict):
        raise UsageError("is no object with fields", where=where)
    return _Reader({str(key): value for key, value in data.items()}, where).system()


class _Reader:
    def __init__(self, data: dict[str, object], where: str) -> None:
        self._data = data
        self._where = where

    def system(self) -> AstraSystem:
        default = AstraSystem()
        if self._number("model-shared-bus", 0) == 1:
            raise self._error("model-shared-bus", "the shared bus is not modelled", "set it to 0")
        implementations = {}
        for collective in COLLECTIVES:
            name = f"{collective}-implementation"
            if f"{name}-custom" in self._data:
                raise self._error(f"{name}-custom", "custom collectives are not read", f"use {name}")
            if name in self._data:
                implementations[collective] = self._implementations(name)
            self._data.pop(name, None)
        system = AstraSystem(
            implementations=implementations,
            splits=self._whole("preferred-dataset-splits", default.splits),
            active_chunks=self._whole("active-chunks-per-dimension", default.active_chunks),
            policy=Policy(self._choice("scheduling-policy", [each.value for each in Policy], default.policy.value)),
            up_and_down=self._choice("collective-optimization", ["baseline", "localBWAware"], "baseline")
            == "localBWAware",
            endpoint_s=self._number("endpoint-delay", 10) * 1e-9,
            memory_Bps=self._number("local-mem-bw", 0) * 1e9,
            peak_per_s=self._number("peak-perf", 0) * 1e12,
            roofline=self._number("roofline-enabled", 0) != 0,
            replay=self._number("replay-only", 0) != 0,
        )
        if system.roofline and not (system.peak_per_s > 0 and system.memory_Bps > 0):
            raise self._error("roofline-enabled", "needs peak-perf and local-mem-bw above 0")
        for name in self._data.keys() - _SILENT:
            raise self._error(name, "there is no such field")
        return system

    def _error(self, name: str, what: str, hint: str = "") -> UsageError:
        return UsageError(what, where=f"{self._where}: {name}", hint=hint)

    def _number(self, name: str, default: float) -> float:
        value = self._data.pop(name, default)
        if isinstance(value, bool):
            value = int(value)
        if not isinstance(value, (int, float)) or not 0 <= value < 1e18 or not math.isfinite(value):
            raise self._error(name, f"{value!r} must be a number, not below 0")
        return float(value)

    def _whole(self, name: str, default: int) -> int:
        value = self._number(name, default)
        if value != int(value) or not 1 <= value <= 65536:
            raise self._error(name, "must be a whole number from 1 to 65536")
        return int(value)

    def _choice(self, name: str, names: list[str], default: str) -> str:
        value = self._data.pop(name, default)
        if not isinstance(value, str) or value not in names:
            raise self._error(name, f"{value!r} is none of {', '.join(names)}")
        return value

    def _implementations(self, name: str) -> tuple[Implementation, ...]:
        values = self._data[name]
        if not isinstance(values, list) or not values:
            raise self._error(name, "must be a list with one algorithm per dimension")
        return tuple(self._implementation(name, value) for value in values)

    def _implementation(self, name: str, value: object) -> Implementation:
        match = re.fullmatch(
            r"(?P<plain>ring|halvingDoubling|doubleBinaryTree|direct)(?P<window>[0-9]{0,5})"
            r"|one(?P<flat>Ring|HalvingDoubling|Direct)(?P<flat_window>[0-9]{0,5})",
            value if isinstance(value, str) else "",
        )
        if match is not None:
            flat = match["flat"] is not None
            word = match["flat"][0].lower() + match["flat"][1:] if flat else match["plain"]
            window = match["flat_window"] if flat else match["window"]
            if word == "direct" or not window:
                return Implementation(Algorithm(word), int(window or 0), flat)
        raise self._error(
            name, f"{value!r} is no algorithm", "ring, direct, direct4, halvingDoubling, doubleBinaryTree or oneRing"
        )
