"""One cell of a sweep, and the row that it leaves. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue, TypeAdapter, ValidationError

from headway.errors import UsageError

Json = Mapping[str, JsonValue]
_OBJECT: TypeAdapter[dict[str, JsonValue]] = TypeAdapter(dict[str, JsonValue])
KEY_DIGITS = 16
"""Hexadecimal digits of a key: among a million cells two agree by chance once in 40 million sweeps."""


@dataclass(frozen=True)
class Cell:
    """One run of a sweep.

    Attributes:
        parameters: what tells it from the others, as people read it: {"access": "200Mbit", "seed": 3}.
        work: all that the function which runs it needs, as JSON.
    """

    parameters: Json
    work: Json

    def key(self, version: str) -> str:
        """Names this cell as run by that version of the code: the same for the same work, else another."""
        text = json.dumps([version, self.parameters, self.work], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]


@dataclass(frozen=True)
class Row:
    """What a cell left.

    Attributes:
        key: the cell's key.
        parameters: the cell's.
        values: what the function returned; empty where it failed.
        error: why it failed, in one line; empty where it did not.
        wall_s: how long it took, seconds of wall clock.
    """

    key: str
    parameters: Json
    values: Json = field(default_factory=dict)
    error: str = ""
    wall_s: float = 0.0

    def to_line(self) -> str:
        """As one JSON line, without the newline."""
        fields = {
            "key": self.key,
            "parameters": dict(self.parameters),
            "values": dict(self.values),
            "error": self.error,
            "wall_s": self.wall_s,
        }
        return json.dumps(fields, separators=(",", ":"))


def parse_row(line: str, *, where: str) -> Row:
    """A row from its line. UsageError says `where` when it is none."""
    try:
        fields = _OBJECT.validate_json(line)
        return Row(
            key=str(fields["key"]),
            parameters=_OBJECT.validate_python(fields["parameters"]),
            values=_OBJECT.validate_python(fields["values"]),
            error=str(fields["error"]),
            wall_s=float(str(fields["wall_s"])),
        )
    except (ValidationError, KeyError, ValueError):
        raise UsageError("is no row of a sweep", where=where) from None
