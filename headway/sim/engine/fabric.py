"""What flows run over: hosts, directed links, and the route that a flow takes. Pure, and without state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from headway.errors import UsageError
from headway.lab.draws import mix as mix


@dataclass(frozen=True, slots=True)
class FabricLink:
    """One direction of one link.

    Attributes:
        name: in words, as results print it: "uplink of host3", "uplink of rack0 by spine 1".
        capacity_Bps: payload bytes per second.
        latency_s: one way, seconds.
    """

    name: str
    capacity_Bps: float
    latency_s: float = 0.0


class Router(Protocol):
    """Chooses a flow's links."""

    def route(self, src: int, dst: int, key: int) -> Sequence[int]:
        """Indices into the fabric's links from host `src` to host `dst`, in order; empty on one host.

        Flows with the same hosts and another `key` (an address and port pair, as ECMP hashes it) may go other ways;
        the same three always give the same route.
        """
        ...


@dataclass(frozen=True)
class Fabric:
    """A network.

    Attributes:
        name: for people.
        hosts: their names.
        links: every directed link.
        router: from hosts to links.
    """

    name: str
    hosts: tuple[str, ...]
    links: tuple[FabricLink, ...]
    router: Router

    def __post_init__(self) -> None:
        for link in self.links:
            if not 0 <= link.capacity_Bps < float("inf"):
                raise UsageError(f"{link.name} has capacity {link.capacity_Bps}; it must be finite and not below 0")
            if not 0 <= link.latency_s < float("inf"):
                raise UsageError(f"{link.name} has latency {link.latency_s} s; it must be finite and not below 0")

    @cached_property
    def host_index(self) -> dict[str, int]:
        """Host name -> its index."""
        return {name: index for index, name in enumerate(self.hosts)}

    @cached_property
    def link_index(self) -> dict[str, int]:
        """Link name -> its index."""
        return {link.name: index for index, link in enumerate(self.links)}


@dataclass(frozen=True, slots=True)
class _StarRouter:
    hosts: int

    def route(self, src: int, dst: int, key: int) -> Sequence[int]:
        return () if src == dst else (src, self.hosts + dst)


def star(hosts: int, rate_Bps: float, *, latency_s: float = 0.0, names: Sequence[str] = ()) -> Fabric:
    """`hosts` hosts on one switch that never is the bottleneck; `latency_s` of each host's link, one way."""
    labels = tuple(names) or tuple(f"host{i}" for i in range(hosts))
    up = [FabricLink(f"uplink of {name}", rate_Bps, latency_s) for name in labels]
    down = [FabricLink(f"downlink of {name}", rate_Bps, latency_s) for name in labels]
    return Fabric(f"star of {hosts}", labels, (*up, *down), _StarRouter(hosts))
