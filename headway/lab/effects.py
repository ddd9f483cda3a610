"""What events do to links: pure. An event is one effect per target; a link's settings are a fold over all in force."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from headway.cluster.model import Cluster, Host, Rack
from headway.lab.costs import WIRE_ALPHA_S as WIRE_ALPHA_S
from headway.lab.scenario import BwEvent, DelayEvent, Event, LoadEvent, LossEvent, Scenario
from headway.lab.topology import LinkId, LinkSettings, Topology

LEAST_SHARE = 0.02
"""Part of a link that open-loop load leaves to others even if it asks for all: its packets are dropped like theirs."""


class Wire(Protocol):
    """One direction of one link as built: rate on the wire, latency one way."""

    @property
    def id(self) -> LinkId:
        """Whose, and which direction."""
        ...

    @property
    def rate_Bps(self) -> float:
        """Bytes per second on the wire."""
        ...

    @property
    def delay_s(self) -> float:
        """One way, seconds."""
        ...


class Wired(Protocol):
    """A network as far as events concern it: the lab's `Topology`, or a simulator's."""

    @property
    def links(self) -> Sequence[Wire]:
        """Every link."""
        ...


@dataclass(frozen=True, slots=True)
class Effect:
    """One event at one target: the links it concerns, and what it does to them."""

    event: Event
    target: str

    def concerns(self, link: LinkId) -> bool:
        """Whether it changes that link."""
        path = self.event.path
        same_path = path is None or link.path == path
        return link.owner == self.target and link.direction in self.event.directions and same_path

    @property
    def is_load(self) -> bool:
        """Whether it is background load."""
        return isinstance(self.event, LoadEvent)

    @property
    def impairs(self) -> bool:
        """Whether the link must have been built for delay and loss."""
        return isinstance(self.event, (DelayEvent, LossEvent))

    @property
    def link_names(self) -> tuple[str, ...]:
        """The links that it takes capacity from, as `Cluster.links` names them; delay and loss take none."""
        if self.impairs:
            return ()
        return tuple(f"{direction}link of {self.target}" for direction in self.event.directions)

    @property
    def what(self) -> str:
        """In words."""
        return self.event.what(self.target)


@dataclass(frozen=True, slots=True)
class LoadLeg:
    """Background load in one direction at one target.

    Attributes:
        rate_Bps: UDP rate on the wire; 0 for TCP. flows: number of TCP flows; 0 for UDP.
        source, sink: namespaces. sink_address: what to send to.
        device: the source's interface.
    """

    source: str
    sink: str
    sink_address: str
    device: str
    rate_Bps: float = 0.0
    flows: int = 0


def effects_of(event: Event, targets: Sequence[str]) -> tuple[Effect, ...]:
    """One effect per target."""
    return tuple(Effect(event, target) for target in targets)


def link_settings(wired: Wired, in_force: Iterable[Sequence[Effect]]) -> dict[LinkId, LinkSettings]:
    """Every link as it should be: the least of the rates, the sum of the delays, losses independent of each other."""
    at = _by_target(in_force)
    return {link.id: settings_under(link, at.get(link.id.owner, ())) for link in wired.links}


def settings_under(link: Wire, effects: Iterable[Effect]) -> LinkSettings:
    """One link as it should be under `effects`, of which those that don't concern it change nothing."""
    settings = LinkSettings(rate_Bps=link.rate_Bps, delay_s=link.delay_s)
    for effect in effects:
        if effect.concerns(link.id):
            settings = _with(settings, effect.event, link.rate_Bps)
    return settings


def load_under(link: Wire, effects: Iterable[Effect]) -> tuple[float, int]:
    """Background load on one link: (UDP rate on the wire in bytes per second, number of TCP flows)."""
    udp_Bps, flows = 0.0, 0
    for effect in effects:
        if effect.concerns(link.id) and isinstance(effect.event, LoadEvent):
            udp_Bps += effect.event.udp.of(link.rate_Bps) if effect.event.udp is not None else 0.0
            flows += effect.event.tcp or 0
    return udp_Bps, flows


