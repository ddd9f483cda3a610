"""Scenario -> what to build: namespaces, cables, bridges, shapers, addresses, routes. Pure.

Each host and a neighbour of it hang on one small bridge; a cable from that bridge to the rack's switch is the
host's access link, shaped at both ends:

    host eth0 --- h3 +----+ u3 ===== d3 +----+
                     | s3 |             | sw | --- o --- eth0 "out"      (not shaped)
    neighbour --- n3 +----+             +----+ p0 ===== l0 spine 0

The neighbour is where background load comes from and goes to, so it competes with the host in the queue of the
access link, as another tenant of the same machine does, and not in the host's own socket buffers. Its other end
is `out`, on an unshaped port of the same switch, or for load on a rack's uplink `core`, an unshaped router port
of every spine. A star is one rack without spines. Between racks, flows are spread over the spines by their
addresses and ports.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from headway.errors import UsageError
from headway.lab.scenario import Direction, Rates, Scenario

MOST_HOSTS = 128
MOST_RACKS = 32
MOST_SPINES = 8
DEFAULT_QUEUE_S = 0.02
SMALLEST_QUEUE = 192 * 1024
_HOST_SYSCTLS = (("net/ipv4/tcp_no_metrics_save", "1"), ("net/ipv4/ip_local_port_range", "32768 60999"))
_ROUTER_SYSCTLS = (
    ("net/ipv4/ip_forward", "1"),
    ("net/ipv6/conf/all/forwarding", "1"),
    ("net/ipv4/conf/all/arp_ignore", "1"),  # else a host's bridge answers for the gateway, and its link is skipped
    ("net/ipv4/fib_multipath_hash_policy", "1"),
    ("net/ipv6/fib_multipath_hash_policy", "1"),
)
_ALL_SYSCTLS = (
    ("net/ipv4/conf/all/rp_filter", "0"),
    ("net/ipv4/conf/default/rp_filter", "0"),
    ("net/ipv6/conf/all/accept_dad", "0"),
    ("net/ipv6/conf/default/accept_dad", "0"),
    ("net/ipv6/conf/default/accept_ra", "0"),
)


@dataclass(frozen=True, slots=True)
class LinkId:
    """One direction of one shaped link: `owner` is a host or a rack, `path` the spine for a rack's link."""

    owner: str
    direction: Direction
    path: int | None = None

    def __str__(self) -> str:
        spine = f" by spine {self.path}" if self.path is not None else ""
        return f"{self.direction}link of {self.owner}{spine}"


@dataclass(frozen=True, slots=True)
class End:
    """An interface: namespace (without the lab's prefix) and name."""

    namespace: str
    interface: str


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace, and its sysctls as (path under /proc/sys, value)."""

    name: str
    sysctls: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Cable:
    """Two interfaces joined back to back. `relayed`: through the relay, which delays and loses; see `relay`."""

    a: End
    b: End
    relayed: bool = False


@dataclass(frozen=True, slots=True)
class Bridge:
    """A switch with the interfaces that are its ports."""

    end: End
    ports: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Address:
    """An address with its prefix length."""

    end: End
    address: str
    prefix: int


@dataclass(frozen=True, slots=True)
class Route:
    """`destination` ("default" or a network) by one or several (gateway, interface)."""

    namespace: str
    destination: str
    hops: tuple[tuple[str, str], ...]
    priority: int = 0


@dataclass(frozen=True, slots=True)
class ShapedLink:
    """A shaper on the interface that sends into the link.

    Attributes:
        rate_Bps: as built. queue_bytes, burst_bytes: of the token bucket. delay_s: one way.
        relayed: whether delay and loss can be set on it.
    """

    id: LinkId
    end: End
    rate_Bps: float
    queue_bytes: int
    burst_bytes: int
    delay_s: float
    relayed: bool


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """What can be changed on a link while it runs."""

    rate_Bps: float
    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0


@dataclass(frozen=True, slots=True)
class HostPlan:
    """A host: its namespace is called by its name; load comes from and goes to `neighbour`."""

    name: str
    rank: int
    rack: int
    address: str
    address6: str
    neighbour: str
    neighbour_address: str


@dataclass(frozen=True)
class Topology:
    """Everything to build, in an order that works. `outs[r]` is (namespace, address) of rack r's unshaped port."""

    namespaces: tuple[Namespace, ...]
    cables: tuple[Cable, ...]
    bridges: tuple[Bridge, ...]
    addresses: tuple[Address, ...]
    routes: tuple[Route, ...]
    links: tuple[ShapedLink, ...]
    hosts: tuple[HostPlan, ...]
    outs: tuple[tuple[str, str], ...]
    core_addresses: tuple[str, ...]
    rack_names: tuple[str, ...] = ()

    def link(self, link: LinkId) -> ShapedLink:
        """The shaped link with that id; KeyError when there is none."""
        for candidate in self.links:
            if candidate.id == link:
                return candidate
        raise KeyError(str(link))


