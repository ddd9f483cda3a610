"""What a lab is made of, as people write it: hosts, links, and what happens to them. Pure.

`docs/lab.md` documents the fields. An unknown field is an error, a bare number where a unit is needed is an error,
and every error names the file and the field. Inside, rates are bytes per second, times seconds, sizes bytes.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from headway.lab.costs import Costs
from headway.lab.jobs import Job
from headway.lab.quantities import Model, Names, Probability, Rate, Share, Size, Time

MOST_HOSTS = 65_536
Direction = Literal["up", "down"]
_NAME = re.compile(r"^[a-z][a-z0-9-]{0,20}$")
_RESERVED = frozenset({"hosts", "racks", "core"})


class Rates(Model):
    """Rate in each direction, seen from the owner: `up` is what it sends. `200Mbit` alone stands for both."""

    up: Rate
    down: Rate

    @model_validator(mode="before")
    @classmethod
    def _both(cls, value: object) -> object:
        return {"up": value, "down": value} if isinstance(value, (str, int, float)) else value

    def of(self, direction: Direction) -> float:
        """The rate in one direction, bytes per second."""
        return self.up if direction == "up" else self.down


class HostEntry(Model):
    """One host. What is left out is taken from the scenario's own `access` and `latency`."""

    name: str
    access: Rates | None = None
    latency: Time | None = None
    rack: str | None = None


class Racks(Model):
    """Racks behind leaf routers, each joined to every spine by one link: as many paths as spines.

    Attributes:
        racks: names, or how many (`rack0`, `rack1`, ...). Hosts without a `rack` are dealt out in equal blocks.
        spines: number of spine routers.
        uplink: rate of each link from a rack to one spine.
        latency: one way, of each such link.

    The lab builds up to 32 racks and 8 spines, the simulator any number.
    """

    racks: Annotated[int, Field(ge=1, le=4096)] | tuple[str, ...]
    spines: Annotated[int, Field(ge=1, le=1024)] = 2
    uplink: Rates
    latency: Time = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        """The racks' names, in order."""
        return tuple(f"rack{i}" for i in range(self.racks)) if isinstance(self.racks, int) else self.racks


class FatTree(Model):
    """A three-tier fat tree of switches with k ports (Al-Fares et al., SIGCOMM 2008), for the simulator only.

    k pods of k/2 edge and k/2 aggregation switches, (k/2)^2 core switches, up to k^3/4 hosts; flows are spread over
    the equal paths by their addresses and ports.

    Attributes:
        k: ports of a switch; even.
        uplink: rate of each link between switches; without it the hosts' own `access`.
        latency: one way, of each such link.
    """

    k: Annotated[int, Field(ge=2, le=64, multiple_of=2)]
    uplink: Rates | None = None
    latency: Time = 0.0


class _Event(Model):
    id: str
    start: Time = 0.0
    duration: Time | None = None
    target: Names
    direction: Literal["up", "down", "both"] = "both"
    path: Annotated[int, Field(ge=0)] | None = None

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The directions it concerns."""
        return ("up", "down") if self.direction == "both" else (self.direction,)

    @property
    def end(self) -> float:
        """Seconds after the timeline's begin; infinite without a duration."""
        return math.inf if self.duration is None else self.start + self.duration

    def where(self, target: str) -> str:
        """The links concerned at one target, in words."""
        words = {"up": "uplink", "down": "downlink", "both": "up- and downlink"}[self.direction]
        return f"{words} of {target}" + (f" by spine {self.path}" if self.path is not None else "")

    def what(self, target: str) -> str:
        """What it does to one target, in words."""
        raise TypeError(f"{type(self).__name__} has no description")


class BwEvent(_Event):
    """Another rate on the target's link."""

    type: Literal["bw"] = "bw"
    rate: Share

    def what(self, target: str) -> str:
        """In words."""
        return f"{self.where(target)} at {self.rate}"


