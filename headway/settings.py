"""Every `HEADWAY_` environment variable, in one place.

Order of precedence: command line, environment, default. An unknown `HEADWAY_` variable is warned about.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from headway.errors import UsageError

PREFIX = "HEADWAY_"
POLICIES = ("packing", "react", "off")
INTERLEAVE = ("off", "auto", "bpf-reno", "bpf-cubic", "streams", "pacing")
CLOSE = 0.65
"""How like a known name an unknown one must be, without the prefix, to pass for a slip of the pen."""


@dataclass(frozen=True)
class Settings:
    """What a user may set. Field `x_y` is read from `HEADWAY_X_Y`.

    Attributes:
        policy: who chooses plans: `packing` (ours), `react` (the paper's swaps), `off` (the idle plan for ever).
        bitwise: keep a sum the same to the last bit whatever the plan (stars only, added in rank order).
        interface: network interface, or address, to listen on and to send from; empty: the one towards the store.
        congestion_control: TCP congestion control of our sockets; empty: the system's default.
        journal: file that rank 0 writes its journal to; empty: none.
        chunk: largest piece that is sent, received and reduced at once, e.g. `256KiB`, at least 4 KiB; empty: chosen
            per operation.
        plan: hold this one family from the start: `ring`, `direct`, `double-tree`, `star`; empty: chosen by prediction.
        interleave: how this job's flows and those of other jobs take turns: `off`, `auto`, or an actuator
            (`headway.interleave.actuator`); empty: off.
        interleave_slope, interleave_intercept: of F, how hard a flow pushes; empty: the paper's 1.75 and 0.25.
        interleave_most: the dial, F is never above it; 1 keeps the job at what plain TCP takes; empty: 16.
        streams: parallel connections from each rank to each other for bulk data, 1 to 16; empty: 1.
        flight_recorder: path prefix; each rank writes `<prefix><rank>` when an operation fails or the group ends.
    """

    policy: str = "packing"
    bitwise: bool = False
    interface: str = ""
    congestion_control: str = ""
    journal: str = ""
    chunk: str = ""
    plan: str = ""
    interleave: str = ""
    interleave_slope: str = ""
    interleave_intercept: str = ""
    interleave_most: str = ""
    streams: str = ""
    flight_recorder: str = ""


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Settings of a process. UsageError names a variable with a bad value; unknown variables only warn."""
    known = {PREFIX + field.name.upper(): field for field in fields(Settings)}
    values: dict[str, Any] = {}
    for name, text in environment.items():
        if not name.startswith(PREFIX):
            continue
        field = known.get(name)
        if field is None:
            rests = [other.removeprefix(PREFIX) for other in known]
            close = difflib.get_close_matches(name.removeprefix(PREFIX), rests, n=1, cutoff=CLOSE)
            hint = f"did you mean {PREFIX}{close[0]}?" if close else f"known: {', '.join(sorted(known))}"
            warnings.warn(f"unknown variable {name} is ignored ({hint})", stacklevel=2)
            continue
        values[field.name] = _flag(name, text) if isinstance(field.default, bool) else text
    settings = Settings(**values)
    if settings.policy not in POLICIES:
        raise UsageError(
            f"{settings.policy!r} is no policy", where="HEADWAY_POLICY", hint=f"one of {', '.join(POLICIES)}"
        )
    if settings.interleave and settings.interleave not in INTERLEAVE:
        raise UsageError(
            f"{settings.interleave!r} is no way to interleave",
            where="HEADWAY_INTERLEAVE",
            hint=f"one of {', '.join(INTERLEAVE)}",
        )
    return settings


def _flag(name: str, text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("", "0", "false", "no", "off"):
        return False
    raise UsageError(f"{text!r} is neither yes nor no", where=name, hint="write 1 or 0")