def queue_bytes(scenario: Scenario, rate_Bps: float) -> int:
    """The scenario's queue, or 20 ms at that rate and at least 192 KiB: three of the largest offloaded packets."""
    return scenario.queue if scenario.queue is not None else max(SMALLEST_QUEUE, round(rate_Bps * DEFAULT_QUEUE_S))


def impaired(scenario: Scenario) -> frozenset[str]:
    """Hosts and racks whose links have latency, or get delay or loss from an event."""
    owners = {e.name for e in scenario.host_entries if (scenario.latency if e.latency is None else e.latency) > 0}
    if scenario.racks is not None and scenario.racks.latency > 0:
        owners |= set(scenario.rack_names)
    for event in scenario.events:
        if event.type in ("delay", "loss"):
            owners |= set(scenario.targets_of(event))
    return frozenset(owners)


def plan(scenario: Scenario, *, relay: bool, impair_all: bool = False) -> Topology:
    """What to build for a scenario.

    Args:
        relay: delay and loss come from the relay (else from netem, and then every cable is a plain one).
        impair_all: every link can get delay and loss later, not only those that the scenario says will.

    UsageError: the scenario is one that only the simulator can run.
    """
    racks = scenario.racks
    if scenario.fat_tree is not None:
        raise UsageError("the lab builds no fat trees", where=scenario.name, hint="headway sim runs this scenario")
    if len(scenario.host_names) > MOST_HOSTS:
        what = f"{len(scenario.host_names)} hosts; the lab builds up to {MOST_HOSTS}"
        raise UsageError(what, where=scenario.name, hint="headway sim runs this scenario")
    if racks is not None and (len(racks.names) > MOST_RACKS or racks.spines > MOST_SPINES):
        what = (
            f"{len(racks.names)} racks and {racks.spines} spines; the lab builds up to {MOST_RACKS} and {MOST_SPINES}"
        )
        raise UsageError(what, where=scenario.name, hint="headway sim runs this scenario")
    return _Planner(scenario, relay=relay, impair_all=impair_all).topology()