class DelayEvent(_Event):
    """More one-way latency on the target's link, plus up to `jitter` at random, without reordering."""

    type: Literal["delay"] = "delay"
    delay: Time
    jitter: Time = 0.0

    def what(self, target: str) -> str:
        """In words."""
        jitter = f" and up to {self.jitter * 1e3:g} ms of jitter" if self.jitter else ""
        return f"{self.where(target)} delayed by {self.delay * 1e3:g} ms{jitter}"


class LossEvent(_Event):
    """Each packet on the target's link is lost with this probability, independently."""

    type: Literal["loss"] = "loss"
    loss: Probability

    def what(self, target: str) -> str:
        """In words."""
        return f"{self.where(target)} loses {self.loss * 100:g} % of packets"


class LoadEvent(_Event):
    """Background load from a neighbour that shares the target's link.

    Attributes:
        udp: rate on the wire, as the link counts it.
        tcp: number of TCP flows in each direction.
        on, off: seconds of load and of silence, in turns; exact, or with `seed` the means of exponential draws.
        move: with several targets, load one at a time, and the next after this long; with `seed` in random order.
    """

    type: Literal["load"] = "load"
    udp: Share | None = None
    tcp: Annotated[int, Field(ge=1, le=64)] | None = None
    on: Time | None = None
    off: Time | None = None
    move: Time | None = None
    seed: int | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.udp is None) == (self.tcp is None):
            raise ValueError("give one of udp (a rate) and tcp (a number of flows)")
        if (self.on is None) != (self.off is None):
            raise ValueError("on and off belong together")
        if self.on is not None and (not self.on > 0 or self.off is None or not self.off > 0):
            raise ValueError("on and off must be above 0")
        if self.move is not None and (self.on is not None or not self.move > 0):
            raise ValueError("move needs a time above 0, and goes with neither on nor off")
        return self

    def what(self, target: str) -> str:
        """In words."""
        traffic = f"UDP at {self.udp}" if self.udp is not None else f"{self.tcp} TCP flow{'s' * (self.tcp != 1)}"
        return f"{self.where(target)} loaded with {traffic}"


Event = BwEvent | DelayEvent | LossEvent | LoadEvent


