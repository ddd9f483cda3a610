"""Progressive filling: chosen flows share what is left of their queues, max-min fair. Compiled.

The level x/w of all chosen flows rises at once. Flows stop where their cap is reached, or the first of their queues is
full, and the others rise on (Bertsekas and Gallager, Data Networks, 6.5.2). A queue's level when it is full only grows
while other flows stop, so a heap of queues by a level that may be out of date, corrected on top, gives them in order:
the cost is flows times hops, and the log of the number of queues for each correction.
"""

from __future__ import annotations

import numpy as np

from headway.sim.engine.compiled import compiled
from headway.sim.engine.tables import NONE, Records

SAME = 1e-12
"""Levels that differ by less than this part are one level; less than this part of a link's capacity is nothing."""


@compiled
def _sift(queues: Records, size: int, queue: int, level: float) -> None:
    """Put a queue at the top of the heap of levels, whose first row is free, and let it sink."""
    place = 0
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        if below + 1 < size and queues[below + 1].heap_level < queues[below].heap_level:
            below += 1
        if queues[below].heap_level >= level:
            break
        queues[place].heap, queues[place].heap_level = queues[below].heap, queues[below].heap_level
        place = below
    queues[place].heap, queues[place].heap_level = queue, level


@compiled
def _count_weight(flows: Records, uses: Records, queues: Records, queue: int) -> None:
    weight = 0.0
    use = queues[queue].first_chosen
    while use != NONE:
        if not flows[uses[use].flow].next_done:
            weight += flows[uses[use].flow].weight
        use = uses[use].next_chosen
    queues[queue].open_weight = queues[queue].counted_weight = weight


@compiled
def _stop(flows: Records, uses: Records, queues: Records, flow: int, rate_Bps: float, bound: int) -> None:
    """A flow that is being filled has its rate."""
    f = flows[flow]
    f.next_Bps, f.next_bound, f.next_done = rate_Bps, bound, True
    first = flow * (uses.shape[0] // flows.shape[0])
    for use in range(first, first + f.hops):
        q = queues[uses[use].queue]
        q.left_Bps -= rate_Bps
        q.open -= 1
        q.open_weight -= f.weight
        # What is left of a sum after subtractions is as wrong as the sum was large: count again in time.
        if q.open > 0 and q.open_weight < 0.5 * q.counted_weight:
            _count_weight(flows, uses, queues, uses[use].queue)


@compiled
def fill(flows: Records, uses: Records, queues: Records, state: Records) -> None:
    """Progressive filling of the chosen flows: sets their `next_Bps` and `next_bound`."""
    chosen = state[0].choice
    capped = 0
    for i in range(chosen):
        f = flows[flows[i].choice]
        f.next_done = False
        if f.cap_Bps < np.inf:
            capped += 1
        if f.hops == 0:
            f.next_Bps, f.next_bound, f.next_done = f.cap_Bps, NONE, True
    cap_flow = np.empty(capped, dtype=np.int64)
    cap_level = np.empty(capped)
    capped = 0
    for i in range(chosen):
        f = flows[flows[i].choice]
        if f.cap_Bps < np.inf:
            cap_flow[capped], cap_level[capped] = flows[i].choice, f.cap_Bps / f.weight
            capped += 1
    cap_order = np.argsort(cap_level, kind="mergesort")
    waiting = 0
    for i in range(state[0].look):
        queue = queues[i].look
        q = queues[queue]
        if q.chosen == 0:
            continue
        q.left_Bps = max(0.0, q.available_Bps - q.outside_Bps)
        q.open = q.chosen
        _count_weight(flows, uses, queues, queue)
        if q.open_weight > 0:
            # Heap by insertion from below.
            level = q.left_Bps / q.open_weight
            place = waiting
            waiting += 1
            while place > 0 and queues[(place - 1) >> 1].heap_level > level:
                above = (place - 1) >> 1
                queues[place].heap, queues[place].heap_level = queues[above].heap, queues[above].heap_level
                place = above
            queues[place].heap, queues[place].heap_level = queue, level
    next_cap = 0
    while waiting > 0:
        queue, level = queues[0].heap, queues[0].heap_level
        q = queues[queue]
        if q.open > 0:
            now = max(0.0, q.left_Bps) / q.open_weight
            if now > level * (1 + SAME):  # flows that stopped elsewhere left more to the others
                _sift(queues, waiting, queue, now)
                continue
            level = now
        while next_cap < capped and flows[cap_flow[cap_order[next_cap]]].next_done:
            next_cap += 1
        if next_cap < capped and cap_level[cap_order[next_cap]] <= level:
            flow = cap_flow[cap_order[next_cap]]
            _stop(flows, uses, queues, flow, flows[flow].cap_Bps, NONE)
            continue
        if q.open > 0:
            _count_weight(flows, uses, queues, queue)
            level = max(0.0, q.left_Bps) / q.open_weight
            use = q.first_chosen
            while use != NONE:
                flow = uses[use].flow
                if not flows[flow].next_done:
                    _stop(flows, uses, queues, flow, min(flows[flow].cap_Bps, level * flows[flow].weight), queue)
                use = uses[use].next_chosen
        waiting -= 1
        _sift(queues, waiting, queues[waiting].heap, queues[waiting].heap_level)
