"""Chakra execution traces (mlcommons/chakra, schema 0.0.4): one file per NPU, PREFIX.0.et, PREFIX.1.et, ...

A file is a row of messages, each after its length: GlobalMetadata, then Nodes. It may be packed by gzip. Of a node are
read: id, name, type, ctrl_deps, data_deps (a node waits for both), duration_micros, inputs (of a METADATA_NODE, for
PyTorch's process groups), and of its attributes is_cpu_op, num_ops, tensor_size, comm_type, comm_size, comm_src,
comm_dst, comm_tag, comm_priority, pg_name, involved_dim. Attributes may have any of the schema's number types.

`comm_size` is what ASTRA-sim takes it for: the whole vector of an all-reduce and of a reduce-scatter, one NPU's block
of an all-gather, what one NPU has to send, its own part included, in an all-to-all.

Schemas before 0.0.4 had other fields and other numbers for the collectives; their files are refused.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TypeVar

from headway.errors import UsageError
from headway.sim.formats.wire import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    Field,
    WireError,
    double,
    fields,
    signed,
    varint,
    zigzag,
)

SCHEMA = "0.0.4"
_GROUPS_HINT = 'write for example {"1": [0, 1, 2, 3]}'
E = TypeVar("E", bound=Enum)


class NodeKind(Enum):
    """What a node does; the schema's numbers."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


class CommKind(Enum):
    """A collective's kind; the schema's numbers."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


@dataclass(frozen=True, slots=True)
class TraceNode:
    """One node of a trace.

    Attributes:
        id, name, kind: as in the file.
        after: ids of the nodes that end before it begins.
        duration_s: recorded.
        cpu: runs on the CPU.
        ops, tensor_bytes: for the roofline.
        comm: a collective's kind; None for others.
        size_bytes: of a collective (see the module) or message.
        src, dst, tag: of a message; -1 where the file leaves one's own number out.
        priority: of a collective, for the system file's EXPLICIT policy.
        group: name of its process group; empty: all NPUs.
        dimensions: whether each of the network's dimensions takes part; empty: all.
    """

    id: int
    name: str
    kind: NodeKind
    after: tuple[int, ...] = ()
    duration_s: float = 0.0
    cpu: bool = False
    ops: float = 0.0
    tensor_bytes: float = 0.0
    comm: CommKind | None = None
    size_bytes: int = 0
    src: int = -1
    dst: int = -1
    tag: int = 0
    priority: int = 0
    group: str = ""
    dimensions: tuple[bool, ...] = ()


@dataclass(frozen=True)
class Trace:
    """One NPU's nodes in the file's order, and the process groups that it names."""

    where: str
    nodes: tuple[TraceNode, ...]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def read_traces(prefix: Path, npus: int) -> tuple[Trace, ...]:
    """PREFIX.0.et to PREFIX.{npus-1}.et. UsageError when one is missing, wrong, or one too many is there."""
    paths = [prefix.with_name(f"{prefix.name}.{npu}.et") for npu in range(npus + 1)]
    if paths[npus].is_file():
        raise UsageError(f"is there, and the network has {npus} NPUs", where=str(paths[npus]))
    return tuple(read_trace(path) for path in paths[:npus])


def read_trace(path: Path) -> Trace:
    """One NPU's file. UsageError names the file, the byte and the field of what is wrong."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError((error.strerror or "cannot be read").lower(), where=str(path)) from None
    return parse_trace(data, where=str(path))


def parse_trace(data: bytes, *, where: str) -> Trace:
    """One NPU's trace from a file's bytes; `where` is the file's name for errors."""
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise UsageError(f"is packed by gzip, and broken: {error}", where=where) from None
    nodes: list[TraceNode] = []
    groups: dict[str, tuple[int, ...]] = {}
    position = 0
    try:
        if not data:
            raise WireError("is empty", 0)
        while position < len(data):
            at = position
            size, position = varint(data, position, len(data))
            if position + size > len(data):
                raise WireError(f"a message of {size} bytes begins, and {len(data) - position} are left", at)
            if at == 0:
                _check_version(data, position, position + size)
            else:
                reader = _NodeReader(data, position, position + size)
                nodes.append(reader.node())
                groups.update(reader.groups)
            position += size
    except WireError as error:
        raise UsageError(error.what, where=f"{where}: byte {error.position}") from None
    _check_graph(nodes, where)
    return Trace(where, tuple(nodes), groups)


