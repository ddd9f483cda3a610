"""What happens to single flows in the tables: they begin, end, change, fall due. Compiled.

Arguments that are Records: see `tables.Tables`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headway.sim.engine.compiled import compiled
from headway.sim.engine.due import first_s, remove
from headway.sim.engine.maxmin import OWN, account, dirty, dirty_after, pend, schedule, sent_bytes, solve
from headway.sim.engine.tables import NONE, POPPED, Records

SAME_INSTANT = 1e-13
"""What is due within this part of the clock is due at one instant: rounding makes such times differ."""

Links = npt.NDArray[np.int64]


@compiled
def _queue(queues: Records, links: Records, state: Records, link: int, level: int) -> int:
    """The queue of a class on a link, made if it is not there."""
    before: int = NONE
    queue: int = links[link].first
    while queue != NONE and queues[queue].level < level:
        before, queue = queue, queues[queue].next
    if queue != NONE and queues[queue].level == level:
        return queue
    state[0].free_queues -= 1
    made: int = queues[state[0].free_queues].free
    q = queues[made]
    q.link, q.level, q.next, q.first = link, level, queue, NONE
    q.count, q.bound, q.used_Bps, q.changes, q.available_Bps = 0, 0, 0.0, 0, 0.0
    if before == NONE:
        links[link].first = made
    else:
        queues[before].next = made
    return made


@compiled
def _forget_queue(queues: Records, links: Records, state: Records, queue: int) -> None:
    link = queues[queue].link
    if links[link].first == queue:
        links[link].first = queues[queue].next
    else:
        before = links[link].first
        while queues[before].next != queue:
            before = queues[before].next
        queues[before].next = queues[queue].next
    queues[queue].link = NONE
    queues[state[0].free_queues].free = queue
    state[0].free_queues += 1


@compiled
def begin(
    flows: Records,
    uses: Records,
    queues: Records,
    links: Records,
    state: Records,
    now_s: float,
    route: Links,
    size_bytes: float,
    weight: float,
    cap_Bps: float,
    level: int,
) -> int:
    """A new flow of class `level`; its row. There must be a free row of flows, and of queues for each of its links."""
    state[0].free_flows -= 1
    flow: int = flows[state[0].free_flows].free
    f = flows[flow]
    f.weight, f.cap_Bps, f.level = weight, cap_Bps, level
    f.size_bytes, f.mark_bytes, f.sent_bytes = size_bytes, np.inf, 0.0
    f.rate_Bps, f.since_s = 0.0, now_s
    f.number, f.hops, f.bound, f.place = state[0].started, route.shape[0], NONE, NONE
    f.pending = False
    f.chosen = False
    f.joins = False
    state[0].started += 1
    state[0].flows += 1
    first = flow * (uses.shape[0] // flows.shape[0])
    for hop in range(route.shape[0]):
        queue = _queue(queues, links, state, route[hop], level)
        use = first + hop
        u = uses[use]
        u.flow, u.queue, u.next, u.previous = flow, queue, queues[queue].first, NONE
        if u.next != NONE:
            uses[u.next].previous = use
        queues[queue].first = use
        queues[queue].count += 1
    pend(flows, state, flow)
    if size_bytes <= 0:
        schedule(flows, state, flow, now_s)
    return flow


@compiled
def end(
    flows: Records, uses: Records, queues: Records, links: Records, state: Records, now_s: float, flow: int, whole: bool
) -> float:
    """A flow is over, with all its bytes sent (`whole`) or as many as it has by now; how many that is."""
    f = flows[flow]
    sent: float = f.size_bytes if whole else sent_bytes(flows, flow, now_s)
    account(flows, uses, queues, links, flow, now_s, sent)
    remove(flows, state, flow)
    f.pending = False
    first = flow * (uses.shape[0] // flows.shape[0])
    for use in range(first, first + f.hops):
        u = uses[use]
        q = queues[u.queue]
        if u.previous == NONE:
            q.first = u.next
        else:
            uses[u.previous].next = u.next
        if u.next != NONE:
            uses[u.next].previous = u.previous
        if f.bound == u.queue:
            q.bound -= 1
        q.count -= 1
        if f.rate_Bps > 0:
            q.used_Bps = q.used_Bps - f.rate_Bps if q.count else 0.0
            q.changes += 1
            dirty(queues, state, u.queue, OWN)
            dirty_after(queues, state, u.queue)
        if q.count == 0:
            _forget_queue(queues, links, state, u.queue)
    f.rate_Bps = 0.0
    flows[state[0].free_flows].free = flow
    state[0].free_flows += 1
    state[0].flows -= 1
    return sent


@compiled
def change(flows: Records, state: Records, flow: int, weight: float, cap_Bps: float) -> None:
    """A flow has another weight or cap."""
    f = flows[flow]
    if weight != f.weight or cap_Bps != f.cap_Bps:
        f.weight = weight
        f.cap_Bps = cap_Bps
        pend(flows, state, flow)


@compiled
def aim(flows: Records, state: Records, now_s: float, flow: int, size_bytes: float, mark_bytes: float) -> None:
    """A flow has another size, or is waited for at another byte."""
    flows[flow].size_bytes = size_bytes
    flows[flow].mark_bytes = mark_bytes
    schedule(flows, state, flow, now_s)


@compiled
def change_capacity(queues: Records, links: Records, state: Records, link: int, capacity_Bps: float) -> None:
    """A link has another capacity."""
    if links[link].capacity_Bps != capacity_Bps:
        links[link].capacity_Bps = capacity_Bps
        queue = links[link].first
        while queue != NONE:
            dirty(queues, state, queue, OWN)
            queue = queues[queue].next


@compiled
def carried_bytes(flows: Records, uses: Records, queues: Records, links: Records, now_s: float, link: int) -> float:
    """What a link has carried by now. Changes nothing, so that looking at a run doesn't change its rounding."""
    carried: float = links[link].carried_bytes
    queue = links[link].first
    while queue != NONE:
        use = queues[queue].first
        while use != NONE:
            flow = uses[use].flow
            carried += sent_bytes(flows, flow, now_s) - flows[flow].sent_bytes
            use = uses[use].next
        queue = queues[queue].next
    return carried


