"""htsim's connection matrices (`.cm`): read, and run on a network. docs/sim-formats.md has the format and the units.

The format is that of `ConnectionMatrix::load` in the Ultra Ethernet Consortium's htsim and in Broadcom's csg-htsim: a
header, then one connection, trigger or failure in a line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal

from headway.errors import UsageError
from headway.sim.formats.htsim import Failure, integer, read_text, tokens

STARTS_PER_SECOND = {"ps": 1e12, "us": 1e6}
"""What a bare `start` counts. Picoseconds in what htsim reads today, microseconds in what its `save` writes, in files
of before that change, and for the UEC program's reused connections (`msg`) and the Swift program."""
MOST_CONNECTIONS = 5_000_000
_HINT = "see docs/sim-formats.md"
_NUMBER = re.compile(r"[0-9]{1,18}(\.[0-9]{0,18})?([eE][+-]?[0-9]{1,2})?")
_HEADER = ("Nodes", "Connections", "Triggers", "Failures")
_VALUES = ("id", "start", "size", "trigger", "send_done_trigger", "recv_done_trigger", "prio")


class TriggerKind(Enum):
    """What a trigger does when it is set off."""

    ONESHOT = "oneshot"
    MULTISHOT = "multishot"
    BARRIER = "barrier"


@dataclass(frozen=True, slots=True)
class Trigger:
    """Starts connections when others are done.

    Attributes:
        kind: `oneshot` starts all that wait for it, once; `multishot` the next of them each time; `barrier` all when
            it was set off `count` times.
        line: of the file.
    """

    id: int
    kind: TriggerKind
    count: int
    line: int


@dataclass(frozen=True, slots=True)
class Connection:
    """One transfer.

    Attributes:
        src, dst: hosts.
        size_bytes: infinite where the file says 0: it never ends.
        start_s: when it begins; None if `trigger` starts it.
        id: of the connection; 0: none given.
        message: one of several on the connection with that id, sent one after the other.
        trigger: id of the trigger that starts it; 0: none.
        send_done, recv_done: triggers that it sets off; 0: none.
        line: of the file.
    """

    src: int
    dst: int
    size_bytes: float
    start_s: float | None
    id: int
    message: bool
    trigger: int
    send_done: int
    recv_done: int
    line: int


@dataclass(frozen=True)
class ConnectionMatrix:
    """What a `.cm` file holds. `where` is the file's name in errors."""

    where: str
    hosts: int
    connections: tuple[Connection, ...]
    triggers: Mapping[int, Trigger]
    failures: tuple[Failure, ...]


def read_connections(path: str | Path, *, start_unit: Literal["ps", "us"] = "ps") -> ConnectionMatrix:
    """A `.cm` file. UsageError names file, line and field of what is wrong."""
    return parse_connections(read_text(path), where=str(path), start_unit=start_unit)


def parse_connections(text: str, *, where: str, start_unit: Literal["ps", "us"] = "ps") -> ConnectionMatrix:
    """The same from the text; `where` is the file's name in errors."""
    header: dict[str, int] = {}
    connections: list[Connection] = []
    triggers: dict[int, Trigger] = {}
    failures: list[Failure] = []
    for line, words in tokens(text):
        place, first = f"{where}:{line}", words[0]
        if "->" in first:
            connections.append(_connection(words, line, place, STARTS_PER_SECOND[start_unit]))
            if len(connections) > MOST_CONNECTIONS:
                raise UsageError(f"more than {MOST_CONNECTIONS} connections", where=place)
        elif first == "trigger":
            trigger = _trigger(words, line, place)
            if trigger.id in triggers:
                what = f"trigger {trigger.id} is there already, in line {triggers[trigger.id].line}"
                raise UsageError(what, where=f"{place}: id")
            triggers[trigger.id] = trigger
        elif first == "failure":
            failures.append(_failure(words, place))
        elif first in _HEADER and not (connections or triggers or failures):
            if first in header:
                raise UsageError("is there twice", where=f"{place}: {first}")
            if len(words) != 2:
                raise UsageError(f"{len(words) - 1} values, one is needed", where=f"{place}: {first}", hint=_HINT)
            header[first] = integer(words[1], f"{place}: {first}")
        else:
            hint = f"a connection (0->1), trigger, failure, or before them {', '.join(_HEADER)}"
            raise UsageError(f"{first[:40]!r} begins no line", where=place, hint=hint)
    matrix = ConnectionMatrix(where, header.get("Nodes", 0), tuple(connections), triggers, tuple(failures))
    _check_counts(matrix, header)
    _check_connections(matrix)
    _check_triggers(matrix)
    return matrix


def _fields(words: Sequence[str], place: str, values: Sequence[str], flags: Sequence[str]) -> dict[str, str]:
    """`name value` pairs and lone words of a line; UsageError for what isn't known, or there twice."""
    found: dict[str, str] = {}
    at = 1
    while at < len(words):
        name = words[at]
        if name not in values and name not in flags:
            hint = f"known: {', '.join((*values, *flags))}"
            raise UsageError(f"{name[:40]!r} is no field here", where=place, hint=hint)
        if name in found:
            raise UsageError("is there twice", where=f"{place}: {name}")
        at += 1
        optional = name == "msg" and at < len(words) and words[at].isdigit()
        if name in values or optional:
            if at == len(words):
                raise UsageError("has no value", where=f"{place}: {name}", hint=_HINT)
            found[name] = words[at]
            at += 1
        else:
            found[name] = ""
    return found


def _integers(fields: Mapping[str, str], place: str, *names: str) -> list[int]:
    return [integer(fields[name], f"{place}: {name}") if name in fields else 0 for name in names]


