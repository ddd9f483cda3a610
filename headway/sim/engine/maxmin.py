"""Weighted max-min fair rates with strict priorities and caps, solved anew only where they can change. Compiled.

Rates x of flows f with weight w_f, cap c_f and class p_f over links of capacity C_l are the max-min fair ones when
every flow is at its cap or has a bottleneck: a link that is full, on which no flow of its class has a larger level x/w
(Bertsekas and Gallager, Data Networks, 6.5.2). A class (0 first) is served from what the classes before it leave.

After a change `solve` takes the classes in order. In each it chooses the flows that changed and those whose bottleneck
is a queue that changed, and fills them progressively into what the others leave. Then it looks at every queue that a
chosen flow is on. A flow there that was not chosen joins them if

    the queue holds more than there is;  or the queue was its bottleneck, and is no longer full, or a chosen flow has a
    larger level there;  or the queue is a chosen flow's bottleneck, and it has a larger level itself

and all is filled again, until none joins.

Why that is the max-min allocation: no queue holds too much, by the first test. A chosen flow is at its cap, or the
filling stopped it on a full queue where no chosen flow has a larger level, and by the last test no other flow has. A
flow that was not chosen was at its cap and still is; or has the bottleneck that it had before, which either holds
no chosen flow, so that nothing changed there, or passed the second test. So every flow is at its cap or has a
bottleneck, and the allocation with that property is unique. Each round chooses more flows, so the rounds end; when
they have filled more flows than there are, all flows that are linked to the chosen ones are taken at once, and none is
left to join: a solve costs at most about three times what filling all flows would.

Cost: of the filling, flows chosen times hops times log of the queues that they are on; of a look, all flows on a full
queue whose chosen flows changed. Neither depends on how many hosts, links or other flows there are.
"""

from __future__ import annotations

import numpy as np

from headway.sim.engine.compiled import compiled
from headway.sim.engine.due import put
from headway.sim.engine.progressive import SAME, fill
from headway.sim.engine.tables import NONE, Records

FEW = 64
"""What the flows of a queue use is always summed anew while they are so few, and once in as many changes if more."""

CLEAN, BEFORE, OWN = 0, 1, 2
"""Why a queue is dirty: it is not; classes before it use another part; its own flows or the capacity changed."""


@compiled
def dirty(queues: Records, state: Records, queue: int, why: int) -> None:
    """Have a queue looked at by the next solve."""
    if queues[queue].dirty == CLEAN:
        queues[state[0].changed_queues].changed = queue
        state[0].changed_queues += 1
    queues[queue].dirty = max(queues[queue].dirty, why)


@compiled
def dirty_after(queues: Records, state: Records, queue: int) -> None:
    """The same for the classes after it on its link."""
    queue = queues[queue].next
    while queue != NONE:
        dirty(queues, state, queue, BEFORE)
        queue = queues[queue].next


@compiled
def pend(flows: Records, state: Records, flow: int) -> None:
    """Have a flow solved by the next solve: it is new, or has another weight or cap."""
    flows[flow].pending = True
    if not flows[flow].listed:
        flows[flow].listed = True
        flows[state[0].changed_flows].changed = flow
        state[0].changed_flows += 1


@compiled
def sent_bytes(flows: Records, flow: int, now_s: float) -> float:
    """How much of a flow has left by now."""
    f = flows[flow]
    size_bytes: float = f.size_bytes
    if f.rate_Bps == np.inf:
        return size_bytes
    by_now: float = f.sent_bytes + f.rate_Bps * (now_s - f.since_s)
    return min(size_bytes, by_now)


