"""What can be set of the learned policy. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from headway.errors import UsageError
from headway.serving.learned.guard import GuardRules
from headway.serving.learned.pools import FRESH
from headway.serving.learned.trainer import InlineTrainer, Trainer
from headway.serving.learned.training import Fit


@dataclass(frozen=True, slots=True)
class LearnedOptions:
    """Settings of the learned policy; docs/routing.md has the measurements behind the defaults.

    Attributes:
        heuristic: the policy that chooses where the model must not.
        least_samples: samples before the first model (Lodestar's code: 5000).
        retrain_every: new samples between two rounds of training (Lodestar: 1000).
        fresh, replay: samples in the two pools (Lodestar: 5000 each).
        keep_share: of the samples that leave the first pool, the share that the coreset picks for the second.
        explore: share of requests that go to a random replica (Lodestar: 0.1 when on).
        near_best: replicas whose prediction is within this share of the best are level, and chance picks one.
        range_tolerance: how far outside the range of the training data a feature may lie, in widths of that range.
        saturation: mean KV usage above which the hash filter works (Lodestar: 0.8 in the paper, 0.5 in its code).
        control_share: share of requests that the heuristic chooses for, to compare with (the guard's control arm).
    """

    heuristic: str = "lmetric"
    least_samples: int = 500
    retrain_every: int = 500
    fresh: int = FRESH
    replay: int = FRESH
    keep_share: float = 0.25
    explore: float = 0.0
    near_best: float = 0.05
    range_tolerance: float = 0.25
    saturation: float = 0.8
    control_share: float = 0.05
    price: float = 0.0
    warm: bool = False
    fit: Fit = field(default_factory=Fit)