def beside_udp_Bps(rate_Bps: float, udp_Bps: float) -> float:
    """What open-loop load leaves of a link, bytes per second on the wire."""
    return max(rate_Bps - udp_Bps, LEAST_SHARE * rate_Bps)


def rates_left(wired: Wired, in_force: Iterable[Sequence[Effect]]) -> dict[LinkId, float]:
    """What is left for a job on each link: rates on the wire, bytes per second. Of n TCP flows it gets one's part."""
    at = _by_target(in_force)
    left = {}
    for link in wired.links:
        effects = at.get(link.id.owner, ())
        udp_Bps, flows = load_under(link, effects)
        left[link.id] = beside_udp_Bps(settings_under(link, effects).rate_Bps, udp_Bps) / (flows + 1)
    return left


def _by_target(in_force: Iterable[Sequence[Effect]]) -> Mapping[str, Sequence[Effect]]:
    at: dict[str, list[Effect]] = {}
    for group in in_force:
        for effect in group:
            at.setdefault(effect.target, []).append(effect)
    return at


def _with(settings: LinkSettings, event: Event, base_Bps: float) -> LinkSettings:
    if isinstance(event, BwEvent):
        return replace(settings, rate_Bps=min(settings.rate_Bps, event.rate.of(base_Bps)))
    if isinstance(event, DelayEvent):
        delay, jitter = settings.delay_s + event.delay, settings.jitter_s + event.jitter
        return replace(settings, delay_s=delay, jitter_s=jitter)
    if isinstance(event, LossEvent):
        return replace(settings, loss=1 - (1 - settings.loss) * (1 - event.loss))
    return settings


def load_legs(topology: Topology, prefix: str, effect: Effect) -> tuple[LoadLeg, ...]:
    """Where an effect's background load is sent from and to; none for other effects."""
    event = effect.event
    if not isinstance(event, LoadEvent):
        return ()
    legs = []
    for link in topology.links:
        if not effect.concerns(link.id):
            continue
        near, far = _ends(topology, link.id)
        source, sink = (near, far) if link.id.direction == "up" else (far, near)
        rate = event.udp.of(link.rate_Bps) if event.udp is not None else 0.0
        legs.append(LoadLeg(prefix + source[0], prefix + sink[0], sink[1], source[2], rate, event.tcp or 0))
    return tuple(legs)


def _ends(topology: Topology, link: LinkId) -> tuple[tuple[str, str, str], tuple[str, str, str]]:
    """(namespace, address, interface) at the owner's end of a link, and at its other end."""
    for host in topology.hosts:
        if host.name == link.owner:
            out, address = topology.outs[host.rack]
            return (host.neighbour, host.neighbour_address, "eth0"), (out, address, "eth0")
    assert link.path is not None
    out, address = topology.outs[topology.rack_names.index(link.owner)]
    return (out, address, "eth0"), ("core", topology.core_addresses[link.path], f"s{link.path}")


def cluster(scenario: Scenario, topology: Topology, in_force: Sequence[Sequence[Effect]]) -> Cluster:
    """What is left for a job on each link: rates on the wire, bytes per second."""
    settings = link_settings(topology, in_force)
    left = rates_left(topology, in_force)
    delay = max((s.delay_s for link, s in settings.items() if link.path is None), default=0.0)
    between = max((s.delay_s for link, s in settings.items() if link.path is not None), default=0.0)
    hosts = tuple(
        Host(h.name, left[LinkId(h.name, "up")], left[LinkId(h.name, "down")], scenario.rack_of(h.rank))
        for h in topology.hosts
    )
    racks = tuple(
        Rack(name, *(sum(left[i] for i in left if i.owner == name and i.direction == d) for d in ("up", "down")))
        for name in scenario.rack_names
    )
    alpha = WIRE_ALPHA_S + 2 * delay + 2 * between
    return Cluster(hosts=hosts, host_of=tuple(range(len(hosts))), racks=racks, alpha_s=alpha)
