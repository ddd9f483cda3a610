"""One try at one cell, in whatever process it runs. What goes wrong becomes words."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from headway.errors import HeadwayError
from headway.sim.studies.cells import Json

Function = Callable[[Json], Json]


@dataclass(frozen=True)
class Attempt:
    """How a cell went: `index` in the list of cells, what the function returned or why it failed, seconds it took."""

    index: int
    values: Json = field(default_factory=dict)
    error: str = ""
    wall_s: float = 0.0


def attempt(function: Function, index: int, work: Json) -> Attempt:
    """Call `function` and keep what comes of it. Only signals and SystemExit get through."""
    begin_s = time.perf_counter()
    values: Json = {}
    error = ""
    try:
        returned = function(work)
        json.dumps(returned, allow_nan=False)  # the row is written as JSON: what is none fails here, with its cell
        values = returned
    except HeadwayError as known:
        error = str(known)
    except Exception as unknown:  # a sweep outlives any one cell; the row says where it broke
        last = traceback.extract_tb(unknown.__traceback__)[-1]
        said = " ".join(str(unknown).split())
        error = f"{type(unknown).__name__}: {said} (in {last.name}, {last.filename}:{last.lineno})"
    return Attempt(index, values, error, time.perf_counter() - begin_s)