def read_groups(path: Path) -> dict[str, tuple[int, ...]]:
    """Process groups from a JSON file, {"1": [0, 1, 2], ...}. UsageError names the file and the group."""
    try:
        data: object = json.loads(path.read_text())
    except OSError as error:
        raise UsageError((error.strerror or "cannot be read").lower(), where=str(path)) from None
    except json.JSONDecodeError as error:
        what = f"is no JSON: {error.msg[0].lower()}{error.msg[1:]}"
        raise UsageError(what, where=f"{path}:{error.lineno}", hint=_GROUPS_HINT) from None
    except (RecursionError, ValueError) as error:
        raise UsageError(str(error), where=str(path)) from None
    if not isinstance(data, dict):
        raise UsageError("is no object of groups and their NPUs", where=str(path), hint=_GROUPS_HINT)
    for name, npus in data.items():
        if not isinstance(npus, list) or not all(type(npu) is int and npu >= 0 for npu in npus):
            raise UsageError("must be a list of NPUs", where=f"{path}: {name}")
    return {str(name): tuple(npus) for name, npus in data.items()}


def _check_version(data: bytes, start: int, end: int) -> None:
    older = f"begins with no GlobalMetadata of schema {SCHEMA}: an older schema, or no trace"
    for each in fields(data, start, end):
        if each.number not in (1, 2) or each.kind != BYTES:
            raise WireError(older, each.start)
        if each.number == 1:
            version = _text(data, each)
            if version and version != SCHEMA:
                raise WireError(f"has schema {version!r}; {SCHEMA} is read", each.start)


def _text(data: bytes, each: Field) -> str:
    if each.kind != BYTES:
        raise WireError(f"field {each.number} is no text", each.start)
    try:
        return data[each.start : each.end].decode()
    except UnicodeDecodeError:
        raise WireError(f"field {each.number} is no text", each.start) from None


class _NodeReader:
    """One Node message."""

    def __init__(self, data: bytes, start: int, end: int) -> None:
        self._data, self._start = data, start
        self._plain: dict[int, int] = {}
        self._after: list[int] = []
        self._numbers: dict[str, float] = {}
        self._texts: dict[str, str] = {}
        self._dimensions: tuple[bool, ...] = ()
        self._name = ""
        self._inputs: Field | None = None
        self.groups: dict[str, tuple[int, ...]] = {}
        for each in fields(data, start, end):
            self._take(each)

    def node(self) -> TraceNode:
        """The node; WireError with the place of what is wrong."""
        if 3 not in self._plain:
            raise self._error("type", "is missing")
        kind = self._enum(NodeKind, self._plain[3], "type")
        if kind is NodeKind.METADATA and self._inputs is not None:
            self.groups = self._process_groups(self._inputs)
        comm = None
        if kind is NodeKind.COMM_COLL:
            comm = self._enum(CommKind, self._number("comm_type", needed=True), "comm_type")
        sized = kind in (NodeKind.COMM_SEND, NodeKind.COMM_RECV) or (comm is not None and comm is not CommKind.BARRIER)
        return TraceNode(
            id=self._plain.get(1, 0),
            name=self._name,
            kind=kind,
            after=tuple(dict.fromkeys(self._after)),
            duration_s=self._plain.get(7, 0) / 1e6,
            cpu=self._number("is_cpu_op") != 0,
            ops=self._number("num_ops"),
            tensor_bytes=self._number("tensor_size"),
            comm=comm,
            size_bytes=int(self._number("comm_size", needed=sized)),
            src=self._npu("comm_src", needed=kind is NodeKind.COMM_RECV),
            dst=self._npu("comm_dst", needed=kind is NodeKind.COMM_SEND),
            tag=int(self._number("comm_tag")),
            priority=int(self._number("comm_priority")),
            group=self._texts.get("pg_name", ""),
            dimensions=self._dimensions,
        )

    def _take(self, each: Field) -> None:
        if each.number in (1, 3, 6, 7):
            if each.kind != VARINT:
                raise WireError(f"a node's field {each.number} is no number", each.start)
            self._plain[each.number] = each.value
        elif each.number == 2:
            self._name = _text(self._data, each)
        elif each.number in (4, 5):
            self._after += _varints(self._data, each)
        elif each.number == 8 and each.kind == BYTES:
            self._inputs = each
        elif each.number == 10 and each.kind == BYTES:
            self._attribute(each.start, each.end)
        elif each.number != 9 or each.kind != BYTES:
            raise WireError(f"a node of schema {SCHEMA} has no field {each.number} like this", each.start)

    def _attribute(self, start: int, end: int) -> None:
        name, value = "", None
        for each in fields(self._data, start, end):
            if each.number == 1:
                name = _text(self._data, each)
            elif each.number != 2:
                value = each
        if value is None:
            return
        if name == "pg_name" and value.number == 29:
            self._texts[name] = _text(self._data, value)
        elif name == "involved_dim" and value.number == 28 and value.kind == BYTES:
            lists = [each for each in fields(self._data, value.start, value.end) if each.number == 1]
            self._dimensions = tuple(bool(bit) for each in lists for bit in _varints(self._data, each))
        elif name in _NUMBERS:
            number = _number(value)
            if number is None:
                raise WireError(f"{name} is no number", value.start)
            self._numbers[name] = number

    def _number(self, name: str, *, needed: bool = False) -> float:
        value = self._numbers.get(name)
        if value is None:
            if needed:
                raise self._error(name, "is missing")
            return 0.0
        if not 0 <= value < 1e18:
            raise self._error(name, f"cannot be {value:g}")
        return float(value)

    def _npu(self, name: str, *, needed: bool) -> int:
        return int(self._number(name, needed=needed)) if needed or name in self._numbers else -1

    def _enum(self, kinds: type[E], value: float, name: str) -> E:
        try:
            return kinds(int(value))
        except ValueError:
            raise self._error(name, f"has no value {value:g} in schema {SCHEMA}") from None

    def _error(self, name: str, what: str) -> WireError:
        return WireError(f"node {self._plain.get(1, 0)}: {name}: {what}", self._start)

    def _process_groups(self, inputs: Field) -> dict[str, tuple[int, ...]]:
        """PyTorch's: inputs.values holds a JSON list of {pg_name, ranks} between two more characters at each end."""
        for each in fields(self._data, inputs.start, inputs.end):
            if each.number != 1:
                continue
            text = _text(self._data, each)
            if "pg_name" not in text:
                return {}
            try:
                rows = json.loads(text[2:-2])
                return {str(row["pg_name"]): tuple(int(rank) for rank in row["ranks"]) for row in rows}
            except (ValueError, TypeError, KeyError, RecursionError):
                raise self._error("inputs", "process groups are not readable") from None
        return {}


