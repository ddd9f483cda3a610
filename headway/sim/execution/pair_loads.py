"""What a plan sends between each ordered pair of ranks, kept for the plans that run again and again. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headway.collectives.loads import directions, edges_of
from headway.collectives.plan import Collective, Plan

KEPT = 64


@dataclass(frozen=True)
class PairLoads:
    """The pairs of ranks between which a plan sends.

    Attributes:
        src, dst: shape (pairs,).
        share: of each pair, as a multiple of the vector's bytes, above 0.
    """

    src: npt.NDArray[np.int64]
    dst: npt.NDArray[np.int64]
    share: npt.NDArray[np.float64]


_kept: dict[tuple[int, Collective], tuple[Plan, PairLoads]] = {}


def pair_loads(plan: Plan, collective: Collective) -> PairLoads:
    """The plan's pairs. Plans are told apart by identity: comparing big ones takes longer than an operation."""
    key = (id(plan), collective)
    kept = _kept.get(key)
    if kept is None:
        if len(_kept) >= KEPT:
            del _kept[next(iter(_kept))]
        kept = _kept[key] = (plan, _pair_loads(plan, collective))
    return kept[1]


def _pair_loads(plan: Plan, collective: Collective) -> PairLoads:
    edges = edges_of(plan)
    total = np.zeros(plan.size * plan.size)
    for src, dst in directions(edges, collective):
        total += np.bincount(src * plan.size + dst, weights=plan.shares[edges.tree], minlength=len(total))
    pairs = np.flatnonzero(total > 0)
    return PairLoads(pairs // plan.size, pairs % plan.size, total[pairs])
