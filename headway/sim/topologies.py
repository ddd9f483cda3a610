"""From scenarios to fabrics, and to what planners know of them. Pure.

Rates. A scenario's rates count whole Ethernet frames, as the lab's shapers do; a fabric carries payload, so each is
multiplied by `PAYLOAD_SHARE`.

Latency. A link has the scenario's latency. An empty message between two hosts takes `costs.hop` more, which is spent in
the two hosts and not on the way, so half of it is added to each end's access link, and none between switches: in the
simulator as in `Cluster.alpha_s` a hop takes the same.

Names. Links are called as the lab's `LinkId` prints: "uplink of host3", "uplink of rack0 by spine 1". A fat tree's
switches are "edge 0" and "agg 0" (no host can be called so), and what is above them is counted in each pod, and at each
aggregation switch: "uplink of edge 3 by agg 1", "downlink of agg 3 by core 0".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headway.cluster.model import Cluster, Host, Rack
from headway.collectives.predict import CostModel
from headway.errors import UsageError
from headway.lab.effects import Effect, link_settings, rates_left
from headway.lab.scenario import Direction, FatTree, Rates, Scenario
from headway.lab.topology import LinkId, LinkSettings
from headway.sim.engine.fabric import Fabric, FabricLink, Router, mix

PAYLOAD_SHARE = 1448 / 1514
"""Payload of a full TCP segment with timestamps over its Ethernet frame of 1514 bytes (docs/lab.md, "Rates")."""

_DIRECTIONS: tuple[Direction, ...] = ("up", "down")


@dataclass(frozen=True, slots=True)
class Wire:
    """One direction of one link, as the scenario has it: rate on the wire, bytes per second; latency one way."""

    id: LinkId
    name: str
    rate_Bps: float
    delay_s: float


@dataclass(frozen=True, slots=True)
class Wires:
    """All links of a scenario, in the order of its fabric's."""

    links: tuple[Wire, ...]


def fabric_of(scenario: Scenario, *, wire_alpha_s: float | None = None) -> Fabric:
    """The network that a scenario describes: a star, racks (leaf and spine), or a fat tree.

    Between racks a flow's spine, and in a fat tree its aggregation and core switch, is chosen by a hash of its hosts
    and `key`, as ECMP does (Hopps, RFC 2992). Racks: one link per rack, spine and direction, and one way down.

    Args:
        wire_alpha_s: time of an empty message between two hosts beyond the scenario's latencies, seconds; None: as
            its `costs` say.
    """
    wire_alpha_s = scenario.costs.hop if wire_alpha_s is None else wire_alpha_s
    hosts = len(scenario.host_names)
    links = tuple(
        FabricLink(
            wire.name,
            wire.rate_Bps * PAYLOAD_SHARE,
            wire.delay_s + (wire_alpha_s / 2 if index < 2 * hosts else 0.0),
        )
        for index, wire in enumerate(wires_of(scenario).links)
    )
    return Fabric(scenario.name, scenario.host_names, links, _router(scenario))


@dataclass(frozen=True, slots=True)
class LinkState:
    """All links under some effects: what is the same for every job's cluster.

    Attributes:
        wires: the links.
        left_Bps: what background load leaves of each, on the wire.
        settings: each link's rate and latency now.
    """

    wires: Wires
    left_Bps: Mapping[LinkId, float]
    settings: Mapping[LinkId, LinkSettings]


def link_state(scenario: Scenario, in_force: Iterable[Sequence[Effect]] = ()) -> LinkState:
    """The links of `scenario` under the effects `in_force`."""
    wires, effects = wires_of(scenario), tuple(in_force)
    return LinkState(wires, rates_left(wires, effects), link_settings(wires, effects))


def cluster_of(
    scenario: Scenario,
    *,
    host_of: Sequence[int] | None = None,
    in_force: Iterable[Sequence[Effect]] = (),
    wire_alpha_s: float | None = None,
) -> Cluster:
    """What a planner knows of the network: payload rates, as the fabric's, unlike `lab.effects.cluster`.

    A fat tree's edge switches are its racks. That says all there is to say but for collisions of hashes: with one
    rate for all links between switches, a pod's links to the core carry what those of its edge switches do.

    Args:
        host_of: rank -> the scenario's host; default: one rank on each host. Only these hosts, and their racks, are
            in the cluster, in the order of their first ranks.
        in_force: events' effects whose part is taken off: what a clairvoyant knows. Default: none.
        wire_alpha_s: as in `fabric_of`.
    """
    return cluster_in(scenario, link_state(scenario, in_force), host_of=host_of, wire_alpha_s=wire_alpha_s)