@compiled
def use(queues: Records, links: Records, link: int) -> tuple[float, int]:
    """(bytes per second that the flows of a link take since the last solve, how many they are)."""
    used_Bps, count = 0.0, 0
    queue = links[link].first
    while queue != NONE:
        used_Bps += queues[queue].used_Bps
        count += queues[queue].count
        queue = queues[queue].next
    return used_Bps, count


@compiled
def use_of_all(queues: Records, links: Records) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """The same of every link."""
    used_Bps, count = np.zeros(links.shape[0]), np.zeros(links.shape[0], dtype=np.int64)
    for link in range(links.shape[0]):
        used_Bps[link], count[link] = use(queues, links, link)
    return used_Bps, count


@compiled
def flows_on(uses: Records, queues: Records, links: Records, link: int) -> list[int]:
    """The rows of a link's flows."""
    found = []
    queue = links[link].first
    while queue != NONE:
        use = queues[queue].first
        while use != NONE:
            found.append(uses[use].flow)
            use = uses[use].next
        queue = queues[queue].next
    return found


@compiled
def reaches(flows: Records, now_s: float, flow: int, target_bytes: float) -> bool:
    """Whether so many bytes of a flow have left at this instant."""
    f = flows[flow]
    if f.rate_Bps == np.inf or f.sent_bytes >= target_bytes:
        return True
    if f.rate_Bps <= 0:
        return False
    due_s: float = f.since_s + (target_bytes - f.sent_bytes) / f.rate_Bps
    return due_s <= now_s * (1 + SAME_INSTANT)


@compiled
def settle(flows: Records, uses: Records, queues: Records, links: Records, state: Records, now_s: float) -> float:
    """When the next flow is due; solves the rates first, unless one is due now and may change them again."""
    if first_s(flows, state) <= now_s * (1 + SAME_INSTANT):
        return now_s
    solve(flows, uses, queues, links, state, now_s)
    return max(now_s, first_s(flows, state))


@compiled
def take_due(flows: Records, state: Records, now_s: float) -> int:
    """Put the flows that are due now into the list `ready`, in order of starting, and take them off the heap."""
    ready = 0
    while first_s(flows, state) <= now_s * (1 + SAME_INSTANT):
        flow = flows[0].heap
        remove(flows, state, flow)
        flows[flow].place = POPPED
        flows[ready].ready = flow
        ready += 1
    if ready > 1:
        numbers = np.empty(ready, dtype=np.int64)
        found = np.empty(ready, dtype=np.int64)
        for i in range(ready):
            found[i] = flows[i].ready
            numbers[i] = flows[found[i]].number
        order = np.argsort(numbers)
        for i in range(ready):
            flows[i].ready = found[order[i]]
    return ready
