"""htsim's fat trees (`.topo`): read, checked as htsim checks them, and turned into fabrics. docs/sim-formats.md.

The format is that of `FatTreeTopologyCfg` in the Ultra Ethernet Consortium's htsim and in Broadcom's csg-htsim, which
has the same. Two or three tiers; tier t's entry describes its switches and the links down from them. Hosts are on the
lowest switches in order. Each lowest switch reaches all switches above it in its pod by `Bundle` links each, and
aggregation switch a of every pod the core switches a, a + A, a + 2A, ... (A: aggregation switches of a pod).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headway.errors import UsageError
from headway.sim.engine.fabric import Fabric, FabricLink
from headway.sim.topologies import GraphRouter

UEC_PAYLOAD_SHARE = 4086 / 4150
"""Payload of a packet: htsim's UEC program sends 4150 bytes by default, 64 of them headers (main_uec.cpp, uec.cpp)."""

MOST_HOSTS = 65_536
MOST_LINKS = 4_000_000
_HINT = "see docs/sim-formats.md"
_INTEGER = re.compile(r"[0-9]{1,18}")
_HEADER = ("nodes", "tiers", "podsize")
_PER_TIER = (
    "downlink_speed_gbps", "radix_up", "radix_down", "queue_up", "queue_down", "oversubscribed", "bundle",
    "switch_latency_ns", "downlink_latency_ns",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tier:
    """One layer of switches and the links down from it.

    Attributes:
        speed_Bps: of each link down, in each direction, on the wire.
        latency_s: of each link down, one way. switch_s: of passing one of its switches.
        up, down: links of one switch. bundle: parallel links between a switch and one below it.
        oversubscribed: links down over links up of one switch, by rate.
    """

    speed_Bps: float
    latency_s: float
    switch_s: float
    up: int
    down: int
    bundle: int
    oversubscribed: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A missing link: of aggregation switch `switch` to its core switch number `link`. `where`: the line it is from."""

    switch: int
    link: int
    where: str = ""


@dataclass(frozen=True)
class FatTreeFile:
    """What a `.topo` file holds. `name` is for people; `pod_hosts` are the hosts of one pod."""

    name: str
    hosts: int
    pod_hosts: int
    tiers: tuple[Tier, ...]

    @property
    def pods(self) -> int:
        """Pods; 1 with two tiers."""
        return self.hosts // self.pod_hosts

    @property
    def edges(self) -> int:
        """Switches of the lowest tier."""
        return self.hosts // self.tiers[0].down

    @property
    def pod_aggs(self) -> int:
        """Switches of the middle tier in one pod; with two tiers those of the upper tier."""
        return self.tiers[0].up // self.tiers[1].bundle

    @property
    def cores(self) -> int:
        """Switches of the third tier."""
        return self.pod_aggs * (self.tiers[1].up // self.tiers[2].bundle) if len(self.tiers) == 3 else 0

    @property
    def link_count(self) -> int:
        """Directed links."""
        count = self.hosts + self.edges * self.tiers[0].up
        return 2 * (count + (self.pods * self.pod_aggs * self.tiers[1].up if len(self.tiers) == 3 else 0))

    def fabric(self, *, payload_share: float = UEC_PAYLOAD_SHARE, failures: Sequence[Failure] = ()) -> Fabric:
        """The network, with every flow on one shortest path by ECMP.

        With two tiers its links have the names of a scenario's racks and spines, so that a scenario's events can be
        played on it. A switch's latency is part of the links out of it, so that routes take as long as in htsim.

        Args:
            payload_share: part of each link's rate that is left for payload.
            failures: links that are left out. UsageError where there is no such link.
        """
        links = _Links(self, payload_share, failures)
        hosts = tuple(f"host{i}" for i in range(self.hosts))
        nodes = self.hosts + self.edges + self.pods * self.pod_aggs + self.cores
        return Fabric(self.name, hosts, tuple(links.links), GraphRouter(nodes, links.ends, range(self.hosts)))


class _Links:
    """The links of a file's fabric, and their ends. Nodes: hosts, lowest switches, middle switches, core switches."""

    def __init__(self, file: FatTreeFile, payload_share: float, failures: Sequence[Failure]) -> None:
        self.links: list[FabricLink] = []
        self.ends: list[tuple[int, int]] = []
        self._share = payload_share
        missing = _missing(file, failures)
        edge0, agg0 = file.hosts, file.hosts + file.edges
        core0 = agg0 + file.pods * file.pod_aggs
        lowest, middle = file.tiers[0], file.tiers[1]
        for up in (True, False):
            for host in range(file.hosts):
                self._add(f"host{host}", "", (host, edge0 + host // lowest.down), up, lowest, 0.0)
        above = "spine" if len(file.tiers) == 2 else "agg"
        for edge in range(file.edges):
            pod = edge * lowest.down // file.pod_hosts
            for agg in range(file.pod_aggs):
                ends = (edge0 + edge, agg0 + pod * file.pod_aggs + agg)
                for by in _names(f" by {above} {agg}", middle.bundle):
                    self._add(f"rack{edge}", by, ends, True, middle, lowest.switch_s)
                    self._add(f"rack{edge}", by, ends, False, middle, lowest.switch_s)
        if len(file.tiers) == 3:
            highest = file.tiers[2]
            for agg in range(file.pods * file.pod_aggs):
                for number in range(middle.up // highest.bundle):
                    core = agg % file.pod_aggs + file.pod_aggs * number
                    left_out = (agg, number) in missing
                    for by in _names(f" by core {core}", highest.bundle)[left_out:]:
                        self._add(f"agg {agg}", by, (agg0 + agg, core0 + core), True, highest, middle.switch_s)
                        self._add(f"agg {agg}", by, (agg0 + agg, core0 + core), False, highest, middle.switch_s)

    def _add(self, owner: str, by: str, ends: tuple[int, int], up: bool, tier: Tier, below_s: float) -> None:
        """`tier` is that of the upper end; `below_s` is the latency of the lower end, if that is a switch."""
        latency_s = tier.latency_s + (below_s if up else tier.switch_s)
        name = f"{'up' if up else 'down'}link of {owner}{by}"
        self.links.append(FabricLink(name, tier.speed_Bps * self._share, latency_s))
        self.ends.append(ends if up else (ends[1], ends[0]))


def _names(by: str, bundle: int) -> list[str]:
    return [by] if bundle == 1 else [f"{by} link {i}" for i in range(bundle)]


def _missing(file: FatTreeFile, failures: Sequence[Failure]) -> set[tuple[int, int]]:
    """(aggregation switch, core) whose first link is out. As in htsim, of a bundle only the first link fails."""
    for failure in failures:
        ways = file.tiers[1].up // file.tiers[2].bundle if len(file.tiers) == 3 else 0
        if failure.switch >= file.pods * file.pod_aggs or failure.link >= ways:
            what = f"{file.name} has no link {failure.link} up from aggregation switch {failure.switch}"
            raise UsageError(what, where=failure.where)
    return {(failure.switch, failure.link) for failure in failures}


def read_topology(path: str | Path) -> FatTreeFile:
    """A `.topo` file. UsageError names file, line and field of what is wrong."""
    return parse_topology(read_text(path), where=str(path))


def read_text(path: str | Path) -> str:
    """A file's text. UsageError where it can't be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "is not a text file"
        raise UsageError(reason, where=str(path)) from None


@dataclass
class _Fields:
    """The fields of the header or of one tier: name -> (value, line)."""

    name: str
    line: int
    values: dict[str, tuple[int, int]] = field(default_factory=dict)


def parse_topology(text: str, *, where: str) -> FatTreeFile:
    """The same from the text; `where` is the file's name in errors."""
    header, tiers = _sections(text, where)
    missing = [name for name in _HEADER if name not in header.values]
    if missing:
        raise UsageError(f"there is no {missing[0].capitalize()}", where=where, hint=_HINT)
    hosts, count, pod_hosts = (header.values[name][0] for name in _HEADER)
    lines = {name: f"{where}:{header.values[name][1]}: {name.capitalize()}" for name in _HEADER}
    if not 1 <= hosts <= MOST_HOSTS:
        raise UsageError(f"{hosts} hosts; from 1 to {MOST_HOSTS} can be", where=lines["nodes"])
    if count not in (2, 3):
        raise UsageError(f"{count} tiers; 2 and 3 can be", where=lines["tiers"])
    if not pod_hosts or hosts % pod_hosts:
        raise UsageError(f"pods of {pod_hosts} hosts don't make up {hosts}", where=lines["podsize"])
    absent = [number for number in range(count) if number not in tiers]
    if absent:
        raise UsageError(f"there is no Tier {absent[0]}", where=where, hint=_HINT)
    if count == 2 and pod_hosts != hosts:
        hint = f"with 2 tiers every host is in one pod: Podsize {hosts}"
        raise UsageError(f"a pod has {pod_hosts} hosts, and there are {hosts}", where=lines["podsize"], hint=hint)
    read = tuple(_tier(tiers[number], where, top=number == count - 1, bottom=number == 0) for number in range(count))
    file = FatTreeFile(Path(where).stem or where, hosts, pod_hosts, read)
    _check(file, tiers, where)
    return file


def tokens(text: str) -> Iterator[tuple[int, list[str]]]:
    """(line number, words) of each line that is neither empty nor a comment."""
    for number, line in enumerate(text.split("\n"), start=1):
        words = line.split()
        if words and not words[0].startswith("#"):
            yield number, words


def integer(word: str, where: str) -> int:
    """A number of at most 18 digits. UsageError otherwise."""
    if not _INTEGER.fullmatch(word):
        raise UsageError(f"{word[:40]!r} is not a whole number", where=where, hint=_HINT)
    return int(word)


def _sections(text: str, where: str) -> tuple[_Fields, dict[int, _Fields]]:
    header, tiers = _Fields("the header", 1), dict[int, _Fields]()
    now = header
    allowed: tuple[str, ...] = _HEADER
    for line, words in tokens(text):
        name, place = words[0].lower(), f"{where}:{line}"
        if name not in (*allowed, "tier"):
            what = f"{words[0][:40]!r} is no field of {now.name}"
            raise UsageError(what, where=place, hint=f"known: {', '.join((*allowed, 'tier'))}")
        if len(words) != 2:
            raise UsageError(f"{len(words) - 1} values, one is needed", where=f"{place}: {words[0]}", hint=_HINT)
        value = integer(words[1], f"{place}: {words[0]}")
        if name == "tier":
            if value in tiers or value > 2:
                what = "is there already" if value in tiers else "can't be, tiers are 0, 1 and 2"
                raise UsageError(f"tier {value} {what}", where=f"{place}: {words[0]}")
            now, allowed = tiers.setdefault(value, _Fields(f"tier {value}", line)), _PER_TIER
        elif name in now.values:
            what = f"is there already, in line {now.values[name][1]}"
            raise UsageError(what, where=f"{place}: {words[0]}")
        else:
            now.values[name] = (value, line)
    return header, tiers


def _tier(fields: _Fields, where: str, *, top: bool, bottom: bool) -> Tier:
    place = f"{where}:{fields.line}: Tier"
    needed = ("downlink_speed_gbps", "radix_down", "downlink_latency_ns", *(() if top else ("radix_up",)))
    for name in needed:
        if name not in fields.values:
            raise UsageError(f"{fields.name} has no {name}", where=place, hint=_HINT)
    for name in ("downlink_speed_gbps", "radix_down", "radix_up", "oversubscribed", "bundle"):
        if fields.values.get(name, (1, 0))[0] < 1:
            raise UsageError("must be above 0", where=f"{where}:{fields.values[name][1]}: {name}")
    for name in ("radix_up", "queue_up"):
        if top and name in fields.values:
            what = "the highest tier has no links up"
            raise UsageError(what, where=f"{where}:{fields.values[name][1]}: {name}")
    value = {name: fields.values.get(name, (0, 0))[0] for name in _PER_TIER}
    bundle = value["bundle"] or 1
    if bottom and bundle != 1:
        where = f"{where}:{fields.values['bundle'][1]}: bundle"
        raise UsageError("a host has one link: no bundles in tier 0", where=where)
    return Tier(
        speed_Bps=value["downlink_speed_gbps"] * 1e9 / 8, latency_s=value["downlink_latency_ns"] * 1e-9,
        switch_s=value["switch_latency_ns"] * 1e-9, up=value["radix_up"], down=value["radix_down"], bundle=bundle,
        oversubscribed=value["oversubscribed"] or 1,
    )  # fmt: skip


def _check(file: FatTreeFile, tiers: dict[int, _Fields], where: str) -> None:
    """Whether the numbers of ports fit each other. UsageError says what would."""

    def wrong(number: int, name: str, what: str, hint: str = "") -> UsageError:
        line = tiers[number].values.get(name, (0, tiers[number].line))[1]
        return UsageError(what, where=f"{where}:{line}: {name}", hint=hint or _HINT)

    lowest = file.tiers[0]
    if file.pod_hosts % lowest.down:
        what = f"switches with {lowest.down} hosts each don't make up a pod of {file.pod_hosts}"
        raise wrong(0, "radix_down", what)
    below = file.pod_hosts // lowest.down  # switches of the tier below that one switch reaches
    for number in range(1, len(file.tiers)):
        lower, upper = file.tiers[number - 1], file.tiers[number]
        if lower.up % upper.bundle:
            what = f"{lower.up} links up can't be bundles of {upper.bundle}"
            raise wrong(number - 1, "radix_up", what)
        if upper.down != below * upper.bundle:
            what = f"is {upper.down}, but there are {below} switches below each, by {upper.bundle} links each"
            raise wrong(number, "radix_down", what, f"{below * upper.bundle}")
        down_Bps, up_Bps = lower.down * lower.speed_Bps, lower.up * upper.speed_Bps
        if down_Bps != lower.oversubscribed * up_Bps:
            what = f"is {lower.oversubscribed}, but a switch has {down_Bps / up_Bps:g} times as much down as up"
            raise wrong(number - 1, "oversubscribed", what)
        below = file.pods
    if file.link_count > MOST_LINKS:
        raise UsageError(f"{file.link_count} links; at most {MOST_LINKS} can be", where=where)
