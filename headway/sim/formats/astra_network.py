"""ASTRA-sim's network file (its analytical backends' YAML) and the fabric that it describes.

    topology: [ Ring, Switch ]     # Ring, Switch or FullyConnected, one per dimension
    npus_count: [ 4, 8 ]           # NPUs in each dimension; their product is the number of NPUs
    bandwidth: [ 50.0, 25.0 ]      # GB/s of each link and direction, where 1 GB is 2^30 bytes
    latency: [ 500.0, 1000.0 ]     # ns of each link; a message pays it once per link on its way

What it means (astra-sim/astra-network-analytical, read at 599a047): GB/s counts GiB, whatever the name says. A ring
has a link each way between neighbours, and a message takes the shorter way round, clockwise if both are equal. A
switch is one more device: a message passes the sender's uplink and the receiver's downlink, each with the full
bandwidth and latency. FullyConnected has a link for each ordered pair. NPU i has coordinates (i mod n0, i/n0 mod n1,
...): neighbours in dimension 0 have neighbouring numbers.

Several dimensions: the backend that knows congestion refuses them, and the other one sends only between NPUs that
differ in one dimension. Here each dimension is laid through all NPUs that differ in it alone, and a message that has to
change several coordinates changes them in the order of the dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path

import yaml

from headway.errors import UsageError
from headway.sim.engine.fabric import Fabric, FabricLink

GIB = 2**30
MOST_LINKS = 2_000_000
"""More are taken for a mistake in the file."""


class Block(Enum):
    """How the NPUs of one dimension are connected."""

    RING = "Ring"
    SWITCH = "Switch"
    FULLY_CONNECTED = "FullyConnected"


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension: its shape, its NPUs, each link's bytes per second and seconds."""

    block: Block
    npus: int
    bandwidth_Bps: float
    latency_s: float


@dataclass(frozen=True)
class AstraNetwork:
    """What a network file says."""

    name: str
    dimensions: tuple[Dimension, ...]

    @cached_property
    def npus(self) -> int:
        """All NPUs."""
        return math.prod(dimension.npus for dimension in self.dimensions)

    def stride(self, dimension: int) -> int:
        """Difference of the numbers of NPUs that are neighbours in a dimension."""
        return math.prod(each.npus for each in self.dimensions[:dimension])

    def peers(self, npu: int, dimension: int) -> tuple[int, ...]:
        """The NPUs that differ from `npu` at most in `dimension`, in order."""
        stride, count = self.stride(dimension), self.dimensions[dimension].npus
        first = npu - npu // stride % count * stride
        return tuple(first + place * stride for place in range(count))


