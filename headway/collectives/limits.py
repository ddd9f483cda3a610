"""Lower bounds that no plan can beat, whatever it does, without help from the switches.

Ranks on one host count as one node, since they reach each other for free; let H be the number of hosts that hold
ranks, S the bytes of the whole vector, u_h and d_h what host h can send and receive per second.

Cuts. Take a group of ranks A (those of one host, or of one rack) with a links' capacity u_A out and d_A in, and k of
the n ranks in it, 0 < k < n. In bytes:

| collective | must leave A | must enter A |
| --- | --- | --- |
| all-reduce | S: the others' results depend on A's data | S |
| reduce-scatter | (n-k)/n S: A's part of the others' blocks | k/n S |
| all-gather | k/n S: A's blocks | (n-k)/n S |
| broadcast | S if the root is in A | S if it is not |
| reduce | S if the root is not in A | S if it is |

Sums. Each element of a sum over H hosts takes at least H - 1 messages between hosts to be gathered in one place, and
H - 1 more to be known by all (each message can make at most one more host complete). So an all-reduce sends
2(H-1)S bytes in all, the others (H-1)S, and all uplinks together, or all downlinks, take at least that over the sum
of their capacities. The same holds for racks, with R racks in place of H hosts.

Paths. If every pair (h, j) to the other hosts has a limit of its own, host h sends at most their sum.

The bound is the largest of all these; it leaves out latency, so it is weak for small vectors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from headway.cluster.model import Cluster
from headway.collectives.plan import Collective


@dataclass(frozen=True, slots=True)
class Bound:
    """No plan is faster than `time_s`; `what` says why in words: "uplink of host 3", "all uplinks together"."""

    time_s: float
    what: str


@dataclass(frozen=True, slots=True)
class _Node:
    """Ranks behind shared links: how many, what the links carry, and whether the root is among them."""

    name: str
    ranks: int
    out_Bps: float
    in_Bps: float
    holds_root: bool


def lower_bound(cluster: Cluster, collective: Collective, size_bytes: int, *, root: int = 0) -> Bound:
    """The largest known lower bound on the time of `collective` over `size_bytes` (the whole vector).

    Args:
        cluster: with the capacities as they are now.
        collective: what is computed.
        size_bytes: bytes of the whole vector: n blocks in a reduce-scatter or an all-gather.
        root: the root of a broadcast or a reduce.
    """
    bound = Bound(0.0, "one host holds all ranks")
    for nodes, plural in ((_hosts(cluster, root), ""), (_racks(cluster, root), "rack ")):
        if len(nodes) < 2:
            continue
        for node in nodes:
            leaves, enters = _cut(node, cluster.world_size, collective)
            bound = _larger(bound, leaves * size_bytes / node.out_Bps, f"uplink of {node.name}")
            bound = _larger(bound, enters * size_bytes / node.in_Bps, f"downlink of {node.name}")
        total = (len(nodes) - 1) * size_bytes * (2 if collective is Collective.ALL_REDUCE else 1)
        bound = _larger(bound, total / sum(node.out_Bps for node in nodes), f"all {plural}uplinks together")
        bound = _larger(bound, total / sum(node.in_Bps for node in nodes), f"all {plural}downlinks together")
    return bound


def _larger(bound: Bound, time_s: float, what: str) -> Bound:
    # An equal bound from a later, wider statement does not replace an earlier, narrower one.
    return Bound(time_s, what) if time_s > bound.time_s * (1 + 1e-12) else bound


def _cut(node: _Node, world_size: int, collective: Collective) -> tuple[float, float]:
    """(must leave, must enter) the node, as fractions of the vector."""
    inside = node.ranks / world_size
    match collective:
        case Collective.ALL_REDUCE:
            return 1.0, 1.0
        case Collective.REDUCE_SCATTER:
            return 1 - inside, inside
        case Collective.ALL_GATHER:
            return inside, 1 - inside
        case Collective.BROADCAST:
            return (1.0, 0.0) if node.holds_root else (0.0, 1.0)
        case Collective.REDUCE:
            return (0.0, 1.0) if node.holds_root else (1.0, 0.0)


def _hosts(cluster: Cluster, root: int) -> list[_Node]:
    ranks: dict[int, int] = defaultdict(int)
    for at in cluster.host_of:
        ranks[at] += 1
    nodes = []
    for index, count in ranks.items():
        host = cluster.hosts[index]
        out_Bps, in_Bps = host.uplink_Bps, host.downlink_Bps
        if cluster.paths:
            others = [other for other in ranks if other != index]
            out_Bps = min(out_Bps, _by_paths(cluster.paths, [(index, other) for other in others]))
            in_Bps = min(in_Bps, _by_paths(cluster.paths, [(other, index) for other in others]))
        nodes.append(_Node(host.name, count, out_Bps, in_Bps, cluster.host_of[root] == index))
    return nodes


def _by_paths(paths: Mapping[tuple[int, int], float], pairs: list[tuple[int, int]]) -> float:
    if len(paths) < len(pairs) or not all(pair in paths for pair in pairs):
        return float("inf")
    return sum(paths[pair] for pair in pairs) if pairs else float("inf")


def _racks(cluster: Cluster, root: int) -> list[_Node]:
    """Racks with ranks in them; none when some rank is on a host outside all racks (its messages use no uplink)."""
    ranks: dict[int, int] = defaultdict(int)
    for host in cluster.host_of:
        rack = cluster.hosts[host].rack
        if rack is None:
            return []
        ranks[rack] += 1
    home = cluster.hosts[cluster.host_of[root]].rack
    return [
        _Node(cluster.racks[k].name, count, cluster.racks[k].uplink_Bps, cluster.racks[k].downlink_Bps, home == k)
        for k, count in ranks.items()
    ]