def cluster_in(
    scenario: Scenario,
    state: LinkState,
    *,
    host_of: Sequence[int] | None = None,
    wire_alpha_s: float | None = None,
) -> Cluster:
    """`cluster_of`, where the links' state is known already: for the clusters of many jobs at one moment."""
    wire_alpha_s = scenario.costs.hop if wire_alpha_s is None else wire_alpha_s
    ranks = range(len(scenario.host_names)) if host_of is None else host_of
    used = {host: index for index, host in enumerate(dict.fromkeys(ranks))}
    rack_of = _racks_of(scenario)
    racks = {rack: index for index, rack in enumerate(dict.fromkeys(rack_of[host] for host in used)) if rack}
    left, settings = state.left_Bps, state.settings
    totals = {rack: dict.fromkeys(_DIRECTIONS, 0.0) for rack in racks}
    access_s = between_s = 0.0
    mine = {scenario.host_names[host] for host in used}
    for wire in state.wires.links:
        if wire.id.path is None:
            if wire.id.owner in mine:
                access_s = max(access_s, settings[wire.id].delay_s)
        elif wire.id.owner in totals:
            totals[wire.id.owner][wire.id.direction] += left[wire.id]
            between_s = max(between_s, settings[wire.id].delay_s)
    hosts = []
    for host in used:
        name, rack = scenario.host_names[host], rack_of[host]
        up, down = (left[LinkId(name, direction)] * PAYLOAD_SHARE for direction in _DIRECTIONS)
        hosts.append(Host(name, up, down, racks[rack] if rack else None))
    hops = 4 if scenario.fat_tree is not None else 2
    return Cluster(
        hosts=tuple(hosts),
        host_of=tuple(used[host] for host in ranks),
        racks=tuple(Rack(n, t["up"] * PAYLOAD_SHARE, t["down"] * PAYLOAD_SHARE) for n, t in totals.items()),
        alpha_s=wire_alpha_s + 2 * access_s + hops * between_s,
    )


def costs_of(scenario: Scenario) -> CostModel:
    """What messages cost the scenario's ranks."""
    return CostModel(local_alpha_s=scenario.costs.local, per_message_s=scenario.costs.message)