_NUMBERS = {
    "is_cpu_op",
    "num_ops",
    "tensor_size",
    "comm_type",
    "comm_size",
    "comm_src",
    "comm_dst",
    "comm_tag",
    "comm_priority",
}
_FLOATING, _ZIGZAG = {3, 5}, {15, 17}
_KINDS = {
    **dict.fromkeys((7, 9, 11, 13, 15, 17, 27), VARINT),
    **dict.fromkeys((5, 19, 23), FIXED32),
    **dict.fromkeys((3, 21, 25), FIXED64),
}
"""Field of an attribute's value -> its wire type, for single numbers."""


def _number(each: Field) -> float | None:
    if _KINDS.get(each.number) != each.kind:
        return None
    if each.number in _FLOATING:
        return double(each.value, each.kind)
    if each.number in _ZIGZAG:
        return zigzag(each.value)
    return signed(each.value) if each.number in (7, 9) else each.value


def _varints(data: bytes, each: Field) -> list[int]:
    """A repeated number: one by one, or packed."""
    if each.kind == VARINT:
        return [each.value]
    if each.kind != BYTES:
        raise WireError(f"field {each.number} is no list of numbers", each.start)
    values, position = [], each.start
    while position < each.end:
        value, position = varint(data, position, each.end)
        values.append(value)
    return values


def _check_graph(nodes: Sequence[TraceNode], where: str) -> None:
    """Ids are there once, and nodes wait for nodes that are there, not for themselves."""
    waiting: dict[int, int] = {}
    following: dict[int, list[int]] = {}
    for node in nodes:
        if node.id in waiting:
            raise UsageError("is there twice", where=f"{where}: node {node.id}")
        waiting[node.id] = len(node.after)
        for before in node.after:
            following.setdefault(before, []).append(node.id)
    for before, after in following.items():
        if before not in waiting:
            raise UsageError(f"waits for node {before}, which is not there", where=f"{where}: node {after[0]}")
    free = [node for node, count in waiting.items() if not count]
    done = 0
    while free:
        done += 1
        for after_id in following.get(free.pop(), ()):
            waiting[after_id] -= 1
            if not waiting[after_id]:
                free.append(after_id)
    if done < len(nodes):
        stuck = min(node for node, count in waiting.items() if count)
        raise UsageError("waits for itself, by way of others", where=f"{where}: node {stuck}")