@compiled
def account(
    flows: Records, uses: Records, queues: Records, links: Records, flow: int, now_s: float, sent: float
) -> None:
    """Note that `sent` bytes of a flow have left by now."""
    f = flows[flow]
    moved_bytes = sent - f.sent_bytes
    f.sent_bytes = sent
    f.since_s = now_s
    first = flow * (uses.shape[0] // flows.shape[0])
    for use in range(first, first + f.hops):
        links[queues[uses[use].queue].link].carried_bytes += moved_bytes


@compiled
def schedule(flows: Records, state: Records, flow: int, now_s: float) -> None:
    """Work out when a flow's next mark or its end is due."""
    f = flows[flow]
    target_bytes = min(f.size_bytes, f.mark_bytes)
    if f.sent_bytes >= target_bytes:
        f.due_s = now_s
    elif target_bytes == np.inf or f.rate_Bps <= 0:
        f.due_s = np.inf
    else:
        f.due_s = f.since_s + (target_bytes - f.sent_bytes) / f.rate_Bps
    put(flows, state, flow)


@compiled
def _available_Bps(queues: Records, links: Records, queue: int) -> float:
    link = queues[queue].link
    capacity_Bps = links[link].capacity_Bps
    left_Bps = capacity_Bps
    before = links[link].first
    while before != queue:
        left_Bps -= queues[before].used_Bps
        before = queues[before].next
    return left_Bps if left_Bps > SAME * capacity_Bps else 0.0


@compiled
def _see(flows: Records, uses: Records, queues: Records, links: Records, state: Records, queue: int) -> None:
    q = queues[queue]
    if q.seen:
        return
    q.seen = True
    queues[state[0].look].look = queue
    state[0].look += 1
    q.available_Bps = _available_Bps(queues, links, queue)
    q.first_chosen, q.chosen, q.outside_bound = NONE, 0, q.bound
    if q.count <= FEW or q.changes > q.count:
        used_Bps = 0.0
        use = q.first
        while use != NONE:
            used_Bps += flows[uses[use].flow].rate_Bps
            use = uses[use].next
        q.outside_Bps, q.changes = used_Bps, 0
    else:
        q.outside_Bps = q.used_Bps


@compiled
def _choose(flows: Records, uses: Records, queues: Records, links: Records, state: Records, flow: int) -> None:
    f = flows[flow]
    if f.chosen:
        return
    f.chosen = True
    flows[state[0].choice].choice = flow
    state[0].choice += 1
    first = flow * (uses.shape[0] // flows.shape[0])
    for use in range(first, first + f.hops):
        queue = uses[use].queue
        _see(flows, uses, queues, links, state, queue)
        q = queues[queue]
        q.outside_Bps -= f.rate_Bps
        q.chosen += 1
        if q.chosen == q.count:
            q.outside_Bps = 0.0
        if f.bound == queue:
            q.outside_bound -= 1
        uses[use].next_chosen = q.first_chosen
        q.first_chosen = use


@compiled
def _look(flows: Records, uses: Records, queues: Records, links: Records, queue: int, joining: int) -> int:
    """Add to the list `joining` the flows of a queue that must be chosen too; its new length."""
    q = queues[queue]
    if q.chosen == q.count:
        return joining
    total_Bps, level, is_bound, moved = q.outside_Bps, 0.0, False, False
    use = q.first_chosen
    while use != NONE:
        f = flows[uses[use].flow]
        total_Bps += f.next_Bps
        level = max(level, f.next_Bps / f.weight)
        is_bound = is_bound or f.next_bound == queue
        moved = moved or f.pending or f.next_Bps != f.rate_Bps or f.next_bound != f.bound
        use = uses[use].next_chosen
    nothing_Bps = SAME * links[q.link].capacity_Bps
    over = total_Bps > q.available_Bps + nothing_Bps
    slack = total_Bps < q.available_Bps - nothing_Bps
    if not over and ((slack and q.outside_bound == 0) or not (slack or moved)):
        return joining
    use = q.first
    while use != NONE:
        flow = uses[use].flow
        f = flows[flow]
        if not f.chosen and not f.joins:
            mine = f.rate_Bps / f.weight
            joins = over or (f.bound == queue and (slack or mine < level * (1 - SAME)))
            if joins or (is_bound and not slack and mine > level * (1 + SAME)):
                f.joins = True
                flows[joining].joining = flow
                joining += 1
        use = uses[use].next
    return joining


@compiled
def _choose_linked(flows: Records, uses: Records, queues: Records, links: Records, state: Records) -> None:
    """Choose every flow of the class that shares queues with a chosen one, and so on."""
    i = 0
    while i < state[0].look:
        use = queues[queues[i].look].first
        while use != NONE:
            _choose(flows, uses, queues, links, state, uses[use].flow)
            use = uses[use].next
        i += 1


@compiled
def _keep(flows: Records, uses: Records, queues: Records, links: Records, state: Records, now_s: float) -> None:
    """Make the next rates the rates."""
    for i in range(state[0].choice):
        flow = flows[i].choice
        f = flows[flow]
        f.chosen = False
        f.pending = False
        if f.next_bound != f.bound:
            if f.bound != NONE:
                queues[f.bound].bound -= 1
            if f.next_bound != NONE:
                queues[f.next_bound].bound += 1
            f.bound = f.next_bound
        if f.next_Bps != f.rate_Bps:
            account(flows, uses, queues, links, flow, now_s, sent_bytes(flows, flow, now_s))
            f.rate_Bps = f.next_Bps
            schedule(flows, state, flow, now_s)
    for i in range(state[0].look):
        queue = queues[i].look
        q = queues[queue]
        used_Bps = q.outside_Bps
        use = q.first_chosen
        while use != NONE:
            used_Bps += flows[uses[use].flow].rate_Bps
            use = uses[use].next_chosen
        q.changes = 0 if q.chosen == q.count else q.changes + q.chosen
        q.seen = False
        if used_Bps != q.used_Bps:
            q.used_Bps = used_Bps
            dirty_after(queues, state, queue)
    state[0].solved += state[0].choice
    state[0].choice = state[0].look = 0


@compiled
def _first_class(flows: Records, queues: Records, state: Records) -> int:
    """The first class in which something changed; forget what is no longer there."""
    first = np.iinfo(np.int64).max
    kept = 0
    for i in range(state[0].changed_flows):
        flow = flows[i].changed
        if flows[flow].pending:
            flows[kept].changed = flow
            kept += 1
            first = min(first, flows[flow].level)
        else:
            flows[flow].listed = False
    state[0].changed_flows = kept
    kept = 0
    for i in range(state[0].changed_queues):
        queue = queues[i].changed
        if queues[queue].link == NONE:
            queues[queue].dirty = CLEAN
        else:
            queues[kept].changed = queue
            kept += 1
            first = min(first, queues[queue].level)
    state[0].changed_queues = kept
    return first


@compiled
def _choose_changed(flows: Records, uses: Records, queues: Records, links: Records, state: Records, level: int) -> None:
    kept = 0
    for i in range(state[0].changed_flows):
        flow = flows[i].changed
        if flows[flow].level != level:
            flows[kept].changed = flow
            kept += 1
        else:
            flows[flow].listed = False
            _choose(flows, uses, queues, links, state, flow)
    state[0].changed_flows = kept
    kept = 0
    for i in range(state[0].changed_queues):
        queue = queues[i].changed
        q = queues[queue]
        if q.level != level:
            queues[kept].changed = queue
            kept += 1
            continue
        if q.dirty == OWN or _available_Bps(queues, links, queue) != q.available_Bps:
            _see(flows, uses, queues, links, state, queue)
        q.dirty = CLEAN
    state[0].changed_queues = kept
    for i in range(state[0].look):  # as many as there are now, not those that this adds
        queue = queues[i].look
        use = queues[queue].first if queues[queue].outside_bound > 0 else NONE
        while use != NONE:
            if flows[uses[use].flow].bound == queue:
                _choose(flows, uses, queues, links, state, uses[use].flow)
            use = uses[use].next


@compiled
def solve(flows: Records, uses: Records, queues: Records, links: Records, state: Records, now_s: float) -> None:
    """Give every flow its max-min fair rate after all changes since the last call. Arguments: see `tables.Tables`."""
    while state[0].changed_flows > 0 or state[0].changed_queues > 0:
        level = _first_class(flows, queues, state)
        _choose_changed(flows, uses, queues, links, state, level)
        filled = 0
        while True:
            fill(flows, uses, queues, state)
            filled += state[0].choice
            joining = 0
            for i in range(state[0].look):
                joining = _look(flows, uses, queues, links, queues[i].look, joining)
            if joining == 0:
                break
            for i in range(joining):
                flows[flows[i].joining].joins = False
                _choose(flows, uses, queues, links, state, flows[i].joining)
            if filled > state[0].flows:
                _choose_linked(flows, uses, queues, links, state)
        _keep(flows, uses, queues, links, state, now_s)
