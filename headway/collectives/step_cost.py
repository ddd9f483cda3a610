"""REACT's cost of a collective: the pattern unrolled over its steps (a time-expanded network).

    T = sum over steps of  max over flows f of the step of (alpha + bytes_f / cap_f)
    cap_f = min(B_up / flows out of the sender, B_down / flows into the receiver, path)

with the flows counted within the step. For pipelined trees and rings the steps are those of one chunk, and every
further chunk adds the time that the busiest link needs for one chunk of each tree ("the bottleneck edge times the
number of chunks"). Recursive doubling is not pipelined. The form is an inference from notes on the paper.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headway.cluster.model import Cluster
from headway.collectives.chunking import chunk_bytes_for, link_rate_Bps
from headway.collectives.loads import Edges, Ints, LinkTable, check_size, edges_of, link_loads
from headway.collectives.plan import Collective, Plan

RECURSIVE_DOUBLING = "recursive doubling"


def rounds_time(
    plan: Plan, cluster: Cluster, collective: Collective, size_bytes: int, chunk_bytes: int | None = None
) -> float:
    """Seconds that `collective` takes by the cost in rounds. PlanError when plan and cluster differ in size.

    `chunk_bytes` is the piece size; None: the one that the executor chooses for this plan (`chunking`).
    """
    check_size(plan, cluster)
    if plan.size == 1:
        return 0.0
    edges, table = edges_of(plan), LinkTable(cluster)
    if chunk_bytes is None:
        chunk_bytes = chunk_bytes_for(plan, collective, size_bytes, 1, link_rate_Bps(cluster))
    doubling = is_doubling(plan)
    pieces = 1.0 if doubling else max(1.0, float(np.ceil(plan.shares.max() * size_bytes / chunk_bytes)))
    piece = (plan.shares * size_bytes / pieces)[edges.tree]
    down = doubling_steps(plan)[1] if doubling else plan.hops[edges.tree, edges.rank].astype(np.intp) - 1
    last = int(down.max())
    total = 0.0
    if collective.reduces:
        total += _steps_time(table, edges.rank, edges.parent, last - down, piece)
    if collective.spreads:
        total += _steps_time(table, edges.parent, edges.rank, down, piece)
    loads = link_loads(plan, cluster, collective) * size_bytes / pieces
    return total + (pieces - 1) * float((loads / table.capacities_Bps).max())


def is_doubling(plan: Plan) -> bool:
    """Whether a plan is recursive doubling, whose steps are those of `doubling_steps`."""
    return plan.name.startswith(RECURSIVE_DOUBLING) and len(plan.order) == plan.size


def doubling_steps(plan: Plan) -> tuple[Edges, Ints]:
    """The edges of a plan that `is_doubling`, and the step in which each is used going down.

    It is the highest bit in which the places of rank and root differ; going up, steps run backwards.
    """
    edges = edges_of(plan)
    n = plan.size
    p0 = 1 << (n.bit_length() - 1)
    place = np.empty(n, dtype=np.intp)
    place[list(plan.order)] = np.arange(n)
    roots = np.argmax(plan.parents < 0, axis=1)
    at, root = place[edges.rank], place[roots[edges.tree]]
    steps = p0.bit_length() - 1
    distance = np.where(at < p0, at, 0) ^ (root % p0)
    bits = np.frexp(distance.astype(np.float64))[1].astype(np.intp)
    # An extra rank hands its block in before the first step (bit 0 of no difference), and gets all after the last.
    return edges, np.where(at >= p0, steps + 1, bits)


def _steps_time(
    table: LinkTable, src: npt.NDArray[np.intp], dst: npt.NDArray[np.intp], step: Ints, piece: npt.NDArray[np.float64]
) -> float:
    """Sum over steps of the slowest flow; messages of one step between the same two ranks are one flow."""
    n, links = len(table.host_of), len(table.capacities_Bps)
    flow, where = np.unique((step * n + src) * n + dst, return_inverse=True)
    amount = np.bincount(where, weights=piece, minlength=len(flow))
    at, sender, receiver = flow // (n * n), flow // n % n, flow % n
    seconds = np.zeros(len(flow))
    crossing = np.zeros(len(flow), dtype=bool)
    for use in table.uses(sender, receiver):
        keys = at[use.messages] * links + use.links
        _, group, sharing = np.unique(keys, return_inverse=True, return_counts=True)
        rate = table.capacities_Bps[use.links] / sharing[group]
        seconds[use.messages] = np.maximum(seconds[use.messages], amount[use.messages] / rate)
        crossing[use.messages] = True
    seconds += np.where(crossing, table.cluster.alpha_s, 0.0)
    slowest = np.zeros(int(at.max()) + 1)
    np.maximum.at(slowest, at, seconds)
    return float(slowest.sum())