class Scenario(Model):
    """A whole lab.

    Attributes:
        name, description: for people.
        hosts: how many (`host0`, `host1`, ...), or a list.
        access: rate of each host's link.
        latency: one way, of each host's link; a message between two hosts crosses two of them.
        racks: leaf-spine network; without it all hosts are on one switch.
        fat_tree: a fat tree instead; for the simulator only.
        queue: bytes that wait in front of each shaped link before packets are dropped; without it 20 ms at the
            link's rate, at least 192 KiB.
        burst: bytes that a shaped link lets through at once after a pause. Above 70 kB, the largest offloaded
            packet with its headers; below it every such packet would be cut, which costs much CPU.
        congestion_control: of every host.
        costs: of the hosts, for the simulator only.
        events: what happens, from when the command starts.
        jobs: what the hosts run when no command is given.
    """

    name: str
    description: str = ""
    hosts: (
        Annotated[int, Field(ge=1, le=MOST_HOSTS)]
        | Annotated[tuple[HostEntry, ...], Field(min_length=1, max_length=MOST_HOSTS)]
    )
    access: Rates
    latency: Time = 0.0
    racks: Racks | None = None
    fat_tree: FatTree | None = None
    queue: Size | None = None
    burst: Size = 72 * 1024
    congestion_control: str = "cubic"
    costs: Costs = Costs()
    events: tuple[Annotated[Event, Field(discriminator="type")], ...] = ()
    jobs: tuple[Job, ...] = ()

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        names = [entry.name for entry in self.host_entries] + list(self.rack_names)
        for name in names:
            if not _NAME.match(name) or name in _RESERVED:
                raise ValueError(
                    f"{name!r} is no name (a letter, then letters, digits and dashes; not hosts, racks, core)"
                )
        twice = {name for name, times in Counter(names).items() if times > 1}
        if twice:
            raise ValueError(f"two hosts or racks are called {min(twice)!r}")
        for entry in self.host_entries:
            if entry.rack is not None and entry.rack not in self.rack_names:
                raise ValueError(f"host {entry.name!r} is in rack {entry.rack!r}, which does not exist")
        ids = [event.id for event in self.events]
        if len(set(ids)) < len(ids):
            raise ValueError(f"two events have the id {next(i for i in ids if ids.count(i) > 1)!r}")
        for event in self.events:
            self._check_rates(event, self.targets_of(event))
        return self

    def _check_rates(self, event: Event, targets: tuple[str, ...]) -> None:
        """ValueError for a rate above the link's own: it would change nothing."""
        if not isinstance(event, BwEvent):
            return
        hosts = {each.name: each for each in self.host_entries}
        for target in targets:
            entry = hosts.get(target)
            own = self.racks.uplink if entry is None and self.racks is not None else self.access
            own = entry.access if entry is not None and entry.access is not None else own
            for direction in event.directions:
                if event.rate.of(own.of(direction)) > own.of(direction):
                    link = f"{direction}link of {target}"
                    raise ValueError(f"event {event.id!r}: rate {event.rate} is above that of the {link}")

    @model_validator(mode="after")
    def _network_fits(self) -> Self:
        if self.fat_tree is not None:
            if self.racks is not None:
                raise ValueError("give one of racks and fat_tree")
            if len(self.host_entries) > self.fat_tree.k**3 // 4:
                raise ValueError(f"a fat tree with k = {self.fat_tree.k} has {self.fat_tree.k**3 // 4} hosts")
        return self

    @model_validator(mode="after")
    def _jobs_fit(self) -> Self:
        names = [job.name for job in self.jobs]
        if len(set(names)) < len(names):
            raise ValueError(f"two jobs are called {next(n for n in names if names.count(n) > 1)!r}")
        known = set(self.host_names)
        for job in self.jobs:
            wanted = () if isinstance(job.hosts, int) else job.hosts
            unknown = [name for name in wanted if name not in known]
            if unknown:
                raise ValueError(f"job {job.name!r}: there is no host {unknown[0]!r}")
            if len(set(wanted)) < len(wanted):
                raise ValueError(f"job {job.name!r} names a host twice")
            if isinstance(job.hosts, int) and job.hosts > len(known):
                raise ValueError(f"job {job.name!r} wants {job.hosts} hosts, there are {len(known)}")
        if self.jobs and all(job.iterations is None for job in self.jobs):
            raise ValueError("no job has a number of iterations, so nothing would end")
        return self

    @cached_property
    def host_entries(self) -> tuple[HostEntry, ...]:
        """The hosts, as a list even where the file gives a number."""
        if isinstance(self.hosts, int):
            return tuple(HostEntry(name=f"host{i}") for i in range(self.hosts))
        return self.hosts

    @cached_property
    def host_names(self) -> tuple[str, ...]:
        """The hosts' names, in rank order."""
        return tuple(entry.name for entry in self.host_entries)

    @cached_property
    def rack_names(self) -> tuple[str, ...]:
        """The racks' names; empty for a star."""
        return self.racks.names if self.racks is not None else ()

    def rack_of(self, host: int) -> int | None:
        """Index of the rack of host `host`; None in a star."""
        if self.racks is None:
            return None
        entry = self.host_entries[host]
        if entry.rack is not None:
            return self.rack_names.index(entry.rack)
        return host * len(self.rack_names) // len(self.host_entries)

    def targets_of(self, event: Event) -> tuple[str, ...]:
        """The event's targets, `hosts` and `racks` spelled out. ValueError names an unknown one."""
        names: list[str] = []
        known_names = {*self.host_names, *self.rack_names}
        for target in event.target:
            if target == "hosts":
                names += self.host_names
            elif target == "racks" and self.racks is not None:
                names += self.rack_names
            elif target in known_names:
                names.append(target)
            else:
                known = ", ".join((*self.host_names, *self.rack_names))
                raise ValueError(f"event {event.id!r}: there is no target {target!r} (known: {known})")
        if event.path is not None:
            spines = self.racks.spines if self.racks is not None else 0
            if not all(name in self.rack_names for name in names) or event.path >= spines:
                raise ValueError(f"event {event.id!r}: path {event.path} needs a rack as target and that many spines")
        return tuple(dict.fromkeys(names))
