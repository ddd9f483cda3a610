"""Plays a scenario's events on a simulated network: the steps of `lab.steps`, as the lab does. Pure.

What an event does to the links it concerns, and several at once (as in docs/lab.md):

- bw: the capacity; the least of several, a percentage is of the link's own.
- delay: adds to the latency of flows that begin while it is in force. Jitter: half of it more, the mean of what the lab
  draws for a packet. (A burst is held up by its most delayed packet, so there it costs up to all of it.)
- loss: independent of each other; flows over the link get at most what TCP makes of it, see `loss`.
- load udp: sends whatever happens, so its rates are taken from the link first; `lab.effects.LEAST_SHARE` stays.
- load tcp: so many flows without end over that link alone, which share it with the others max-min fairly, and with
  `realism.tcp_queue` a full queue. A rack's
  event loads each of its links so, as the lab does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from headway.decide.journal import EventRecord
from headway.errors import UsageError
from headway.lab.effects import Effect, beside_udp_Bps, effects_of, load_under, settings_under
from headway.lab.scenario import LoadEvent, Scenario
from headway.lab.steps import Step, steps
from headway.lab.topology import LinkId, queue_bytes
from headway.sim.engine.loop import Timer
from headway.sim.engine.network import Flow, Network
from headway.sim.topologies import PAYLOAD_SHARE, Wire


@dataclass(frozen=True, slots=True)
class _Place:
    """A link that an event concerns: its index in the fabric, and its rate on the wire and latency without events."""

    index: int
    wire: Wire


class Background:
    """A scenario's events on a network, from `start` to `stop`.

    Args:
        network: of a fabric whose links have the lab's names (`topologies.fabric_of`).
        scenario: whose events are played.
        written: gets a record of each beginning and end, with the words of the lab's; `t_s` is the simulated clock.
        payload_share: of the fabric's capacities; rates in events are on the wire.

    Raises UsageError: an event's link is not in the fabric.
    """

    def __init__(
        self,
        network: Network,
        scenario: Scenario,
        written: Callable[[EventRecord], None],
        *,
        payload_share: float = PAYLOAD_SHARE,
    ) -> None:
        self._network, self._scenario, self._written = network, scenario, written
        self._payload_share = payload_share
        for event in scenario.events:
            for effect in effects_of(event, scenario.targets_of(event)):
                self._places(effect)
        self._steps = steps(scenario)
        self._zero_s = 0.0
        self._timer: Timer | None = None
        self._in_force: dict[str, Step] = {}
        self._at: dict[str, dict[str, Effect]] = {}
        self._flows: dict[str, list[Flow]] = {}

    @property
    def in_force(self) -> tuple[tuple[Effect, ...], ...]:
        """The effects in force now, as `topologies.cluster_of` takes them."""
        return tuple(step.effects for step in self._in_force.values())

    def start(self) -> None:
        """The timeline's zero is now; what begins at once is in force when this returns."""
        self._zero_s = self._network.loop.now_s
        self._next()

    def stop(self) -> None:
        """No more events; what is in force is taken back, and recorded. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        for step in tuple(self._in_force.values()):
            self._do(Step(step.at_s, "end", step.key, step.effects))

    def _next(self) -> None:
        loop = self._network.loop
        for step in self._steps:
            due_s = self._zero_s + step.at_s
            if due_s > loop.now_s:
                self._timer = loop.at(due_s, partial(self._play, step))
                return
            self._do(step)

    def _play(self, step: Step) -> None:
        self._do(step)
        self._next()

    def _do(self, step: Step) -> None:
        if step.phase == "begin":
            self._in_force[step.key] = step
            self._flows[step.key] = [flow for effect in step.effects for flow in self._tcp_flows(effect)]
        else:
            del self._in_force[step.key]
            for flow in self._flows.pop(step.key):
                self._network.stop(flow)
        for effect in step.effects:
            at = self._at.setdefault(effect.target, {})
            if step.phase == "begin":
                at[step.key] = effect
            else:
                del at[step.key]
            for place in self._places(effect):
                self._set(place, tuple(at.values()))
        self._written(step.record(self._network.loop.now_s))

    def _set(self, place: _Place, effects: tuple[Effect, ...]) -> None:
        settings = settings_under(place.wire, effects)
        realism = self._network.realism
        udp_Bps, tcp_flows = load_under(place.wire, effects)
        left_Bps = beside_udp_Bps(settings.rate_Bps, udp_Bps * (1 - realism.udp_loss))
        own_Bps = self._network.fabric.links[place.index].capacity_Bps
        part = left_Bps / place.wire.rate_Bps if own_Bps else 0.0
        self._network.set_capacity(place.index, own_Bps * part)
        queue_s = 0.0
        if tcp_flows and realism.tcp_queue:
            queue_s = queue_bytes(self._scenario, place.wire.rate_Bps) / settings.rate_Bps
        self._network.set_latency(place.index, settings.delay_s + settings.jitter_s / 2 + queue_s)
        self._network.set_loss(place.index, settings.loss)

    def _tcp_flows(self, effect: Effect) -> list[Flow]:
        event = effect.event
        flows = event.tcp or 0 if isinstance(event, LoadEvent) else 0
        return [
            self._network.start(0, 0, float("inf"), route=(place.index,), weight=self._network.realism.tcp_weight)
            for place in self._places(effect)
            for _ in range(flows)
        ]

    def _places(self, effect: Effect) -> list[_Place]:
        """The links that an effect concerns. UsageError: the fabric lacks one."""
        racks = self._scenario.racks
        paths: list[int | None] = [effect.event.path]
        if effect.event.path is None and racks is not None and effect.target in self._scenario.rack_names:
            paths = list(range(racks.spines))
        fabric = self._network.fabric
        places = []
        for direction in effect.event.directions:
            for path in paths:
                link = LinkId(effect.target, direction, path)
                index = fabric.link_index.get(str(link))
                if index is None:
                    raise UsageError(
                        f"event {effect.event.id!r}: {fabric.name} has no {link}", where=self._scenario.name
                    )
                own = fabric.links[index]
                places.append(
                    _Place(index, Wire(link, own.name, own.capacity_Bps / self._payload_share, own.latency_s))
                )
        return places
