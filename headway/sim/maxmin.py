"""Weighted max-min fair rates with strict priorities and caps, by progressive filling. Compiled by numba.

Rates x of flows f with weight w_f, cap c_f and class p_f over links of capacity C_l are the max-min fair ones when
every flow is at its cap or has a bottleneck: a link that is full, on which no flow of its class has a larger x/w
(Bertsekas and Gallager, Data Networks, 6.5.2). A class (0 first) is served from what the classes before it leave.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SAME = 1e-12
"""Levels that differ by less than this part are one level."""


@njit(cache=True)
def fill(
    flows: Ints,
    route: Ints,
    hops: Ints,
    weight: Floats,
    cap_Bps: Floats,
    level_of: Ints,
    left_Bps: Floats,
    rate: Floats,
) -> None:
    """Set `rate` of each of `flows`.

    Args:
        flows: indices into the arrays of flows.
        route: shape (all flows, most hops), link indices.
        hops: links in each flow's route.
        weight, cap_Bps: of each flow.
        level_of: class of each flow, 0 is served first.
        left_Bps: capacity of each link; holds what is left afterwards.
        rate: result, bytes per second; an uncapped flow without links gets infinity.
    """
    links = left_Bps.shape[0]
    heaviest = np.zeros(links)
    open_ = flows.copy()
    count = open_.shape[0]
    while count:
        first = level_of[open_[0]]
        for i in range(count):
            first = min(first, level_of[open_[i]])
        heaviest[:] = 0.0
        mine = 0
        for i in range(count):  # this class to the front
            if level_of[open_[i]] == first:
                open_[i], open_[mine] = open_[mine], open_[i]
                mine += 1
        todo = mine
        for i in range(mine):
            for h in range(hops[open_[i]]):
                heaviest[route[open_[i], h]] += weight[open_[i]]
        while todo:
            level = np.inf
            for i in range(todo):
                f = open_[i]
                level = min(level, cap_Bps[f] / weight[f])
                for h in range(hops[f]):
                    link = route[f, h]
                    level = min(level, max(0.0, left_Bps[link]) / heaviest[link])
            if level == np.inf:
                for i in range(todo):
                    rate[open_[i]] = np.inf
                break
            # Which flows stop here is decided before anything is taken away.
            kept = 0
            stopped = np.empty(todo, dtype=np.int64)
            stops = 0
            for i in range(todo):
                f = open_[i]
                stop = cap_Bps[f] / weight[f] <= level * (1 + SAME)
                for h in range(hops[f]):
                    link = route[f, h]
                    stop = stop or max(0.0, left_Bps[link]) / heaviest[link] <= level * (1 + SAME)
                if stop:
                    stopped[stops] = f
                    stops += 1
                else:
                    open_[kept] = f
                    kept += 1
            for i in range(stops):
                f = stopped[i]
                rate[f] = min(cap_Bps[f], level * weight[f])
                for h in range(hops[f]):
                    link = route[f, h]
                    left_Bps[link] -= rate[f]
                    heaviest[link] -= weight[f]
            for i in range(stops):
                open_[kept + i] = stopped[i]
            # Weights that were taken away leave rounding errors: count again what remains.
            for i in range(todo):
                for h in range(hops[open_[i]]):
                    heaviest[route[open_[i], h]] = 0.0
            for i in range(kept):
                for h in range(hops[open_[i]]):
                    heaviest[route[open_[i], h]] += weight[open_[i]]
            todo = kept
        for i in range(mine, count):
            open_[i - mine] = open_[i]
        count -= mine


@njit(cache=True)
def move(
    passed_s: float,
    active: npt.NDArray[np.bool_],
    rate: Floats,
    left_bytes: Floats,
    mark_left_bytes: Floats,
    route: Ints,
    hops: Ints,
    carried_bytes: Floats,
) -> None:
    """Let `passed_s` seconds of every active flow's bytes leave."""
    for f in range(active.shape[0]):
        if active[f] and left_bytes[f] > 0:
            moved = min(rate[f] * passed_s, left_bytes[f])
            left_bytes[f] -= moved
            mark_left_bytes[f] -= moved
            for h in range(hops[f]):
                carried_bytes[route[f, h]] += moved


@njit(cache=True)
def least_time(active: npt.NDArray[np.bool_], left_bytes: Floats, mark_left_bytes: Floats, rate: Floats) -> float:
    """Seconds until the first flow ends or reaches its mark."""
    least_s = np.inf
    for f in range(active.shape[0]):
        if active[f]:
            bytes_ = min(left_bytes[f], mark_left_bytes[f])
            if bytes_ <= 0:
                least_s = 0.0
            elif rate[f] > 0:
                least_s = min(least_s, bytes_ / rate[f])
    return least_s