def _connection(words: Sequence[str], line: int, place: str, per_second: float) -> Connection:
    ends = words[0].split("->")
    if len(ends) != 2:
        raise UsageError(f"{words[0][:40]!r} is no connection", where=place, hint="write for example 0->1")
    src, dst = (integer(end, f"{place}: src->dst") for end in ends)
    fields = _fields(words, place, _VALUES, ("msg",))
    for name in ("id", "msg", "trigger", "send_done_trigger", "recv_done_trigger"):
        if fields.get(name) and integer(fields[name], f"{place}: {name}") == 0:
            raise UsageError("0 is not allowed", where=f"{place}: {name}")
    if "size" not in fields:
        raise UsageError("there is no size", where=place, hint=_HINT)
    if ("start" in fields) == ("trigger" in fields):
        what = "start and trigger are both there" if "start" in fields else "there is neither start nor trigger"
        raise UsageError(what, where=place, hint="give one of them")
    if src == dst:
        raise UsageError(f"host {src} sends to itself", where=place)
    if "msg" in fields and "id" not in fields:
        raise UsageError("msg needs an id, that of its connection", where=place)
    start_s = None
    if "start" in fields:
        if not _NUMBER.fullmatch(fields["start"]):
            raise UsageError(f"{fields['start'][:40]!r} is not a number", where=f"{place}: start", hint=_HINT)
        start_s = float(fields["start"]) / per_second
    size, number, trigger, send, recv, _ = _integers(
        fields, place, "size", "id", "trigger", "send_done_trigger", "recv_done_trigger", "prio"
    )
    return Connection(src, dst, size or float("inf"), start_s, number, "msg" in fields, trigger, send, recv, line)


def _trigger(words: Sequence[str], line: int, place: str) -> Trigger:
    kinds = [kind.value for kind in TriggerKind]
    fields = _fields(words, place, ("id", "count"), kinds)
    given = [TriggerKind(kind) for kind in kinds if kind in fields]
    if len(given) != 1:
        raise UsageError(f"give one of {', '.join(kinds)}, not {len(given)}", where=place, hint=_HINT)
    number, count = _integers(fields, place, "id", "count")
    if number == 0:
        raise UsageError("a trigger needs an id above 0", where=place)
    if given[0] is TriggerKind.BARRIER and count == 0:
        raise UsageError("a barrier needs a count above 0", where=place)
    return Trigger(number, given[0], count, line)


def _failure(words: Sequence[str], place: str) -> Failure:
    fields = _fields(words, place, ("switch_type", "switch_id", "link_id"), ())
    for name in ("switch_type", "switch_id", "link_id"):
        if name not in fields:
            raise UsageError(f"there is no {name}", where=place, hint=_HINT)
    if fields["switch_type"] != "AGG":
        what = f"links up from {fields['switch_type'][:40]!r} can't fail, only those from AGG, as in htsim"
        raise UsageError(what, where=f"{place}: switch_type")
    switch, link = _integers(fields, place, "switch_id", "link_id")
    return Failure(switch, link, place)


def _check_counts(matrix: ConnectionMatrix, header: Mapping[str, int]) -> None:
    if "Nodes" not in header or "Connections" not in header:
        name = "Connections" if "Nodes" in header else "Nodes"
        raise UsageError(f"there is no {name}", where=matrix.where, hint=_HINT)
    counts = {"Connections": matrix.connections, "Triggers": matrix.triggers, "Failures": matrix.failures}
    for name, found in counts.items():
        if header.get(name, 0) != len(found):
            what = f"the header says {header.get(name, 0)}, there are {len(found)}"
            raise UsageError(what, where=f"{matrix.where}: {name}")


def _check_connections(matrix: ConnectionMatrix) -> None:
    lines: dict[int, Connection] = {}
    for connection in matrix.connections:
        place = f"{matrix.where}:{connection.line}"
        if max(connection.src, connection.dst) >= matrix.hosts:
            what = f"host {max(connection.src, connection.dst)} does not exist: there are {matrix.hosts} Nodes"
            raise UsageError(what, where=f"{place}: src->dst")
        first = lines.setdefault(connection.id, connection)
        if connection.id and first is not connection:
            if not connection.message:
                what = f"connection {connection.id} is there already, in line {first.line}"
                raise UsageError(what, where=f"{place}: id", hint="messages on one connection say msg")
            if (first.src, first.dst) != (connection.src, connection.dst):
                what = f"connection {connection.id} goes from {first.src} to {first.dst}, see line {first.line}"
                raise UsageError(what, where=f"{place}: src->dst")


def _check_triggers(matrix: ConnectionMatrix) -> None:
    set_off = Counter[int]()
    for connection in matrix.connections:
        for name, number in (
            ("trigger", connection.trigger),
            ("send_done_trigger", connection.send_done),
            ("recv_done_trigger", connection.recv_done),
        ):
            if number and number not in matrix.triggers:
                what = f"there is no trigger {number}"
                raise UsageError(
                    what, where=f"{matrix.where}:{connection.line}: {name}", hint="a line for it is needed"
                )
        set_off.update(number for number in (connection.send_done, connection.recv_done) if number)
    for trigger in matrix.triggers.values():
        times, place = set_off[trigger.id], f"{matrix.where}:{trigger.line}: trigger {trigger.id}"
        if trigger.kind is TriggerKind.ONESHOT and times > 1:
            raise UsageError(f"is set off by {times} connections, and works once", where=place, hint="barrier")
        if trigger.kind is TriggerKind.BARRIER and times != trigger.count:
            raise UsageError(f"waits for {trigger.count} connections, and {times} set it off", where=place)
