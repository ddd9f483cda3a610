"""Flows in the order in which they are due: a binary heap of indices, in which each flow knows its place. Compiled."""

from __future__ import annotations

import numpy as np

from headway.sim.engine.compiled import compiled
from headway.sim.engine.tables import NONE, Records


@compiled
def _up(flows: Records, place: int, flow: int) -> None:
    due_s = flows[flow].due_s
    while place > 0:
        above = (place - 1) >> 1
        other = flows[above].heap
        if flows[other].due_s <= due_s:
            break
        flows[place].heap = other
        flows[other].place = place
        place = above
    flows[place].heap = flow
    flows[flow].place = place


@compiled
def _down(flows: Records, size: int, place: int, flow: int) -> None:
    due_s = flows[flow].due_s
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        other = flows[below].heap
        if below + 1 < size:
            right = flows[below + 1].heap
            if flows[right].due_s < flows[other].due_s:
                below, other = below + 1, right
        if flows[other].due_s >= due_s:
            break
        flows[place].heap = other
        flows[other].place = place
        place = below
    flows[place].heap = flow
    flows[flow].place = place


@compiled
def remove(flows: Records, state: Records, flow: int) -> None:
    """Take a flow off the heap, if it is there."""
    place = flows[flow].place
    flows[flow].place = NONE
    if place < 0:
        return
    state[0].heap -= 1
    size = state[0].heap
    last = flows[size].heap
    if last != flow:
        if place > 0 and flows[flows[(place - 1) >> 1].heap].due_s > flows[last].due_s:
            _up(flows, place, last)
        else:
            _down(flows, size, place, last)


@compiled
def put(flows: Records, state: Records, flow: int) -> None:
    """Put a flow where its `due_s` belongs; one that is never due is left off."""
    if flows[flow].due_s == np.inf:
        remove(flows, state, flow)
        return
    place = flows[flow].place
    if place < 0:
        place = state[0].heap
        state[0].heap += 1
        _up(flows, place, flow)
    elif place > 0 and flows[flows[(place - 1) >> 1].heap].due_s > flows[flow].due_s:
        _up(flows, place, flow)
    else:
        _down(flows, state[0].heap, place, flow)


@compiled
def first_s(flows: Records, state: Records) -> float:
    """When the first flow is due; infinity if none is."""
    due_s: float = flows[flows[0].heap].due_s if state[0].heap > 0 else np.inf
    return due_s