def read_network(path: Path) -> AstraNetwork:
    """The network of a file. UsageError names the file, line and field of what is wrong."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(_one_line(error), where=str(path)) from None
    return parse_network(text, where=str(path), name=path.stem)


def parse_network(text: str, *, where: str, name: str = "network") -> AstraNetwork:
    """The network of a file's text; `where` is the file's name for errors."""
    fields = _fields(text, where)
    blocks = [_block(node, where) for node in _items(fields, "topology", where)]
    counts = [int(_number(node, "npus_count", where, whole=True)) for node in _items(fields, "npus_count", where)]
    rates = [_number(node, "bandwidth", where) for node in _items(fields, "bandwidth", where)]
    delays = [_number(node, "latency", where) for node in _items(fields, "latency", where)]
    for field, values in (("npus_count", counts), ("bandwidth", rates), ("latency", delays)):
        if len(values) != len(blocks):
            raise UsageError(
                f"has {len(values)} entries, and topology {len(blocks)}", where=_at(where, fields[field], field)
            )
    for field, bad in (
        ("npus_count", any(count < 2 for count in counts) and "must be 2 or more in each dimension"),
        ("npus_count", _links(blocks, counts) > MOST_LINKS and f"makes more than {MOST_LINKS} links"),
        ("bandwidth", any(rate <= 0 for rate in rates) and "must be above 0"),
        ("latency", any(delay < 0 for delay in delays) and "must not be below 0"),
    ):
        if bad:
            raise UsageError(bad, where=_at(where, fields[field], field))
    return AstraNetwork(
        name,
        tuple(
            Dimension(block, count, rate * GIB, delay * 1e-9)
            for block, count, rate, delay in zip(blocks, counts, rates, delays, strict=True)
        ),
    )


def _links(blocks: Sequence[Block], counts: Sequence[int]) -> int:
    return math.prod(counts) * sum(
        count - 1 if block is Block.FULLY_CONNECTED else 2 for block, count in zip(blocks, counts, strict=True)
    )


def fabric_of(network: AstraNetwork) -> Fabric:
    """The network as a fabric: host `npu3` for NPU 3; rates as they are, since ASTRA-sim counts no headers.

    Links are called "link from npu0 to npu1", and at a switch "uplink of npu0" and "downlink of npu0"; in a network of
    several dimensions "in dimension 1" follows.
    """
    links: list[FabricLink] = []
    index: dict[tuple[int, int, int], int] = {}
    for at, dimension in enumerate(network.dimensions):
        suffix = f" in dimension {at}" if len(network.dimensions) > 1 else ""
        for src, dst in _pairs(network, at):
            if dst < 0:
                name = f"uplink of npu{src}"
            elif src < 0:
                name = f"downlink of npu{dst}"
            else:
                name = f"link from npu{src} to npu{dst}"
            index[at, src, dst] = len(links)
            links.append(FabricLink(name + suffix, dimension.bandwidth_Bps, dimension.latency_s))
    hosts = tuple(f"npu{npu}" for npu in range(network.npus))
    return Fabric(network.name, hosts, tuple(links), _Router(network, index))


SWITCH = -1
"""The device at the other end of an uplink or a downlink."""


def _pairs(network: AstraNetwork, at: int) -> Iterator[tuple[int, int]]:
    """Both ends of every link of a dimension."""
    dimension = network.dimensions[at]
    for npu in range(network.npus):
        peers = network.peers(npu, at)
        place = peers.index(npu)
        if dimension.block is Block.SWITCH:
            yield npu, SWITCH
            yield SWITCH, npu
        elif dimension.block is Block.RING:
            yield from ((npu, dst) for dst in dict.fromkeys((peers[(place + 1) % len(peers)], peers[place - 1])))
        else:
            yield from ((npu, dst) for dst in peers if dst != npu)


@dataclass(frozen=True)
class _Router:
    network: AstraNetwork
    index: dict[tuple[int, int, int], int]

    def route(self, src: int, dst: int, key: int) -> Sequence[int]:
        links: list[int] = []
        here = src
        for at, dimension in enumerate(self.network.dimensions):
            stride, count = self.network.stride(at), dimension.npus
            start, end = here // stride % count, dst // stride % count
            if start == end:
                continue
            there = here + (end - start) * stride
            if dimension.block is Block.SWITCH:
                links += (self.index[at, here, SWITCH], self.index[at, SWITCH, there])
            elif dimension.block is Block.FULLY_CONNECTED:
                links.append(self.index[at, here, there])
            else:
                clockwise = (end - start) % count
                step = 1 if 2 * clockwise <= count else -1
                base = here - start * stride
                for hop in range(min(clockwise, count - clockwise)):
                    place, following = (start + step * hop) % count, (start + step * (hop + 1)) % count
                    links.append(self.index[at, base + place * stride, base + following * stride])
            here = there
        return links


_FIELDS = ("topology", "npus_count", "bandwidth", "latency")


def _fields(text: str, where: str) -> dict[str, yaml.Node]:
    try:
        root = yaml.compose(text, yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UsageError(_one_line(error), where=where) from None
    if not isinstance(root, yaml.MappingNode):
        raise UsageError(f"is no mapping with {', '.join(_FIELDS)}", where=where)
    fields: dict[str, yaml.Node] = {}
    for key, value in root.value:
        name = str(key.value) if isinstance(key, yaml.ScalarNode) else "a key"
        if name not in _FIELDS:
            raise UsageError(
                "there is no such field", where=_at(where, key, name), hint=f"the fields are {', '.join(_FIELDS)}"
            )
        if name in fields:
            raise UsageError("is there twice", where=_at(where, key, name))
        fields[name] = value
    return fields


def _items(fields: dict[str, yaml.Node], field: str, where: str) -> list[yaml.Node]:
    node = fields.get(field)
    if node is None:
        raise UsageError("is missing", where=f"{where}: {field}")
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        raise UsageError("must be a list with one entry per dimension", where=_at(where, node, field))
    return list(node.value)


def _block(node: yaml.Node, where: str) -> Block:
    names = [block.value for block in Block]
    if not isinstance(node, yaml.ScalarNode) or node.value not in names:
        raise UsageError(
            f"{_shown(node)} is no topology", where=_at(where, node, "topology"), hint=f"one of {', '.join(names)}"
        )
    return Block(node.value)


def _number(node: yaml.Node, field: str, where: str, *, whole: bool = False) -> float:
    try:
        value = float(str(node.value)) if isinstance(node, yaml.ScalarNode) else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (whole and value != int(value)):
        raise UsageError(f"{_shown(node)} is no {'whole ' * whole}number", where=_at(where, node, field))
    return value


def _shown(node: yaml.Node) -> str:
    return repr(node.value) if isinstance(node, yaml.ScalarNode) else "a list or mapping"


def _at(where: str, node: yaml.Node, field: str) -> str:
    return f"{where}:{node.start_mark.line + 1}: {field}"


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError):
        return (error.strerror or "cannot be read").lower()
    return " ".join(str(error).split())