def wires_of(scenario: Scenario) -> Wires:
    """Every link: the hosts' up, the hosts' down, then those between switches, tier by tier."""
    links = []
    for direction in _DIRECTIONS:
        for entry in scenario.host_entries:
            rates = scenario.access if entry.access is None else entry.access
            latency = scenario.latency if entry.latency is None else entry.latency
            link = LinkId(entry.name, direction)
            links.append(Wire(link, str(link), rates.of(direction), latency))
    if scenario.racks is not None:
        racks = scenario.racks
        links += _tier(racks.names, [f"spine {i}" for i in range(racks.spines)], racks.uplink, racks.latency)
    if scenario.fat_tree is not None:
        tree = scenario.fat_tree
        rates = tree.uplink if tree.uplink is not None else scenario.access
        switches, half = range(tree.k * tree.k // 2), tree.k // 2
        links += _tier([f"edge {i}" for i in switches], [f"agg {i}" for i in range(half)], rates, tree.latency)
        links += _tier([f"agg {i}" for i in switches], [f"core {i}" for i in range(half)], rates, tree.latency)
    return Wires(tuple(links))


def _tier(owners: Sequence[str], above: Sequence[str], rates: Rates, latency_s: float) -> list[Wire]:
    """Links of each owner to each of the switches above it, up and then down."""
    links = []
    for direction in _DIRECTIONS:
        for owner in owners:
            for path, switch in enumerate(above):
                name = f"{direction}link of {owner} by {switch}"
                links.append(Wire(LinkId(owner, direction, path), name, rates.of(direction), latency_s))
    return links


def _racks_of(scenario: Scenario) -> list[str]:
    """Per host the name of its rack or edge switch; empty where there is none."""
    hosts = range(len(scenario.host_names))
    if scenario.fat_tree is not None:
        return [f"edge {host // (scenario.fat_tree.k // 2)}" for host in hosts]
    places = [scenario.rack_of(host) for host in hosts]
    return ["" if place is None else scenario.rack_names[place] for place in places]


def _router(scenario: Scenario) -> Router:
    hosts = len(scenario.host_names)
    if scenario.fat_tree is not None:
        return FatTreeRouter(hosts, scenario.fat_tree)
    if scenario.racks is not None:
        rack_of = tuple(scenario.rack_of(host) or 0 for host in range(hosts))
        return LeafSpineRouter(rack_of, len(scenario.rack_names), scenario.racks.spines)
    return LeafSpineRouter((0,) * hosts, 1, 0)


@dataclass(frozen=True, slots=True)
class LeafSpineRouter:
    """Up to one spine and down again. `rack_of`: host -> rack. Links: hosts up, hosts down, racks up, racks down."""

    rack_of: tuple[int, ...]
    racks: int
    spines: int

    def route(self, src: int, dst: int, key: int) -> Sequence[int]:
        """See `Router`."""
        hosts = len(self.rack_of)
        if src == dst:
            return ()
        a, b = self.rack_of[src], self.rack_of[dst]
        if a == b:
            return (src, hosts + dst)
        spine = mix(src, dst, key) % self.spines
        up = 2 * hosts + spine
        return (src, up + a * self.spines, up + (self.racks + b) * self.spines, hosts + dst)


class FatTreeRouter:
    """Up to the lowest switch above both, and down again, in a fat tree of k ports (Al-Fares et al. 2008).

    Hosts are on edge switches in order, k/2 on each; k/2 edge switches make a pod. Links: hosts up, hosts down, edge
    switches up and down, aggregation switches up and down.
    """

    def __init__(self, hosts: int, tree: FatTree) -> None:
        self.hosts = hosts
        self.half = tree.k // 2
        self.tier = tree.k * self.half * self.half  # links of one tier in one direction

    def route(self, src: int, dst: int, key: int) -> Sequence[int]:
        """See `Router`."""
        hosts, half = self.hosts, self.half
        if src == dst:
            return ()
        a, b = src // half, dst // half
        if a == b:
            return (src, hosts + dst)
        choice = mix(src, dst, key)
        agg = choice % half
        up, down = 2 * hosts + a * half + agg, 2 * hosts + self.tier + b * half + agg
        pod_a, pod_b = a // half, b // half
        if pod_a == pod_b:
            return (src, up, down, hosts + dst)
        core = choice // half % half
        over = 2 * hosts + 2 * self.tier + core
        over_up = over + (pod_a * half + agg) * half
        over_down = over + self.tier + (pod_b * half + agg) * half
        return (src, up, over_up, over_down, down, hosts + dst)


class GraphRouter:
    """Shortest paths in any graph, fewest links first; among equal next links a hash chooses at every node (ECMP).

    The distances to one destination are worked out when a flow first goes there, from the node before it where only
    one link leads to it: for hosts behind switches that is one array of distances for each edge switch.

    Args:
        nodes: how many; hosts and switches.
        ends: link -> (from node, to node), in the order of the fabric's links. Parallel links are several ways.
        hosts: host of the fabric -> its node; default: host i is node i.
    """

    def __init__(self, nodes: int, ends: Sequence[tuple[int, int]], hosts: Sequence[int] | None = None) -> None:
        self._hosts = range(nodes) if hosts is None else hosts
        self._nodes = nodes
        self._from, self._to = (np.array([end[i] for end in ends], dtype=np.int64) for i in (0, 1))
        self._out: list[list[int]] = [[] for _ in range(nodes)]
        self._in: list[list[int]] = [[] for _ in range(nodes)]
        for link, (a, b) in enumerate(ends):
            self._out[a].append(link)
            self._in[b].append(link)
        self._distances: dict[int, npt.NDArray[np.int32]] = {}
        self._choices: dict[tuple[int, int], tuple[int, ...]] = {}

    def route(self, src: int, dst: int, key: int) -> Sequence[int]:
        """See `Router`. Raises UsageError where no way leads."""
        at, goal = self._hosts[src], self._hosts[dst]
        if at == goal:
            return ()
        last: tuple[int, ...] = ()
        if len(self._in[goal]) == 1:
            last = (self._in[goal][0],)
            goal = int(self._from[last[0]])
        taken = []
        while at != goal:
            choices = self._next(at, goal)
            if not choices:
                raise UsageError(f"there is no way from host {src} to host {dst}")
            link = choices[mix(src, dst, key, at) % len(choices)] if len(choices) > 1 else choices[0]
            taken.append(link)
            at = int(self._to[link])
        return (*taken, *last)

    def _next(self, at: int, goal: int) -> tuple[int, ...]:
        """The links out of `at` that lead one step nearer."""
        found = self._choices.get((at, goal))
        if found is None:
            distance = self._distances.get(goal)
            if distance is None:
                distance = self._distances[goal] = self._distances_to(goal)
            nearer = distance[at] - 1
            found = tuple(link for link in self._out[at] if nearer >= 0 and distance[self._to[link]] == nearer)
            self._choices[at, goal] = found
        return found

    def _distances_to(self, goal: int) -> npt.NDArray[np.int32]:
        """Links from each node to `goal`; -1 where none lead there."""
        distance = np.full(self._nodes, -1, dtype=np.int32)
        distance[goal] = 0
        for step in range(self._nodes):
            before = self._from[distance[self._to] == step]
            reached = before[distance[before] < 0]
            if not len(reached):
                break
            distance[reached] = step + 1
        return distance