class _Planner:
    def __init__(self, scenario: Scenario, *, relay: bool, impair_all: bool) -> None:
        self.scenario, self.relay = scenario, relay
        self.impaired = impaired(scenario)
        self.impair_all = impair_all
        self.cables: list[Cable] = []
        self.bridges: list[Bridge] = []
        self.addresses: list[Address] = []
        self.routes: list[Route] = []
        self.links: list[ShapedLink] = []
        self.hosts: list[HostPlan] = []
        self.namespaces: list[Namespace] = []

    def topology(self) -> Topology:
        scenario = self.scenario
        racks = scenario.racks
        rack_count = len(racks.names) if racks is not None else 1
        spines = racks.spines if racks is not None else 0
        members: list[list[int]] = [[] for _ in range(rack_count)]
        for index in range(len(scenario.host_entries)):
            members[scenario.rack_of(index) or 0].append(index)
        outs = tuple(self._leaf(rack, hosts, spines) for rack, hosts in enumerate(members))
        core = self._fabric(rack_count, spines) if racks is not None else ()
        self.hosts.sort(key=lambda host: host.rank)
        return Topology(
            tuple(self.namespaces), tuple(self.cables), tuple(self.bridges), tuple(self.addresses),
            tuple(self.routes), tuple(self.links), tuple(self.hosts), outs, core,
            scenario.rack_names,
        )  # fmt: skip

    def _leaf(self, rack: int, hosts: list[int], spines: int) -> tuple[str, str]:
        leaf, out = f"leaf.{rack}", f"out.{rack}"
        self._namespace(leaf, router=True)
        self._namespace(out)
        self.cables.append(Cable(End(leaf, "o"), End(out, "eth0")))
        ports = ["o"]
        for index in hosts:
            self._host(rack, index, spines > 0)
            ports.append(f"d{index}")
        self.bridges.append(Bridge(End(leaf, "sw"), tuple(ports)))
        address = self._station(End(out, "eth0"), rack, kind=3, number=1, routed=spines > 0)[0]
        if spines:
            self._address(End(leaf, "sw"), *_leaf_addresses(rack, 0, 1))
        return out, address

    def _host(self, rack: int, index: int, routed: bool) -> None:
        entry = self.scenario.host_entries[index]
        leaf, neighbour = f"leaf.{rack}", f"nb.{index}"
        self._namespace(entry.name)
        self._namespace(neighbour)
        self.cables.append(Cable(End(leaf, f"h{index}"), End(entry.name, "eth0")))
        self.cables.append(Cable(End(leaf, f"n{index}"), End(neighbour, "eth0")))
        self.bridges.append(Bridge(End(leaf, f"s{index}"), (f"h{index}", f"n{index}", f"u{index}")))
        latency = self.scenario.latency if entry.latency is None else entry.latency
        rates = entry.access if entry.access is not None else self.scenario.access
        self._shaped(entry.name, End(leaf, f"u{index}"), End(leaf, f"d{index}"), rates, latency, None)
        address, address6 = self._station(End(entry.name, "eth0"), rack, kind=1, number=index + 1, routed=routed)
        near, _ = self._station(End(neighbour, "eth0"), rack, kind=2, number=index + 1, routed=routed)
        self.hosts.append(HostPlan(entry.name, index, rack, address, address6, neighbour, near))

    def _fabric(self, rack_count: int, spines: int) -> tuple[str, ...]:
        racks = self.scenario.racks
        assert racks is not None
        self._namespace("core")
        cores: list[str] = []
        for spine in range(spines):
            self._namespace(f"spine.{spine}", router=True)
            here, there = End("core", f"s{spine}"), End(f"spine.{spine}", "c")
            self.cables.append(Cable(here, there))
            v4, v6 = _point_to_point(251, spine)
            cores.append(v4[0])
            self._address(here, v4[0], v6[0], prefix=30, prefix6=126)
            self._address(there, v4[1], v6[1], prefix=30, prefix6=126)
        for rack in range(rack_count):
            hops4, hops6 = [], []
            v4_net, v6_net = (str(net) for net in _leaf_networks(rack))
            for spine in range(spines):
                leaf, top = End(f"leaf.{rack}", f"p{spine}"), End(f"spine.{spine}", f"l{rack}")
                self._shaped(racks.names[rack], leaf, top, racks.uplink, racks.latency, spine)
                v4, v6 = _point_to_point(250, rack * spines + spine)
                self._address(leaf, v4[0], v6[0], prefix=30, prefix6=126)
                self._address(top, v4[1], v6[1], prefix=30, prefix6=126)
                hops4.append((v4[1], leaf.interface))
                hops6.append((v6[1], leaf.interface))
                core4, core6 = _point_to_point(251, spine)
                for net, near, gateway in ((v4_net, v4[0], core4[1]), (v6_net, v6[0], core6[1])):
                    self.routes.append(Route(top.namespace, net, ((near, top.interface),)))
                    self.routes.append(Route("core", net, ((gateway, f"s{spine}"),), priority=10 + spine))
                self.routes.append(Route(leaf.namespace, f"{core4[0]}/32", ((v4[1], leaf.interface),)))
            self.routes.append(Route(f"leaf.{rack}", "default", tuple(hops4)))
            self.routes.append(Route(f"leaf.{rack}", "::/0", tuple(hops6)))
        return tuple(cores)

    def _namespace(self, name: str, *, router: bool = False) -> None:
        own = _ROUTER_SYSCTLS if router else _HOST_SYSCTLS
        control = (("net/ipv4/tcp_congestion_control", self.scenario.congestion_control),)
        self.namespaces.append(Namespace(name, _ALL_SYSCTLS + own + (() if router else control)))

    def _shaped(self, owner: str, near: End, far: End, rates: Rates, delay_s: float, path: int | None) -> None:
        """A link from `near`, whose egress is the uplink, to `far`, whose egress is the downlink."""
        relayed = self.impair_all or owner in self.impaired
        self.cables.append(Cable(near, far, relayed=relayed and self.relay))
        ends: tuple[tuple[Direction, End], ...] = (("up", near), ("down", far))
        for direction, end in ends:
            rate = rates.of(direction)
            queue, link = queue_bytes(self.scenario, rate), LinkId(owner, direction, path)
            self.links.append(ShapedLink(link, end, rate, queue, self.scenario.burst, delay_s, relayed))

    def _station(self, end: End, rack: int, *, kind: int, number: int, routed: bool) -> tuple[str, str]:
        v4, v6 = _leaf_addresses(rack, kind, number)
        self._address(end, v4, v6)
        if routed:
            gateway4, gateway6 = _leaf_addresses(rack, 0, 1)
            self.routes.append(Route(end.namespace, "default", ((gateway4, end.interface),)))
            self.routes.append(Route(end.namespace, "::/0", ((gateway6, end.interface),)))
        return v4, v6

    def _address(self, end: End, v4: str, v6: str, *, prefix: int = 16, prefix6: int = 64) -> None:
        self.addresses.append(Address(end, v4, prefix))
        self.addresses.append(Address(end, v6, prefix6))


def _leaf_networks(rack: int) -> tuple[IPv4Network, IPv6Network]:
    return IPv4Network((10 << 24 | rack << 16, 16)), IPv6Network((0xFD00 << 112 | rack << 64, 64))


def _leaf_addresses(rack: int, kind: int, number: int) -> tuple[str, str]:
    v4, v6 = _leaf_networks(rack)
    offset = kind << 8 | number
    return str(IPv4Address(int(v4.network_address) + offset)), str(IPv6Address(int(v6.network_address) + offset))


def _point_to_point(block: int, number: int) -> tuple[tuple[str, str], tuple[str, str]]:
    """The two v4 and the two v6 addresses of one link between routers."""
    v4 = (10 << 24 | block << 16) + 4 * number + 1
    v6 = (0xFD00 << 112 | block << 64) + 4 * number + 1
    return (str(IPv4Address(v4)), str(IPv4Address(v4 + 1))), (str(IPv6Address(v6)), str(IPv6Address(v6 + 1)))
