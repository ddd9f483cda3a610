"""The cluster as the planners see it: ranks on hosts, hosts in racks, links with a capacity per direction.

A message from rank i to rank j uses the uplink of i's host, the downlink of j's host and, when the two are in
different racks, the uplink of the one rack and the downlink of the other. A `path` entry is one more limit on
one ordered pair of hosts, for a slow path that neither end's links explain. Ranks on one host reach each other
without using any link.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property

from headway.errors import UsageError


class LinkKind(Enum):
    """Which shared resource a link is."""

    UPLINK = "uplink"
    DOWNLINK = "downlink"
    RACK_UPLINK = "rack uplink"
    RACK_DOWNLINK = "rack downlink"
    PATH = "path"


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of one shared resource.

    Attributes:
        kind: what it is.
        name: in words, as blame prints it: "uplink of host 3", "path host 1 to host 2".
        capacity_Bps: what this job can have of it now, bytes per second.
    """

    kind: LinkKind
    name: str
    capacity_Bps: float


@dataclass(frozen=True, slots=True)
class Host:
    """A machine: its name and its access rate in both directions (bytes per second)."""

    name: str
    uplink_Bps: float
    downlink_Bps: float
    rack: int | None = None


@dataclass(frozen=True, slots=True)
class Rack:
    """A group of hosts behind a shared uplink and downlink (bytes per second, all paths together)."""

    name: str
    uplink_Bps: float
    downlink_Bps: float


@dataclass(frozen=True)
class Cluster:
    """Everything that a planner knows of the machines.

    Attributes:
        hosts: the hosts, in order.
        host_of: rank -> index into `hosts`; its length is the world size.
        racks: the racks that `Host.rack` indexes; empty for a single switch.
        alpha_s: time of one hop of an empty message, seconds.
        paths: extra limits, (host index, host index) -> bytes per second.
    """

    hosts: tuple[Host, ...]
    host_of: tuple[int, ...]
    racks: tuple[Rack, ...] = ()
    alpha_s: float = 100e-6
    paths: Mapping[tuple[int, int], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.host_of:
            raise UsageError("a cluster needs at least one rank")
        for rank, host in enumerate(self.host_of):
            if not 0 <= host < len(self.hosts):
                raise UsageError(f"rank {rank} is on host {host}, but there are {len(self.hosts)} hosts")
        for link in self.links:
            if not link.capacity_Bps > 0:
                raise UsageError(f"{link.name} has capacity {link.capacity_Bps}; it must be above 0")

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.host_of)

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """Every link: host uplinks, host downlinks, rack uplinks, rack downlinks, then paths."""
        up = [Link(LinkKind.UPLINK, f"uplink of {h.name}", h.uplink_Bps) for h in self.hosts]
        down = [Link(LinkKind.DOWNLINK, f"downlink of {h.name}", h.downlink_Bps) for h in self.hosts]
        rack_up = [Link(LinkKind.RACK_UPLINK, f"uplink of {r.name}", r.uplink_Bps) for r in self.racks]
        rack_down = [Link(LinkKind.RACK_DOWNLINK, f"downlink of {r.name}", r.downlink_Bps) for r in self.racks]
        paths = [
            Link(LinkKind.PATH, f"path {self.hosts[a].name} to {self.hosts[b].name}", rate)
            for (a, b), rate in sorted(self.paths.items())
        ]
        return (*up, *down, *rack_up, *rack_down, *paths)

    @cached_property
    def _path_index(self) -> dict[tuple[int, int], int]:
        first = 2 * len(self.hosts) + 2 * len(self.racks)
        return {pair: first + k for k, pair in enumerate(sorted(self.paths))}

    def route(self, src: int, dst: int) -> tuple[int, ...]:
        """Indices into `links` that a message from rank `src` to rank `dst` uses; empty on one host."""
        a, b = self.host_of[src], self.host_of[dst]
        if a == b:
            return ()
        hosts, racks = len(self.hosts), len(self.racks)
        used = [a, hosts + b]
        rack_a, rack_b = self.hosts[a].rack, self.hosts[b].rack
        if rack_a is not None and rack_b is not None and rack_a != rack_b:
            used += [2 * hosts + rack_a, 2 * hosts + racks + rack_b]
        extra = self._path_index.get((a, b))
        if extra is not None:
            used.append(extra)
        return tuple(used)

    def with_host(self, index: int, *, uplink_Bps: float | None = None, downlink_Bps: float | None = None) -> Cluster:
        """The same cluster with another access rate at host `index`."""
        host = self.hosts[index]
        changed = replace(
            host,
            uplink_Bps=host.uplink_Bps if uplink_Bps is None else uplink_Bps,
            downlink_Bps=host.downlink_Bps if downlink_Bps is None else downlink_Bps,
        )
        return replace(self, hosts=(*self.hosts[:index], changed, *self.hosts[index + 1 :]))


def star(ranks: int, rate_Bps: float, *, alpha_s: float = 100e-6, names: tuple[str, ...] | None = None) -> Cluster:
    """`ranks` hosts with one rank each on one switch, all with the same rate in both directions."""
    labels = names if names is not None else tuple(f"host {i}" for i in range(ranks))
    hosts = tuple(Host(label, rate_Bps, rate_Bps) for label in labels)
    return Cluster(hosts=hosts, host_of=tuple(range(ranks)), alpha_s=alpha_s)
