"""What can be set of the learned policy. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from headway.errors import UsageError
from headway.serving.learned.pools import FRESH
from headway.serving.learned.training import Fit

_WHERE = "policy learned"


@dataclass(frozen=True, slots=True)
class LearnedOptions:
    """Settings of the learned policy; `docs/routing.md` has the measurements behind the defaults.

    Attributes:
        heuristic: the policy that chooses where the model must not.
        least_samples: samples before the first model (Lodestar's code: 5000).
        retrain_every: new samples between two rounds of training (Lodestar: 1000).
        fresh, replay: samples in the two pools (Lodestar: 5000 each).
        keep_share: of the samples that leave the first pool, the share that the coreset picks for the second.
        explore: share of requests that go to a random replica (Lodestar: 0.1 when on).
        near_best: replicas whose prediction is within this share of the best are level, and chance picks one.
        range_tolerance: how far outside the range of the training data a feature may lie, in widths of that range.
        saturation: mean KV usage above which the hash filter works (Lodestar: 0.8 in the paper, 0.5 in its code);
            1: never.
        price: what a second of avoidable work counts beside a second of the request's own TTFT (1): work is avoidable
            where another replica of the same device has the tokens cached. 0: nothing, as in Lodestar.
        control_share: share of requests that the heuristic chooses for, to compare with (the guard's control arm).
        fit: how models are fitted; not among what users can set.
    """

    heuristic: str = "lmetric"
    least_samples: int = 500
    retrain_every: int = 500
    fresh: int = FRESH
    replay: int = FRESH
    keep_share: float = 0.25
    explore: float = 0.0
    near_best: float = 0.02
    range_tolerance: float = 1.0
    saturation: float = 1.0
    price: float = 2.0
    control_share: float = 0.05
    fit: Fit = field(default_factory=Fit)


_BOUNDS: dict[str, tuple[float, float]] = {
    "least_samples": (50, 1e6),
    "retrain_every": (50, 1e6),
    "fresh": (100, 1e6),
    "replay": (1, 1e6),
    "keep_share": (0, 1),
    "explore": (0, 1),
    "near_best": (0, 1),
    "range_tolerance": (0, 1e3),
    "saturation": (0, 1),
    "price": (0, 1e3),
    "control_share": (0, 1),
}
"""Least and most of each number that users can set."""


def read(options: Mapping[str, object]) -> LearnedOptions:
    """From a configuration. UsageError for an unknown option, one of the wrong kind, and one out of its bounds."""
    known = {each.name: each.type for each in fields(LearnedOptions)}
    values: dict[str, object] = {}
    for name, value in options.items():
        if name == "heuristic":
            if not isinstance(value, str):
                raise UsageError(f"heuristic must be a policy's name, not {value!r}", where=_WHERE)
            values[name] = value
            continue
        if name not in _BOUNDS:
            raise UsageError(f"unknown option {name!r}", where=_WHERE, hint=f"known: heuristic, {', '.join(_BOUNDS)}")
        whole = known[name] == "int"
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            raise UsageError(f"{name} must be a {'whole ' if whole else ''}number, not {value!r}", where=_WHERE)
        least, most = _BOUNDS[name]
        if not least <= value <= most:
            raise UsageError(f"{name} must be from {least:g} to {most:g}, not {value:g}", where=_WHERE)
        values[name] = value if whole else float(value)
    return LearnedOptions(**values)  # type: ignore[arg-type]
